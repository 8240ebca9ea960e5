"""When minority classifiers merge: the threshold, and the solver on either side of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from notsodeep.collapse import layer_peeled, minority_collapse_threshold
from notsodeep.errors import InvalidInput, NotConverged

REFERENCE = [
    (1.0, "class", 3.380),
    (1.5, "class", 9.137),
    (2.0, "class", 27.74),
    (3.0, "class", 283.0),
    (1.0, "sample", 5.915),
    (2.0, "sample", 84.24),
]


@pytest.mark.parametrize(("C", "feature_budget", "expected"), REFERENCE)
def test_thresholds_for_two_and_two_classes(C, feature_budget, expected) -> None:
    threshold = minority_collapse_threshold(
        num_majority=2, num_minority=2, budget=C, feature_budget=feature_budget
    )
    assert threshold.ratio == pytest.approx(expected, rel=1e-3)
    assert float(threshold) == threshold.ratio


SIZES = [(2, 2), (3, 7), (7, 3), (1, 3)]


@pytest.mark.parametrize(("K_A", "K_B"), SIZES)
@pytest.mark.parametrize("feature_budget", ["class", "sample"])
@pytest.mark.parametrize("C", [0.7, 2.0])
def test_the_solver_agrees_on_either_side(K_A, K_B, feature_budget, C) -> None:
    """The full problem, in which nothing is assumed to be merged."""
    ratio = minority_collapse_threshold(
        num_majority=K_A, num_minority=K_B, budget=C, feature_budget=feature_budget
    ).ratio

    def optimum(R: float):
        counts = [R] * K_A + [1.0] * K_B
        return layer_peeled(counts, budget=C, feature_budget=feature_budget)

    before, after = optimum(0.99 * ratio), optimum(1.01 * ratio)
    assert before.certificate.certified
    assert after.certificate.certified
    assert before.minority_cosine < 1.0 - 1e-5
    assert after.minority_cosine == pytest.approx(1.0, abs=1e-12)
    assert before.rank == after.rank + K_B - 1


@pytest.mark.parametrize(("K_A", "K_B"), [(2, 2), (3, 7), (7, 3)])
@pytest.mark.parametrize("C", [0.1, 1.0, 4.0])
def test_the_threshold_solves_its_equation(K_A: int, K_B: int, C: float) -> None:
    """R* = 1/(1 − P_own + P_other), squared for the sample budget."""
    for feature_budget, power in (("class", 1), ("sample", 2)):
        found = minority_collapse_threshold(
            num_majority=K_A,
            num_minority=K_B,
            budget=C,
            feature_budget=feature_budget,
        )
        assert found.ratio == pytest.approx(found.shortfall**-power, rel=1e-8)
        expected = 1 - found.own_probability + found.other_probability
        assert found.shortfall == pytest.approx(expected, abs=1e-14)
        assert found.residual < 1e-9
        # the probabilities are those of the full problem's optimum
        optimum = layer_peeled(
            [1.0001 * found.ratio] * K_A + [1.0] * K_B,
            budget=C,
            feature_budget=feature_budget,
        )
        p = np.exp(optimum.logits[0] - np.logaddexp.reduce(optimum.logits[0]))
        assert p[0] == pytest.approx(found.own_probability, abs=1e-3)
        assert p[1] == pytest.approx(found.other_probability, abs=1e-3)


def test_a_deq_resists_where_the_others_collapse() -> None:
    """R = 100 and √(E_W E_H) = 2; and a gain-matched explicit head resists as much."""
    counts = (100, 100, 1, 1)

    def cosine(head, bound) -> float:
        found = layer_peeled(counts, budget=2.0, head=head, spectral_budget=bound).minority_cosine
        assert found is not None
        return found

    assert cosine("plain", None) == pytest.approx(1.0, abs=1e-9)
    assert cosine("explicit", 0.5) == pytest.approx(1.0, abs=1e-9)
    assert cosine("deq", 0.5) == pytest.approx(0.04, abs=0.005)
    assert cosine("explicit", 2.0) == pytest.approx(cosine("deq", 0.5), abs=1e-9)
    assert 0.1 < cosine("residual", 0.5) < 0.9


def test_heads_enter_through_their_gain() -> None:
    sizes = {"num_majority": 2, "num_minority": 2}
    deq = minority_collapse_threshold(**sizes, budget=1.0, head="deq", spectral_budget=0.5)
    assert deq.effective_budget == 2.0
    assert deq.ratio == pytest.approx(27.735, rel=1e-4)
    cut = minority_collapse_threshold(
        **sizes, budget=1.0, head="deq", spectral_budget=0.5, solver_steps=2
    )
    assert cut.ratio == pytest.approx(9.1365, rel=1e-4)


def test_threshold_grows_with_the_budget() -> None:
    budgets = (1e-3, 0.1, 1.0, 10.0, 40.0)
    for feature_budget in ("class", "sample"):
        logs = [
            minority_collapse_threshold(
                num_majority=3,
                num_minority=2,
                budget=C,
                feature_budget=feature_budget,
            ).log_ratio
            for C in budgets
        ]
        assert 0.0 < logs[0] < 0.01
        assert (np.diff(logs) > 0.0).all()
        assert logs[-1] > 30.0


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="integer of at least 2"):
        minority_collapse_threshold(num_majority=2, num_minority=1, budget=1.0)
    with pytest.raises(InvalidInput, match="num_majority"):
        minority_collapse_threshold(num_majority=0, num_minority=2, budget=1.0)
    with pytest.raises(InvalidInput, match="budget"):
        minority_collapse_threshold(num_majority=2, num_minority=2, budget=math.nan)
    with pytest.raises(NotConverged):
        minority_collapse_threshold(num_majority=1, num_minority=50, budget=40.0)
