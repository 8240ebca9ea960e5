"""The streaming metrics: against the definitions, under symmetries, splits and merges."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from definitions import definitions
from notsodeep.collapse import CollapseMetrics, CollapseReport, simplex_etf
from notsodeep.collapse.measures import majority_and_minority, numerical_rank
from notsodeep.collapse.metrics import ClassStatistics
from notsodeep.errors import InvalidInput, NotEnoughMemory, UnknownName

K, D = 5, 12
COUNTS = (40, 31, 20, 9, 4)


def cloud(
    counts: tuple[int, ...] = COUNTS, d: int = D, noise: float = 0.3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features around random class means, shuffled; labels; a classifier and a bias."""
    rng = np.random.default_rng(seed)
    num_classes = len(counts)
    means = rng.normal(size=(num_classes, d)) + 2.0
    y = rng.permutation(np.repeat(np.arange(num_classes), counts))
    H = means[y] + noise * rng.normal(size=(len(y), d)) * np.exp(rng.normal(size=d))
    return (
        H,
        y,
        means - means.mean(axis=0) + 0.3 * rng.normal(size=means.shape),
        rng.normal(size=num_classes),
    )


def measured(H, y, W=None, b=None, num_classes: int = K, **options) -> CollapseReport:
    metrics = CollapseMetrics(num_classes, **options)
    metrics.update(H, y)
    mismatch = None if W is None else metrics.mismatch(H, W, b, labels=y)
    return metrics.compute(W, b, mismatch=mismatch)


def numbers(measures: dict[str, float]) -> dict[str, float]:
    return {k: v for k, v in measures.items() if not math.isnan(v)}


def assert_same(first: CollapseReport, second: CollapseReport, tolerance: float) -> None:
    for a, b in itertools.chain(
        [(first.overall, second.overall)],
        ((first.groups[name], second.groups[name]) for name in first.groups),
    ):
        assert numbers(a).keys() == numbers(b).keys()
        assert numbers(a) == pytest.approx(numbers(b), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_every_measure_is_its_definition(seed: int) -> None:
    H, y, W, b = cloud(seed=seed)
    found = numbers(measured(H, y, W, b).overall)
    expected = definitions(H, y, W, b)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-9)


def test_two_hand_made_classes() -> None:
    H = np.array([[3.0, 1.0], [3.0, -1.0], [-1.0, 2.0], [-1.0, -2.0]])
    report = measured(H, np.array([0, 0, 1, 1]), num_classes=2)
    np.testing.assert_allclose(report.variances, [1.0, 4.0])
    np.testing.assert_allclose(report.feature_norms, [2.0, 2.0])
    assert report.overall["nc1_trace_ratio"] == pytest.approx(2.5 / 4.0)
    assert report.overall["nc1_cdnv"] == pytest.approx(5.0 / 32.0)
    assert report.overall["nc1"] == pytest.approx(0.0, abs=1e-15)  # scatter is orthogonal to S_B
    np.testing.assert_allclose(report.feature_cosines, [[1, -1], [-1, 1]])


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_everything_vanishes_on_an_etf(num_classes: int) -> None:
    E = simplex_etf(num_classes, 16, rng=2)
    y = np.repeat(np.arange(num_classes), 6)
    report = measured(3.0 * E[y], y, 0.5 * E, np.zeros(num_classes), num_classes)
    for name, value in numbers(report.overall).items():
        expected = -1.0 / (num_classes - 1) if name.startswith("cosine") else 0.0
        assert value == pytest.approx(expected, abs=1e-12), name
    assert report.between_rank == num_classes - 1
    assert report.groups == {}
    assert "variance zero up to rounding" in report.notes[0]


