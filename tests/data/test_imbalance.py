"""Imbalance and class-balanced training: counts, determinism, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep.data import BalancedBatches, ExponentialImbalance, StepImbalance, class_weights
from notsodeep.data.imbalance import imbalance_from_dict
from notsodeep.errors import InvalidInput

Y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))


@pytest.mark.parametrize("num_majority", [3, 5, 7])
@pytest.mark.parametrize("ratio", [1, 10, 50, 100, 2.5])
def test_step_imbalance(num_majority: int, ratio: float) -> None:
    imbalance = StepImbalance(num_majority, ratio)
    indices = imbalance.indices(Y, rng=1)
    counts = np.bincount(Y[indices])
    assert (counts[:num_majority] == 500).all()
    assert (counts[num_majority:] == 500 // ratio).all()
    assert (np.diff(indices) > 0).all()


def test_exponential_imbalance() -> None:
    indices = ExponentialImbalance(100).indices(Y, rng=1)
    counts = np.bincount(Y[indices])
    # ⌊500 · 100^{−k/9}⌋, the long-tailed CIFAR-10 of the literature with 500 in place of 5000
    np.testing.assert_array_equal(counts, [500, 299, 179, 107, 64, 38, 23, 13, 8, 5])
    assert (np.bincount(Y[ExponentialImbalance(1.0).indices(Y, rng=1)]) == 500).all()


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_smallest_class_is_an_integer_quotient(largest: int, ratio: int) -> None:
    """Rounded powers must not turn n/R into one less."""
    if largest < ratio:
        with pytest.raises(InvalidInput, match=f"{largest} // {ratio} = 0"):
            ExponentialImbalance(ratio).counts(10, largest)
    else:
        assert ExponentialImbalance(ratio).counts(10, largest)[-1] == largest // ratio
        assert StepImbalance(1, ratio).counts(10, largest)[-1] == largest // ratio


@pytest.mark.parametrize("imbalance", [StepImbalance(3, 10), ExponentialImbalance(10)])
def test_labels_and_seed_decide_alone(imbalance) -> None:
    first = imbalance.indices(Y, rng=4)
    np.testing.assert_array_equal(first, imbalance.indices(Y.tolist(), rng=4))
    assert not np.array_equal(first, imbalance.indices(Y, rng=5))
    assert imbalance_from_dict(imbalance.to_dict()) == imbalance


def test_unequal_classes_start_from_the_smallest() -> None:
    y = np.repeat([0, 1, 2], [90, 40, 60])
    counts = np.bincount(y[StepImbalance(2, 4).indices(y, rng=0)])
    np.testing.assert_array_equal(counts, [40, 40, 10])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StepImbalance(3, 501).indices(Y, rng=0), r"500 // 501 = 0.*at most 500"),
        (lambda: ExponentialImbalance(501).indices(Y, rng=0), r"500 // 501 = 0"),
        (lambda: StepImbalance(10, 2).indices(Y, rng=0), "less than the 10 classes"),
        (lambda: StepImbalance(0, 2), "num_majority of StepImbalance"),
        (lambda: StepImbalance(1, 0.5), "ratio of StepImbalance must be at least 1"),
        (lambda: ExponentialImbalance(float("inf")), "finite"),
        (lambda: StepImbalance(1, 2).indices([0, 0, 2, 2], rng=0), "class 1 empty"),
        (lambda: StepImbalance(1, 2).indices([-1, 0], rng=0), "label -1"),
        (lambda: StepImbalance(1, 2).indices(np.array([], int), rng=0), "none"),
        (lambda: class_weights([0, 2]), "class 1 empty"),
        (lambda: class_weights([0, 1], "effective_number", beta=1.0), "0 ≤ beta < 1"),
        (lambda: class_weights([0, 1], "inverted"), "Unknown kind"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_weights() -> None:
    y = np.repeat([0, 1, 2], [80, 15, 5])
    inverse = class_weights(y)
    np.testing.assert_allclose(inverse, 100 / (3 * np.array([80, 15, 5])))
    assert inverse[y].mean() == pytest.approx(1.0)
    effective = class_weights(y, "effective_number", beta=0.99)
    raw = (1 - 0.99) / (1 - 0.99 ** np.array([80, 15, 5]))
    np.testing.assert_allclose(effective / effective[0], raw / raw[0])
    assert effective[y].mean() == pytest.approx(1.0)
    np.testing.assert_allclose(class_weights(y, "effective_number", beta=0.0), 1.0)


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch_size=st.integers(1, 12),
    epoch=st.integers(0, 3),
)
def test_every_batch_is_balanced(counts: list[int], batch_size: int, epoch: int) -> None:
    y = np.repeat(np.arange(len(counts)), counts)
    batches = BalancedBatches(y, batch_size, seed=3)
    epoch_batches = list(batches.epoch(epoch))
    assert len(epoch_batches) == len(batches) == -(-len(y) // batch_size)
    for batch in epoch_batches:
        per_class = np.bincount(y[batch], minlength=len(counts))
        assert per_class.sum() == batch_size
        assert per_class.max() - per_class.min() <= 1


def test_a_class_is_used_up_before_it_is_repeated() -> None:
    y = np.repeat([0, 1], [40, 5])
    batches = BalancedBatches(y, 10, seed=0)
    minority = [i for batch in batches.epoch(0) for i in batch if y[i] == 1]
    for start in range(0, len(minority) - 4, 5):
        assert len(set(minority[start : start + 5])) == 5
    majority = [i for batch in batches.epoch(0) for i in batch if y[i] == 0]
    assert len(set(majority)) == len(majority)


def test_classes_take_turns_with_the_extra_sample() -> None:
    y = np.repeat(np.arange(3), 40)
    totals = sum(np.bincount(y[b], minlength=3) for b in BalancedBatches(y, 4, seed=0).epoch(0))
    assert np.ptp(totals) <= 2


def test_an_epoch_is_a_function_of_seed_and_number() -> None:
    batches = BalancedBatches(Y, 128, seed=1)
    for one, two in zip(batches.epoch(2), BalancedBatches(Y, 128, seed=1).epoch(2), strict=True):
        np.testing.assert_array_equal(one, two)
    pairs = itertools.product((batches, BalancedBatches(Y, 128, seed=2)), (2, 3))
    firsts = {tuple(next(b.epoch(e)).tolist()) for b, e in pairs}
    assert len(firsts) == 4


@pytest.mark.parametrize(
    ("y", "size", "seed", "message"),
    [
        ([0, 2], 2, 0, "class 1 empty"),
        ([-1, 0], 2, 0, "label -1"),
        ([], 2, 0, "y of BalancedBatches"),
        ([0, 1], 0, 0, "batch_size"),
        ([0, 1], 2, -1, "rng of BalancedBatches"),
    ],
)
def test_batches_refuse(y, size, seed, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        BalancedBatches(np.array(y, dtype=int), size, seed)
