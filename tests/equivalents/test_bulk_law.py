"""Generalised Marchenko–Pastur laws: density, edges, mass and distribution function."""

from __future__ import annotations

from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from notsodeep.equivalents import bulk_law
from notsodeep.equivalents.bulk_law import BulkLaw
from notsodeep.equivalents.silverstein import SilversteinEquation
from notsodeep.errors import NotConverged


def law_of(eigenvalues: object, weights: object, ratios: object) -> BulkLaw:
    table = np.asarray(eigenvalues, dtype=float)
    table = table[:, None] if table.ndim == 1 else table
    shares = np.asarray(weights, float)
    return BulkLaw.of(
        SilversteinEquation(table, shares / shares.sum(), np.atleast_1d(ratios) + 0.0)
    )


def as_two_classes(eigenvalues: object, weights: object, ratio: float) -> BulkLaw:
    """One covariance for two classes: edges by bisection, and Newton's method."""
    return law_of(np.stack([eigenvalues] * 2, axis=1), weights, [0.4 * ratio, 0.6 * ratio])


def marchenko_pastur(x: np.ndarray, c: float) -> np.ndarray:
    low, high = (1.0 - np.sqrt(c)) ** 2, (1.0 + np.sqrt(c)) ** 2
    return np.sqrt(np.maximum((high - x) * (x - low), 0.0)) / (2.0 * np.pi * c * x)


@pytest.mark.parametrize("c", [0.05, 0.5, 0.999, 1.0, 1.001, 2.0, 50.0])
def test_marchenko_pastur(c: float) -> None:
    law = law_of([1.0], [1.0], c)
    low, high = (1.0 - np.sqrt(c)) ** 2, (1.0 + np.sqrt(c)) ** 2
    assert law.support[0] == pytest.approx((low, high), rel=1e-12, abs=1e-15)
    assert law.zero_mass == pytest.approx(max(0.0, 1.0 - 1.0 / c), abs=1e-15)
    assert law.mass_error < 1e-12
    x = low + (high - low) * np.linspace(1e-3, 1.0 - 1e-3, 101)
    expected = marchenko_pastur(x, c)
    assert np.abs(law.density(x) - expected).max() < 1e-12 * max(1.0, expected.max())
    outside = np.array([-1.0, low * (1 - 1e-6) - 1e-12, high * (1 + 1e-6), 10.0 * high])
    assert (law.density(outside) == 0.0).all()


@pytest.mark.parametrize("c", [0.3, 1.0, 3.0])
def test_two_atoms_against_cardano(c: float) -> None:
    (t1, t2), (w1, w2) = (0.5, 2.0), (0.5, 0.5)
    law = law_of([t1, t2], [w1, w2], c)
    for low, high in law.support:
        for x in low + (high - low) * np.array([1e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0 - 1e-4]):
            # a₃m³ + a₂m² + a₁m + a₀ = 0, from −1/m = x − Σ w t/(1 + c t m).
            a3 = x * c * c * t1 * t2
            a2 = c * c * t1 * t2 * (1.0 - w1 - w2) + x * c * (t1 + t2)
            a2 += c * c * t1 * t2 * (w1 + w2) - c * t1 * t2 * (w1 + w2)
            a1 = x + c * (t1 + t2) - w1 * t1 - w2 * t2
            with mpmath.workdps(40):
                roots = mpmath.polyroots([a3, a2, a1, 1.0], maxsteps=200, extraprec=200)
                expected = float(max(mpmath.im(root) for root in roots)) / np.pi
            assert float(law.density(np.array(x))) == pytest.approx(expected, abs=1e-8)
            assert expected > 0.0


