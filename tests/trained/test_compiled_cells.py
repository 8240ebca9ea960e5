"""Compiling networks with given weights."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from given_networks import ACTIVATIONS, drawn_cell
from notsodeep.activations import Activation, named
from notsodeep.compilation.trained_record import TrainedCompilation
from notsodeep.data import pixel_data
from notsodeep.data.image_store import data_directory
from notsodeep.errors import DataCorrupted, InvalidInput, NotConverged
from notsodeep.trained import AffineCell, EquilibriumCell, explicit_layers
from notsodeep.trained.explicit_layers import _gaussian_moments
from notsodeep.trained.fidelity import conformal_quantile, fidelity_of, lower_bound
from notsodeep.trained.splittings import solve

CHECKPOINT = "NOTSODEEP_MONOTONE_CHECKPOINT"


def rows(count: int, seed: int, inputs: int = 12) -> np.ndarray:
    """Return rows with the few strong directions that data have."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).standard_normal((4, inputs))
    return rng.standard_normal((count, 4)) @ mixing + 0.1 * rng.standard_normal((count, inputs))


@pytest.fixture(scope="module")
def cell() -> AffineCell:
    rng = np.random.default_rng(8)
    return drawn_cell(rng, named("relu"), width=16, inputs=12, classes=4, margin=1.0, size=2.0)


@pytest.fixture(scope="module")
def compiled(cell: AffineCell) -> TrainedCompilation:
    X, X_test = rows(1200, 1), rows(600, 2)
    y, y_test = (cell.logits(solve(cell, part)[0]).argmax(axis=1) for part in (X, X_test))
    found = nsd.compile(cell, X, y, X_test, y_test, layers=3, random_state=0)
    assert isinstance(found, TrainedCompilation)
    return found


def test_layers_follow_the_network(cell: AffineCell, compiled: TrainedCompilation) -> None:
    by_layers = compiled.fidelity_by_layers
    assert list(by_layers) == [1, 2, 3]
    errors = [fidelity.logit_error for fidelity in by_layers.values()]
    assert errors[2] < errors[1] < errors[0]
    assert compiled.fidelity.agreement > 0.97
    assert compiled.fidelity.agreement_bound < compiled.fidelity.agreement
    assert (
        compiled.fidelity.agreement
        > compiled.baselines["random features, read-out refitted"].agreement
    )
    # The module itself, against the DEQ solved by another route.
    X = rows(600, 2)
    z, _ = solve(cell, X, method="forward_backward", tolerance=1e-11)
    classes = cell.logits(z).argmax(axis=1)
    scores = compiled.network(torch.as_tensor(X, dtype=torch.float32))
    assert np.mean(scores.argmax(dim=1).numpy() == classes) == pytest.approx(
        compiled.fidelity.agreement, abs=2 / 600
    )


def test_the_hybrid_gives_the_networks_own_classes(
    cell: AffineCell, compiled: TrainedCompilation
) -> None:
    X = rows(2000, 3)
    classes = cell.logits(solve(cell, X, tolerance=1e-12)[0]).argmax(axis=1)
    hybrid = compiled.hybrid()
    scores = hybrid(torch.as_tensor(X))
    np.testing.assert_array_equal(scores.argmax(dim=1).numpy(), classes)
    record = hybrid.last_record
    assert record is not None
    assert record.rows == len(record.steps) == 2000
    assert list(record.certified_after) == sorted(record.certified_after)
    assert record.certified_after[-1] > 0.3
    # Rows that layers have proved take no steps, and only these.
    assert np.mean(record.steps == 0) == pytest.approx(record.certified_after[-1])
    # One row at a time gives the same, and so do rows of single precision.
    single = hybrid(torch.as_tensor(X[:3], dtype=torch.float32))
    np.testing.assert_array_equal(single.argmax(dim=1).numpy(), classes[:3])


