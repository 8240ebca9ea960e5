"""Deterministic equivalents of (K − z)⁻¹ between classes, for a kernel given by its tables.

Without its low-rank part the resolvent is diag(q_a), the solution of

    q_a = 1/(Γ_a − z + δ_a(q)),      δ of `notsodeep.prediction.noise`.

The low-rank part of K lives in the span of the class members J/√p, the noise along the class means
W M̃ᵀ, the norms Ψ and the noise along a sample's own mean.  With Λ its coefficients there and
H = Pᵀ diag-resolvent P, G = (I + ΛH)⁻¹ [I; 0; 0; 0] holds everything else: G_J U is the mean
leave-one-out residual of the targets U, and the other blocks say in which directions a score feels
the noise of its own sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.noise import DenseNoise, GroupedNoise, MeanNoise, Noise
from notsodeep.prediction.tables import KernelTables

Array = NDArray[Any]

_TOLERANCE = 1e-12
_QUADRATIC_GROUPS = 12  # of directions, whose pairs carry the quadratic features


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Kernels of samples with given class ratios.

    Attributes
    ----------
    classes : Classes
    tables : KernelTables
    ratios : ndarray of shape (K,)
        c_a = n_a/p.
    linear : MeanNoise
        The features x.
    others : tuple of Noise
        The features xxᵀ, where the tables have them.
    """

    classes: Classes
    tables: KernelTables
    ratios: FloatArray
    linear: MeanNoise
    others: tuple[Noise, ...]

    @classmethod
    def of(cls, classes: Classes, tables: KernelTables, counts: FloatArray) -> Ensemble:
        """Put classes, tables and class sizes together."""
        linear: MeanNoise
        if classes.full is None:
            linear = GroupedNoise(classes.values, classes.weights, tables.linear, classes.gram)
        else:
            linear = DenseNoise.of(classes, tables.linear)
        others: tuple[Noise, ...] = ()
        if (tables.quadratic > 0.0).any():
            others = (_quadratic_noise(classes, tables.quadratic),)
        return cls(classes, tables, counts / classes.dimension, linear, others)

    @property
    def noises(self) -> tuple[Noise, ...]:
        """All features."""
        return (self.linear, *self.others)

    def resolvent(self, poles: Array) -> Resolvent:
        """Solve for q at poles of any shape: all real and negative, or all with Im z ≥ 0.

        Raises
        ------
        NotConverged
            The equation is not solved to 1e-12, or the solution is not the limit from above.
        """
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
        if not (level > 0.0).all():
            raise NotConverged("The resolvent was asked for inside the spectrum of the kernel.")
        s, eye = -np.log(level), np.eye(len(self.ratios))
        for _ in range(200):
            q = np.exp(s)
            responses = [noise.responses(self.ratios * q) for noise in self.noises]
            pairs = list(zip(self.noises, responses, strict=True))
            image = 1.0 / (level + sum(noise.delta(Y) for noise, Y in pairs))
            gap = np.log(image) - s
            if (np.abs(gap) <= _TOLERANCE).all():
                return np.asarray(q)
            overlap = sum(noise.overlap(Y, Y) for noise, Y in pairs)
            slopes = image[:, :, None] * overlap * self.ratios * q[:, None, :]
            step = np.linalg.solve(eye - slopes, gap[:, :, None])[:, :, 0]
            # A safeguard for exp.  At n from p/2 to 2p and ridges down to 1e-11 there are 5 to 15
            # steps with it, and about as many without.
            s = s + np.clip(step, -3.0, 3.0)
        worst = float(np.abs(gap).max())
        if worst > 1e-9:  # rounding can keep a tiny ridge from the last digits
            raise NotConverged(
                f"The equation of the resolvent was not solved in 200 steps: residual {worst:.2g}. "
                "Use a larger ridge."
            )
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
            q = self._newton(q, z + 1j * height, 1e-6 if height else _TOLERANCE)
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
            overlap = sum(n.overlap(Y, Y) for n, Y in zip(self.noises, responses, strict=True))
            slopes = image[:, :, None] ** 2 * overlap * self.ratios
            step = np.linalg.solve(eye - slopes, gap[:, :, None])[:, :, 0]
            # At most half of q in one step: it never is zero.
            room = 0.5 * np.abs(here).min(axis=1) / np.maximum(np.abs(step).max(axis=1), 1e-300)
            step = step * np.minimum(1.0, room)[:, None]
            q[active[going]] = (here + step)[going]
            active = active[going]
        worst = float((np.abs(gap) / np.abs(here)).max())
        # Rounding can keep a tiny ridge from the last digits.
        if worst > max(1e-9, tolerance):
            raise NotConverged(
                f"The equation of the resolvent was not solved in {steps} steps: residual "
                f"{worst:.2g}. Use an earlier time, or a ridge."
            )
        return q


