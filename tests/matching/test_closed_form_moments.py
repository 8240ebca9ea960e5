"""Closed forms that the search for parameters uses, against quadrature and the exact kernels."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import piecewise_linear
from notsodeep.equivalents import expansion
from notsodeep.equivalents.ring import unit_of
from notsodeep.matching.family import FOUR, Problem
from notsodeep.matching.match import FAMILIES
from notsodeep.matching.piecewise import _TWO as TWO_LAYERS
from notsodeep.matching.piecewise import PIECEWISE_LINEAR, TWO_KINKS, _as_expansion, _pair, lines

LINES = {
    "one knot": ((0.3, 1.1), (0.0,), 0.2),
    "two knots": ((-0.3, 0.9, 0.1), (-0.7, 0.4), -0.1),
    "knots on one side": ((0.2, 1.0, 0.4), (0.3, 1.2), 0.5),
    "three knots": ((2.0, -1.0, 0.5, 0.6), (-0.9, 0.1, 1.4), 0.0),
}
NUMBERS = ("square", "square_slope", "square_bend", "slope_square")


@pytest.mark.parametrize("tau", [0.7, 1.0, 2.5])
@pytest.mark.parametrize("name", LINES)
def test_moments_of_lines_are_those_of_quadrature(name: str, tau: float) -> None:
    slopes, knots, at_zero = LINES[name]
    phi = piecewise_linear(tuple(tau * k for k in knots), slopes, tau * at_zero)
    mine, expected = lines(slopes, knots, at_zero, tau), unit_of(phi, tau, 60)
    for field in NUMBERS:
        assert getattr(mine, field) == pytest.approx(getattr(expected, field), rel=1e-11), field
    size = np.sqrt(expected.square)
    np.testing.assert_allclose(mine.hermite, expected.hermite, atol=1e-12 * size)


@pytest.mark.parametrize("name", LINES)
def test_imaginary_parts_are_derivatives(name: str) -> None:
    slopes, knots, at_zero = LINES[name]
    x = np.array([*slopes, *knots, at_zero])

    def unit(x: np.ndarray) -> object:
        parts = list(x)
        n = len(slopes)
        return lines(parts[:n], parts[n:-1], parts[-1], 1.2)

    columns = unit(x[:, None] + 1e-30j * np.eye(len(x)))
    for k, step in enumerate(1e-6 * np.eye(len(x))):
        if knots[0] == 0.0 and k == len(slopes):
            continue  # a knot at zero, where the value is given: two formulas meet
        ahead, behind = unit(x + step), unit(x - step)
        for field in NUMBERS:
            difference = (getattr(ahead, field) - getattr(behind, field)) / 2e-6
            slope = getattr(columns, field)[k].imag / 1e-30
            assert slope == pytest.approx(difference, rel=1e-6, abs=1e-8), field


@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_quick_coefficients_are_those_of_the_network(kind: str) -> None:
    problem = Problem(nsd.DeepEquilibrium("relu", 0.2), tau0=1.3, kind=kind)
    x = np.array([0.1, 0.7, 1.2, -0.2, 0.2])
    four = expansion(PIECEWISE_LINEAR.network(x, problem), 1.3, kind=kind).four
    assert PIECEWISE_LINEAR.reach(x, problem) == pytest.approx(four, rel=1e-11)
    assert len(four) == len(FOUR)
    x = np.array([0.6, 0.8, 1.0, -0.2, 0.0, 0.3, 0.3, 1.3, 0.5, 0.3, -0.2, 0.1])
    mine = _as_expansion(TWO_LAYERS, _pair(x, problem), problem)
    expected = expansion(TWO_KINKS.network(x, problem), 1.3, kind=kind)
    assert list(mine.to_dict().values()) == pytest.approx(list(expected.to_dict().values()))


def test_families_are_known_by_their_names() -> None:
    assert FAMILIES[:2] == ("auto", "plain")
    assert {"leaky_relu", "hard_tanh", "piecewise_linear", "two_kinks", "scaled"} < set(FAMILIES)