def test_a_tie_is_solved_and_counted(cell: AffineCell, compiled: TrainedCompilation) -> None:
    weights = np.stack([compiled.cell.readout[0][0]] * 2)
    tied = EquilibriumCell.from_weights(
        cell.recurrent, cell.injection, cell.bias, "relu", (weights, None), shift=0.1, scale=0.7
    )
    found = nsd.compile(tied, rows(200, 4), layers=1)
    hybrid = found.hybrid()
    hybrid(torch.as_tensor(rows(20, 5)))
    assert hybrid.last_record is not None
    assert hybrid.last_record.uncertified == 20


def test_the_front_and_its_headline(compiled: TrainedCompilation) -> None:
    front = compiled.front
    kinds = {point.kind for point in front.points}
    assert kinds == {"tolerance", "truncated", "explicit", "hybrid"}
    assert [p.parameter for p in front.points if p.kind == "tolerance"] == [
        1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6,
    ]  # fmt: skip
    assert "0.01" in front.headline
    assert "0.001" in front.headline
    assert front.point("explicit", 3).ratio == 1.0
    assert front.point("tolerance", 1e-6).agreement == 1.0
    assert all(p.quartiles[0] <= p.ratio <= p.quartiles[1] for p in front.points)


def test_saved_and_read_again(compiled: TrainedCompilation, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    place = compiled.save(tmp_path / "run")
    again = nsd.load(place)
    assert isinstance(again, TrainedCompilation)
    assert again.to_dict() == compiled.to_dict()
    X = rows(7, 6).astype(np.float32)
    expected = compiled.network(torch.as_tensor(X))
    assert torch.equal(again.network(torch.as_tensor(X)), expected)
    assert torch.equal(again.hybrid()(torch.as_tensor(X)), compiled.hybrid()(torch.as_tensor(X)))
    session = onnxruntime.InferenceSession(str(place / "network.onnx"))
    (scores,) = session.run(None, {"x": X})
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)
    with pytest.raises(InvalidInput, match="holds no compile run"):
        nsd.Compilation.load(place)


def test_a_stopped_compilation_resumes(
    cell: AffineCell, compiled: TrainedCompilation, tmp_path: Path
) -> None:
    """Stopped before every piece in turn; each piece is computed once, whoever asks for it."""
    phases = ["margin and solver", "explicit layers", "fidelity", "baselines", "the front"]
    said: list[str] = []
    y_test = cell.logits(solve(cell, rows(600, 2))[0]).argmax(axis=1)

    def work(last: str = "", seed: int = 1, **options: Any) -> TrainedCompilation:
        def say(message: str) -> None:
            if message == last:
                raise KeyboardInterrupt
            said.append(message)

        options = {"layers": 3, "out": tmp_path / "run", "progress": say, **options}
        found = nsd.compile(cell, rows(1200, seed), None, rows(600, 2), y_test, **options)
        assert isinstance(found, TrainedCompilation)
        return found

    for phase in phases[1:]:
        with pytest.raises(KeyboardInterrupt):
            work(phase)
        with pytest.raises(DataCorrupted, match="not finished"):
            nsd.load(tmp_path / "run")
    found = work()
    assert [message for message in said if message in phases] == phases
    assert _without_clock(found.to_dict()) == _without_clock(compiled.to_dict())
    said.clear()
    assert work().to_dict() == found.to_dict()
    assert said == []  # all of it was there
    assert compiled.save(tmp_path / "run") == tmp_path / "run"  # the same rows and weights
    with pytest.raises(InvalidInput, match=r"another run .*other data: X has SHA-256"):
        work(seed=5)
    with pytest.raises(InvalidInput, match="layers is 3 there and 2 here"):
        work(layers=2)
    assert len(work(layers=2, force=True).layers) == 2


def _without_clock(form: dict[str, Any]) -> dict[str, Any]:
    del form["verdict"]  # its reasons have times in them
    for point in form["front"]["points"]:
        del point["ratio"], point["quartiles"]
    return form