@dataclass(frozen=True, eq=False)
class Resolvent:
    """The solution at poles z of any shape (…).

    Attributes
    ----------
    ensemble : Ensemble
    poles : ndarray of shape (…)
    q : ndarray of shape (…, K)
    responses : tuple of ndarray
        Y of each of the ensemble's noises.
    """

    ensemble: Ensemble
    poles: Array
    q: Array
    responses: tuple[Array, ...]

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
        return np.asarray(sum(noise.overlap(Y, Y) for noise, Y in parts))

    def slope(self) -> Array:
        """Return dq/dλ at z = −λ, shape (…, K)."""
        square = self.q**2
        system = np.eye(self.q.shape[-1]) - square[..., None] * self.overlap() * (
            self.ensemble.ratios
        )
        return np.asarray(-np.linalg.solve(system, square[..., None])[..., 0])

    def log_determinant(self) -> Array:
        """Return log det(K − z) without the low-rank part, which is of order one; shape (…)."""
        parts = zip(self.ensemble.noises, self.responses, strict=True)
        delta = sum(noise.delta(Y) for noise, Y in parts)
        bulk = sum(noise.log_determinant(self.occupation) for noise in self.ensemble.noises)
        occupied = (self.occupation * delta).sum(axis=-1)
        p = self.ensemble.classes.dimension
        return np.asarray(p * (bulk - np.log(self.q) @ self.ensemble.ratios - occupied))

    def fitted(self, targets: FloatArray) -> Fit:
        """Return what the fit of targets, one row per class, does to scores."""
        classes, tables = self.ensemble.classes, self.ensemble.tables
        K, a = classes.count, np.arange(classes.count)
        J, Z, P = (slice(i * K, (i + 1) * K) for i in range(3))
        O = slice(3 * K, 3 * K + K * K)
        pair = 3 * K + a[:, None] * K + a
        core = np.zeros((3 * K + K * K, 3 * K + K * K))
        core[J, J] = tables.constant + tables.linear * classes.mean_products
        core[J, Z] = core[Z, J] = np.eye(K)
        core[J, P] = tables.norm
        core[P, J] = core[J, P].T
        core[P, P] = tables.norms
        core[pair, pair.T] = tables.own_mean
        slope = tables.tilt / math.sqrt(classes.dimension)
        core[pair, 2 * K + a] = slope
        core[2 * K + a, pair] = slope
        occupation, e = self.occupation, tables.mean_norm
        rest, once, twice = self.ensemble.linear.mean_forms(self.responses[0], occupation)
        forms = np.moveaxis(classes.mean_forms(), -1, 0)
        own = -twice
        own[..., a, :, a, :] += (occupation[..., None, None] * forms).swapaxes(0, -3) if False else np.moveaxis(occupation[..., None, None] * forms, -3, 0)
        lead = self.q.shape[:-1]
        H = np.zeros((*lead, 3 * K + K * K, 3 * K + K * K), self.q.dtype)
        H[..., a, a] = occupation
        H[..., Z, Z] = rest
        H[..., Z, O] = once.reshape(*lead, K, K * K)
        H[..., O, O] = own.reshape(*lead, K * K, K * K)
        H[..., Z, P] = e * H[..., Z, pair[a, a]]
        H[..., O, P] = e * H[..., O, pair[a, a]]
        H[..., P, P] = e * H[..., pair[a, a], P]
        H[..., P, Z], H[..., O, Z], H[..., P, O] = (
            np.swapaxes(H[..., x, y], -1, -2) for x, y in ((Z, P), (Z, O), (O, P))
        )
        H[..., 2 * K + a, 2 * K + a] += 2.0 * np.diag(classes.overlaps) * occupation
        right = np.zeros((3 * K + K * K, targets.shape[1]))
        right[J] = targets
        right = np.broadcast_to(right, (*H.shape[:-1], targets.shape[1]))
        # O((4K)³) a pole.
        G = np.linalg.solve(np.eye(3 * K + K * K) + core @ H, right)
        return Fit(self, G[..., J, :], G[..., Z, :], G[..., P, :], G[..., O, :])


