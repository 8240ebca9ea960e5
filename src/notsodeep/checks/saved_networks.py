"""Checks of training settings, checkpoints, saved networks and exports."""

from __future__ import annotations

from collections.abc import Collection

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


def something_to_train(names: Collection[str], owner: str) -> None:
    """Require at least one parameter with requires_grad."""
    if not names:
        remedy = "Build it with trainable='readout' or 'all'."
        raise refusal("module", owner, "have a parameter with requires_grad", "none", remedy)


def class_targets(are_labels: bool, needed_for: str, owner: str) -> None:
    """Require class labels where real targets make no sense."""
    if not are_labels:
        remedy = "Use loss='squared_error' for real targets."
        raise refusal("y", owner, f"hold class labels for {needed_for}", "real numbers", remedy)


def own_network(module: object, is_own: bool, owner: str) -> None:
    """Require a module made by this package."""
    if not is_own:
        remedy = "For other modules use safetensors.torch.save_file(module.state_dict(), path)."
        requirement = "be a network made by notsodeep.build"
        raise refusal("module", owner, requirement, type(module).__name__, remedy)