@pytest.mark.parametrize(
    ("eigenvalues", "weights"),
    [
        ([1.0], [1.0]),
        ([0.5, 2.0], [1, 1]),
        ([1, 2, 5, 9], [1, 2, 1, 3]),
        (np.linspace(0.2, 1.8, 90), np.ones(90)),
    ],
)
@pytest.mark.parametrize("c", [0.2, 0.999, 1.0, 6.0])
def test_both_routes_give_one_law(eigenvalues: object, weights: object, c: float) -> None:
    one, two = law_of(eigenvalues, weights, c), as_two_classes(eigenvalues, weights, c)
    np.testing.assert_allclose(two.support, one.support, rtol=1e-7, atol=1e-7)
    assert two.zero_mass == pytest.approx(one.zero_mass)
    top = one.support[-1][1]
    x = np.linspace(0.0, 1.05 * top, 400)
    assert np.abs(two.cdf(x) - one.cdf(x)).max() < 1e-6
    inner = np.concatenate([np.linspace(a, b, 25)[3:-3] for a, b in one.support])
    np.testing.assert_allclose(two.density(inner), one.density(inner), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("c", [0.3, 1.0, 6.0])
def test_edges_are_where_two_solutions_meet(c: float) -> None:
    t, w = np.array([0.5, 2.0, 7.0]), np.array([0.3, 0.4, 0.3])
    law = law_of(t, w, c)
    for edge in np.ravel(law.support):
        if edge == 0.0:
            continue
        # (xm + 1) Π(1 + c t m) − m Σ w t Π' has a double root in m.
        whole = np.poly1d([1.0])
        for value in t:
            whole *= np.poly1d([c * value, 1.0])
        rest = np.poly1d([0.0])
        for k in range(3):
            part = np.poly1d([w[k] * t[k]])
            for value in np.delete(t, k):
                part *= np.poly1d([c * value, 1.0])
            rest += part
        roots = (np.poly1d([edge, 1.0]) * whole - np.poly1d([1.0, 0.0]) * rest).roots
        gaps = np.abs(roots[:, None] - roots)[np.triu_indices(4, 1)]
        assert gaps.min() < 1e-5 * np.abs(roots).max()


SLOW_RATIOS = (0.1, 0.8, 1.0, 1.0001, 1.3, 60.0)
POPULATIONS = {
    "isolated eigenvalue": ([1.0, 12.0], [999, 1]),
    "two levels": ([1.0, 30.0], [1, 1]),
    "many": (np.linspace(0.2, 1.8, 500), np.ones(500)),
    "six decades": (np.geomspace(1e-6, 1.0, 60), np.ones(60)),
    "zeros": ([0.0, 1.0, 2.0, 5.0, 9.0], np.ones(5)),
    "nearly equal": ([1.0, 1.0 + 1e-9, 3.0, 5.0, 7.0], np.ones(5)),
    "classes": ([[1.0, 1.5]], [1]),
    "classes far apart": ([[1.0, 30.0]], [1]),
    "reversed": (np.stack([np.linspace(0.2, 1.8, 60), np.linspace(1.8, 0.2, 60)], 1), np.ones(60)),
    "isolated in one class": ([[1.0, 1.0], [1.0, 14.0]], [999, 1]),
    "three classes": (np.random.default_rng(0).uniform(0.1, 3.0, (30, 3)), np.ones(30)),
}


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize(
    "c", [0.3, 0.9999, 4.0, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW_RATIOS)]
)
def test_mass_and_distribution_function(population: str, c: float) -> None:
    eigenvalues, weights = POPULATIONS[population]
    sizes = np.array([0.5, 0.3, 0.2])[
        : np.shape(eigenvalues)[1] if np.ndim(eigenvalues) == 2 else 1
    ]
    law = law_of(eigenvalues, weights, c * sizes / sizes.sum())
    assert law.mass_error <= 1e-6
    edges = np.ravel(law.support)
    assert (np.diff(edges) > 0.0).all()
    assert edges[0] >= 0.0
    x = np.unique(np.concatenate([[-1.0], edges, np.linspace(0.0, 1.3 * edges[-1], 300)]))
    shares = law.cdf(x)
    assert (np.diff(shares) >= -1e-9).all()
    assert shares[0] == pytest.approx(0.0, abs=1e-12)
    assert shares[-1] == pytest.approx(1.0, abs=2e-6)
    assert law.cdf(np.array(0.0)) == pytest.approx(law.zero_mass, abs=1e-9)
    middle = [0.5 * (a + b) for (_, a), (b, _) in pairwise(law.support)]
    assert (law.density(np.array(middle)) == 0.0).all()


@pytest.mark.parametrize("sizes", [(0.5, 0.3), (2.0, 1.2)])
def test_classes_that_share_no_direction_are_laws_of_their_own(sizes: tuple[float, float]) -> None:
    law = law_of([[1.0, 0.0], [0.0, 2.0]], [1, 1], sizes)
    # Class a has n_a rows in p/2 directions: (1/p) ZZᵀ is half of a Marchenko–Pastur matrix.
    alone = [
        law_of([0.5 * scale], [1.0], 2.0 * c) for scale, c in zip((1.0, 2.0), sizes, strict=True)
    ]
    x = np.linspace(1e-3, 1.05 * law.support[-1][1], 200)
    shares = np.array(sizes) / sum(sizes)
    expected = shares[0] * alone[0].cdf(x) + shares[1] * alone[1].cdf(x)
    np.testing.assert_allclose(law.cdf(x), expected, atol=1e-7)
    assert law.zero_mass == pytest.approx(shares @ [a.zero_mass for a in alone], abs=1e-9)


