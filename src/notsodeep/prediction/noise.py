"""The noise of the samples, seen through the resolvent of the kernel.

Let q_a be the diagonal of (K − z)⁻¹ for a sample of class a, without the low-rank part of K.  The
noise rows w_i, of class a and covariance C_a/p, meet the matrix Y = A(I + DA)⁻¹ there, in every
direction with the eigenvalues λ_a of C_a: A is the K × K table of slopes of the kernel in x·y and
D = diag(c_a q_a λ_a), c_a = n_a/p.  From it come

    δ_a = Σ w λ_a Y_aa,      Ω_ab = Σ w λ_a λ_b Y_ab(z) Y_ba(z′),

sums over directions.  `GroupedNoise` has directions in groups; `DenseNoise` has covariances that
share no basis, for A of rank one.  Arrays of poles come first in every shape.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.prediction.classes import Classes

Array = NDArray[Any]  # real for ridges, complex on a contour


class Noise(Protocol):
    """One family of noise features."""

    def responses(self, occupation: Array) -> Array:
        """Return Y for c_a q_a of shape (…, K), in the class's own form."""

    def delta(self, Y: Array) -> Array:
        """Return δ_a, shape (…, K)."""

    def overlap(self, Y: Array, other: Array) -> Array:
        """Return Ω_ab of poles that are paired, shape (…, K, K)."""

    def overlaps(self, Y: Array, other: Array) -> Array:
        """Return Ω_ab of each of the last axis of poles with each other, shape (…, P, P′, K, K)."""

    def log_determinant(self, occupation: FloatArray) -> Array:
        """Return log det(I + DA), summed over directions and divided by p; shape (…)."""


class MeanNoise(Noise, Protocol):
    """Noise that the class means lie in."""

    def mean_forms(self, Y: Array, occupation: Array) -> tuple[Array, Array, Array]:
        """Return forms of the means with A − Y, Y D and D Y D, each of shape (…, K, K)."""

    def directions(self, Y: Array, occupation: Array, along: Array, beside: Array) -> Array:
        """Return C_b^½ d_b, d_b the direction in which a score of class b feels noise.

        `along` and `beside` are coefficients (…, K, k); the shape is (…, K, coordinates, k).
        """


@dataclass(frozen=True, eq=False)
class GroupedNoise:
    """Directions in groups: λ of shape (m, K), w of shape (m,), A of shape (K, K).

    A has a low rank r (one in the limit): with A = V diag(e) Vᵀ, Y = V (diag(1/e) + VᵀDV)⁻¹ Vᵀ
    takes inverses of size r instead of K.
    """

    values: FloatArray
    weights: FloatArray
    slopes: FloatArray
    gram: FloatArray | None = None

    @functools.cached_property
    def _spectrum(self) -> tuple[FloatArray, FloatArray]:
        """E and V, without eigenvalues that are rounding."""
        e, V = np.linalg.eigh(self.slopes)
        kept = np.abs(e) > 1e-13 * np.abs(e).max()
        return e[kept], V[:, kept]

    @functools.cached_property
    def _with_means(self) -> tuple[NDArray[np.intp], FloatArray]:
        """Groups that the means lie in, and roots R_g of their Gram matrices, B_g = R_g R_gᵀ."""
        assert self.gram is not None
        used = np.flatnonzero(np.abs(self.gram).max(axis=(1, 2)) > 0.0)
        squares, basis = np.linalg.eigh(self.gram[used])
        return used, basis * np.sqrt(np.maximum(squares, 0.0))[:, None, :]

    def responses(self, occupation: Array) -> Array:
        """Y of shape (…, m, K, K)."""
        strengths, V = self._spectrum
        D = occupation[..., None, :] * self.values
        # Woodbury: A may be singular, so that A⁻¹ + D is only formed on its range.
        inner = (D[..., None, :] * V.T) @ V
        rank = np.arange(len(strengths))
        inner[..., rank, rank] += 1.0 / strengths
        core = 1.0 / inner if len(rank) == 1 else np.linalg.inv(inner)
        return np.asarray(V @ core @ V.T)

    def delta(self, Y: Array) -> Array:
        """See `Noise`."""
        weighted = self.weights[:, None] * self.values
        return np.asarray(np.einsum("ga,...gaa->...a", weighted, Y))

    def overlap(self, Y: Array, other: Array) -> Array:
        """See `Noise`."""
        v = self.values
        factors = self.weights[:, None, None] * v[:, :, None] * v[:, None, :]
        return np.asarray((factors * Y * np.swapaxes(other, -1, -2)).sum(axis=-3))

    def overlaps(self, Y: Array, other: Array) -> Array:
        """See `Noise`."""
        v = self.values
        factors = self.weights[:, None, None] * v[:, :, None] * v[:, None, :]
        # Sums over groups as matrix products, for all pairs of poles at once: the largest cost of
        # filters.
        left = np.moveaxis(factors * Y, (-4, -3), (-2, -1))  # (…, a, b, P, g)
        right = np.moveaxis(np.swapaxes(other, -1, -2), (-4, -3), (-1, -2))  # (…, a, b, g, P′)
        return np.asarray(np.moveaxis(left @ right, (-2, -1), (-4, -3)))

    def log_determinant(self, occupation: FloatArray) -> Array:
        """See `Noise`."""
        D = occupation[..., None, :] * self.values
        matrices = np.eye(self.slopes.shape[0]) + D[..., :, None] * self.slopes
        return np.asarray(np.linalg.slogdet(matrices)[1] @ self.weights)

    def mean_forms(self, Y: Array, occupation: Array) -> tuple[Array, Array, Array]:
        """See `MeanNoise`."""
        assert self.gram is not None
        used, _ = self._with_means
        gram, Y = self.gram[used], Y[..., used, :, :]
        D = occupation[..., None, :] * self.values[used]
        rest = (gram * (self.slopes - Y)).sum(axis=-3)
        once = np.einsum("gzc,...gza,...ga->...zac", gram, Y, D, optimize=True)
        twice = np.einsum("gcd,...ga,...gab,...gb->...acbd", gram, D, Y, D, optimize=True)
        return rest, once, twice

    def directions(self, Y: Array, occupation: Array, along: Array, beside: Array) -> Array:
        """See `MeanNoise`."""
        used, roots = self._with_means
        Y, values = Y[..., used, :, :], self.values[used]
        D = occupation[..., None, :] * values
        # coefficient of μ_c in d_b, per group: (…, g, c, b, k)
        F = Y[..., None] * along[..., None, :, None, :]
        F = F + np.swapaxes(beside, -3, -2)[..., None, :, :, :]
        F = F - np.einsum("...gc,...gcb,...cdk->...gdbk", D, Y, beside, optimize=True)
        d = np.einsum("gce,...gcbk->...bgek", roots, F, optimize=True)
        d = d * np.sqrt(values).T[:, :, None, None]
        coordinates = d.shape[-3] * d.shape[-2]
        return np.asarray(d.reshape(*d.shape[:-3], coordinates, d.shape[-1]))


