"""The convex layer-peeled problem, reduced by the symmetry among classes of equal size.

Classes of equal size are interchangeable, and the problem is convex, so averaging an optimum over
their permutations gives an optimum.  With groups g of K_g classes, P_g the projection onto
differences within group g, and E the K × m matrix of normalised group indicators,

    X = D L = Σ_g a_g P_g + E B Eᵀ,   ‖X‖_* = Σ_g (K_g − 1)|a_g| + ‖B‖_*,

rows of L being the logits of a class.  For two class sizes there are six unknowns, whatever K is;
if all sizes differ, B is the whole matrix.  The nuclear norm is the least ½(‖U‖² + ‖V‖²) over
B = U Vᵀ, which turns the ball into a sphere for y = (c, U, V), a_g = c_g²/(2(K_g − 1)),
½‖y‖² = K C.  With factors of full rank this adds no local minima; `certificate` verifies the
outcome on the full problem, where none of this is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse.certificate import LogLoss, log_loss


class SymmetricProblem:
    """Minimise the loss over ‖X‖_* = K C, for m groups of classes.

    `sizes` (m,) holds K_g, `shares` (m,) the share of all samples that *one* class of a group has,
    `scales` (m,) the diagonal of D and `budget` is C.  `separable` (m,) marks the groups whose
    classes may differ (a_g ≠ 0), by default all with more than one class.
    """

    def __init__(
        self,
        sizes: IntArray,
        shares: FloatArray,
        scales: FloatArray,
        budget: float,
        separable: NDArray[np.bool_] | None = None,
    ) -> None:
        self.sizes = sizes
        self.scales = scales
        self.num_groups = len(sizes)
        self.radius = float(sizes.sum()) * budget  # K C
        self.separable = sizes > 1 if separable is None else separable
        # All classes of a group have the same loss: one row stands for K_g of them, and one column
        # for as many wrong classes (`log_numbers`).
        self.log_shares = np.log(shares * sizes)
        self.multiplicity = np.where(self.separable, sizes - 1.0, 1.0)
        with np.errstate(divide="ignore"):  # log 0 = −∞: no other class in the own group
            self.log_numbers = np.tile(np.log(sizes), (self.num_groups, 1))
            np.fill_diagonal(self.log_numbers, np.log(sizes - 1.0))
        self._to_others = 1.0 / (np.sqrt(np.outer(sizes, sizes)) * scales[:, None])
        np.fill_diagonal(self._to_others, 0.0)

    def start(self) -> FloatArray:
        """Return the point whose logits are those of a simplex."""
        root = np.sqrt(self.sizes)
        # I − 11ᵀ/K between groups; within them it is the identity, hence a_g = 1 times the scale.
        simplex = np.eye(self.num_groups) - np.outer(root, root) / self.sizes.sum()
        left, singular, right = np.linalg.svd(simplex * self.scales[:, None])
        size = np.sqrt(singular)
        differences = np.where(self.separable, np.sqrt(2.0 * self.multiplicity * self.scales), 0.0)
        y = np.concatenate([differences, (left * size).ravel(), (right.T * size).ravel()])
        return np.asarray(y * (np.sqrt(2.0 * self.radius) / np.linalg.norm(y)))

    def split(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return c, U and V as views of y."""
        m = self.num_groups
        return y[:m], y[m : m + m * m].reshape(m, m), y[m + m * m :].reshape(m, m)

    def model(self, y: FloatArray) -> LocalModelOfLoss:
        """Evaluate log f at y, with what its derivatives need."""
        c, U, V = self.split(y)
        exponents = self._exponents(self.differences(c), U @ V.T) + self.log_numbers
        loss = log_loss(exponents, self.log_shares)
        slope_within, slope_between = self.adjoint(loss.slopes)
        gradient = self._joined(slope_within * c, slope_between @ V, slope_between.T @ U)
        return LocalModelOfLoss(self, y, loss, slope_within, slope_between, loss.value, gradient)

    def differences(self, c: FloatArray) -> FloatArray:
        """Return a_g = c_g²/(2(K_g − 1)), zero where the classes of a group may not differ."""
        return np.where(self.separable, c * c / (2.0 * self.multiplicity), 0.0)

    def logit_matrix(self, y: FloatArray) -> FloatArray:
        """Return X = D L for all classes, in the order of the groups, shape (K, K)."""
        c, U, V = self.split(y)
        group = np.repeat(np.arange(self.num_groups), self.sizes)
        indicators = np.eye(self.num_groups)[group] / np.sqrt(self.sizes)
        within = np.eye(len(group)) - indicators @ indicators.T
        return np.asarray(
            within * self.differences(c)[group][:, None] + indicators @ (U @ V.T) @ indicators.T
        )

    def _exponents(self, a: FloatArray, B: FloatArray) -> FloatArray:
        """Logits minus own logit, for each kind of wrong class; linear in (a, B)."""
        # Entries of X = D L, by the kind of class:
        #   own class            a_g(1 − 1/K_g) + B_gg/K_g
        #   same group, other    −a_g/K_g + B_gg/K_g          → minus own: −a_g
        #   another group h      B_gh/√(K_g K_h)
        own = (np.diag(B) / self.sizes + a * (1.0 - 1.0 / self.sizes)) / self.scales
        exponents = self._to_others * B - own[:, None]
        np.fill_diagonal(exponents, -a / self.scales)
        return np.asarray(exponents)

    def adjoint(self, slopes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Turn derivatives in the exponents into derivatives in a and B."""
        same = np.diag(slopes)
        others = slopes.sum(axis=1) - same
        slope_within = -(same + (1.0 - 1.0 / self.sizes) * others) / self.scales
        slope_between = self._to_others * slopes
        np.fill_diagonal(slope_between, -others / (self.sizes * self.scales))
        return slope_within, slope_between

    def _joined(self, c: FloatArray, U: FloatArray, V: FloatArray) -> FloatArray:
        within = np.where(self.separable, c / self.multiplicity, 0.0)
        return np.concatenate([within, U.ravel(), V.ravel()])


@dataclass(frozen=True, eq=False)
class LocalModelOfLoss:
    """log f at a point y of a `SymmetricProblem`."""

    problem: SymmetricProblem
    point: FloatArray
    loss: LogLoss
    slope_within: FloatArray
    slope_between: FloatArray
    value: float
    gradient: FloatArray

    def curvature(self, direction: FloatArray) -> FloatArray:
        """Return the Hessian of log f in y times a direction."""
        problem = self.problem
        c, U, V = problem.split(self.point)
        dc, dU, dV = problem.split(direction)
        da = np.where(problem.separable, c * dc / problem.multiplicity, 0.0)
        change = problem._exponents(da, dU @ V.T + U @ dV.T)
        bend_within, bend_between = problem.adjoint(self.loss.change_of_slopes(change))
        return problem._joined(
            bend_within * c + self.slope_within * dc,
            bend_between @ V + self.slope_between @ dV,
            bend_between.T @ U + self.slope_between.T @ dU,
        )
