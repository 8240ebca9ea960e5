"""Deterministic equivalents of (K − z)⁻¹ between classes, for a kernel given by its tables.

Without its low-rank part the resolvent is diag(q_a).  The noise rows w_i, of class a and covariance
C_a/p, meet the matrix Y = A(I + DA)⁻¹ there, in every direction with the eigenvalues λ_a of C_a: A
is the K × K table of slopes of the kernel in x·y and D = diag(c_a q_a λ_a), c_a = n_a/p.  Then

    q_a = 1/(Γ_a − z + δ_a),    δ_a = Σ w λ_a Y_aa,    Ω_ab = Σ w λ_a λ_b Y_ab(z) Y_ba(z′),

sums over groups of directions.  The low-rank part of K lives in the span of the class members J/√p,
the noise along the class means Z_c = A μ_c·w, the norms P = ψ and, class by class, the noise
O_ac = u^c along the mean of any class.  With Λ its coefficients there and H = Pᵀ diag-resolvent P,
G = (I + ΛH)⁻¹ [I; 0; 0; 0] holds everything else: G_J U is the mean leave-one-out residual of the
targets U, and the other blocks say in which directions a score feels the noise of its own sample.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.tables import KernelTables

Array = NDArray[Any]  # real for ridges, complex on a contour; poles come first in every shape

ROOT_TOL = 1e-12
QUADRATIC_GROUPS = 12
"""Groups of directions whose pairs carry the quadratic features."""


@dataclass(frozen=True, eq=False)
class Noise:
    """Noise features in groups of directions.

    A has a low rank r (one in the limit): with A = V diag(e) Vᵀ, Y = V (diag(1/e) + VᵀDV)⁻¹ Vᵀ
    takes inverses of size r instead of K.
    """

    values: FloatArray  # (m, K): λ
    weights: FloatArray  # (m,): w
    slopes: FloatArray  # (K, K): A

    @functools.cached_property
    def _spectrum(self) -> tuple[FloatArray, FloatArray]:
        """E and V, without eigenvalues that are rounding."""
        e, V = np.linalg.eigh(self.slopes)
        mask = np.abs(e) > 1e-13 * np.abs(e).max()
        return e[mask], V[:, mask]

    def responses(self, occupation: Array) -> Array:
        """Return Y for c_a q_a of shape (…, K), shape (…, m, K, K)."""
        strengths, V = self._spectrum
        D = occupation[..., None, :] * self.values
        # Woodbury: A may be singular, so that A⁻¹ + D is only formed on its range.
        inner = (D[..., None, :] * V.T) @ V
        rank = np.arange(len(strengths))
        inner[..., rank, rank] += 1.0 / strengths
        core = 1.0 / inner if len(rank) == 1 else np.linalg.inv(inner)
        return np.asarray(V @ core @ V.T)

    def delta(self, Y: Array) -> Array:
        """Return δ_a, shape (…, K)."""
        return np.asarray(np.einsum("ga,...gaa->...a", self.weights[:, None] * self.values, Y))

    @functools.cached_property
    def _factors(self) -> FloatArray:
        v = self.values
        return np.asarray(self.weights[:, None, None] * v[:, :, None] * v[:, None, :])

    def overlap(self, Y: Array) -> Array:
        """Return Ω_ab(z, z), shape (…, K, K)."""
        return np.asarray((self._factors * Y * np.swapaxes(Y, -1, -2)).sum(axis=-3))

    def overlaps(self, Y: Array, other: Array) -> Array:
        """Return Ω_ab of each of the last axis of poles with each other, shape (…, P, P′, K, K)."""
        # Sums over groups as matrix products, for all pairs of poles at once: the largest cost of
        # flows.
        left = np.moveaxis(self._factors * Y, (-4, -3), (-2, -1))  # (…, a, b, P, g)
        right = np.moveaxis(np.swapaxes(other, -1, -2), (-4, -3), (-1, -2))  # (…, a, b, g, P′)
        return np.asarray(np.moveaxis(left @ right, (-2, -1), (-4, -3)))


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Kernels of samples with given class ratios."""

    classes: Classes
    tables: KernelTables
    ratios: FloatArray  # (K,): c_a = n_a/p
    noises: tuple[Noise, ...]  # the features x, and xxᵀ where the tables have them

    @classmethod
    def of(cls, classes: Classes, tables: KernelTables, counts: FloatArray) -> Ensemble:
        """Put classes, tables and class sizes together."""
        noises: tuple[Noise, ...] = (Noise(classes.values, classes.weights, tables.linear),)
        if (tables.quadratic > 0.0).any():
            noises += (_quadratic_noise(classes, tables.quadratic),)
        return cls(classes, tables, counts / classes.dimension, noises)

    def resolvent(self, poles: Array) -> Resolvent:
        """Solve for q at poles of any shape: all real and negative, or all with Im z ≥ 0."""
        z = np.asarray(poles)
        flat = z.reshape(-1)
        on_axis = bool((flat.imag == 0.0).all() and (flat.real < 0.0).all())
        q = self._on_axis(flat.real) if on_axis else self._continued(flat.astype(np.complex128))
        q = q.reshape(*z.shape, -1)
        responses = tuple(noise.responses(self.ratios * q) for noise in self.noises)
        return Resolvent(self, z.real if on_axis else z, q, responses)

    def _on_axis(self, z: FloatArray) -> FloatArray:
        """Newton's method for log q, from above: q = 1/(Γ − z).

        The map q ↦ 1/(Γ − z + δ(q)) grows with q, and less than in proportion: it has one positive
        fixed point, and log of the map less log q falls.  At n = p and a tiny ridge it is nearly
        flat in between, where steps in q itself run away.
        """
        level = self.tables.diagonal - z[:, None]
        s, eye = -np.log(level), np.eye(len(self.ratios))
        for _ in range(200):
            q = np.exp(s)
            responses = [noise.responses(self.ratios * q) for noise in self.noises]
            pairs = list(zip(self.noises, responses, strict=True))
            image = 1.0 / (level + sum(noise.delta(Y) for noise, Y in pairs))
            gap = np.log(image) - s
            if (np.abs(gap) <= ROOT_TOL).all():
                return np.asarray(q)
            overlap = sum(noise.overlap(Y) for noise, Y in pairs)
            slopes = image[:, :, None] * overlap * self.ratios * q[:, None, :]
            step = np.linalg.solve(eye - slopes, gap[:, :, None])[:, :, 0]
            # A safeguard for exp.  At n from p/2 to 2p and ridges down to 1e-11 there are 5 to 15
            # steps with it, and about as many without.
            s = s + np.clip(step, -3.0, 3.0)
        _require_solved(float(np.abs(gap).max()))
        return np.asarray(q)

    def _continued(self, z: Array) -> Array:
        """Follow the solution from high above the spectrum down to z."""
        # δ(0) is the trace of a sample's own features, so that this bounds the diagonal; the factor
        # is that of the Marchenko–Pastur edge.
        trace = self._delta(np.zeros((1, len(self.ratios))))
        reach = float(trace.max() + self.tables.diagonal.max())
        reach *= (1.0 + math.sqrt(self.ratios.sum())) ** 2
        # Steps of a factor of e^½ down to a third of the nearest pole: with coarser ones Newton's
        # method lands on another branch at late times.
        low = min(1e-3, 0.3 * float(np.abs(z).min()) / reach)
        ladder = reach * np.append(np.geomspace(1.0, low, 4 + int(2.0 * math.log(1.0 / low))), 0.0)
        q = np.repeat(-1.0 / (z + 1j * ladder[0])[:, None], len(self.ratios), axis=1)
        for _ in range(30):
            q = self._image(q, z + 1j * ladder[0])
        # Steps on the way need to stay on the branch only; the last one, at z itself, is precise.
        for height in ladder:
            q = self._newton(q, z + 1j * height, 1e-6 if height else ROOT_TOL)
        if (q.imag < -1e-7 * np.abs(q)).any():
            worst = z[int(np.argmin((q.imag / np.abs(q)).min(axis=1)))]
            raise NotConverged(
                f"The resolvent at z = {worst:.4g} was solved on the wrong branch. Use an earlier "
                "time, or a ridge."
            )
        return q

    def _delta(self, q: Array) -> Array:
        parts = [noise.delta(noise.responses(self.ratios * q)) for noise in self.noises]
        return np.asarray(sum(parts))

    def _image(self, q: Array, z: Array) -> Array:
        return np.asarray(1.0 / (self.tables.diagonal - z[:, None] + self._delta(q)))

    def _newton(self, start: Array, z: Array, tolerance: float, steps: int = 100) -> Array:
        q, eye = start.copy(), np.eye(len(self.ratios))
        active = np.arange(len(z))
        for _ in range(steps):
            here = q[active]
            responses = [noise.responses(self.ratios * here) for noise in self.noises]
            delta = sum(n.delta(Y) for n, Y in zip(self.noises, responses, strict=True))
            image = 1.0 / (self.tables.diagonal - z[active, None] + delta)
            gap = image - here
            going = (np.abs(gap) > tolerance * np.abs(here)).any(axis=1)
            if not going.any():
                return q
            overlap = sum(n.overlap(Y) for n, Y in zip(self.noises, responses, strict=True))
            slopes = image[:, :, None] ** 2 * overlap * self.ratios
            step = np.linalg.solve(eye - slopes, gap[:, :, None])[:, :, 0]
            # At most half of q in one step: it never is zero.
            room = 0.5 * np.abs(here).min(axis=1) / np.maximum(np.abs(step).max(axis=1), 1e-300)
            step = step * np.minimum(1.0, room)[:, None]
            q[active[going]] = (here + step)[going]
            active = active[going]
        _require_solved(float((np.abs(gap) / np.abs(here)).max()), tolerance)
        return q


