"""Checks of trained heads, their backbones and what is trained with them."""

from __future__ import annotations

from notsodeep.checks.scalars import finite_number
from notsodeep.checks.wording import refusal


def contracting_budget(value: object, owner: str) -> float:
    """Require 0 < ρ < 1, which is a norm budget for every head."""
    number = finite_number(value, "spectral_budget", owner)
    if not 0.0 < number < 1.0:
        remedy = "It bounds the matrix of every head, and z = A z + h must contract."
        raise refusal("spectral_budget", owner, "satisfy 0 < spectral_budget < 1", number, remedy)
    return number


def complete_imbalance(num_majority: object, ratio: object, owner: str) -> None:
    """Require both the number of majority classes and the ratio, or neither."""
    if (num_majority is None) != (ratio is None):
        names = ("num_majority", "ratio")
        missing, given = names if num_majority is None else reversed(names)
        remedy = "Leave out both for balanced classes."
        raise refusal(missing, owner, f"be given with {given}", None, remedy)
