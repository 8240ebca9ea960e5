"""Intervals, bounds and paired times."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from notsodeep.compilation import evidence
from notsodeep.compilation.evidence import (
    Accuracy,
    FrontPoint,
    Way,
    conformal_quantile,
    fidelity_of,
    lower_bound,
    row_error,
    timed_front,
)


def test_the_interval_is_students_and_knows_of_the_test_rows() -> None:
    draws = {"deq": (0.9, 0.9, 0.9), "matched": (0.9, 0.92, 0.94), "unmatched": (0.8,) * 3}
    low, high = Accuracy(draws, 0.0).difference
    # Mean 2, standard deviation 2, t(0.975, 2) = 4.3027.
    half = 4.3027 * 2 / np.sqrt(3)
    assert (low, high) == pytest.approx((2 - half, 2 + half), rel=1e-4)
    wider = Accuracy(draws, 3.0).difference
    assert wider[1] - wider[0] == pytest.approx(2 * np.hypot(half, 3.0), rel=1e-4)


def test_draws_that_agree_on_all_rows_still_share_the_luck_of_the_rows() -> None:
    alike = np.ones((10, 20), dtype=bool)
    accuracy = Accuracy.of_rows(dict.fromkeys(("deq", "matched", "unmatched"), alike))
    half = 100.0 * (1.0 - 0.05 ** (1 / 20))
    assert accuracy.difference == pytest.approx((-half, half))
    # One is right where the other is not, on every row: other rows may differ by more than nothing.
    assert row_error(np.ones(20)) == pytest.approx(2.0 * half)
    # Many rows that differ: Student's interval of their mean.
    differences = (np.random.default_rng(0).random(900) < 0.2).astype(float)
    others = int(differences.sum())
    expected = stats.t.ppf(0.975, others - 1) * 100.0 * differences.std(ddof=1) / 30.0
    assert row_error(differences) == pytest.approx(expected)


@pytest.mark.parametrize(("share", "rows"), [(0.02, 20), (0.1, 60), (0.3, 200)])
def test_the_interval_of_rows_covers_the_truth(share: float, rows: int) -> None:
    """Also where mostly no row of a few shows a difference."""
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(400):
        worse = (rng.random(rows) < share).astype(float)
        covered.append(abs(worse.mean() - share) <= row_error(-worse) / 100.0)
    assert np.mean(covered) >= 0.93


def test_bounds_of_shares_and_distances() -> None:
    # Clopper and Pearson: P(Binomial(n, bound) ≥ successes) = 5 %.
    assert stats.binom.sf(46, 50, lower_bound(47, 50)) == pytest.approx(0.05, rel=1e-6)
    exact = np.eye(2)[np.zeros(700, dtype=int)]
    fidelity = fidelity_of(np.eye(2)[(np.arange(700) >= 693).astype(int)], exact)
    assert fidelity.agreement == 0.99
    assert fidelity.agreement_bound == pytest.approx(lower_bound(693, 700))
    assert fidelity.agreement_upper == pytest.approx(1.0 - lower_bound(7, 700))
    rng = np.random.default_rng(16)
    covered = [
        rng.standard_normal() <= conformal_quantile(rng.standard_normal(99)) for _ in range(2000)
    ]
    assert np.mean(covered) == pytest.approx(0.95, abs=5 * np.sqrt(0.05 * 0.95 / 2000))


def test_ways_are_timed_in_turns_and_ratios_are_to_the_last_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[float] = []

    def work(milliseconds: float) -> Way:
        def run() -> float:
            order.append(milliseconds)
            return milliseconds

        return Way(f"{milliseconds} ms", "explicit", milliseconds, run, 10.0 * milliseconds)

    monkeypatch.setattr(evidence, "seconds", lambda run: run())
    ways = [work(6), work(1), work(3)]
    front = timed_front(ways, solver="", batch=1, threads=1, library="numpy")
    assert order == [6, 1, 3] * (1 + front.repeats)  # once to warm up
    assert front.reference == "3 ms"
    assert [point.products for point in front.points] == pytest.approx([2.0, 1 / 3, 1.0])
    assert [point.ratio for point in front.points] == pytest.approx([2.0, 1 / 3, 1.0])


def test_ratios_of_a_busy_machine_are_marked() -> None:
    quiet, busy = (
        FrontPoint("DEQ", "tolerance", 0.1, 3, 2.0, 9.6, (9.0, high)) for high in (10.2, 90.8)
    )
    assert not quiet.unreliable
    assert quiet.time == "9.6 × (9–10.2)"
    assert busy.time == "9.6 × (9–90.8, unreliable: the machine was busy)"