@dataclass(frozen=True, eq=False)
class Resolvent:
    """The solution at poles z of any shape (…)."""

    ensemble: Ensemble
    poles: Array
    q: Array  # (…, K)
    responses: tuple[Array, ...]  # Y of each of the ensemble's noises

    @property
    def occupation(self) -> Array:
        """c_a q_a."""
        return np.asarray(self.ensemble.ratios * self.q)

    def conjugate(self) -> Resolvent:
        """Return the solution at the conjugate poles."""
        return Resolvent(
            self.ensemble, self.poles.conj(), self.q.conj(), tuple(Y.conj() for Y in self.responses)
        )

    def overlap(self) -> Array:
        """Return Ω_ab(z, z), shape (…, K, K)."""
        parts = zip(self.ensemble.noises, self.responses, strict=True)
        return np.asarray(sum(noise.overlap(Y) for noise, Y in parts))

    def slope(self) -> Array:
        """Return dq/dλ at z = −λ, shape (…, K)."""
        square = self.q**2
        system = np.eye(self.q.shape[-1]) - square[..., None] * self.overlap() * (
            self.ensemble.ratios
        )
        return np.asarray(-np.linalg.solve(system, square[..., None])[..., 0])

    def fitted(self, targets: FloatArray) -> Fit:
        """Return what the fit of targets, one row per class, does to scores."""
        classes, tables = self.ensemble.classes, self.ensemble.tables
        K, a = classes.count, np.arange(classes.count)
        size = 3 * K + K * K
        J, Z, P, O = slice(K), slice(K, 2 * K), slice(2 * K, 3 * K), slice(3 * K, size)  # noqa: E741
        pair = 3 * K + a[:, None] * K + a  # O_ac: noise of class a along the mean of class c
        # With x = μ/√p + w, A x·y gives J–J (means with means) and J–Z (means with noise).
        core = np.zeros((size, size))
        core[J, J] = tables.constant + tables.linear * classes.mean_products
        core[J, Z] = core[Z, J] = np.eye(K)
        core[J, P], core[P, J] = tables.norm, tables.norm.T
        core[P, P] = tables.norms
        core[pair, pair.T] = 2.0 * tables.curvature / classes.dimension
        core[pair, 2 * K + a] = core[2 * K + a, pair] = tables.tilt / math.sqrt(classes.dimension)
        rest, once, own = self._mean_forms()
        lead, e, own_mean = self.q.shape[:-1], tables.mean_norm, pair[a, a]
        # ψ holds e·u^a besides the norm of the noise, so that P meets Z and O as e times O_aa does;
        # the noise's own norm, of variance 2T_aa/p, is diagonal, as classes are in J.
        H = np.zeros((*lead, size, size), self.q.dtype)
        H[..., a, a] = self.occupation
        H[..., Z, Z] = rest
        H[..., Z, O] = once.reshape(*lead, K, K * K)
        H[..., O, O] = own.reshape(*lead, K * K, K * K)
        H[..., Z, P], H[..., O, P] = e * H[..., Z, own_mean], e * H[..., O, own_mean]
        H[..., P, P] = e * H[..., own_mean, P]
        for x, y in ((Z, P), (Z, O), (O, P)):
            H[..., y, x] = np.swapaxes(H[..., x, y], -1, -2)
        H[..., 2 * K + a, 2 * K + a] += 2.0 * np.diag(classes.overlaps) * self.occupation
        right = np.zeros((*lead, size, targets.shape[1]))
        right[..., J, :] = targets
        G = np.linalg.solve(np.eye(size) + core @ H, right)  # O(K⁶) a pole
        along = G[..., O, :].reshape(*lead, K, K, -1)
        along[..., a, a, :] += e * G[..., P, :]
        return Fit(self, G[..., J, :], G[..., Z, :], G[..., P, :], along)

    def _mean_forms(self) -> tuple[Array, Array, Array]:
        """Return Z–Z, Z–O and O–O of H, of shapes (…, c, d), (…, c, a, d) and (…, a, c, b, d)."""
        classes, K = self.ensemble.classes, self.ensemble.classes.count
        used = classes.with_means
        gram, Y = classes.gram[used], self.responses[0][..., used, :, :]
        D = self.occupation[..., None, :] * classes.values[used]
        rest = (gram * (self.ensemble.tables.linear - Y)).sum(axis=-3)
        once = np.einsum("gcd,...gca,...ga->...cad", gram, Y, D, optimize=True)
        own = -np.einsum("gcd,...ga,...gab,...gb->...acbd", gram, D, Y, D, optimize=True)
        for a in range(K):
            forms = classes.mean_forms[:, :, a]
            own[..., a, :, a, :] += self.occupation[..., a, None, None] * forms
        return rest, once, own