def test_nearly_collapsed_variance_is_not_lost_to_cancellation() -> None:
    """Noise of 1e-7 beside means of 1e3: squares differ in the 20th digit."""
    E = 1e3 * simplex_etf(4, 8, rng=0) + 1e3
    y = np.repeat(np.arange(4), 500)
    noise = np.random.default_rng(1).choice([-1e-7, 1e-7], size=(2000, 8))
    variances = measured(E[y] + noise, y, num_classes=4).variances
    np.testing.assert_allclose(variances, 8e-14, rtol=2e-2)


def test_rotation_scale_shift_and_order_change_nothing() -> None:
    H, y, W, b = cloud()
    rng = np.random.default_rng(3)
    Q = np.linalg.qr(rng.normal(size=(D, D)))[0]
    shift = rng.normal(size=D)
    reference = measured(H, y, W, b)
    assert_same(reference, measured(H @ Q.T, y, W @ Q.T, b), 1e-10)
    # logits stay as they are: W(h + shift) + b − W shift
    assert_same(reference, measured(H + shift, y, W, b - W @ shift), 1e-10)
    assert_same(reference, measured(7.0 * H, y, W / 7.0, b), 1e-10)
    order = rng.permutation(len(y))
    assert_same(reference, measured(H[order], y[order], W, b), 1e-10)
    relabel = rng.permutation(K)
    V, c = np.empty_like(W), np.empty_like(b)
    V[relabel], c[relabel] = W, b
    assert_same(reference, measured(H, relabel[y], V, c), 1e-10)


@given(
    st.lists(st.integers(0, sum(COUNTS)), max_size=8),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
    st.sampled_from(["full", "trace"]),
)
def test_any_split_and_merge_order_give_the_same(cuts, workers, random, scatter) -> None:
    H, y, W, b = cloud()
    reference = measured(H, y, W, b, scatter=scatter)
    pieces = np.split(np.arange(len(y)), sorted(cuts))  # some of them empty
    crew = [CollapseMetrics(K, scatter=scatter) for _ in range(workers)]
    random.shuffle(pieces)
    for piece in pieces:
        worker = random.choice(crew)
        worker.update(H[piece], y[piece])
        if random.random() < 0.5:
            _ = worker.statistics.means  # looked at in between: batches that waited are joined
    while len(crew) > 1:
        random.shuffle(crew)
        crew[0].merge(crew.pop())
    mismatches = [crew[0].mismatch(H[p], W, b, labels=y[p]) for p in pieces if len(p)]
    total = mismatches[0]
    for other in mismatches[1:]:
        total = total + other
    assert_same(reference, crew[0].compute(W, b, mismatch=total), 1e-10)


@pytest.mark.parametrize("scatter", ["full", "trace"])
def test_batches_of_every_size_give_the_same(scatter) -> None:
    """Small ones, which wait for each other, and large ones, which do not; arrays are reused."""
    H, y, W, _ = cloud((4000, 3000, 2000, 1000, 500), d=6)
    reference = measured(H, y, W, scatter=scatter)
    for size in (100, 1000, 5000):
        metrics = CollapseMetrics(K, scatter=scatter)
        for start in range(0, len(y), size):
            batch, labels = H[start : start + size].copy(), y[start : start + size].copy()
            metrics.update(batch, labels)
            batch[:], labels[:] = np.nan, 0
        report = metrics.compute(W)
        expected = {k: v for k, v in numbers(reference.overall).items() if k != "nc4"}
        assert numbers(report.overall) == pytest.approx(expected, rel=1e-10)


def test_merging_leaves_the_other_alone_and_compute_changes_nothing() -> None:
    H, y, W, _ = cloud()
    first, second = CollapseMetrics(K), CollapseMetrics(K)
    first.update(H[:60], y[:60])
    second.update(H[60:], y[60:])
    before = second.statistics.storage.copy()
    first.merge(second)
    first.merge(CollapseMetrics(K))  # has seen nothing
    np.testing.assert_array_equal(second.statistics.storage, before)
    once = first.compute(W)
    assert_same(once, first.compute(W), 0.0)
    empty = CollapseMetrics(K)
    empty.merge(first)
    assert_same(once, empty.compute(W), 1e-14)


