"""An identity skip: ψ = φ(αψ + g), solved for every α that leaves one solution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep.activations import from_function, named, with_skip
from notsodeep.activations.transformed import WithSkip
from notsodeep.errors import NotConverged

INCREASING = ("arctan", "elu", "erf", "softplus", "tanh")
OTHERS = ("gelu", "sin", "swish")


def residuals(psi: WithSkip, x: np.ndarray) -> np.ndarray:
    """|h − αφ(h) − x| in units of what is added."""
    h = psi.argument(x)
    feedback = psi.alpha * psi.base(h)
    return np.abs(h - feedback - x) / (np.abs(h) + np.abs(feedback) + np.abs(x) + 1e-300)


@given(
    name=st.sampled_from(INCREASING + OTHERS),
    share=st.floats(1e-6, 0.999),
    strength=st.one_of(st.none(), st.floats(-100.0, -1e-3)),
    center=st.floats(-1e3, 1e3),
    log_size=st.floats(-9.0, 9.0),
)
def test_the_equation_is_solved_to_rounding(
    name: str, share: float, strength: float | None, center: float, log_size: float
) -> None:
    base = named(name)
    negative = strength is not None and name in INCREASING
    psi = with_skip(base, strength if negative and strength else share / base.lipschitz)
    assert isinstance(psi, WithSkip)
    x = np.concatenate([center + np.linspace(-30, 30, 97), 10**log_size * np.linspace(-1, 1, 41)])
    assert residuals(psi, x).max() <= 2e-15


@pytest.mark.parametrize("alpha", [-10.0, -20.0, -100.0])
def test_newtons_two_cycles_are_left(alpha: float) -> None:
    # Plain Newton inside a bracket goes to and fro at some of these for ever.
    x = np.linspace(-60.0, 60.0, 4001)
    psi = with_skip("tanh", alpha)
    assert residuals(psi, x).max() <= 2e-15
    # A closed form to compare with: x(h) on a grid of h, inverted.
    h = np.linspace(-3.0, 3.0, 301)
    np.testing.assert_allclose(psi(h - alpha * np.tanh(h)), np.tanh(h), rtol=1e-13, atol=1e-15)


def test_a_steep_equation_away_from_zero() -> None:
    late = from_function(lambda x: np.logaddexp(0.0, x - 5.0), name="late softplus")
    psi = with_skip(late, -100.0)
    x = np.linspace(0.0, 40.0, 4001)
    h = psi.argument(x)
    assert np.abs(h + 100.0 * late(h) - x).max() <= 101.0 * 1e-15 * np.abs(h).max() + 1e-14


def test_what_is_not_solved_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notsodeep.activations.transformed._MAX_STEPS", 3)
    with pytest.raises(NotConverged, match=r"ψ = φ\(αψ \+ x\) .* was not solved in 3 steps at x"):
        with_skip("tanh", -50.0)(np.linspace(1.0, 60.0, 50))
