"""What cannot be matched is said, with the equation that fails, and bad calls are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput, UnknownName

RELU = nsd.DeepEquilibrium("relu", 0.2)
TANH = nsd.DeepEquilibrium("tanh", 0.2)
COS = nsd.DeepEquilibrium("cos", 0.2).centred(1.0)


@pytest.mark.parametrize(
    ("deq", "options", "why"),
    [
        (TANH, {"tau0": 1.0, "family": "quadratic"}, "forces a quadratic network to be linear"),
        (TANH, {"sphere": 50, "family": "quadratic"}, "must not be negative"),
        (COS, {"tau0": 1.0, "family": "hard_tanh"}, "linear is 0"),
        (
            nsd.DeepEquilibrium("relu", 0.2),
            {"tau0": 1.0, "family": "hard_tanh", "convention": "feature", "kind": "ck"},
            None,
        ),
        (
            nsd.DeepEquilibrium("abs", 0.2).centred(1.0),
            {"tau0": 1.0, "family": "hard_tanh"},
            "linear is 0",
        ),
        (
            nsd.DeepEquilibrium("identity", 0.2),
            {"tau0": 1.0, "family": "hard_tanh"},
            "must be between 1 and π/2",
        ),
    ],
)
def test_infeasible_families_say_which_equation_fails(
    deq: nsd.DeepEquilibrium, options: dict[str, Any], why: str | None
) -> None:
    m = nsd.match(deq, **options)
    numbers = [*m.parameters.values(), *m.residuals.values()]
    assert all(isinstance(v, float) and math.isfinite(v) for v in numbers)
    if why is None:
        assert m.feasible  # linear and scale2 can be met; the others are honestly off
        assert abs(m.residuals["covariance_overlap"]) > 1e-3
        return
    assert not m.feasible
    assert why in m.reason
    with pytest.raises(InvalidInput, match="has no network"):
        _ = m.network


def test_a_saturated_target_is_out_of_reach_of_a_hard_tanh() -> None:
    # A steep tanh is nearly a sign, the end of the family; a fast wave lies beyond it.
    steep = nsd.DeepEquilibrium(nsd.activations.from_formula("tanh(8 * x)"), 0.05)
    m = nsd.match(steep, tau0=1.0, family="hard_tanh")
    assert m.feasible
    assert m.parameters["clip"] < 0.3
    wave = nsd.DeepEquilibrium(nsd.activations.from_formula("sin(3 * x)"), 0.05)
    m = nsd.match(wave, tau0=1.0, family="hard_tanh")
    assert not m.feasible
    assert "1.5708" in m.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "exactly one of X, tau0 and sphere"),
        ({"tau0": 1.0, "sphere": 5}, "Got tau0 and sphere"),
        ({"tau0": 0.0}, "tau0 of match must be positive"),
        ({"tau0": math.nan}, "tau0"),
        ({"sphere": 1}, "at least 2"),
        ({"sphere": 10, "family": "hard_tanh"}, "tau0 of match must be given"),
        ({"X": np.ones((3, 4))}, "at least eight rows"),
        ({"X": np.zeros((9, 4))}, "not be zero everywhere"),
        ({"X": np.full((9, 4), np.nan)}, "finite"),
    ],
)
def test_bad_calls_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        nsd.match(RELU, **options)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="leaky_relu"):
        nsd.match(RELU, tau0=1.0, family="leaky_rely")
    with pytest.raises(UnknownName, match="kernel"):
        nsd.match(RELU, tau0=1.0, kind="ntkk")
    with pytest.raises(InvalidInput, match="model of match"):
        nsd.match("relu", tau0=1.0)