@pytest.mark.parametrize("population", ["two levels", "many", "classes", "reversed"])
def test_distribution_function_is_the_integral_of_the_density(population: str) -> None:
    eigenvalues, weights = POPULATIONS[population]
    ratios = [0.4, 0.5] if np.ndim(eigenvalues) == 2 else 0.9
    law = law_of(eigenvalues, weights, ratios)
    low, high = law.support[0]
    points = low + (high - low) * np.array([0.2, 0.5, 0.8])
    density = lambda x: float(law.density(np.array(x)))  # noqa: E731
    for left, right in pairwise(points):
        area = quad(density, left, right, epsabs=1e-9)[0]
        difference = float(law.cdf(np.array(right)) - law.cdf(np.array(left)))
        assert difference == pytest.approx(area, abs=1e-7)


def test_around_the_cusp_where_two_bulks_meet() -> None:
    t, w = np.array([1.0, 4.0]), np.array([0.5, 0.5])
    # max over s of 1 − c Σ w t²/(s + ct)² between the two poles is 0 there.
    critical = np.cbrt(w * t**2).sum() ** 3 / (t[1] - t[0]) ** 2
    joined, apart = law_of(t, w, critical * (1 - 1e-9)), law_of(t, w, critical * (1 + 1e-9))
    assert (len(joined.support), len(apart.support)) == (1, 2)
    gap = apart.support[1][0] - apart.support[0][1]
    assert 0.0 < gap < 1e-6
    x = np.linspace(0.0, joined.support[-1][1], 200)
    assert np.abs(joined.cdf(x) - apart.cdf(x)).max() < 1e-6
    # At a cusp the density falls like a cube root: it is small, and it is seen.
    at_cusp = float(joined.density(np.array(apart.support[0][1])))
    assert at_cusp < 0.02 * joined.density(x).max()
    for side in (1e-3, 1e-2, 0.1):
        near = law_of(t, w, critical * (1 - side))
        assert near.mass_error < 1e-6
        assert len(law_of(t, w, critical * (1 + side)).support) == 2


def test_rows_and_features_change_places() -> None:
    """Classes c_a I: n F(x) and p F'(x) count the same non-zero eigenvalues."""
    rows, scalars = np.array([0.5, 0.9]), np.array([0.4, 3.0])
    total = rows.sum()
    law = law_of([scalars], [1.0], rows)
    swapped = law_of(total * scalars, rows / total, 1.0 / total)
    np.testing.assert_allclose(law.support, swapped.support, rtol=1e-8)
    x = np.linspace(1e-3, law.support[-1][1], 50)
    expected = 1.0 - (1.0 - swapped.cdf(x)) / total
    np.testing.assert_allclose(law.cdf(x), expected, atol=1e-8)


@pytest.mark.parametrize("c", [0.6, 1.0, 2.0])
def test_sampled_eigenvalues_follow_the_law(c: float) -> None:
    p = 600
    table = np.stack([np.linspace(0.2, 1.8, p), np.where(np.arange(p) < p // 2, 2.0, 0.4)], axis=1)
    sizes = [round(0.4 * c * p), round(0.6 * c * p)]
    law = law_of(table, np.ones(p), np.array(sizes) / p)
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(m, p)) * np.sqrt(table[:, a] / p) for a, m in enumerate(sizes)]
    W = np.concatenate(rows)
    values = np.linalg.eigvalsh(W @ W.T if len(W) <= p else W.T @ W)
    shares = np.arange(1, len(values) + 1) / len(values)
    nonzero = (law.cdf(values) - law.zero_mass) / (1.0 - law.zero_mass)
    assert np.abs(shares - nonzero).max() < 0.008
    assert values[-1] == pytest.approx(law.support[-1][1], rel=0.04)
    assert values[0] == pytest.approx(law.support[0][0], abs=0.01)


def test_missing_mass_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_law, "_TERMS", (8,))
    monkeypatch.setattr(bulk_law, "_CUTS", 0)
    with pytest.raises(NotConverged, match=r"integrates to .* and must to 1 within 1e-06"):
        law_of(*POPULATIONS["six decades"], 2.0)


def test_density_keeps_the_shape_of_its_argument() -> None:
    law = law_of([1.0], [1.0], 0.5)
    assert law.density(np.array(1.0)).shape == ()
    assert law.density(np.ones((2, 3))).shape == law.cdf(np.ones((2, 3))).shape == (2, 3)
    median = brentq(lambda x: float(law.cdf(np.array(x))) - 0.5, *law.support[0])
    assert 0.5 < median < 1.0