@dataclass(frozen=True, eq=False)
class Fit:
    """The fit of targets U: G U in its four blocks, each of shape (…, K, k).

    `residual` is the mean leave-one-out residual of a training sample of each class, so that the
    mean score of a new sample is U − residual.
    """

    resolvent: Resolvent
    residual: Array
    along: Array
    norm: Array
    own: Array

    def conjugate(self) -> Fit:
        """Return the same fit at the conjugate poles."""
        parts = (self.residual, self.along, self.norm, self.own)
        return Fit(self.resolvent.conjugate(), *(part.conj() for part in parts))

    def directions(self) -> tuple[Array, Array]:
        """Return noise directions of scores, (…, K, coordinates, k) and (…, K, k) for the norm."""
        ensemble = self.resolvent.ensemble
        K, a = len(self.resolvent.ensemble.ratios), np.arange(len(self.resolvent.ensemble.ratios))
        beside = self.own.reshape(*self.own.shape[:-2], K, K, -1).copy()
        beside[..., a, a, :] += ensemble.tables.mean_norm * self.norm
        linear = ensemble.linear.directions(
            self.resolvent.responses[0], self.resolvent.occupation, self.along, beside
        )
        spread = np.sqrt(2.0 * np.diag(ensemble.classes.overlaps))
        return linear, np.asarray(spread[:, None] * self.norm)

    def covariance(self, noise: FloatArray) -> Array:
        """Return the covariance of scores of each class at every pole, (…, K, k, k).

        `noise` is the covariance of the noise on the targets of each class, (K, k, k).
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
        P, K, size, k = one.shape[-4:]
        Q, outer = two.shape[-4], one.shape[:-4]
        # (…, K, P·k, coordinates) @ (…, K, coordinates, P′·k)
        first = np.moveaxis(one, (-4, -2), (-3, -1)).reshape(*outer, K, P * k, size)
        second = np.moveaxis(two, (-4, -2), (-2, -3)).reshape(*outer, K, size, Q * k)
        base = (first @ second).reshape(*outer, K, P, k, Q, k)
        base = np.moveaxis(base, (-5, -2), (-3, -4))  # (…, P, P′, K, k, k)
        pairs = (..., slice(None), None, slice(None), slice(None), None)
        against = (..., None, slice(None), slice(None), None, slice(None))
        base = base + norm1[pairs] * norm2[against]
        left = self.residual[pairs] * other.residual[against] + noise
        here, there = self.resolvent, other.resolvent
        parts = zip(here.ensemble.noises, here.responses, there.responses, strict=True)
        overlap = np.asarray(sum(n.overlaps(Y, Z) for n, Y, Z in parts))
        weights = here.ensemble.ratios * here.q[..., :, None, :] * there.q[..., None, :, :]
        return _spread(overlap, weights, base, left)


def _spread(overlap: Array, weights: Array, base: Array, left: Array) -> Array:
    """V = (I − ΩD)⁻¹(base + ΩD·left): the noise of the fit feeds on the spread of its residuals."""
    K, k = base.shape[-3], base.shape[-1]
    coupling = overlap * weights[..., None, :]
    flat = (*base.shape[:-2], k * k)
    right = base.reshape(flat) + coupling @ np.broadcast_to(left, base.shape).reshape(flat)
    return np.asarray(np.linalg.solve(np.eye(K) - coupling, right).reshape(base.shape))


def _quadratic_noise(classes: Classes, coefficient: FloatArray) -> GroupedNoise:
    """Features w_k w_l, k ≤ l: eigenvalues are products, and there are p/2 times p of them."""
    few = classes.coarser(_QUADRATIC_GROUPS)
    i, j = np.triu_indices(len(few.values))
    # (w·w′)² = Σ_{k≤l} with features √2 w_k w_l, of variance 2λ_kλ_l/p²; the p²/2 of them count as
    # p/2 times p directions, and one p of the variance is in `GroupedNoise` itself.
    pairs = np.where(i == j, 0.5, 1.0) * few.weights[i] * few.weights[j] * classes.dimension
    values = few.values[i] * few.values[j]
    return GroupedNoise(values, pairs, 2.0 * coefficient / classes.dimension)
