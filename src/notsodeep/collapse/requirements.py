"""What the functions of this package require of classes, heads and classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray


def host_array(value: Any) -> Any:
    """Turn a torch tensor into a NumPy array (float64 if it holds floats); pass on the rest.

    Recognised by its methods, so that torch need not be imported.
    """
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def labelled_features(
    features: object, labels: object, num_classes: int, owner: str
) -> tuple[FloatArray, IntArray]:
    """Require (n, d) features and one label 0 … K − 1 for each; n may be zero."""
    array = checks.real_array(host_array(features), "features", owner)
    if array.ndim != 2 or len(array) or not array.shape[1]:
        array = checks.samples(array, "features", owner)
    checks.powers_nonzero(array, "features", owner)
    return array, checks.class_labels(host_array(labels), len(array), owner, num_classes)


def num_classes_of_simplex(value: object, owner: str) -> int:
    """Require K ≥ 2: one class has no between-class geometry."""
    return checks.integer_at_least(
        value, 2, "num_classes", owner, "One class has nothing to separate."
    )


def classifier(
    W: object, b: object, num_classes: int, num_features: int, owner: str
) -> tuple[FloatArray, FloatArray]:
    """Require W of shape (K, d) and b of shape (K,), or None for no bias."""
    weights = checks.real_array(host_array(W), "W", owner)
    if weights.shape != (num_classes, num_features):
        requirement = f"have shape ({num_classes}, {num_features}): a row for each class"
        raise checks.invalid("W", owner, requirement, f"shape {weights.shape}")
    if b is None:
        return weights, np.zeros(num_classes)
    bias = checks.real_array(host_array(b), "b", owner)
    if bias.shape != (num_classes,):
        raise checks.invalid("b", owner, f"have shape ({num_classes},)", f"shape {bias.shape}")
    return weights, bias


def class_counts(counts: object, owner: str) -> FloatArray:
    """Require K ≥ 2 positive class sizes; only their proportions matter."""
    array = checks.real_array(host_array(counts), "counts", owner)
    if array.ndim != 1 or len(array) < 2:
        requirement = "hold the sizes of at least two classes"
        raise checks.invalid("counts", owner, requirement, f"shape {array.shape}")
    if not (array > 0.0).all():
        remedy = "Leave out a class without samples."
        raise checks.invalid("counts", owner, "be positive", f"a count of {array.min():g}", remedy)
    return array


def class_indices(indices: object, num_classes: int, parameter: str, owner: str) -> IntArray:
    """Require a non-empty list of different classes; return it in ascending order."""
    array = checks.plain_array(indices, parameter, owner)
    valid = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    if not valid or array.min() < 0 or array.max() >= num_classes:
        requirement = f"be a list of classes from 0 to {num_classes - 1}"
        raise checks.invalid(parameter, owner, requirement, repr(indices))
    ordered = np.unique(array).astype(np.int64)
    if len(ordered) < len(array):
        raise checks.invalid(parameter, owner, "name each class once", repr(indices))
    return ordered


def class_groups(groups: object, num_classes: int, owner: str) -> dict[str, IntArray]:
    """Require a mapping of names to lists of classes."""
    if not isinstance(groups, Mapping):
        requirement = "map names to lists of classes, like {'minority': [2, 3]}"
        raise checks.invalid("groups", owner, requirement, repr(groups))
    return {
        str(name): class_indices(indices, num_classes, f"groups[{name!r}]", owner)
        for name, indices in groups.items()
    }


def head_options(head: str, constraint: str, solver_steps: object, owner: str) -> None:
    """Reject combinations of options that mean nothing."""
    if solver_steps is not None and (head != "deq" or constraint != "spectral"):
        requirement = "be None unless head='deq' and constraint='spectral'"
        raise checks.invalid("solver_steps", owner, requirement, repr(solver_steps))
    if head == "plain" and constraint != "spectral":
        remedy = "The plain head has no matrix to bound."
        requirement = "be 'spectral' for a plain head"
        raise checks.invalid("constraint", owner, requirement, repr(constraint), remedy)
