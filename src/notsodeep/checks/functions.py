"""Checks of functions a user brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from notsodeep.checks.arrays import FloatArray
from notsodeep.errors import ConstantActivation, InvalidInput


def elementwise(function: Callable[[FloatArray], Any], owner: str) -> None:
    """Require that a function maps float64 arrays entry by entry to float64 arrays."""
    x = np.linspace(-2.0, 2.0, 12)[5 * np.arange(12) % 12]  # in no order that sorting would keep
    try:
        with np.errstate(all="ignore"):
            whole = function(x.copy())
            square = function(x.reshape(3, 4))
            part = function(x[:7].copy())
    except Exception as error:
        raise InvalidInput(
            f"The {owner} must accept NumPy arrays of any shape. It raised "
            f"{type(error).__name__}: {error}. Write it with NumPy functions "
            "(np.tanh, np.where, …), or wrap it in numpy.vectorize."
        ) from error
    for argument, result in ((x, whole), (x.reshape(3, 4), square), (x[:7], part)):
        shape = np.shape(result)
        if shape != argument.shape:
            requirement = "return an array of the shape it is given"
            got = f"shape {shape} for shape {argument.shape}"
            raise InvalidInput(f"The {owner} must {requirement}. Got {got}.")
        dtype = np.asarray(result).dtype
        if dtype != np.float64:
            raise InvalidInput(
                f"The {owner} must return float64 for float64 input. Got dtype {dtype}. "
                "Lower precision would spoil every moment; keep the computation in double."
            )
    if not np.array_equal(whole[:7], part, equal_nan=True):
        raise InvalidInput(
            f"The {owner} must be elementwise and deterministic: its value at a point changed with "
            "the other points in the array, or from one call to the next."
        )


def constant_activation(
    activation: str, scale: float, deviation: float, least: float, owner: str
) -> ConstantActivation:
    """Word the error for an activation φ that does not vary at a scale τ."""
    return ConstantActivation(
        f"The activation of {owner} is constant, or as good as: the standard deviation of φ(τξ) "
        f"must be at least {least:.1g} at τ = {scale:.6g}, the scale of its inputs. Got "
        f"{deviation:.3g} for φ = {activation}. Nothing of the data would be left: use another "
        "activation, or one of usual size."
    )