def test_statistics_travel_as_one_array() -> None:
    H, y, W, _ = cloud()
    here, there = CollapseMetrics(K), CollapseMetrics(K)
    here.update(H, y)
    sent = np.frombuffer(here.statistics.storage.tobytes()).reshape(K, -1).copy()
    there.resume(ClassStatistics(K, D, storage=sent))
    assert_same(here.compute(W), there.compute(W), 0.0)
    with pytest.raises(InvalidInput, match="be of 5 classes"):
        CollapseMetrics(K).resume(ClassStatistics(3, D))
    with pytest.raises(InvalidInput, match=r"float64 array of shape"):
        ClassStatistics(K, D + 1, storage=sent)
    with pytest.raises(InvalidInput, match="writable contiguous float64"):
        ClassStatistics(K, D, storage=sent.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_tensors(dtype: torch.dtype) -> None:
    H, y, W, b = cloud()
    tensor = torch.tensor(H, requires_grad=True).to(dtype)
    labels = torch.tensor(y)
    metrics = CollapseMetrics(K)
    metrics.update(tensor, labels)
    weight = torch.nn.Parameter(torch.tensor(W))
    mismatch = metrics.mismatch(tensor, weight, torch.tensor(b), labels=labels)
    found = metrics.compute(weight, torch.tensor(b), mismatch=mismatch)
    assert_same(found, measured(tensor.detach().double().numpy(), y, W, b), 1e-12)


def test_traces_alone() -> None:
    H, y, W, b = cloud()
    full, trace = measured(H, y, W, b), measured(H, y, W, b, scatter="trace")
    assert math.isnan(trace.overall["nc1"])
    expected = numbers(full.overall)
    del expected["nc1"]
    assert numbers(trace.overall) == pytest.approx(expected, rel=1e-12)


def test_groups_by_size_and_by_name() -> None:
    H, y, W, b = cloud()
    report = measured(H, y, W, b)
    groups = report.groups
    assert list(groups) == ["majority", "minority"]  # the average class has 20.8 samples
    # NC1 of the whole is the mean over classes, so over a partition.
    parts = [groups[name] for name in ("majority", "minority")]
    whole = sum(size * part["nc1"] for size, part in zip((2, 3), parts, strict=True)) / K
    assert report.overall["nc1"] == pytest.approx(whole, rel=1e-12)
    cosines = report.classifier_cosines
    assert cosines is not None
    expected = np.mean([cosines[2, 3], cosines[2, 4], cosines[3, 4]])
    assert groups["minority"]["cosine_classifier"] == pytest.approx(expected)
    named = measured(H, y, W, b, groups={"pair": [4, 1], "everything": range(K), "one": [3]})
    assert numbers(named.groups["everything"]) == pytest.approx(numbers(report.overall))
    assert named.groups["pair"]["nc1_cdnv"] == pytest.approx(report.cdnv[1, 4])
    one = named.groups["one"]
    assert math.isnan(one["nc2_features"])
    assert one["nc1_trace_ratio"] == pytest.approx(
        report.variances[3] / report.feature_norms[3] ** 2
    )
    members = y == 3
    mu = np.array([H[y == k].mean(axis=0) for k in range(K)])
    nearest = np.linalg.norm(H[members][:, None] - mu, axis=2).argmin(axis=1)
    assert one["nc4"] == pytest.approx(np.mean((H[members] @ W.T + b).argmax(axis=1) != nearest))


def test_groups_vanish_at_collapse_too() -> None:
    E = simplex_etf(K, D, rng=0)
    y = np.repeat(np.arange(K), COUNTS)
    report = measured(E[y], y, 2 * E, np.zeros(K))
    for measures in report.groups.values():
        for name, value in numbers(measures).items():
            expected = -0.25 if name.startswith("cosine") else 0.0
            assert value == pytest.approx(expected, abs=1e-12), name


def test_a_merged_minority_is_seen() -> None:
    """Coinciding minority classifiers: cosine 1, and every minority mean is a tie."""
    E = simplex_etf(3, 8, rng=0)
    W = E[[0, 1, 2, 2]]
    y = np.repeat(np.arange(4), (20, 20, 2, 2))
    rng = np.random.default_rng(0)
    report = measured(W[y] + 1e-3 * rng.normal(size=(44, 8)), y, W, np.zeros(4), 4)
    assert report.groups["minority"]["cosine_classifier"] == pytest.approx(1.0)
    assert report.groups["minority"]["nc4_of_means"] == 1.0
    assert report.groups["majority"]["nc4_of_means"] == 0.0


def test_rank_of_centred_means_is_below_the_number_of_classes() -> None:
    """Whatever the cut-off: the last singular value is rounding."""
    singular = np.array([1.0, 1e-3, 1e-9])
    assert numerical_rank(singular, 3, 0.0, 0.0) == 2
    assert numerical_rank(singular, 4, 0.0, 0.0) == 3
    assert numerical_rank(singular, 4, 1e-2, 0.0) == 1
    assert numerical_rank(singular, 4, 1e-10, 1e-6) == 2  # rounding decides
    assert numerical_rank(singular, 4, 1e-10, 2.0) == 0


def test_majority_and_minority() -> None:
    assert majority_and_minority(np.array([5, 5, 5])) == {}
    split = majority_and_minority(np.array([1, 100, 1, 1, 1, 1, 1, 1]))
    np.testing.assert_array_equal(split["majority"], [1])


def test_degenerate_classes() -> None:
    """What is not defined is NaN, what diverges infinite, and a note says why."""
    H, y, W, b = cloud()
    H[y == 1] += H[y == 0].mean(axis=0) - H[y == 1].mean(axis=0)
    report = measured(H, y, W, b)
    assert report.overall["nc1_cdnv"] == math.inf
    assert "the means of classes 0 and 1 coincide" in report.notes
    assert report.between_rank == K - 2
    assert any("S_B has rank 3" in note for note in report.notes)
    assert math.isfinite(report.overall["nc1"])

    y = np.repeat(np.arange(3), 10)
    H = np.tile(np.random.default_rng(0).normal(size=(10, 4)), (3, 1)) + 5.0
    report = measured(H, y, np.eye(3, 4), np.zeros(3), 3)
    assert report.between_rank == 0
    assert report.overall["nc1"] == report.overall["nc1_trace_ratio"] == math.inf
    assert math.isnan(report.overall["nc2_features"])
    assert math.isnan(report.overall["nc3_duality"])
    assert np.isnan(report.feature_cosines).all()
    assert any("no cosines: classes 0, 1, 2" in note for note in report.notes)

    points = measured(np.ones((4, 3)), np.array([0, 0, 1, 1]), num_classes=2)
    assert points.overall["nc1_cdnv"] == math.inf  # 0/0: no variance and no distance

    H, y, W, b = cloud((10, 10, 1))
    report = measured(H, y, W, b, 3)
    assert report.variances[2] == 0.0
    assert "one sample, so variance zero: classes 2" in report.notes

    means = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    y = np.repeat(np.arange(3), 4)
    H = means[y] + np.tile([[0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1]], (3, 1))
    report = measured(H, y, num_classes=3)
    assert math.isnan(report.overall["cosine_features"])
    assert "means at the centre, so no cosines: classes 2" in report.notes

    H, y, W, _ = cloud()
    report = measured(H, y, np.zeros_like(W), np.zeros(K))
    for name in ("nc2_classifier", "nc3_alignment", "nc3_duality", "equinorm_classifier"):
        assert math.isnan(report.overall[name])
    assert report.overall["nc4_of_means"] == 1.0  # every class is a tie

    H, y, W, b = cloud((9, 8, 7, 6, 5), d=2)
    report = measured(H, y, W, b)
    assert report.between_rank == 2
    assert report.overall["nc1"] == pytest.approx(definitions(H, y, W, b)["nc1"])


def test_mismatch_without_labels_knows_no_groups() -> None:
    H, y, W, b = cloud()
    metrics = CollapseMetrics(K)
    metrics.update(H, y)
    mismatch = metrics.mismatch(H[:50], W, b) + metrics.mismatch(H[50:], W, b, labels=y[50:])
    report = metrics.compute(W, b, mismatch=mismatch)
    assert report.overall["nc4"] == pytest.approx(definitions(H, y, W, b)["nc4"])
    assert math.isnan(report.groups["minority"]["nc4"])
    assert "second pass" in metrics.compute(W, b).notes[-1]
    assert mismatch.ties == 0
    assert metrics.mismatch(H, 0.0 * W).ties == len(H)


def test_report_prints() -> None:
    H, y, W, b = cloud()
    for report in (measured(H, y, W, b), measured(H, y)):
        lines = str(report).splitlines()
        assert max(map(len, lines)) <= 79
        assert "minority" in lines[1]
    many = measured(H, y, W, b, groups={f"number {k}": [k] for k in range(K)})
    assert max(map(len, str(many).splitlines())) <= 79


def test_report_serialises() -> None:
    H, y, W, b = cloud()
    for report in (measured(H, y, W, b), measured(H, y)):
        form = json.loads(json.dumps(report.to_dict(), allow_nan=False))
        assert form["overall"]["nc2_features"] == pytest.approx(report.overall["nc2_features"])
        assert CollapseReport.from_dict(form).to_dict() == report.to_dict()


class TestRefusals:
    def test_construction(self) -> None:
        with pytest.raises(InvalidInput, match="integer of at least 2"):
            CollapseMetrics(1)
        with pytest.raises(UnknownName, match="scatter"):
            CollapseMetrics(3, scatter="fulll")
        with pytest.raises(InvalidInput, match=r"groups\['x'\] must be a list"):
            CollapseMetrics(3, groups={"x": [3]})

    def test_samples(self) -> None:
        metrics = CollapseMetrics(3)
        with pytest.raises(InvalidInput, match=r"labels from 0 to 2.*a label 3"):
            metrics.update(np.ones((2, 4)), [0, 3])
        with pytest.raises(InvalidInput, match="one label for each of the 2 rows"):
            metrics.update(np.ones((2, 4)), [0])
        with pytest.raises(InvalidInput, match="be finite"):
            metrics.update(np.full((2, 4), np.nan), [0, 1])
        with pytest.raises(InvalidInput, match="has seen no samples"):
            metrics.compute()
        metrics.update(np.ones((2, 4)), [0, 1])
        with pytest.raises(InvalidInput, match="have 4 columns, as before"):
            metrics.update(np.ones((2, 5)), [0, 1])
        with pytest.raises(InvalidInput, match="class 2 empty"):
            metrics.compute()
        other = CollapseMetrics(3, scatter="trace")
        with pytest.raises(InvalidInput, match="with scatter='full'"):
            metrics.merge(other)

    def test_classifier(self) -> None:
        H, y, W, b = cloud()
        metrics = CollapseMetrics(K)
        metrics.update(H, y)
        with pytest.raises(InvalidInput, match=r"W of .* must have shape \(5, 12\)"):
            metrics.compute(W.T)
        with pytest.raises(InvalidInput, match=r"b must have shape \(5,\)"):
            metrics.mismatch(H, W, b[1:])
        with pytest.raises(InvalidInput, match="have 12 columns"):
            metrics.mismatch(H[:, 1:], W, b)

    def test_scatter_that_does_not_fit(self) -> None:
        row = np.ones((1, 30_000))
        with pytest.raises(NotEnoughMemory, match=r"1341\.\d GiB.*scatter='trace'"):
            CollapseMetrics(200).update(row, [0])
        CollapseMetrics(200, scatter="trace").update(row, [0])
