"""Limiting laws of covariances over eight decades: right at every scale, down to the smallest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad

import notsodeep as nsd
from notsodeep.data import GaussianMixture
from notsodeep.equivalents import LimitingSpectrum
from notsodeep.equivalents.bulk_law import BulkLaw
from notsodeep.equivalents.distances import kolmogorov_to_law
from notsodeep.equivalents.silverstein import SilversteinEquation

FloatArray = NDArray[np.floating[Any]]

P = 300
LINEAR = nsd.ExplicitNetwork(["identity"]).centred(1.0)  # its kernel is XXᵀ
COVARIANCES = {
    "every scale": np.geomspace(1e-8, 1.0, P),
    "three scales": np.repeat([1e-8, 1e-4, 1.0], P // 3),
}

every_scale = pytest.mark.parametrize("covariance", COVARIANCES)
every_ratio = pytest.mark.parametrize("n", [90, 270, 300, 360])


def drawn(covariance: str, n: int) -> tuple[LimitingSpectrum, FloatArray]:
    mixture = GaussianMixture(np.zeros((1, P)), COVARIANCES[covariance][None])
    X, y = mixture.sample(n, rng=0)
    law = nsd.limiting_spectrum(nsd.equivalent(LINEAR, X, y, mixture, convention="preactivation"))
    return law, np.linalg.eigvalsh(X @ X.T)


def bulk_of(law: LimitingSpectrum) -> BulkLaw:
    assert law.bulk is not None
    return law.bulk


def closed_form(equation: SilversteinEquation, x: FloatArray) -> FloatArray:
    """F(x) of one class, from the Stieltjes transform q at x alone.

    z = g′(q) with g(q) = −log q + Σ w log(1 + ctq)/c is Silverstein's equation, so that
    ∫ log(t − z) dF(t) = g(q) − zq − 1; its imaginary part on the real axis is −πF.
    """
    t, w, c = equation.eigenvalues[:, 0], equation.weights, float(equation.ratios[0])
    q = equation.stieltjes(x)
    terms = 1.0 + c * t * q[:, None]
    np.testing.assert_allclose(-1.0 / q + (w * t / terms).sum(axis=1), x, rtol=1e-4, atol=1e-13)
    return np.asarray(np.angle(q) - np.angle(terms) @ w / c + x * q.imag) / np.pi


@every_scale
@every_ratio
def test_distribution_function(covariance: str, n: int) -> None:
    law, eigenvalues = drawn(covariance, n)
    low, high = law.support[0][0], law.support[-1][1]
    x = np.geomspace(max(0.5 * low, 1e-12), 1.1 * high, 400)
    assert np.abs(law.cdf(x) - closed_form(bulk_of(law).equation, x)).max() < 1e-7
    start = low if n > P else -np.inf
    assert kolmogorov_to_law(eigenvalues, law.cdf, start) < (0.04 if n < 100 else 0.015)
    assert (np.diff(law.cdf(x)) >= -1e-9).all()


@every_scale
@every_ratio
def test_mass_and_edges(covariance: str, n: int) -> None:
    law, eigenvalues = drawn(covariance, n)
    assert law.point_mass == pytest.approx((0.0, max(0.0, 1.0 - P / n)), abs=1e-9)
    assert bulk_of(law).mass_error < 1e-7
    for low, high in law.support:
        for edge, outwards in ((low, 1.0 - 1e-6), (high, 1.0 + 1e-6)):
            if edge > 0.0:
                assert law.density([edge * outwards])[0] == 0.0
                assert law.density([edge / outwards])[0] > 0.0
    # Half of the eigenvalues are below the median, at whatever scale it is.
    inside = eigenvalues[-min(n, P) :]
    shares = (law.cdf(np.quantile(inside, [0.1, 0.5, 0.9])) - law.point_mass[1]) * n / min(n, P)
    np.testing.assert_allclose(shares, [0.1, 0.5, 0.9], atol=0.02)


@every_scale
def test_distribution_function_is_the_integral_of_the_density(covariance: str) -> None:
    law, _ = drawn(covariance, 270)
    for low, high in law.support:
        ends = np.log(low) + np.log(high / low) * np.array([0.1, 0.4, 0.6, 0.9])
        for left, right in pairwise(ends):
            area = quad(lambda s: np.exp(s) * law.density([np.exp(s)])[0], left, right, limit=200)
            difference = np.diff(law.cdf(np.exp([left, right])))[0]
            assert difference == pytest.approx(area[0], abs=1e-6)


def test_just_below_the_point_mass_is_rounding() -> None:
    law, _ = drawn("every scale", 360)
    atom = law.point_mass[1]
    np.testing.assert_allclose(law.cdf([-1e-3, -1e-15, 0.0]), [0.0, atom, atom], atol=1e-9)


@every_scale
@every_ratio
def test_effective_dimension(covariance: str, n: int) -> None:
    law, eigenvalues = drawn(covariance, n)
    ridges = np.array([1e-9, 1e-7, 1e-5, 1e-2, 1.0, 1e6])
    predicted = law.effective_dimension(ridges)
    transform = bulk_of(law).equation.stieltjes(-ridges).real
    np.testing.assert_allclose(predicted[:-1], (n * (1.0 - ridges * transform))[:-1], rtol=1e-7)
    own = (eigenvalues / (eigenvalues + ridges[:, None])).sum(axis=1)
    np.testing.assert_allclose(predicted, own, rtol=0.05)


@pytest.mark.parametrize("sizes", [(0.4, 0.35), (2.0, 1.2)])
def test_classes_at_different_scales(sizes: tuple[float, float]) -> None:
    """Two classes that share no direction are two laws, here eight decades apart."""
    scales = np.array([1e-8, 1.0])
    law = BulkLaw.of(SilversteinEquation(np.diag(scales), np.full(2, 0.5), np.array(sizes)))
    alone = [
        BulkLaw.of(SilversteinEquation(np.array([[0.5 * t]]), np.ones(1), np.array([2.0 * c])))
        for t, c in zip(scales, sizes, strict=True)
    ]
    edges = np.sort(np.concatenate([one.support[0] for one in alone]))
    np.testing.assert_allclose(np.ravel(law.support), edges, rtol=1e-6)
    x = np.geomspace(1e-10, 10.0, 300)
    shares = np.array(sizes) / sum(sizes)
    expected = shares[0] * alone[0].cdf(x) + shares[1] * alone[1].cdf(x)
    np.testing.assert_allclose(law.cdf(x), expected, atol=1e-6)
