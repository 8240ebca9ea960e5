"""Preconditioned block conjugate gradients: one step, and the state between two steps.

One block method for all right-hand sides, not one recurrence for each: a product of a kernel with
ten vectors costs little more than with one, and a search in all their directions at once needs
fewer of them (digits with ten targets: two thirds of the steps).  The block is kept well
conditioned as in Dubrulle, "Retooling the method of block conjugate gradients" (ETNA 12, 2001):
the residuals are R = Q C with QᵀM⁻¹Q = I, so that right-hand sides which depend on one another, or
converge one before the other, make C singular and leave the recurrence alone.  Directions that are
lost to rounding leave the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray

Product = Callable[[FloatArray], FloatArray]

# Share of the largest eigenvalue of RᵀM⁻¹R below which a direction of R is rounding.
# These are squares of lengths: a direction is dropped below 3e-7 of the longest.
_LOST = 1e-13


@dataclass(frozen=True, eq=False)
class BlockState:
    """Where a block solve of A x = b stands; A is n × n, with k right-hand sides.

    Attributes
    ----------
    x : ndarray of shape (n, k)
    basis : ndarray of shape (n, s)
        Q; s ≤ k, fewer if residuals depend on one another.
    coefficients : ndarray of shape (s, k)
        C of the residuals Q C.
    directions : ndarray of shape (n, s)
        Where x moves next.
    """

    x: FloatArray
    basis: FloatArray
    coefficients: FloatArray
    directions: FloatArray

    def residual_norms(self) -> FloatArray:
        """‖b − A x‖ of every column by the recurrence, shape (k,)."""
        return np.asarray(np.linalg.norm(self.basis @ self.coefficients, axis=0))


class NotPositive(ArithmeticError):
    """dᵀA d ≤ 0 for a direction d: A is not positive definite."""


def begin(x: FloatArray, residuals: FloatArray, precondition: Product) -> BlockState:
    """Start, or start again, from x with residuals b − A x."""
    basis, directions, coefficients = _orthonormal(residuals, precondition)
    return BlockState(x, basis, coefficients, directions)


def advance(state: BlockState, multiply: Product, precondition: Product) -> BlockState:
    """Minimise the energy norm of all errors over the block's directions, and find the next.

    Raises
    ------
    NotPositive
        A is not positive definite.
    """
    image = multiply(state.directions)
    energy = state.directions.T @ image
    # With D the directions and α = (DᵀAD)⁻¹: x ← x + DαC, Q′F = Q − ADα, C ← FC, D ← PQ′ + DFᵀ. A
    # is touched once.
    values, axes = np.linalg.eigh(0.5 * (energy + energy.T))
    if not values[0] > 0.0:
        raise NotPositive
    inverse = (axes / values) @ axes.T
    x = state.x + state.directions @ (inverse @ state.coefficients)
    basis, preconditioned, factor = _orthonormal(state.basis - image @ inverse, precondition)
    return replace(
        state,
        x=x,
        basis=basis,
        coefficients=factor @ state.coefficients,
        directions=preconditioned + state.directions @ factor.T,
    )


def _orthonormal(R: FloatArray, precondition: Product) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return Q, P Q and F with R = Q F and QᵀPQ = I, P the preconditioner; lost directions left.

    By eigenvalues of RᵀPR, twice: the first time leaves an error of their condition number.
    """
    Z = precondition(R)
    factor = np.eye(R.shape[1])
    for _ in range(2):
        inner = R.T @ Z
        values, axes = np.linalg.eigh(0.5 * (inner + inner.T))
        largest = float(values.max(initial=0.0))
        # All right-hand sides are solved: an empty block, which `advance` is not asked to move.
        if not np.any(R):
            values = np.zeros_like(values)
        else:
            _positive_preconditioner(float(values.min()), largest, "solve")
        kept = values > _LOST * largest
        root = np.sqrt(values[kept])
        across = axes[:, kept]
        R, Z = R @ (across / root), Z @ (across / root)
        factor = (root[:, None] * across.T) @ factor
    return R, Z, factor


def _positive_preconditioner(least: float, largest: float, owner: str) -> None:
    """Require rᵀ P r > 0; least and largest are eigenvalues of RᵀPR, and rounding is allowed."""
    # Inverses by Woodbury's identity have errors of eps‖K‖/λ, which may be 1e-8 and more.
    if not largest > 0.0 or least < -1e-6 * largest:
        remedy = "Make it with the ridge of the system, and a ridge above its rounding error."
        got = f"rᵀPr between {least:.3g} and {largest:.3g}"
        raise checks.invalid("preconditioner", owner, "be positive definite", got, remedy)
