"""The linear heads of the layer-peeled model and their gains."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.collapse import requirements

Head = Literal["plain", "explicit", "residual", "deq"]


def head_gain(
    head: Head, spectral_budget: float | None = None, solver_steps: int | None = None
) -> float:
    """Return the gain g = sup ‖G‖₂ of a head z = G h.

    ========  ==========  ===========  ========================
    head      G           constraint   gain
    ========  ==========  ===========  ========================
    plain     I                        1
    explicit  M           ‖M‖₂ ≤ s     s
    residual  I + M       ‖M‖₂ ≤ s     1 + s
    deq       (I − A)⁻¹   ‖A‖₂ ≤ ρ     1/(1 − ρ)
    ========  ==========  ===========  ========================

    Parameters
    ----------
    head : {"plain", "explicit", "residual", "deq"}
    spectral_budget : float, optional
        s, or ρ in [0, 1) of a DEQ; none for the plain head.
    solver_steps : int, optional
        T ≥ 1 steps z ← A z + h from z = 0 in place of the equilibrium of the DEQ, so that
        G = I + A + … + A^{T−1} and the gain is (1 − ρ^T)/(1 − ρ) ≤ T.

    Examples
    --------
    >>> head_gain("deq", 0.5), head_gain("deq", 0.5, solver_steps=2)
    (2.0, 1.5)
    """
    owner = "head_gain"
    checks.known_name(head, get_args(Head), "head")
    bound = checks.head_budget(head, spectral_budget, owner)
    requirements.head_options(head, "spectral", solver_steps, owner)
    if head == "explicit":
        return bound
    if head == "residual":
        return 1.0 + bound
    if solver_steps is None:
        return 1.0 / (1.0 - bound)  # the plain head has bound 0
    steps = checks.positive_integer(solver_steps, "solver_steps", owner)
    return -float(np.expm1(steps * np.log(bound))) / (1.0 - bound) if bound else 1.0


def attaining_matrix(spectral_budget: float | None, features: FloatArray) -> FloatArray:
    """Return the least matrix that attains the gain on the span of the rows of `features`.

    It is the spectral budget times the projection onto the span: M of an explicit or residual head,
    A of a DEQ (so that A z = ρ z); the identity for the plain head, which has no budget.
    """
    if spectral_budget is None:
        return np.eye(features.shape[1])
    _, singular, right = np.linalg.svd(features)
    span = right[: int((singular > 1e-10 * singular[0]).sum())]
    return np.asarray(spectral_budget * span.T @ span)


def head_operator(head: Head, matrix: FloatArray) -> FloatArray:
    """Return G for a matrix M or A; the equilibrium for a DEQ."""
    identity = np.eye(len(matrix))
    if head == "residual":
        return identity + matrix
    if head == "deq":
        return np.asarray(np.linalg.inv(identity - matrix), dtype=np.float64)
    return matrix