@dataclass(frozen=True, eq=False)
class DenseNoise:
    """Full covariances (K, p, p), for A = s sᵀ: samples of class a count s_a times their size."""

    covariances: FloatArray
    means: FloatArray
    strengths: FloatArray

    @classmethod
    def of(cls, classes: Classes, slopes: FloatArray) -> DenseNoise:
        """Take A for the nearest matrix of rank one; in the limit it is one."""
        assert classes.full is not None
        assert classes.means is not None
        e, V = np.linalg.eigh(slopes)
        strengths = np.sqrt(e[-1]) * np.abs(V[:, -1])
        return cls(classes.full, classes.means, strengths)

    @functools.cached_property
    def _scaled(self) -> FloatArray:
        return np.asarray(self.strengths[:, None, None] ** 2 * self.covariances)

    def responses(self, occupation: Array) -> Array:
        """Y up to the factors s_a s_b: (I + Σ_b c_b q_b s_b² C_b)⁻¹, shape (…, p, p)."""
        p = self.covariances.shape[1]
        return np.asarray(np.linalg.inv(np.eye(p) + np.tensordot(occupation, self._scaled, axes=1)))

    def delta(self, Y: Array) -> Array:
        """See `Noise`."""
        p = self.covariances.shape[1]
        flat = self._scaled.reshape(len(self.means), -1)
        return np.asarray(Y.reshape(*Y.shape[:-2], -1) @ flat.T / p)

    def overlap(self, Y: Array, other: Array) -> Array:
        """See `Noise`."""
        p = self.covariances.shape[1]
        left, right = (self._scaled @ response[..., None, :, :] for response in (Y, other))
        left = left.reshape(*left.shape[:-2], -1)
        right = np.swapaxes(right, -1, -2).reshape(*right.shape[:-2], -1)
        return np.asarray(left @ np.swapaxes(right, -1, -2) / p)

    def overlaps(self, Y: Array, other: Array) -> Array:
        """See `Noise`."""
        rows = [
            np.stack([self.overlap(Y[..., i, :, :], other[..., j, :, :])
                      for j in range(other.shape[-3])], axis=-3)
            for i in range(Y.shape[-3])
        ]  # fmt: skip
        return np.stack(rows, axis=-4)

    def log_determinant(self, occupation: FloatArray) -> Array:
        """See `Noise`."""
        p = self.covariances.shape[1]
        matrices = np.eye(p) + np.tensordot(occupation, self._scaled, axes=1)
        return np.asarray(np.linalg.slogdet(matrices)[1] / p)

    def mean_forms(self, Y: Array, occupation: Array) -> tuple[Array, Array, Array]:
        """See `MeanNoise`."""
        scaled = self.strengths[:, None] * self.means
        moved = np.einsum("aij,aj->ai", self.covariances, scaled)  # C_a μ_a s_a
        rest = scaled @ (np.eye(Y.shape[-1]) - Y) @ scaled.T
        once = (scaled @ Y @ moved.T) * occupation[..., None, :]
        twice = (moved @ Y @ moved.T) * occupation[..., :, None] * occupation[..., None, :]
        return rest, once, twice

    def directions(self, Y: Array, occupation: Array, along: Array, beside: Array) -> Array:
        """See `MeanNoise`."""
        s, scaled = self.strengths, self.strengths[:, None] * self.means
        moved = np.einsum("aij,aj->ai", self.covariances, scaled)
        source = scaled.T @ along - moved.T @ (occupation[..., None] * beside)  # (…, p, k)
        common = Y @ source
        d = s[:, None, None] * common[..., None, :, :]
        d = d + self.means[:, :, None] * beside[..., :, None, :]
        return np.asarray(self._roots @ d)

    @functools.cached_property
    def _roots(self) -> FloatArray:
        values, vectors = np.linalg.eigh(self.covariances)
        roots = np.sqrt(np.maximum(values, 0.0))[:, :, None] * np.swapaxes(vectors, -1, -2)
        return np.asarray(roots)
