"""Parameters at and beyond their limits, and functions that are no activations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import from_function
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory, NotIntegrable
from public_calls import BASE

NEARLY_ONE = math.nextafter(1.0, 0.0)  # 1 − 1.1e-16; 1 − 1e-16 is the same double


@pytest.mark.parametrize(
    "value",
    [1, 1.5, -1e-9, np.nan, np.inf, "0.2", b"0.2", True, np.True_, None, 0.2j, np.ones(1), [0.2]],
    ids=repr,
)
def test_sigma_a2_must_be_a_number_below_one(value: Any) -> None:
    with pytest.raises(InvalidInput, match="sigma_a2 of DeepEquilibrium must"):
        nsd.DeepEquilibrium("tanh", value)


@pytest.mark.parametrize("value", [0, -0.0, 1.0 - 1e-16, np.float32(0.2), np.array(0.2)])
def test_sigma_a2_may_be_any_number_in_range(value: Any) -> None:
    assert nsd.DeepEquilibrium("tanh", value).sigma_a2 == float(value)


@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_next_to_one_nothing_is_silent(kind: str) -> None:
    """tanh has no fixed point within reach there; a ReLU has, since E φ² is a half."""
    with pytest.raises(NotConverged, match="was not found"):
        nsd.kernel(nsd.DeepEquilibrium("sin", NEARLY_ONE), BASE[:2], kind=kind)
    with pytest.raises(NotConverged, match="has no finite variance"):
        nsd.kernel(nsd.DeepEquilibrium("normalized_relu", NEARLY_ONE), BASE, kind=kind)
    kernel = nsd.kernel(
        nsd.DeepEquilibrium("relu", NEARLY_ONE), BASE, kind=kind, convention="preactivation"
    )
    assert 0.0 < np.abs(kernel).max() < 1e-14


@pytest.mark.parametrize("name", ["identity", "abs", "normalized_relu"])
def test_a_gain_of_nearly_one_is_refused_before_rounding_takes_over(name: str) -> None:
    for gap in (1e-16, 1e-12, 1e-9):
        with pytest.raises(NotConverged, match="rounding errors decide"):
            nsd.kernel(nsd.DeepEquilibrium(name, 1.0 - gap), BASE, convention="preactivation")


def test_what_is_not_refused_has_the_digits_it_can_have() -> None:
    """The kernel of a linear network is the Gram matrix whatever σa² is."""
    deq = nsd.DeepEquilibrium("identity", 1.0 - 1e-6)
    np.testing.assert_allclose(
        nsd.kernel(deq, BASE, convention="preactivation"), BASE @ BASE.T, rtol=1e-8
    )


@pytest.mark.parametrize("value", [0, -1, np.nan, np.inf, "1", True, None, 1e-310, 1e200, [1]])
def test_scales_of_data(value: Any) -> None:
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    for call in (deq.centred, nsd.ExplicitNetwork(["tanh"]).centred):
        with pytest.raises(InvalidInput, match=r"tau0 of .* must"):
            call(value)
    with pytest.raises(InvalidInput, match="tau0"):
        nsd.match(deq, tau0=value)


class Counter:
    """A function with a memory."""

    def __init__(self) -> None:
        self.calls = itertools.count(1)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x) * (1.0 + 1e-9 * next(self.calls))


def in_place(x: np.ndarray) -> np.ndarray:
    x *= 2.0
    return x


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (Counter(), InvalidInput, "elementwise and deterministic"),
        (in_place, InvalidInput, "elementwise and deterministic"),
        (lambda x: x - x.mean(), InvalidInput, "elementwise and deterministic"),
        (lambda x: np.sort(x), InvalidInput, "shape|elementwise"),
        (math.tanh, InvalidInput, "numpy.vectorize"),
        (lambda x: x if x > 0 else 0.0, InvalidInput, "numpy.vectorize"),
        (lambda x: 1 / 0, InvalidInput, "ZeroDivisionError"),
        (lambda x: None, InvalidInput, "shape"),
        (lambda x: x.astype(np.float16), InvalidInput, "float64"),
        (lambda x: x + 0j, InvalidInput, "float64"),
        (lambda x: np.exp(x**2), NotIntegrable, "second moment"),
        (lambda x: np.log(x), InvalidInput, "finite"),
        (lambda x: 1.0 / x, InvalidInput, "finite"),
        ("np.tanh", InvalidInput, "callable"),
    ],
)
def test_functions_that_are_no_activations(
    function: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        from_function(function, name="mine")


@pytest.mark.parametrize("width", [0, -1, 2.5, "8", True, None])
def test_widths_are_counts(width: Any) -> None:
    with pytest.raises(InvalidInput, match="integer of at least 1"):
        nsd.build(nsd.DeepEquilibrium("relu", 0.2), 3, width, 2, rng=0)


@pytest.mark.parametrize("width", [2**22, 2**40])
def test_a_network_beyond_memory_is_refused_before_it_is_made(width: int) -> None:
    with pytest.raises(NotEnoughMemory, match="Use a smaller width"):
        nsd.build(nsd.DeepEquilibrium("relu", 0.2), 3, width, 2, rng=0)


@pytest.mark.parametrize("seed", [-1, None, "0", 1.5, True])
def test_seeds_are_counts(seed: Any) -> None:
    with pytest.raises(InvalidInput, match="non-negative integer seed"):
        nsd.build(nsd.DeepEquilibrium("relu", 0.2), 3, 4, 2, rng=seed)
    with pytest.raises(InvalidInput, match="non-negative integer seed"):
        nsd.data.sphere(3, 4, rng=seed)
