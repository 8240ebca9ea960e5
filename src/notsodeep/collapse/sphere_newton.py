"""Minimisation on a sphere by a trust-region Newton method with conjugate gradients.

Absil, Mahony and Sepulchre, *Optimization Algorithms on Matrix Manifolds* (2008), chapter 7, on the
sphere ‖y‖ = r: with g = ∇F(y) and λ = −g·y/r², the Riemannian gradient is g + λy and the Hessian
is P ∇²F P + λ I on the tangent space, P the projection onto it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from notsodeep.arrays import FloatArray

MAX_CG_STEPS = 1000
EPSILON = float(np.finfo(np.float64).eps)


class LocalModel(Protocol):
    """A function at a point: value, gradient and Hessian products in the surrounding space."""

    @property
    def value(self) -> float:
        """F(y)."""
        ...

    @property
    def gradient(self) -> FloatArray:
        """∇F(y)."""
        ...

    def curvature(self, direction: FloatArray) -> FloatArray:
        """Return ∇²F(y) times a direction."""
        ...


@dataclass(frozen=True, eq=False)
class SphereMinimum:
    """Outcome of a minimisation on a sphere."""

    point: FloatArray  # y, of the norm of the start
    value: float
    multiplier: float  # λ = −∇F·y/r²
    residual: float  # norm of the Riemannian gradient over |λ|r
    converged: bool
    steps: int  # of Newton's method
    reason: str


def minimise_on_sphere(
    model: Callable[[FloatArray], LocalModel],
    start: FloatArray,
    *,
    rtol: float = 1e-10,
    max_steps: int = 300,
) -> SphereMinimum:
    """Minimise F over the sphere through `start`, until the residual is at most `rtol`."""
    y = start
    radius = float(np.linalg.norm(y))
    trust = 0.5 * radius
    here = model(y)
    tangent, multiplier, residual = _tangent_gradient(here, y, radius)
    reason = f"the residual was above {rtol:g} after {max_steps} steps"
    steps = 0
    while residual > rtol and steps < max_steps:
        steps += 1
        step, predicted = _conjugate_gradients(here, y, tangent, multiplier, trust)
        candidate = y + step
        candidate *= radius / np.linalg.norm(candidate)
        there = model(candidate)
        new_tangent, new_multiplier, new_residual = _tangent_gradient(there, candidate, radius)
        # Near the minimum F changes by the square of the residual, which is below the rounding of F
        # from residuals of 1e-8 on; `rtol` asks for more.
        if predicted > 64.0 * EPSILON * max(1.0, abs(here.value)):
            agreement = (here.value - there.value) / predicted
        else:  # values no longer tell the points apart; gradients still do
            agreement = 1.0 if new_residual < residual else 0.0
        length = float(np.linalg.norm(step))
        # The usual constants of trust-region methods (Nocedal and Wright, 2006, algorithm 4.1).
        if agreement < 0.25:
            trust = 0.25 * min(length, trust)
        elif agreement > 0.75 and length > 0.99 * trust:
            trust = min(2.0 * trust, radius)
        if agreement > 0.05:
            y, here = candidate, there
            tangent, multiplier, residual = new_tangent, new_multiplier, new_residual
        elif trust < EPSILON * radius:
            reason = f"no further descent at a residual of {residual:.1e}"
            break
    converged = residual <= rtol
    if converged:
        reason = f"the residual is {residual:.1e}"
    return SphereMinimum(y, here.value, multiplier, residual, converged, steps, reason)


def _tangent_gradient(
    here: LocalModel, y: FloatArray, radius: float
) -> tuple[FloatArray, float, float]:
    multiplier = -float(here.gradient @ y) / radius**2
    tangent = here.gradient + multiplier * y
    return tangent, multiplier, float(np.linalg.norm(tangent)) / (abs(multiplier) * radius)


def _conjugate_gradients(
    here: LocalModel, y: FloatArray, tangent: FloatArray, multiplier: float, trust: float
) -> tuple[FloatArray, float]:
    """Steihaug's truncated solve of Hessian·step = −gradient; and the decrease it predicts."""
    radius2 = float(y @ y)
    size = float(np.linalg.norm(tangent))
    # A share of the gradient that shrinks with it makes the convergence quadratic, and early steps
    # cheap: there a tenth will do.
    goal = size * min(0.1, size / (abs(multiplier) * math.sqrt(radius2)))

    def hessian(v: FloatArray) -> FloatArray:
        w = here.curvature(v)
        return np.asarray(w - (w @ y) / radius2 * y + multiplier * v)

    step = np.zeros_like(y)
    image = np.zeros_like(y)  # Hessian·step
    residue = -tangent
    direction = residue.copy()
    square = float(residue @ residue)
    for _ in range(MAX_CG_STEPS):
        product = hessian(direction)
        bend = float(direction @ product)
        reach = _distance_to_boundary(step, direction, trust)
        # Along flat directions (turns of the factors) the curvature is zero up to rounding.
        flat = bend <= 1e-15 * abs(multiplier) * float(direction @ direction)
        # Towards negative curvature the model falls without end: go to the edge of the trust
        # region.
        length = reach if flat else min(square / bend, reach)
        step += length * direction
        image += length * product
        if length == reach:
            break
        residue -= length * product
        previous, square = square, float(residue @ residue)
        if math.sqrt(square) <= goal:
            break
        direction = residue + (square / previous) * direction
    return step, -float(tangent @ step + 0.5 * step @ image)


def _distance_to_boundary(step: FloatArray, direction: FloatArray, trust: float) -> float:
    a, b = float(direction @ direction), float(step @ direction)
    return (-b + math.sqrt(b * b + a * max(trust**2 - float(step @ step), 0.0))) / a
