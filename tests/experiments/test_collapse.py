"""Heads, networks and comparisons of the collapse experiments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from experiments.collapse.backbones import Perceptron, ResNet18
from experiments.collapse.compare import (
    by_settings,
    heads_of,
    holm,
    last_value,
    measures_of,
    paired_difference,
    share_of_gain,
)
from experiments.collapse.heads import ACTIVATIONS, KINDS, Head, cut_singular_values
from experiments.collapse.kernels import EXPERIMENT as KERNELS
from experiments.collapse.phase import cosine_at, merged, rows_of
from experiments.collapse.train import collapse_data, collapse_network, fit, head_cell, train_cell
from experiments.runner import Record, run
from notsodeep.collapse import CollapseMetrics, head_gain

D = 12
SMALL: dict[str, Any] = {"samples": 300, "test_samples": 80, "width": 16, "epochs": 3}
STEP: dict[str, Any] = {**SMALL, "num_majority": 6, "ratio": 10.0}


def head_of(kind: str, **options: Any) -> Head:
    return Head(kind, D, 0.5, 3, strict=True, dtype=torch.float64, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_its_operator_with_its_gain(kind: str) -> None:
    head, h = head_of(kind), torch.from_numpy(np.random.default_rng(1).normal(size=(7, D)))
    torch.testing.assert_close(head(h), h @ head.operator().T, rtol=1e-9, atol=1e-9)
    name = kind if kind in ("explicit", "residual") else "deq"
    steps = 3 if kind == "deq_truncated" else None
    assert head.gain_bound == pytest.approx(
        head_gain("explicit", 2.0) if kind.startswith("explicit_") else head_gain(name, 0.5, steps)
    )
    with torch.no_grad():  # where the bound is attained
        scale = 0.5 if kind == "explicit_inverse" else head.budget
        head.matrix.copy_(scale * torch.eye(D))
    norm = float(torch.linalg.matrix_norm(head.operator().detach(), 2))
    assert norm == pytest.approx(head.gain_bound, rel=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_head_stretches_by_more_than_its_gain(kind: str, activation: str) -> None:
    head, rng = head_of(kind, activation=activation), np.random.default_rng(7)
    with torch.no_grad():
        head.matrix.copy_(torch.from_numpy(0.4 * rng.normal(size=(D, D))))
    head.constrain()
    nearest = head.matrix.detach().clone()
    head.constrain()
    torch.testing.assert_close(head.matrix.detach(), nearest, rtol=1e-12, atol=1e-12)
    h = torch.from_numpy(rng.normal(size=(200, D)))
    near = h + 1e-3 * torch.from_numpy(rng.normal(size=(200, D)))
    with torch.no_grad():
        stretch = (head(near) - head(h)).norm(dim=1) / (near - h).norm(dim=1)
    assert 0.1 * head.gain_bound < float(stretch.max()) <= head.gain_bound * (1 + 1e-6)


def test_bounds_are_kept_where_many_singular_values_are_equal() -> None:
    # A walk along the bound; in single precision the decomposition of step 97 is silently wrong.
    generator = torch.Generator().manual_seed(2)
    matrix = 0.5 * torch.linalg.qr(torch.randn(256, 256, generator=generator))[0]
    matrix *= torch.linspace(1.5, 0.1, 256)
    for step in range(100):
        before = matrix.double()
        cut_singular_values(matrix, 0.5)
        if step >= 90:
            left, singular, right = torch.linalg.svd(before)
            expected = (left * singular.clamp(max=0.5)) @ right
            torch.testing.assert_close(matrix.double(), expected, rtol=0.0, atol=1e-7)
        matrix += 3e-7 * torch.randn(256, 256, generator=generator)


def test_heads_differ_in_nothing_else() -> None:
    cells = {kind: head_cell(kind, **SMALL, seed=4) for kind in KINDS}
    data = collapse_data(cells["deq"])
    first, *others = (collapse_network(cell, data).state_dict() for cell in cells.values())
    for other in others:
        assert all(torch.equal(first[k], other[k]) for k in first if k != "head.matrix")


def test_backbones_have_their_size_and_parameters_without_scale() -> None:
    # 11,173,962 is the usual count with a classifier of ten classes and its bias.
    net = ResNet18((3, 32, 32), np.random.default_rng(0))
    assert sum(p.numel() for p in net.parameters()) == 11_173_962 - 10 * 513
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(16, 192)))
    for net in (Perceptron(192, (9, 5), rng), ResNet18((3, 8, 8), rng, width=2)):
        net = net.double()
        before = net(X)
        with torch.no_grad():
            for name, weights in net.named_parameters():
                weights *= 30.0 if name in net.scale_free_names else 1.0
        torch.testing.assert_close(net(X), before, rtol=1e-3, atol=1e-3)  # but for BatchNorm's eps


@pytest.mark.parametrize("kind", ["residual", "deq"])
def test_measurements_are_those_of_the_trained_network(kind: str) -> None:
    cell = head_cell(kind, **STEP, seed=2)
    record = train_cell(cell, 0)
    data = collapse_data(cell)
    network = collapse_network(cell, data)
    fit(network, data, cell)
    network.eval()
    with torch.no_grad():
        z = network.head(network.backbone(torch.as_tensor(data.X)))
        logits = network(torch.as_tensor(data.X_test))
    weight, metrics = network.classifier.weight, CollapseMetrics(10)
    metrics.update(z, data.y)
    report = metrics.compute(weight, mismatch=metrics.mismatch(z, weight, labels=data.y))
    last = record["epochs"][-1]
    for name in ("nc1", "nc1_cdnv", "nc2_features", "nc2_classifier", "nc3_duality", "nc4"):
        assert last[name] == pytest.approx(report.overall[name], rel=1e-6), name
    right = logits.argmax(dim=1).numpy() == data.y_test
    assert last["test_accuracy"] == float(right.mean())
    assert last["test_minority_accuracy"] == float(right[data.y_test >= 6].mean())
    assert np.bincount(data.y).tolist() == [30] * 6 + [3] * 4
    assert last["gain"] <= record["gain_bound"] * (1 + 1e-5)
    assert record["epochs"][-1]["loss"] < record["epochs"][0]["loss"]
    assert sum(record["three_classes"]["share"]) == pytest.approx(1.0)  # three means, one plane
    assert (last["solver"] is None) == (kind == "residual")


def test_the_phase_diagram(tmp_path: Any) -> None:
    records = run("collapse-phase", "smoke", tmp_path / "records.jsonl")
    by_class = [r for r in records if r["cell"]["feature_budget"] == "class"]
    heads = {r["cell"]["row"]: r for r in by_class if r["cell"]["row"] != "gain"}
    assert {name: r["gain"] for name, r in heads.items()} == pytest.approx({
        "explicit": 0.5, "plain": 1.0, "residual": 1.5, "deq_truncated": 1.75, "deq": 2.0,
        "explicit_matched": 2.0,
    })  # fmt: skip
    for name, threshold in (("explicit", 3.380), ("plain", 27.74), ("residual", 283.0)):
        assert heads[name]["threshold"] == pytest.approx(threshold, rel=1e-3)
    (sample,) = (r for r in rows_of(records, "plain") if r not in by_class)
    assert sample["threshold"] == pytest.approx(84.24, rel=1e-3)
    # The DEQ keeps its minority by gain alone.
    assert cosine_at(heads["deq"], 100.0) == pytest.approx(0.0426, abs=1e-3)
    for key in ("cosines", "log_losses"):
        assert heads["explicit_matched"][key] == pytest.approx(heads["deq"][key], abs=1e-9)
    assert max(record["attainment_error"] for record in records) < 1e-12
    for record in records:  # the line separates the points
        for ratio, cosine in zip(record["cell"]["ratios"], record["cosines"], strict=True):
            assert merged(cosine) == (ratio >= record["threshold"])


def test_a_matched_network_has_the_variability_of_its_deq() -> None:
    cell = next(cell for cell in KERNELS.cells("smoke") if cell["activation"] == "relu")
    record = KERNELS.compute(cell, 0)
    for measure in ("nc1", "nc1_trace_ratio", "nc1_cdnv"):
        matched, unmatched = (
            abs(record[name][measure] / record["deq"][measure] - 1.0)
            for name in ("matched", "unmatched")
        )
        assert matched < min(0.02, unmatched)


def record(head: str, seed: int, *, ratio: float | None = None, **values: float | None) -> Record:
    """Make a record of one epoch with a few numbers."""
    last = {"nc1": 1.0, "loss": 1.0, "test_accuracy": 0.5, **values}
    return {
        "settings": {"head": head, "seed": seed, "data": "digits", "ratio": ratio},
        "groups": {} if ratio is None else {"majority": [0, 1], "minority": [2, 3]},
        "epochs": [{"nc1": 99.0}, last],
    }


def test_differences_are_paired_over_seeds() -> None:
    leads = [0.02, 0.03, 0.04]
    records = [record("explicit", s, test_accuracy=0.1 * s + 0.5) for s in range(3)]
    records += [record("deq", s, test_accuracy=0.1 * s + 0.5 + leads[s]) for s in range(3)]
    accuracy = next(m for m in measures_of(records) if m.key == "test_accuracy")
    found = paired_difference(records, accuracy, "explicit")
    half = stats.t.ppf(0.975, 2) * 0.01 / math.sqrt(3)
    assert (found.value, found.low, found.high) == pytest.approx((0.03, 0.03 - half, 0.03 + half))
    assert (found.verdict, found.seeds) == ("ahead", 3)
    assert paired_difference(records, accuracy, "deq", head="explicit").verdict == "behind"
    even = [record(h, s, test_accuracy=a) for h, a in (("explicit", 0.5), ("deq", 0.6))
            for s in (0, 1)]  # fmt: skip
    assert paired_difference(even, accuracy, "explicit").verdict == "open"


def test_many_comparisons_are_corrected() -> None:
    assert holm([0.03, 0.001, 0.02, 0.5]) == [False, True, False, False]
    assert holm([0.01, 0.02, 0.04]) == [True, True, True]
    gaps = [0.01, 0.05, 0.03]
    records = [record("explicit", s, nc1=1.0) for s in range(3)]
    records += [record("deq", s, nc1=math.exp(-gaps[s])) for s in range(3)]
    found = paired_difference(records, measures_of(records)[0], "explicit")
    assert found.p_value == pytest.approx(stats.ttest_1samp(gaps, 0.0).pvalue)


def test_ratios_and_the_share_of_gain() -> None:
    nc1 = {"explicit": 8.0, "explicit_matched": 2.0, "deq": 1.0}
    records = [record(h, s, nc1=v * (1 + 0.001 * s)) for h, v in nc1.items() for s in range(3)]
    measure = measures_of(records)[0]
    lead = paired_difference(records, measure, "explicit")
    assert (lead.value, lead.verdict) == (pytest.approx(1 / 8), "ahead")  # smaller is better
    assert share_of_gain(records, measure) == pytest.approx(2 / 3)  # two of three halvings
    assert share_of_gain([r for r in records if r["settings"]["head"] != "deq"], measure) is None


def test_what_cannot_be_said_is_not_said() -> None:
    single = [record("explicit", 0, nc1=8.0), record("deq", 0, nc1=1.0)]
    measure = measures_of(single)[0]
    assert paired_difference(single, measure, "explicit").verdict == "open"
    assert share_of_gain(single, measure) is None
    missing = [record("explicit", 0, nc1=None), record("deq", 0, nc1=1.0)]
    assert math.isnan(last_value(missing[0], "nc1"))
    strangers = [record("explicit", 0), record("deq", 1)]
    for records in (missing, strangers):
        assert paired_difference(records, measure, "explicit") is None


def test_groups_differ_in_head_and_seed_alone() -> None:
    records = [
        record(head, seed, ratio=ratio, minority_cosine=0.1)
        for ratio in (10.0, 100.0) for seed in range(2) for head in ("deq", "explicit")
    ]  # fmt: skip
    groups = by_settings(records)
    assert [len(group) for group in groups] == [4, 4]
    assert heads_of(records) == ["explicit", "deq"]
    assert measures_of(groups[0])[0].key == "minority_cosine"
