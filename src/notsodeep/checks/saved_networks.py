"""Checks of training settings, checkpoints, saved networks and exports."""

from __future__ import annotations

from notsodeep.checks.scalars import finite_number
from notsodeep.checks.wording import refusal


def share(value: object, parameter: str, owner: str) -> float:
    """Require a number with 0 ≤ value < 1."""
    number = finite_number(value, parameter, owner)
    if not 0.0 <= number < 1.0:
        raise refusal(parameter, owner, f"satisfy 0 ≤ {parameter} < 1", number)
    return number


def at_least_zero(value: object, parameter: str, owner: str) -> float:
    """Require a finite number of at least zero."""
    number = finite_number(value, parameter, owner)
    if number < 0.0:
        raise refusal(parameter, owner, "be at least 0", number)
    return number


def own_network(module: object, is_own: bool, owner: str) -> None:
    """Require a module made by this package."""
    if not is_own:
        remedy = "For other modules use safetensors.torch.save_file(module.state_dict(), path)."
        requirement = "be a network made by notsodeep.build"
        raise refusal("module", owner, requirement, type(module).__name__, remedy)
