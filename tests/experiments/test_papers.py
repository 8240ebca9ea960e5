"""What the papers' experiments compute: descents, scalings, features, laws and averages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments.accuracy.accuracy_versus_width import EXPERIMENT as WIDTHS
from experiments.accuracy.authors_protocol import ROLES, _model, plain_descent, runs, table
from experiments.accuracy.vgg19 import CHANNELS, POOLED_AFTER, features
from experiments.accuracy.width_summary import by_width
from experiments.kernels.gap_versus_dimension import slopes
from experiments.kernels.gaussian_process_limit import _distance, _features
from experiments.kernels.image_scalings import SCALINGS, _scaled, factor_for
from experiments.kernels.kernel_variability import EXPERIMENT as VARIABILITY
from experiments.runner import Record
from notsodeep.errors import NotConverged
from notsodeep.models import DeepEquilibrium, Dense
from notsodeep.networks.sampling import random_network


def test_slopes_are_those_of_the_gaps() -> None:
    records = [
        {"cell": {"activation": "relu", "dimension": p}, "conjugate": {"gap": 3.0 * p**-0.5}}
        for p in (100, 200, 400)
    ]
    assert slopes(records, "conjugate")["relu"] == pytest.approx(-0.5)


def test_draws_are_put_together() -> None:
    def record(width: int, draw: int, accuracies: tuple[float, ...], phi: str = "relu") -> Record:
        roles = ("deq", "matched", "unmatched")
        times = dict(zip(roles, (6.0 + draw, 2.0, 2.0), strict=True))
        cell = {"data": "digits", "activation": phi, "train": "readout", "width": width}
        return {
            "cell": {**cell, "draw": draw},
            "networks": {r: {"accuracy": a} for r, a in zip(roles, accuracies, strict=True)},
            "seconds": {"training": times, "inference": times},
            "kernel_gap": {"matched": 0.01, "unmatched": 0.2},
        }

    records = [record(64, 0, (0.9, 0.8, 0.7)), record(32, 0, (0.5, 0.5, 0.5))]
    records += [record(64, 1, (0.92, 0.84, 0.7)), record(32, 0, (0.1, 0.2, 0.3), "tanh")]
    single, pair, other = by_width(records)
    assert [(s.activation, s.width, s.draws) for s in (single, pair, other)] == [
        ("relu", 32, 1), ("relu", 64, 2), ("tanh", 32, 1),
    ]  # fmt: skip
    assert pair.difference("matched") == pytest.approx(-9.0)
    assert sum(pair.interval("matched")) / 2 == pytest.approx(-9.0)
    assert pair.deviation("matched") == pytest.approx(np.std([80.0, 84.0], ddof=1))
    assert pair.ratio("training") == pytest.approx(6.5 / 2.0)
    assert pair.accuracy_text("deq") == "91.00 ± 1.41"
    assert single.interval("matched") is None


def test_cifar_needs_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    assert not any(cell["data"] == "cifar10" for cell in WIDTHS.cells("paper"))
    (tmp_path / "vgg19.pth").write_bytes(b"weights")
    assert any(cell["data"] == "cifar10" for cell in WIDTHS.cells("paper"))


@pytest.mark.parametrize("normalised", [False, True])
def test_features_of_vgg19(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalised: bool
) -> None:
    """Against the published architecture, with random weights of a sensible size."""
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k, (before, after) in enumerate(zip((3, *CHANNELS), CHANNELS, strict=False), 1):
        layers.append(nn.Conv2d(before, after, 3, padding=1))
        nn.init.kaiming_normal_(layers[-1].weight)
        if normalised:
            norm = nn.BatchNorm2d(after)
            for tensor in (norm.weight, norm.bias, norm.running_mean):
                nn.init.normal_(tensor, 1.0, 0.3)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            layers.append(norm)
        layers.append(nn.ReLU())
        if k in POOLED_AFTER:
            layers.append(nn.MaxPool2d(2))
    stack = nn.Sequential(*layers).eval()
    state = {f"features.{key}": value for key, value in stack.state_dict().items()}
    torch.save({"state_dict": {**state, "classifier.0.weight": torch.zeros(4, 8)}}, tmp_path / "w")
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    mean, std = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    with torch.inference_mode():
        x = torch.from_numpy(images).float() / 255.0
        x = (x - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(std).reshape(3, 1, 1)
        expected = {True: stack(x), False: stack[:-1](x)}
    for pooled, wanted in expected.items():
        wanted = wanted.flatten(1).numpy()
        for _ in range(2):  # computed, and read again
            got = features(images, tmp_path / "w", pooled=pooled)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * wanted.max())


def test_descent_follows_the_gradient() -> None:
    rng = np.random.default_rng(0)
    F, y = rng.standard_normal((12, 5)).astype(np.float32), rng.integers(0, 3, 12)
    T, settings = np.eye(3)[y], {"epochs": 1, "batch_size": 12, "rate": 0.5, "seed": 0}
    a, losses = plain_descent(F, y, 3, **settings)
    np.testing.assert_allclose(a, -0.5 * (1.0 / 3.0 - T).T @ F / 12, atol=1e-6)
    assert losses == pytest.approx([np.log(3.0)])
    # Small steps for long lead to where the gradient of the mean loss vanishes.
    F = F[:, :2]
    a, losses = plain_descent(F, y, 3, **{**settings, "epochs": 3000})
    scores = np.exp(F @ a.T)
    shares = scores / scores.sum(axis=1, keepdims=True)
    assert np.abs((shares - T).T @ F / 12).max() < 1e-3


def test_where_the_constant_is() -> None:
    x, c = np.array([-1.0, 0.2, 1.0]), 1.0 / np.sqrt(2.0 * np.pi)
    for name, wanted in (
        ("relu, 2 layers, constant inside", np.maximum(x - c, 0.0)),
        ("relu, 2 layers", np.maximum(x, 0.0) - c),
        ("relu, 2 layers, no constant", np.maximum(x, 0.0)),
        ("tanh, weights scaled", np.tanh(np.sqrt(0.2) * x)),
    ):
        network: Any = _model(name, name[:4], 0.2)
        np.testing.assert_allclose(network.activations[0](x), wanted, atol=1e-12)


def test_a_change_touches_what_it_names_and_rows_have_complete_draws() -> None:
    base = runs("mnist", "relu", "as the authors", 64, 0)
    moved = runs("mnist", "relu", "constant outside the ReLU", 64, 0)
    assert [role for role in ROLES if moved[role] != base[role]] == ["plain"]
    assert runs("cifar10", "relu", "rate ten times as large", 64, 0)["deq"]["rate"] == 1.0
    assert "rate" not in runs("mnist", "relu", "as here", 64, 0)["plain"]

    def record(change: str, role: str, draw: int, accuracy: float) -> Record:
        return {"cell": runs("mnist", "tanh", change, 64, draw)[role], "accuracy": accuracy}

    records = [record("as the authors", role, 0, 0.5) for role in ROLES]
    records += [record("as the authors", role, 1, 0.6) for role in ROLES[:2]]
    records.append(record("weights not scaled", "plain", 0, 0.7))
    rows = table(records)
    assert [row["change"] for row in rows] == ["as the authors", "weights not scaled"]
    assert rows[0]["accuracies"]["plain"] == [50.0]
    assert rows[1]["accuracies"] == {"deq": [50.0], "matched": [50.0], "plain": [70.0]}


def test_scalings_do_what_they_say() -> None:
    pixels = np.random.default_rng(0).uniform(0.0, 16.0, (20, 9))
    for scaling in SCALINGS:
        X = _scaled(pixels, scaling)
        assert (np.abs(X.mean(axis=0)).max() < 1e-12) == ("mean removed" in scaling)
        if "root mean squared" in scaling:
            assert np.square(X).sum(axis=1).mean() == pytest.approx(1.0)
    records = [
        {"cell": {"scaling": SCALINGS[0], "factor": s}, "equivalent": {"gap": 4.0 * s**3}}
        for s in (0.5, 1.0, 2.0)
    ]
    assert factor_for(records, 4.0 * 0.7**3) == pytest.approx([0.7])
    assert factor_for(records, 100.0) == []


def test_weights_drawn_where_they_are_looked_at_have_the_law_of_whole_matrices() -> None:
    rng = np.random.default_rng(0)
    X, layer = np.array([[1.0, 0.0], [0.6, 0.8]]), Dense("tanh", 0.36, inject=1.0)
    model = DeepEquilibrium(cell=[layer])
    drawn = [random_network(model, 2, 60, rng).features(X) for _ in range(400)]
    whole = np.stack([Z @ Z.T for Z in drawn])
    parts = np.stack([Z @ Z.T for Z in (_features(layer, X, 60, 1e-5, rng) for _ in range(400))])
    error = np.sqrt((whole.var(axis=0) + parts.var(axis=0)) / 400)
    assert (np.abs(whole.mean(axis=0) - parts.mean(axis=0)) < 4.0 * error).all()
    # The spread, which is that of finite width, agrees too.
    np.testing.assert_allclose(parts.std(axis=0), whole.std(axis=0), rtol=0.2)
    with pytest.raises(NotConverged, match="larger width"):
        _features(layer, X, 10, 1e-6, rng)
    # Two points at the median: the step from 0 to 1 is half a unit away from the law.
    assert _distance(np.zeros(2)) == pytest.approx(0.5)


def test_variability_on_gaussian_classes() -> None:
    for cell in (c for c in VARIABILITY.cells("smoke") if c["dimension"] == 8):
        values = VARIABILITY.compute(cell, 0)["nc1"]
        for name in ("relu", "erf"):
            assert np.min(np.divide(values[name]["tangent"], values[name]["conjugate"])) > 0.9
        assert np.max(np.divide(values["erf"]["conjugate"], values["relu"]["conjugate"])) < 1.0
