"""The kernel of inputs at right angles, and its slope there, for any two norms.

Every dense kernel is a function κ(‖x‖², ‖y‖², x·y).  `expansion` has its Taylor coefficients at
one norm; here κ and ∂κ/∂(x·y) at x·y = 0 are computed for pairs of norms, without an expansion in
them: norms of a few hundred coordinates still scatter by a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.expansion import TERMS, SlowSeries, as_cell, mehler_sum
from notsodeep.errors import NotConverged
from notsodeep.models import Convention, DeepEquilibrium, Dense, ExplicitNetwork, KernelName
from notsodeep.models.layers import Variances, solve_variances, stability

_TAIL = 1e-9  # of series, relative: what norms are fitted with is less exact


def at_right_angles(
    model: DeepEquilibrium | ExplicitNetwork,
    squared_norms: FloatArray,
    *,
    kind: KernelName,
    convention: Convention,
) -> tuple[FloatArray, FloatArray]:
    """Compute κ(q_i, q_j, 0) and ∂κ/∂s(q_i, q_j, 0), s = x·y, for m squared norms q.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    squared_norms : ndarray of shape (m,)
        Positive.
    kind : {"ck", "ntk"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.

    Returns
    -------
    ndarray of shape (m, m), ndarray of shape (m, m)

    Raises
    ------
    SlowSeries
        Biases make inputs at right angles nearly parallel, as they do with small ones.
    NotConverged
        There is no variance, or no stable equilibrium, at one of the norms.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> choice = {"kind": "ck", "convention": "preactivation"}
    >>> value, slope = at_right_angles(deq, np.array([0.9, 1.0]), **choice)
    >>> float(value[1, 1].round(6)), float(slope[1, 1].round(6))
    (0.0298, 0.843052)
    """
    if isinstance(model, ExplicitNetwork):
        cell, convention = as_cell(model.activations), "feature"
    else:
        cell = model.cell
    variances, _ = solve_variances(cell, squared_norms, name=f"the variance of {model}")
    radius = stability(cell, variances)
    if not radius.max() < 1.0:
        worst = int(radius.argmax())
        raise NotConverged(
            f"The {model} has no stable equilibrium at ‖x‖² = {squared_norms[worst]:.4g}, which "
            f"rows of X have: the product of w E φ′² over its layers is {radius[worst]:.4g} and "
            "must stay below 1. Use smaller weights, or order=1, which only asks it of τ0²."
        )
    for terms in TERMS:
        try:
            return _Pairs(cell, variances, terms).kernel(kind, convention)
        except SlowSeries:
            if terms == TERMS[-1]:
                raise
    raise AssertionError


class _Dual(NamedTuple):
    """Value and slope in s of a quantity of every pair, shape (m, m) each."""

    value: FloatArray
    slope: FloatArray

    def plus(self, other: _Dual) -> _Dual:
        return _Dual(self.value + other.value, self.slope + other.slope)

    def times(self, other: _Dual) -> _Dual:
        slope = self.value * other.slope + self.slope * other.value
        return _Dual(self.value * other.value, slope)

    def scaled(self, factor: float | FloatArray) -> _Dual:
        return _Dual(self.value * factor, self.slope * factor)


@dataclass(frozen=True)
class _Layer:
    """A layer at m norms: what a covariance is multiplied by before φ, and after it."""

    dense: Dense
    scales: FloatArray  # (m,)
    hermite: FloatArray  # (m, terms + 2), of φ(τξ)
    inner: FloatArray  # (m, m)
    outer: FloatArray
    means: FloatArray

    def moment(self, derivative: int, covariance: FloatArray) -> FloatArray:
        """E[φ^(d)(u)φ^(d)(v)] for these scales of u and v, and that covariance; shape (m, m)."""
        scales = np.outer(self.scales, self.scales)
        one, two = self.hermite[:, None, :], self.hermite[None, :, :]
        powers = (covariance / scales)[..., None] ** np.arange(one.shape[-1] - 2)
        name = str(self.dense.activation)
        sums = mehler_sum(one, two, derivative, derivative, powers, name, _TAIL)
        return np.asarray(sums / scales**derivative)


class _Pairs:
    """A cell at inputs at right angles of m norms, solved for their covariances."""

    def __init__(self, cell: tuple[Dense, ...], variances: Variances, terms: int) -> None:
        self.layers = [
            _layer(*each, terms)
            for each in zip(cell, variances.incoming, variances.scales, strict=True)
        ]
        m = variances.scales.shape[1]
        self.zero = np.zeros((m, m))
        state = self.zero
        for _ in range(2000):
            image = self._turn(_Dual(state, self.zero))[1][-1].value
            settled = np.max(abs(image - state)) <= 1e-15 * np.max(abs(image), initial=1e-30)
            state = image
            if settled:
                break
        else:
            raise NotConverged("The covariances at right angles were not found in 2000 turns.")
        # A turn maps the slope y of the state to known + gain·y: two turns give both.
        start = _Dual(state, self.zero)
        known = self._turn(start)[1][-1].slope
        gain = self._turn(start._replace(slope=self.zero + 1.0))[1][-1].slope - known
        self.state = _Dual(state, known / (1.0 - gain))

    def kernel(self, kind: KernelName, convention: Convention) -> _Dual:
        fulls, features = self._turn(self.state)
        if kind == "ck":
            return features[-1] if convention == "feature" else fulls[-1]
        slopes = [  # E[φ′φ′]
            _Dual(layer.moment(1, full.value), layer.moment(2, full.value) * full.slope).scaled(
                layer.outer
            )
            for layer, full in zip(self.layers, fulls, strict=True)
        ]
        # Θ_l = C_l + w_l E[φ′φ′]_{l−1} Θ_{l−1} around the ring: a turn from Θ = 0 gives the
        # inhomogeneous part, the product of the factors what multiplies Θ.
        theta, product = _Dual(self.zero, self.zero), _Dual(self.zero + 1.0, self.zero)
        before = slopes[-1]
        for layer, full, slope in zip(self.layers, fulls, slopes, strict=True):
            carried = before.scaled(layer.dense.weight * layer.inner)
            theta = full.plus(carried.times(theta))
            product = carried.times(product)
            before = slope
        left = 1.0 / (1.0 - product.value)
        theta = theta.times(_Dual(left, left**2 * product.slope))
        if convention == "preactivation":
            return theta
        return features[-1].plus(slopes[-1].times(theta))

    def _turn(self, state: _Dual) -> tuple[list[_Dual], list[_Dual]]:
        """Covariances that φ is applied to, and those passed on, of every layer."""
        fulls, features = [], []
        for layer in self.layers:
            dense = layer.dense
            source = state.scaled(dense.weight)
            full = _Dual(source.value + dense.bias, source.slope + dense.inject).scaled(layer.inner)
            covariance = layer.moment(0, full.value) - layer.means
            slope = layer.moment(1, full.value) * full.slope
            state = _Dual(covariance, slope).scaled(layer.outer)
            fulls.append(full)
            features.append(state)
        return fulls, features


def _layer(dense: Dense, incoming: FloatArray, scales: FloatArray, terms: int) -> _Layer:
    m = len(scales)
    inner, outer, means = np.ones((m, m)), np.ones((m, m)), np.zeros((m, m))
    if dense.normalise == "preactivation":
        inner = 1.0 / np.sqrt(np.outer(incoming, incoming))
    if dense.normalise == "feature":
        moments = dense.activation.moments(scales)
        outer = 1.0 / np.sqrt(np.outer(moments.variance, moments.variance))
        means = np.outer(moments.mean, moments.mean)
    hermite = dense.activation.hermite_coefficients(scales, terms + 2)
    return _Layer(dense, scales, hermite, inner, outer, means)
