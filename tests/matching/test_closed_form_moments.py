"""Moments that the search for parameters uses, against those of the networks themselves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import Moments
from notsodeep.kernels.fixed_pairs import FixedPairs
from notsodeep.matching import (
    PiecewiseLinear,
    Problem,
    Quadratic,
    named,
    piecewise_families,
    polynomial_families,
    two_kinks_family,
)
from notsodeep.matching.family import MixtureFamily
from notsodeep.models import ExplicitNetwork, KernelName


def problem_at(tau0: float) -> Problem:
    return Problem(nsd.DeepEquilibrium("relu", 0.2), tau0=tau0)


SHAPES = {
    "three knots": (
        lambda x, tau0: PiecewiseLinear().network(x, problem_at(tau0)),
        piecewise_families.three_knots_moments,
        [(-0.3, 0.1, 1.2, 0.4, 0.2), (0.0, 1.0, 1.0, 0.0, -1.0), (2.0, -1.0, 0.5, 0.5, -5.9)],
    ),
    "two cubic layers": (
        lambda x, tau0: polynomial_families.layers_of(x.reshape(-1, 3), tau0),
        lambda x, tau0: polynomial_families.moments_of(x.reshape(-1, 3), tau0),
        [(0.9, 0.2, -0.1, 0.5, 0.3, 0.2), (1.0, 0.0, 0.0, 0.7, 0.0, 0.4)],
    ),
    "two quadratic layers": (
        lambda x, tau0: Quadratic().network(x, problem_at(tau0)),
        lambda x, tau0: polynomial_families.moments_of(
            polynomial_families.quadratic_table(x, tau0), tau0
        ),
        [(0.2, 1.0, -0.1, 0.8), (0.0, 1.0, 0.3, 0.1)],
    ),
}


def moments_of(network: ExplicitNetwork, tau0: float) -> list[Moments]:
    scales = network.scales(tau0)
    pairs = zip(network.activations, scales[:-1], strict=True)
    return [activation.moments(scale) for activation, scale in pairs]


@pytest.mark.parametrize("tau0", [0.7, 1.0, 2.5])
@pytest.mark.parametrize("name", SHAPES)
def test_closed_forms_are_those_of_the_network(name: str, tau0: float) -> None:
    build, closed_form, points = SHAPES[name]
    for point in points:
        x = np.array(point)
        mine: Iterable[Moments] = closed_form(x, tau0)
        for got, expected in zip(mine, moments_of(build(x, tau0), tau0), strict=True):
            size = np.sqrt(expected.square)
            assert got.scale == pytest.approx(expected.scale, rel=1e-13)
            assert abs(got.mean - expected.mean) <= 1e-13 * size
            for field in ("slope", "curvature", "square", "slope_square", "square_curvature"):
                wanted = getattr(expected, field)
                assert getattr(got, field) == pytest.approx(wanted, rel=1e-11, abs=1e-12), field


PARAMETERS = {
    "leaky_relu": (1.1, 0.2),
    "hard_tanh": (0.8, 1.2),
    "piecewise_linear": (0.1, 0.7, 1.2, -0.2, 0.2),
    "scaled": (0.9, 1.3),
}


@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_derivatives_of_coefficients_are_what_differences_tend_to(kind: KernelName) -> None:
    problem = Problem(nsd.DeepEquilibrium("swish", 0.2), tau0=1.1, kind=kind)
    x = np.array([0.6, 0.8, 1.0, -0.2, 0.0, 0.3, 0.3, 1.3, 0.5, 0.3, -0.2, 0.1])
    slopes = two_kinks_family.mismatch_slopes(x, lambda moved: moved, problem)

    def error(k: int, h: float) -> float:
        step = h * np.eye(12)[k]
        one, two = (
            problem.mismatch(two_kinks_family._reached(end, problem))
            for end in (x + step, x - step)
        )
        return float(np.abs((one - two) / (2.0 * h) - slopes[:, k]).max())

    for k in range(12):
        coarse, fine = error(k, 2e-3), error(k, 1e-3)
        assert fine <= 1e-12 or coarse / fine == pytest.approx(4.0, rel=0.02)
        assert fine <= 1e-4


@pytest.mark.parametrize("rows", [2.0, 0.2])
@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_pairs_done_together_have_the_exact_kernel(
    name: str, kind: KernelName, rows: float
) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(25, 60)) * rng.uniform(0.1, 0.2, size=(25, 1))
    X[1] = X[0] + rows * X[1]  # correlations of about 0.45 and 0.98: in one pass, or pair by pair
    family = named(name)
    assert isinstance(family, MixtureFamily)
    network = family.network(np.array(PARAMETERS[name]), problem_at(1.0))
    pairs = FixedPairs(X)
    own = pairs.matrix(pairs.kernel(network, kind, "feature"))
    exact = nsd.kernel(network, X, kind=kind, convention="feature")
    roots = np.sqrt(np.diag(exact))
    assert np.abs((own - exact) / np.outer(roots, roots)).max() <= 5e-15