def test_what_is_shown(compiled: TrainedCompilation, tmp_path: Path) -> None:
    page = compiled.report(tmp_path / "report.html").read_text()
    assert "same class" in page
    assert "recurrence dropped" in page
    assert "src=" not in page
    assert compiled.verdict.word in ("replaceable", "not shown", "not replaceable")
    assert "Rule:" in str(compiled)
    assert len(compiled.plot().axes) == 2
    assert compiled.front.plot().get_xscale() == "log"


@pytest.mark.parametrize(
    "options",
    [
        {"kinds": "solver_step", "layers": 2},
        {"fit": "moments", "layers": 2},
        {"width": 8, "layers": 2},
        {"width": 24, "layers": 2},
        {"refine": "distil", "layers": 1},
        {},
    ],
    ids=str,
)
def test_other_ways_to_make_layers(cell: AffineCell, options: dict[str, object]) -> None:
    found = nsd.compile(cell, rows(400, 7), **options)
    assert isinstance(found, TrainedCompilation)
    assert found.fidelity.agreement > 0.8
    if options.get("kinds") == "solver_step":
        assert {layer.kind for layer in found.layers} <= {"Peaceman–Rachford", "forward–backward"}
    if "width" in options:
        assert len(found.layers[0].bias) == options["width"]
        assert len(found.layers[-1].bias) == cell.width
    if options.get("refine"):
        assert "agreement on rows set apart" in found.evidence.distilled


@pytest.mark.parametrize("name", ["tanh", "gelu", "normalized_relu"])
def test_other_activations(name: str) -> None:
    rng = np.random.default_rng(9)
    W = rng.standard_normal((10, 10))
    W *= 0.4 / np.linalg.norm(W, 2)
    readout = (rng.standard_normal((3, 10)), None)
    cell = EquilibriumCell.from_weights(W, rng.standard_normal((10, 12)) / 4, 0.0, name, readout)
    found = nsd.compile(cell, rows(300, 10), layers=2)
    assert found.fidelity.certified is not None
    X = torch.as_tensor(rows(100, 11))
    classes = cell.logits(solve(cell, X)[0]).argmax(axis=1)
    answers = found.hybrid()(X).argmax(dim=1).numpy()
    np.testing.assert_array_equal(answers, classes)


def test_without_a_margin_nothing_is_proved() -> None:
    """Two stable states: the solver finds one of them, and nobody can prove which."""
    readout = (np.eye(2), None)
    cell = EquilibriumCell.from_weights(1.2 * np.eye(2), np.eye(2) * 3, 0.0, "tanh", readout)
    found = nsd.compile(cell, rows(90, 12, inputs=2), layers=1)
    assert isinstance(found, TrainedCompilation)
    assert found.fidelity.certified is None
    assert "No row can be proved" in str(found.verdict)
    with pytest.raises(InvalidInput, match="must have a margin"):
        found.hybrid()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones((10, 12))}, "X of compile must have at least"),
        ({"X": np.ones((100, 5))}, "must have 12 features"),
        ({"layers": 0}, "layers of compile"),
        ({"kinds": "best"}, "Unknown kinds"),
        ({"fit": "magic"}, "Unknown fit"),
        ({"y": np.ones(3)}, "y of compile must be a vector"),
        ({"y": np.full(100, 4)}, "y of compile must be the indices of the network's 4 logits"),
        ({"y_test": np.ones(100, int)}, "y_test of compile must come with X_test"),
        (
            {"y": np.ones(100, int), "X_test": rows(30, 14)},
            "y_test of compile must come with y and X_test",
        ),
        ({"X_test": rows(5, 14)}, "X_test of compile must have at least 20 rows"),
        ({"tolerance": -1.0}, "tolerance of compile must be positive"),
    ],
)
def test_what_is_rejected(cell: AffineCell, change: dict[str, object], message: str) -> None:
    arguments = {"X": rows(100, 13), **change}
    with pytest.raises(InvalidInput, match=message):
        nsd.compile(cell, **arguments)


