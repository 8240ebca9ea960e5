"""Checks of what the scikit-learn estimators are given; called by `fit`, never by `__init__`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from notsodeep.checks.memory import available_memory
from notsodeep.checks.scalars import positive_number
from notsodeep.checks.wording import known_name, refusal
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory


def ridge_or_rule(value: object, rules: Iterable[str], owner: str) -> float | str:
    """Require a positive number, or the name of a rule that finds one."""
    if isinstance(value, str):
        return known_name(value, rules, f"rule for the ridge of {owner}")
    return positive_number(value, "ridge", owner, "Or let ridge='gcv' find it.")


def flag(value: object, parameter: str, owner: str) -> bool:
    """Require True or False."""
    if not isinstance(value, bool):
        raise refusal(parameter, owner, "be True or False", repr(value))
    return value


def several_classes(count: int, owner: str) -> None:
    """Require two different labels; scikit-learn's checks look for the words "1 class"."""
    if count < 2:
        raise refusal("y", owner, "have samples of at least two classes", f"{count} class")


def labels_without_order(reason: object, owner: str) -> InvalidInput:
    """Word the error for labels that cannot be sorted."""
    requirement = "hold labels of one kind, none of them missing"
    return refusal("y", owner, requirement, f"labels that cannot be compared ({reason})")


def given_ridge(ridge: float | str, calibrated: bool, samples: int, owner: str) -> float:
    """Refuse what takes all eigenvectors of the kernel where an iteration has none of them."""
    if isinstance(ridge, str):
        requirement = f"be a number for the solver cg, which {samples:,} samples are left to"
        remedy = (
            f"{ridge!r} needs all eigenvectors of the kernel: let it choose on some thousand of "
            "the samples, and take the ridge_ it found; or set solver='dense'."
        )
        raise refusal("ridge", owner, requirement, repr(ridge), remedy)
    if calibrated:
        requirement = f"be False for the solver cg, which {samples:,} samples are left to"
        remedy = "Wrap the classifier in sklearn.calibration.CalibratedClassifierCV instead."
        raise refusal("calibrated", owner, requirement, True, remedy)
    return ridge


def dense_solver(needed: int, samples: int, owner: str) -> None:
    """Refuse a dense solve that does not fit into the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The dense solver of {owner} needs {needed / 2**30:.1f} GiB for {samples:,} samples, "
            f"and {available / 2**30:.1f} GiB of memory are free. Use solver='cg' with a given "
            "ridge, or fewer samples."
        )


def ridge_too_small(ridge: float, owner: str) -> InvalidInput:
    """Word the error for a kernel that has no inverse in double precision, ridge included."""
    remedy = "The kernel is singular to double precision: use a larger ridge, or ridge='gcv'."
    return refusal("ridge", owner, "make the kernel positive definite", f"{ridge:g}", remedy)


def positive_variance(sigma_a2: float) -> float:
    """Require σa² > 0, for a derivative in its logarithm."""
    remedy = "At 0 set sigma_a2_bounds='fixed': it has no logarithm to search in."
    return positive_number(sigma_a2, "sigma_a2", "a gradient", remedy)


def strictly_between(value: float, low: float, high: float, parameter: str, owner: str) -> None:
    """Require low < value < high, and bounds that σa² can have."""
    if not 0.0 < low < high < 1.0:
        requirement = "satisfy 0 < low < high < 1"
        raise refusal(f"{parameter}_bounds", owner, requirement, f"({low:g}, {high:g})")
    if not low < value < high:
        raise refusal(parameter, owner, f"lie between its bounds {low:g} and {high:g}", value)


def plain_rows(x1: Any, x2: Any, owner: str) -> None:
    """Require two matrices of rows that no gradient is wanted of."""
    for name, rows in (("x1", x1), ("x2", x2)):
        if rows.ndim != 2:
            requirement = "be a matrix of shape (n_samples, n_features), without batches"
            raise refusal(name, owner, requirement, f"shape {tuple(rows.shape)}")
        if rows.requires_grad:
            remedy = "The exact kernel has no gradient in its inputs: use x.detach()."
            raise refusal(name, owner, "not require gradients", "a tensor that does", remedy)


def corrections_failed(ridge: float, rounds: int, memory: int) -> NotConverged:
    """Word the error for a float32 kernel whose solution cannot be corrected."""
    return NotConverged(
        f"The solution with a kernel kept in float32 did not become that of the exact kernel in "
        f"{rounds} corrections: ridge = {ridge:g} is too small for it. Use a larger ridge, or a "
        f"larger memory than {memory / 2**30:.3g} GiB, so that float64 fits."
    )
