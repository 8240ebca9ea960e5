"""Checks of single numbers, seeds and stored forms."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from notsodeep.checks.wording import refusal
from notsodeep.errors import InvalidInput


def finite_number(value: object, parameter: str, owner: str) -> float:
    """Require one finite real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.ndarray):
        raise refusal(parameter, owner, "be a finite real number", repr(value))
    if isinstance(value, np.ndarray) and (value.ndim or value.dtype.kind not in "fiu"):
        raise refusal(parameter, owner, "be a single finite real number", f"shape {value.shape}")
    number = float(value)
    if not math.isfinite(number):
        raise refusal(parameter, owner, "be finite", number)
    return number


def positive_number(value: object, parameter: str, owner: str, remedy: str = "") -> float:
    """Require one finite number above zero."""
    number = finite_number(value, parameter, owner)
    if number <= 0.0:
        raise refusal(parameter, owner, "be positive", number, remedy)
    return number


def data_scale(value: object, parameter: str, owner: str) -> float:
    """Require a scale τ0 of data between 1e-60 and 1e60, whose powers are finite and not zero."""
    number = positive_number(value, parameter, owner)
    if not 1e-60 <= number <= 1e60:
        remedy = "It is the root mean squared norm of the data; divide the data by it."
        raise refusal(parameter, owner, "be between 1e-60 and 1e60", f"{number:.3g}", remedy)
    return number


def positive_integer(value: object, parameter: str, owner: str) -> int:
    """Require an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        raise refusal(parameter, owner, "be an integer of at least 1", repr(value))
    return int(value)


def integer_at_least(
    value: object, least: int, parameter: str, owner: str, remedy: str = ""
) -> int:
    """Require an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        requirement = f"be an integer of at least {least}"
        raise refusal(parameter, owner, requirement, repr(value), remedy)
    return int(value)


def random_generator(rng: Any, owner: str) -> np.random.Generator:
    """Turn a seed (a non-negative integer) or a Generator into a Generator."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, numbers.Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        return np.random.default_rng(int(rng))
    requirement = "be a non-negative integer seed or a numpy.random.Generator"
    raise refusal("rng", owner, requirement, repr(rng))


def stored_form(data: object, kind: str, keys: set[str]) -> None:
    """Require a mapping with exactly the stored keys and the right kind."""
    if not isinstance(data, Mapping) or data.get("kind") != kind or set(data) != {"kind", *keys}:
        got = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise InvalidInput(
            f"A stored {kind} must have kind = {kind!r} and the keys {sorted(keys)}. Got {got}."
        )
