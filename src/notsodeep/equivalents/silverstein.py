"""The fixed-point equation for the spectrum of a sample of several classes.

W has n rows in K classes; a row of class a is N(0, C_a/p), and the C_a share a basis, in which
direction k has the eigenvalues λ_k1 … λ_kK.  As n and p grow, (WWᵀ − z)⁻¹ behaves like the diagonal
matrix with q_a = −1/(z(1 + δ_a)) in class a, and (WᵀW − z)⁻¹ like one with 1/(D_k − z), where

    δ_a = Σ_k w_k λ_ka/(D_k − z),   D_k = Σ_b c_b λ_kb/(1 + δ_b),   c_b = n_b/p.

For one class it is Silverstein's equation.  For Im z > 0 there is one solution with Im δ > 0; on
the real axis it is the limit from above: complex inside the spectrum, real outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.records import Record

ComplexArray = NDArray[np.complex128]

# Two solutions meet at an edge, and there an error ε of the equation is one of √ε in δ.
EDGE = 1e-7
"""Im δ up to this times 1 + |δ| counts as zero: the accuracy of δ where the spectrum ends."""

_RESIDUAL = 1e-12
_CLOSE = 0.1 * _RESIDUAL  # where Newton's method stops
# Heights above the real axis, in units of the spectrum's reach, on the way down to z.  Six are
# enough for most points.  Near an edge, or with eigenvalues over many decades, the solution turns
# at a height of the size of the smallest detail: there it is followed again, in steps of half a
# factor of ten, to below the rounding of z.
_COARSE = np.array([1.0, 0.3, 0.1, 0.03, 0.01, 1e-3])
_FINE = np.logspace(0.0, -17.0, 58)
_CHUNK = 400_000  # numbers in a table of points × directions
# Eigenvalues of companion matrices, O(m³) a point, are four times as fast as the continuation for
# up to four groups, and slower from about a dozen.
_POLYNOMIAL = 4  # distinct eigenvalues up to which roots of polynomials are used


@dataclass(frozen=True, eq=False, repr=False)
class SilversteinEquation(Record):
    """The equation for given classes.

    Attributes
    ----------
    eigenvalues : ndarray of shape (m, K)
        λ_ka ≥ 0.
    weights : ndarray of shape (m,)
        w_k, the share of the p directions in group k; their sum is one.
    ratios : ndarray of shape (K,)
        c_a = n_a/p.
    """

    eigenvalues: FloatArray
    weights: FloatArray
    ratios: FloatArray

    def is_same(self, other: SilversteinEquation) -> bool:
        """Whether another equation has the same numbers."""
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("eigenvalues", "weights", "ratios")
        )

    @property
    def reach(self) -> float:
        """An upper bound for the spectrum: λ_max (1 + √(n/p))²."""
        return float(self.eigenvalues.max() * (1.0 + np.sqrt(self.ratios.sum())) ** 2)

    def solve(self, z: NDArray[Any]) -> ComplexArray:
        """Return δ at every z, Im z ≥ 0 and z ≠ 0; shape (len(z), K).

        For one class with few distinct eigenvalues the roots of a polynomial.  Otherwise a plain
        iteration at Im z = reach, where it contracts, and Newton's method on the way down to z,
        each step from the solution of the one before.

        Raises
        ------
        NotConverged
            The residual of the equation stays above 1e-12 (relative), or the solution is not the
            limit from above.
        """
        points = np.asarray(z, dtype=np.complex128)
        if self.eigenvalues.shape[1] == 1 and len(self.eigenvalues) <= _POLYNOMIAL:
            return self._polynomial_roots(points)[:, None]
        size = max(1, _CHUNK // self.eigenvalues.size)
        parts = [
            self._continued(points[start : start + size]) for start in range(0, len(points), size)
        ]
        return np.concatenate(parts) if parts else np.empty((0, len(self.ratios)), np.complex128)

    def directions(self, delta: ComplexArray) -> ComplexArray:
        """Return D_k for δ of shape (points, K); shape (points, m)."""
        return np.asarray((self.ratios / (1.0 + delta)) @ self.eigenvalues.T)

    def resolvent(self, z: NDArray[Any], delta: ComplexArray) -> ComplexArray:
        """Return q_a = −1/(z(1 + δ_a)), shape (points, K)."""
        return np.asarray(-1.0 / (z[:, None] * (1.0 + delta)))

    def rank(self) -> float:
        """Return the rank of W over p.

        Directions that no class reaches do not count, and a class has no more rank than rows and
        than directions it reaches.  If all classes reach the same, it is the smaller of rows and
        directions; otherwise the largest flow of rows into directions.
        """
        reached, group = np.unique(self.eigenvalues > 0.0, axis=0, return_inverse=True)
        rooms = np.bincount(group.reshape(-1), self.weights)
        if (reached == reached[:, :1]).all():
            return float(min(self.ratios.sum(), rooms[reached[:, 0]].sum()))
        room, row = np.nonzero(reached)  # one unknown for each direction that a class reaches
        # Maximise Σ f_ra subject to Σ_a f_ra ≤ room_r and Σ_r f_ra ≤ c_a, f ≥ 0.
        limits = np.concatenate([np.equal.outer(np.arange(len(rooms)), room),
                                 np.equal.outer(np.arange(len(self.ratios)), row)])  # fmt: skip
        flow = linprog(-np.ones(len(room)), limits, np.concatenate([rooms, self.ratios]))
        return float(-flow.fun)

    def stieltjes(self, z: NDArray[Any]) -> ComplexArray:
        """Return m(z) = lim (1/n) tr(WWᵀ − z)⁻¹ at every z."""
        points = np.asarray(z, dtype=np.complex128)
        shares = self.ratios / self.ratios.sum()
        return np.asarray(self.resolvent(points, self.solve(points)) @ shares)

    def _map(self, delta: ComplexArray, z: ComplexArray) -> tuple[ComplexArray, ComplexArray]:
        """Right-hand side of the equation for δ, and its Jacobian (points, K, K)."""
        inverse = 1.0 / (self.directions(delta) - z[:, None])
        image = inverse @ (self.weights[:, None] * self.eigenvalues)
        slope = self.ratios / (1.0 + delta) ** 2
        return image, self._products(inverse**2) * slope[:, None, :]

    def _newton(
        self, start: ComplexArray, z: ComplexArray, steps: int, tolerance: float
    ) -> ComplexArray:
        eye = np.eye(len(self.ratios))
        result = start.copy()
        active = np.arange(len(z))
        for _ in range(steps):
            delta = result[active]
            image, jacobian = self._map(delta, z[active])
            gap = image - delta
            # Points that have converged drop out, so that late steps cost as little as few points
            # do.
            going = (np.abs(gap) > tolerance * (1.0 + np.abs(delta))).any(axis=1)
            active = active[going]
            delta, gap, jacobian = delta[going], gap[going], jacobian[going]
            if not active.size:
                break
            with np.errstate(all="ignore"):
                step = np.linalg.solve(eye - jacobian, gap[:, :, None])[:, :, 0]
            # Where the Jacobian is singular the plain iteration continues.
            step = np.where(np.isfinite(step), step, gap)
            # 1 + δ = −1/(zq) is never 0; a step goes at most half the way there.
            room = 0.5 * np.abs(1.0 + delta)
            result[active] = delta + step * (room / np.maximum(room, np.abs(step)))
        return result

    def _certified(self, delta: ComplexArray, z: ComplexArray) -> NDArray[np.bool_]:
        """Whether δ solves the equation and is the limit from above.

        That limit has Im δ ≥ 0.  The imaginary part of the equation reads Im δ = P Im δ + a
        non-negative vector, where P is the Jacobian with every factor replaced by its modulus; so
        the spectral radius of P is at most one: one inside the spectrum, below one outside.
        """
        image = self._map(delta, z)[0]
        solves = (np.abs(image - delta) <= _RESIDUAL * (1.0 + np.abs(delta))).all(axis=1)
        above = (delta.imag >= -EDGE * (1.0 + np.abs(delta))).all(axis=1)
        # The radius changes in proportion to δ, whose error is up to EDGE where the spectrum ends.
        stable = self._radius(delta, z) < 1.0 + 100.0 * EDGE
        return np.asarray(solves & above & stable)

    def _radius(self, delta: ComplexArray, z: ComplexArray) -> FloatArray:
        """Spectral radius of P_ab = Σ_k w_k λ_ka λ_kb c_b/(|1 + δ_b|² |D_k − z|²)."""
        squares = np.abs(self.directions(delta) - z[:, None]) ** -2.0
        matrices = self._products(squares) * (self.ratios / np.abs(1.0 + delta) ** 2)[:, None, :]
        return np.asarray(np.abs(np.linalg.eigvals(matrices)).max(axis=1))

    def _products(self, factors: NDArray[Any]) -> NDArray[Any]:
        """Return Σ_k f_k w_k λ_ka λ_kb for factors of shape (points, m); shape (points, K, K)."""
        K = len(self.ratios)
        weighted = self.weights[:, None] * self.eigenvalues
        # One product (points × m)(m × K²) for all Jacobians: the table of K² columns does not
        # depend on the point.
        products = (weighted[:, :, None] * self.eigenvalues[:, None, :]).reshape(-1, K * K)
        return np.asarray((factors @ products).reshape(-1, K, K))

    def _continued(self, z: ComplexArray) -> ComplexArray:
        # Landing on another solution of the equation is harmless: it is not certified, and done
        # again.
        delta = self._descended(z, _COARSE, 1e-3)
        bad = ~self._certified(delta, z)
        if bad.any():
            delta[bad] = self._descended(z[bad], _FINE, _CLOSE)
            bad[bad] = ~self._certified(delta[bad], z[bad])
        if bad.any():
            worst = z[np.flatnonzero(bad)[0]]
            raise NotConverged(
                f"The equation for the limiting spectrum was not solved at z = {worst:.6g}: at "
                f"{int(bad.sum())} of {len(z)} points no solution to within {_RESIDUAL:g} is the "
                "limit from above."
            )
        return delta

    def _descended(
        self, z: ComplexArray, ladder: NDArray[np.floating[Any]], tolerance: float
    ) -> ComplexArray:
        """Follow the solution down the heights of the ladder, each to within the tolerance."""
        top = z + 1j * self.reach
        # δ ~ −E λ/z far from the spectrum.  As high as the spectrum is long the plain iteration
        # contracts, from any start with Im δ > 0, and so arrives at the right one of the solutions;
        # ten steps bring it into the reach of Newton's method.
        delta = -(self.weights @ self.eigenvalues) / top[:, None]
        for _ in range(10):
            delta = self._map(delta, top)[0]
        # The solution is analytic in the upper half-plane: what one height ends with is a start for
        # the next one, and need not be precise.
        for height in ladder:
            delta = self._newton(delta, z + 1j * height * self.reach, 12, tolerance)
        # Next to an edge, a double root, Newton's method gains one bit a step: 80 suffice for all
        # 53.
        delta = self._newton(delta, z, 80, _CLOSE)
        # On the real axis the solution is defined up to conjugation.
        flipped = (z.imag == 0.0)[:, None] & (delta.imag < 0.0)
        return np.where(flipped, delta.conj(), delta)

    def _polynomial_roots(self, z: ComplexArray) -> ComplexArray:
        """δ from s = 1/q: −s + Σ_k w_k λ_k s/(s + cλ_k) = z, a polynomial of degree m + 1."""
        positive = self.eigenvalues[:, 0] > 0.0
        t, w = self.eigenvalues[positive, 0], self.weights[positive]
        c = float(self.ratios[0])
        whole = np.poly(-c * t)
        parts = sum(
            w[k] * t[k] * np.append(np.poly(np.delete(-c * t, k)), 0.0) for k in range(len(t))
        )
        # (−s − z)·Π(s + cλ) + Σ w λ s Π', for every z at once, leading coefficient made 1.
        table = np.zeros((len(z), len(t) + 2), np.complex128)
        table[:, :-1] += whole
        table[:, 1:] += z[:, None] * whole - parts
        companion = np.zeros((len(z), len(t) + 1, len(t) + 1), np.complex128)
        companion[:, 0] = -table[:, 1:]
        companion[:, np.arange(1, len(t) + 1), np.arange(len(t))] = 1.0
        roots = np.linalg.eigvals(companion)
        # q = −1/(z(1 + δ)) and s = 1/q.
        delta = -1.0 - roots / z[:, None]
        return self._limit_from_above(delta, z)

    def _limit_from_above(self, delta: ComplexArray, z: ComplexArray) -> ComplexArray:
        """Choose among all solutions (points, m + 1) the one that is the limit from above."""
        stable = np.empty(delta.shape)
        for column in range(delta.shape[1]):
            with np.errstate(all="ignore"):
                jacobian = self._map(delta[:, [column]], z)[1][:, 0, 0]
            stable[:, column] = np.where(np.isfinite(jacobian), np.abs(jacobian), np.inf)
        # Above the axis, and inside the spectrum, only one root has Im δ > 0.  Outside all roots
        # are real or come in pairs, and the right one is where the equation contracts.
        most = delta.imag.argmax(axis=1)
        rows = np.arange(len(z))
        complex_ = delta.imag[rows, most] > EDGE * (1.0 + np.abs(delta[rows, most]))
        choice = np.where((z.imag > 0.0) | complex_, most, stable.argmin(axis=1))
        chosen = delta[rows, choice]
        real = (z.imag == 0.0) & ~complex_
        # A few Newton steps repair the digits that eigenvalues of a companion matrix lose.
        return self._newton(np.where(real, chosen.real, chosen)[:, None], z, 5, _CLOSE)[:, 0]
