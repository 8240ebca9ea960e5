"""Rules for the Gaussian measure."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.activations.custom import piecewise_derivative, resolving_radius, rough_points
from notsodeep.errors import NotIntegrable, QuadratureError
from notsodeep.numerics.pair_quadrature import pair_quadrature
from notsodeep.numerics.quadrature import (
    gaussian_rule,
    hermite_expansion,
    hermite_polynomials,
    resolved_samples,
)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 50.0, 1e5])
@pytest.mark.parametrize("kinks", [(), (0.0,), (-1.0, 0.5)])
@pytest.mark.parametrize("refinement", [0, 1])
def test_rule_integrates_even_moments(
    scale: float, kinks: tuple[float, ...], refinement: int
) -> None:
    rule = gaussian_rule(np.array([scale]), kinks, refinement)
    for power, expected in ((0, 1), (1, 0), (2, 1), (4, 3), (10, 945)):
        moment = (rule.weights * rule.nodes**power).sum()
        assert moment == pytest.approx(expected, rel=2e-15, abs=1e-15)


def test_kinks_are_panel_ends() -> None:
    scales = np.array([0.5, 2.0, 100.0])
    rule = gaussian_rule(scales, (0.75,))
    assert not rule.shared
    # A kink inside a panel would cost digits: this is exact only if it is an end.
    hinge = np.maximum(scales[:, None] * rule.nodes - 0.75, 0.0)
    kappa = 0.75 / scales
    from scipy.stats import norm

    expected = scales * (norm.pdf(kappa) - kappa * norm.sf(kappa))
    np.testing.assert_allclose((rule.weights * hinge).sum(axis=1), expected, rtol=1e-13)


def test_hermite_polynomials_are_orthonormal() -> None:
    rule = gaussian_rule(np.array([1.0]))
    table = hermite_polynomials(rule.nodes[0], 30)
    gram = (rule.weights[0] * table) @ table.T
    np.testing.assert_allclose(gram, np.eye(30), atol=1e-12)


def test_steep_but_smooth_functions_are_refined() -> None:
    steep = hermite_expansion(lambda x: np.tanh(12 * (x - 0.4)), np.array([0.5, 1.0, 3.0]), 6)[0]
    reference = []
    for scale in (0.5, 1.0, 3.0):
        grid = np.linspace(-10, 10, 400_001)
        weight = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi) * (grid[1] - grid[0])
        values = np.tanh(12 * (scale * grid - 0.4))
        reference.append((weight * values) @ hermite_polynomials(grid, 6).T)
    np.testing.assert_allclose(steep, reference, atol=1e-12)


@pytest.mark.parametrize("place", [0.3, -1.7, 1.0001])
def test_undeclared_kink_is_refused_with_its_place(place: float) -> None:
    with pytest.raises(QuadratureError, match="declare it") as error:
        list(resolved_samples(lambda x: np.abs(x - place)[None], np.array([1.1])))
    named = float(str(error.value).rsplit("kinks=(", 1)[1].split(",")[0])
    assert named == pytest.approx(place, abs=0.1)


def test_fast_oscillation_is_refused_not_guessed() -> None:
    with pytest.raises(QuadratureError, match="varies very fast"):
        hermite_expansion(lambda x: np.sin(5000 * x), np.array([1.0]), 3)


def test_heavy_tails_are_refused() -> None:
    with pytest.raises(NotIntegrable, match=r"scale τ = 0\.7"):
        hermite_expansion(lambda x: np.exp(x**2), np.array([0.1, 0.7]), 3)


def test_pair_quadrature_at_degenerate_correlations() -> None:
    one = np.ones(2)
    rho = np.array([1.0, -1.0])
    result = pair_quadrature(lambda x: np.maximum(x, 0)[None], one, 2 * one, rho, 0 * one, (0.0,))
    np.testing.assert_allclose(result[0], [1.0, 0.0], atol=1e-15)


def test_pair_quadrature_very_near_one() -> None:
    # 1 − ρ = 1e-14: E[(ξ − ½)₊(η − ½)₊] differs from E[(ξ − ½)₊²] by (1 − ρ)·P(ξ > ½) only.
    root = np.array([np.sqrt(2e-14)])
    one = np.ones(1)
    near = pair_quadrature(
        lambda x: np.maximum(x - 0.5, 0)[None], one, one, one - 1e-14, root, (0.5,)
    )
    same = pair_quadrature(lambda x: np.maximum(x - 0.5, 0)[None], one, one, one, 0 * one, (0.5,))
    assert near[0, 0] == pytest.approx(same[0, 0], rel=1e-13)


def test_rough_points_finds_each_kind() -> None:
    assert rough_points(np.tanh) == []
    assert rough_points(lambda x: np.tanh(40 * x - 3)) == []
    [(position, height)] = rough_points(lambda x: np.abs(x - 1.25))
    assert position == pytest.approx(1.25, abs=1e-6)
    assert height < 1e-6
    [(position, height)] = rough_points(np.sign)
    assert height == 2.0
    assert rough_points(lambda x: np.maximum(x, 0), (0.0,)) == []
    assert len(rough_points(lambda x: np.sin(x.astype(np.float32)).astype(float))) > 8


def test_derivative_does_not_cross_a_kink() -> None:
    def hinge(x: np.ndarray) -> np.ndarray:
        return np.where(x > 0.25, np.sin(x) - np.sin(0.25), 0.0)

    radius = resolving_radius(hinge, (0.25,))
    x = np.array([-3.0, 0.249, 0.2500001, 0.3, 2.0])
    expected = np.where(x > 0.25, np.cos(x), 0.0)
    np.testing.assert_allclose(
        piecewise_derivative(hinge, x, (0.25,), radius), expected, atol=1e-12
    )