@dataclass(frozen=True, eq=False)
class Fit:
    """The fit of targets U: G U in its blocks, with P's share of the noise along means in O."""

    resolvent: Resolvent
    residual: Array  # (…, K, k): mean leave-one-out residual; U − residual is the mean new score
    shared: Array  # (…, K, k): of Z
    norm: Array  # (…, K, k): of P
    along: Array  # (…, K, K, k): of O

    def conjugate(self) -> Fit:
        """Return the same fit at the conjugate poles."""
        parts = (self.residual, self.shared, self.norm, self.along)
        return Fit(self.resolvent.conjugate(), *(part.conj() for part in parts))

    def directions(self) -> tuple[Array, Array]:
        """Return C_b^½ d_b, d_b the direction in which a score of class b feels noise, and norms.

        Shapes (…, K, coordinates, k) and (…, K, k).
        """
        classes = self.resolvent.ensemble.classes
        used, roots = classes.with_means, classes.mean_roots
        Y, values = self.resolvent.responses[0][..., used, :, :], classes.values[used]
        D = self.resolvent.occupation[..., None, :] * values
        # Coefficient of μ_d in d_b, per group, (…, g, d, b, k): what the score has in its own
        # sample, and what the fit to other samples takes from it.
        F = Y[..., None] * self.shared[..., None, :, None, :]
        F = F + np.swapaxes(self.along, -3, -2)[..., None, :, :, :]
        F = F - np.einsum("...gc,...gcb,...cdk->...gdbk", D, Y, self.along, optimize=True)
        d = np.einsum("gde,...gdbk->...bgek", roots, F, optimize=True)
        d = d * np.sqrt(values).T[:, :, None, None]
        linear = d.reshape(*d.shape[:-3], d.shape[-3] * d.shape[-2], d.shape[-1])
        return linear, np.sqrt(2.0 * np.diag(classes.overlaps))[:, None] * self.norm

    def covariance(self, noise: FloatArray) -> Array:
        """Return the covariance of scores of each class at every pole, (…, K, k, k).

        `noise` is the covariance of the noise on the targets, (k, k).
        """
        linear, norm = self.directions()
        base = np.swapaxes(linear, -1, -2) @ linear + norm[..., :, None] * norm[..., None, :]
        left = self.residual[..., :, None] * self.residual[..., None, :] + noise
        weights = self.resolvent.ensemble.ratios * self.resolvent.q**2
        return _spread(self.resolvent.overlap(), weights, base, left)

    def covariances(self, other: Fit, noise: FloatArray) -> Array:
        """Return covariances between poles of the last axis of this and another fit.

        Shape (…, P, P′, K, k, k).
        """
        (one, norm1), (two, norm2) = self.directions(), other.directions()
        base = np.einsum("...pasi,...qasj->...pqaij", one, two, optimize=True)
        pairs = (..., slice(None), None, slice(None), slice(None), None)
        against = (..., None, slice(None), slice(None), None, slice(None))
        base = base + norm1[pairs] * norm2[against]
        left = self.residual[pairs] * other.residual[against] + noise
        here, there = self.resolvent, other.resolvent
        parts = zip(here.ensemble.noises, here.responses, there.responses, strict=True)
        overlap = np.asarray(sum(n.overlaps(Y, Z) for n, Y, Z in parts))
        weights = here.ensemble.ratios * here.q[..., :, None, :] * there.q[..., None, :, :]
        return _spread(overlap, weights, base, left)