def test_moments_alone_do_on_a_stiff_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """In terms of u = Wz + h they have no limit there; in terms of a splitting's pre-image, one."""
    rng = np.random.default_rng(14)
    cell = drawn_cell(rng, named("relu"), width=16, inputs=12, margin=20.0, size=30.0)
    found = nsd.compile(cell, rows(400, 15), fit="moments", layers=2)
    assert isinstance(found, TrainedCompilation)
    assert found.layers[0].kind == "moments"
    assert found.layers[0].step < found.margin.beta
    assert found.fidelity.agreement > 0.95
    assert found.fidelity.certified is not None
    assert found.fidelity.certified > 0.5
    monkeypatch.setattr(explicit_layers, "_moment_layer", lambda *arguments: None)
    with pytest.raises(NotConverged, match="no self-consistent values"):
        nsd.compile(cell, rows(400, 15), fit="moments", layers=2)


@pytest.mark.parametrize("activation", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_moments_of_activations(activation: Activation) -> None:
    centre, spread = np.array([0.3, -1.0, 2.0, 0.0]), np.array([1.0, 0.5, 2.0, 1e-3])
    level, slope, rest = _gaussian_moments(activation, centre, spread)
    x = np.linspace(-9.0, 9.0, 400_001)[:, None]
    weight = np.exp(-0.5 * x**2) / np.exp(-0.5 * x**2).sum()
    values = activation(centre + spread * x)
    along = (weight * values * x).sum(axis=0)
    np.testing.assert_allclose(level, (weight * values).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(slope, along / spread, atol=1e-5)
    explained = (weight * values).sum(axis=0) ** 2 + along**2
    np.testing.assert_allclose(rest, (weight * values**2).sum(axis=0) - explained, atol=1e-5)


def test_bounds_of_shares_and_distances() -> None:
    # Clopper and Pearson: P(Binomial(n, bound) ≥ successes) = 5 %.
    from scipy import stats

    bound = lower_bound(47, 50)
    assert stats.binom.sf(46, 50, bound) == pytest.approx(0.05, rel=1e-6)
    rng = np.random.default_rng(16)
    covered = [
        rng.standard_normal() <= conformal_quantile(rng.standard_normal(99)) for _ in range(2000)
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=5 * np.sqrt(0.05 * 0.95 / 2000))


@pytest.mark.slow
def test_a_public_network() -> None:
    """A trained monotone network for MNIST, where the user has it and says where."""
    path = os.environ.get(CHECKPOINT)
    images = data_directory() / "mnist"
    if not path or not (images / "test_images.npy").exists():
        pytest.skip(f"needs {CHECKPOINT}, the path of a safetensors file, and MNIST")
    from safetensors.numpy import load_file

    w = load_file(path)
    readout = (w["C"], w["c"])
    cell = EquilibriumCell.from_weights(
        w["W"], w["U"], w["b"], "relu", readout, shift=0.1307, scale=0.3081
    )
    X = np.load(images / "test_images.npy").reshape(-1, 784) / 255.0
    y = np.load(images / "test_labels.npy").astype(np.int64)
    order = np.random.default_rng(0).permutation(10_000)
    exact = cell.logits(solve(cell, X)[0]).argmax(axis=1)
    assert 0.982 <= np.mean(exact == y) <= 0.983
    held = X[order[5000:]]
    found = nsd.compile(cell, X[order[:5000]], X_test=held, layers=3)
    assert isinstance(found, TrainedCompilation)
    reached = [fidelity.agreement for fidelity in found.fidelity_by_layers.values()]
    assert np.all(np.array(reached) >= [0.96, 0.987, 0.993])
    answers = found.hybrid()(torch.as_tensor(held)).argmax(dim=1).numpy()
    np.testing.assert_array_equal(answers, exact[order[5000:]])


@pytest.mark.parametrize(
    "option", [{"family": "leaky_relu"}, {"seeds": 3}, {"preprocessing": "theory"}, {"ridge": 0.1}]
)
def test_options_of_random_deqs_are_rejected_by_name(option: dict[str, Any]) -> None:
    cell = nsd.EquilibriumCell.from_weights(np.zeros((3, 3)), np.eye(3), activation="tanh")
    with pytest.raises(InvalidInput, match=f"{next(iter(option))} of compile must be left out"):
        nsd.compile(cell, np.ones((50, 3)), **option)
    with pytest.raises(InvalidInput, match="layers of compile must be left out for a random DEQ"):
        nsd.compile(nsd.DeepEquilibrium("tanh", 0.2), np.ones((50, 3)), np.arange(50) % 2, layers=2)


def test_the_order_of_the_rows_does_not_matter() -> None:
    cell = drawn_cell(np.random.default_rng(20), named("tanh"))
    X = rows(300, 21, inputs=5)
    one, other = (nsd.compile(cell, part, layers=2, random_state=0) for part in (X, X[::-1]))
    assert one.fidelity.agreement == other.fidelity.agreement
    assert one.fidelity.logit_error == pytest.approx(other.fidelity.logit_error, rel=1e-9)


@pytest.mark.parametrize(
    ("same", "word"), [(700, "replaceable"), (693, "not shown"), (650, "not replaceable")]
)
def test_agreement_is_judged_by_both_bounds(
    compiled: TrainedCompilation, same: int, word: str
) -> None:
    exact = np.eye(2)[np.zeros(700, dtype=int)]
    scores = np.eye(2)[(np.arange(700) >= same).astype(int)]
    fidelity = fidelity_of(scores, exact)
    assert fidelity.agreement_bound < fidelity.agreement_upper
    evidence = dataclasses.replace(compiled.evidence, fidelities=(fidelity,))
    assert dataclasses.replace(compiled, evidence=evidence).verdict.word == word


def test_layers_are_chosen_by_the_verdicts_rule() -> None:
    """One layer agreed on all rows set apart, and too seldom on the others."""
    cell, data = nsd.zoo.load("tanh-digits-64"), pixel_data("digits")
    found = nsd.compile(cell, data.X, X_test=data.X_test)
    assert found.verdict.word == "replaceable"
    assert found.fidelity.agreement_bound >= 0.99


def test_rows_in_the_scale_of_the_theory_are_rejected() -> None:
    """A network with a scale of its own is 63 % accurate on them, and 92 % on its own."""
    cell = nsd.zoo.load("tanh-digits-64")
    with pytest.raises(InvalidInput, match=r"units of the network's own.*'theory'.*pixel_data"):
        nsd.compile(cell, nsd.data.load("digits"))


def test_labels_that_were_numbered_anew_are_rejected() -> None:
    """Of two classes loaded alone the labels are 0 and 1, whatever the network calls them."""
    cell = nsd.zoo.load("tanh-digits-64")
    with pytest.raises(InvalidInput, match=r"have all classes of the set.*only 3, 5.*classes="):
        nsd.compile(cell, pixel_data("digits", classes=(3, 5)))


def test_the_proved_share_is_of_the_network_that_is_handed_over() -> None:
    """Ties of 3e-9 are proved in float64; the network answers in float32."""
    rng = np.random.default_rng(0)
    W, U = 1e-9 * rng.standard_normal((6, 6)), rng.standard_normal((6, 4))
    cell = EquilibriumCell.from_weights(W, U, None, "relu", (rng.standard_normal((3, 6)), None))

    def classes(x: np.ndarray) -> np.ndarray:
        return cell.logits(solve(cell, x)[0]).argmax(axis=1)

    low, high = rng.standard_normal((2, 300, 4))
    differ = (first := classes(low)) != classes(high)
    low, high, first = low[differ], high[differ], first[differ]
    step = 3e-9 * (low - high)
    for _ in range(55):
        middle = (low + high) / 2
        same = (classes(middle) == first)[:, None]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    ties = np.concatenate([low + step, high - step])
    found = nsd.compile(cell, rng.standard_normal((300, 4)), X_test=ties, layers=2)
    answers = found.network(torch.as_tensor(ties, dtype=torch.float32)).argmax(dim=1).numpy()
    agreement = np.mean(answers == classes(ties))
    assert agreement < 0.95
    assert found.fidelity.agreement == pytest.approx(agreement, abs=1e-9)
    assert found.fidelity.certified <= agreement
