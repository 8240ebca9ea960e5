"""The equation beside the bulk: the series against the solver."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from mixture_cases import draw
from notsodeep.data import GaussianMixture
from notsodeep.equivalents import spectrum
from notsodeep.equivalents.bulk_law import BulkLaw
from notsodeep.equivalents.silverstein import SilversteinEquation
from notsodeep.equivalents.spectrum import BulkExterior, LimitingSpectrum

EQUATIONS = {
    "one class": SilversteinEquation(np.ones((1, 1)), np.ones(1), np.array([0.8])),
    "more rows than features": SilversteinEquation(np.ones((1, 1)), np.ones(1), np.array([3.0])),
    "two classes": SilversteinEquation(
        np.array([[1.0, 1.4]]), np.ones(1), np.array([0.3, 0.5])
    ),
    "a bulk in two parts": SilversteinEquation(
        np.array([[0.2], [4.0]]), np.array([0.5, 0.5]), np.array([0.3])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_series_solves_the_equation(name: str) -> None:
    equation = EQUATIONS[name]
    bulk = BulkLaw.of(equation)
    outside = BulkExterior(bulk)
    assert outside._series is not None
    edge = bulk.support[-1][1]
    for z in edge * np.geomspace(1.0 + 1e-6, 1e4, 40):
        expected = equation.solve(np.array([z]))[0]
        np.testing.assert_allclose(outside(float(z)), expected, rtol=1e-11, atol=1e-14)
    below = 0.5 * bulk.support[0][0]
    if below > 0.0:
        np.testing.assert_array_equal(outside(below), equation.solve(np.array([below]))[0])


def test_without_the_series_the_spikes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    means = np.zeros((2, 200))
    means[[0, 1], [0, 8]] = (6.0, 5.0)
    X, y, stats, mixture = draw(GaussianMixture(means, np.array([1.0, 1.3])), 150)
    eq = nsd.equivalent(
        nsd.DeepEquilibrium("relu", 0.2).centred(stats.tau0),
        X,
        y,
        mixture,
        convention="preactivation",
    )
    quick = nsd.limiting_spectrum(eq)
    monkeypatch.setattr(spectrum, "_RESOLVED", 0.0)  # no series is good enough
    direct = nsd.limiting_spectrum(eq)
    assert direct.exterior._series is None
    assert len(quick.spikes) >= 2
    for mine, expected in zip(quick.spikes, direct.spikes, strict=True):
        assert mine.value == pytest.approx(expected.value, rel=1e-11)
        assert mine.rank == expected.rank


def test_other_means_leave_the_bulk_as_it_is() -> None:
    def law(length: float, n: int, like: LimitingSpectrum | None = None) -> LimitingSpectrum:
        means = np.zeros((2, 200))
        means[[0, 1], [0, 8]] = length
        X, y, stats, mixture = draw(GaussianMixture(means, np.array([1.0, 1.3])), n)
        deq = nsd.DeepEquilibrium("tanh", 0.2).centred(stats.tau0)
        return nsd.limiting_spectrum(nsd.equivalent(deq, X, y, mixture), like=like)

    first = law(2.0, 150)
    taken_over = law(6.0, 150, first)
    assert taken_over.bulk is first.bulk
    assert taken_over.spikes == law(6.0, 150).spikes
    assert law(2.0, 140, first).bulk is not first.bulk