def _require_solved(gap: float, tolerance: float = 0.0) -> None:
    # For tiny ridges the last digits are lost to rounding.
    if not gap <= max(1e-9, tolerance):
        raise NotConverged(
            f"The equation of the resolvent was not solved: residual {gap:.2g}. "
            "Use a larger ridge or an earlier time."
        )


def _spread(overlap: Array, weights: Array, base: Array, left: Array) -> Array:
    """V = (I − ΩD)⁻¹(base + ΩD·left): the noise of the fit feeds on the spread of its residuals."""
    K, k = base.shape[-3], base.shape[-1]
    coupling = overlap * weights[..., None, :]
    flat = (*base.shape[:-2], k * k)
    right = base.reshape(flat) + coupling @ np.broadcast_to(left, base.shape).reshape(flat)
    return np.asarray(np.linalg.solve(np.eye(K) - coupling, right).reshape(base.shape))


def _quadratic_noise(classes: Classes, coefficient: FloatArray) -> Noise:
    """Features w_k w_l, k ≤ l: eigenvalues are products, and there are p/2 times p of them."""
    few = classes.merged(QUADRATIC_GROUPS)
    i, j = np.triu_indices(len(few.values))
    # (w·w′)² = Σ_{k≤l} with features √2 w_k w_l, of variance 2λ_kλ_l/p²; the p²/2 of them count as
    # p/2 times p directions, and one p of the variance is in `Noise` itself.
    pairs = np.where(i == j, 0.5, 1.0) * few.weights[i] * few.weights[j] * classes.dimension
    values = few.values[i] * few.values[j]
    return Noise(values, pairs, 2.0 * coefficient / classes.dimension)
