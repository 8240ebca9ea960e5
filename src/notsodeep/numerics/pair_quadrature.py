"""E[f(u)f(v)] for a Gaussian pair by two-dimensional quadrature split at the kinks of f.

With u = √q₁ ξ and v = √q₂ (ρξ + √(1−ρ²) η), the inner integral over η is split where v meets a
kink.  As a function of ξ it is smooth, but changes within √(1−ρ²) of the places where ρ√q₂ ξ meets
one, so the outer panels shrink geometrically towards those places, and towards the kinks of
f(√q₁ ξ).

This is the slow, certain route: about 10⁵ evaluations for a pair.  It is meant for the few pairs
that neither a closed form nor a series can do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from notsodeep.numerics.quadrature import gauss_legendre

FloatArray = NDArray[np.float64]

_NODES = 10
_REACH = 9.0
_BLOCK = 1 << 21  # function values at a time


def pair_quadrature(
    function: Callable[[FloatArray], FloatArray],
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    root: FloatArray,
    kinks: tuple[float, ...] = (),
) -> FloatArray:
    """Integrate f(u)f(v) for pairs with standard deviations scale1, scale2 and correlation ρ.

    Parameters
    ----------
    function : callable
        Maps x to an array of shape (channels, *x.shape); each channel is paired with itself.
    scale1, scale2, rho : ndarray of shape (n_pairs,)
    root : ndarray of shape (n_pairs,)
        √(1 − ρ²); given apart because it is small where it matters.
    kinks : tuple of float

    Returns
    -------
    ndarray of shape (channels, n_pairs)
    """
    places = tuple(sorted({0.0, *kinks}))
    steepest = np.maximum(np.maximum(scale1, scale2), 1.0)
    # Only a kink makes the inner integral change within √(1−ρ²); at ρ = ±1 it is a kink itself.
    sharp = (root > 0.0) & (len(kinks) > 0)
    finest = np.where(sharp, np.minimum(root, 1.0 / steepest), 1.0 / steepest)
    octaves = np.ceil(np.log2(1.0 / np.maximum(finest, 1e-13))).astype(int) + 1
    # Pairs of like difficulty go together, so that easy ones do not pay for hard ones.
    order = np.argsort(octaves, kind="stable")
    inner_octaves = _inner_octaves(scale2 * root)
    results: list[FloatArray] = []
    start = 0
    while start < len(order):
        depth = int(octaves[order[start]])
        panels = 2 * int(_REACH) + len(places) * 2 * (2 * depth + 3)
        inner = 2 * int(_REACH) + len(places) * (2 * int(inner_octaves.max()) + 3)
        count = max(1, _BLOCK // (panels * inner * _NODES**2))
        block = order[start : start + count]
        block = block[octaves[block] == depth]
        results.append(
            _block(
                function, scale1[block], scale2[block], rho[block], root[block], places, depth,
                int(inner_octaves[block].max()),
            )
        )  # fmt: skip
        start += len(block)
    out = np.empty((results[0].shape[0], len(order)))
    out[:, order] = np.concatenate(results, axis=1)
    return out


def _inner_octaves(spread: FloatArray) -> NDArray[np.int_]:
    """How far the inner panels must shrink for a feature of unit width in v = … + spread·η."""
    octaves: NDArray[np.int_] = np.ceil(np.log2(np.maximum(2.0 * spread, 1.0))).astype(int)
    return octaves


def _block(
    function: Callable[[FloatArray], FloatArray],
    scale1: FloatArray,
    scale2: FloatArray,
    rho: FloatArray,
    root: FloatArray,
    places: tuple[float, ...],
    octaves: int,
    inner_octaves: int,
) -> FloatArray:
    kinks = np.array(places)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        first = kinks / scale1[:, None]
        second = np.where(kinks == 0.0, 0.0, kinks / (rho * scale2)[:, None])
        xi, weights = _rule(np.concatenate([first, second], axis=1), octaves)
        mean = (rho * scale2)[:, None] * xi
        spread = scale2 * root
        split = (kinks - mean[..., None]) / spread[:, None, None]
    split = np.where(np.isfinite(split), split, _REACH)  # spread 0: the inner integrand is constant
    eta, inner_weights = _rule(split, inner_octaves)
    inner = function(mean[..., None] + spread[:, None, None] * eta)
    conditional = np.einsum("cnij,nij->cni", inner, inner_weights)
    outer: FloatArray = np.einsum(
        "cni,cni,ni->cn", function(scale1[:, None] * xi), conditional, weights
    )
    return outer


def _rule(centres: FloatArray, octaves: int) -> tuple[FloatArray, FloatArray]:
    """Gaussian rule on panels that shrink towards the centres; leading axes are kept."""
    steps = np.ldexp(1.0, -np.arange(octaves + 1)) if octaves else np.empty(0)
    offsets = np.concatenate([-steps, [0.0], steps])
    graded = (centres[..., None] + offsets).reshape(*centres.shape[:-1], -1)
    uniform = np.arange(-_REACH, _REACH + 1.0)
    uniform = np.broadcast_to(uniform, (*centres.shape[:-1], len(uniform)))
    ends = np.sort(np.concatenate([uniform, np.clip(graded, -_REACH, _REACH)], axis=-1), axis=-1)
    x, w = gauss_legendre(_NODES)
    half = 0.5 * np.diff(ends, axis=-1)
    middle = 0.5 * (ends[..., 1:] + ends[..., :-1])
    nodes = (middle[..., None] + half[..., None] * x).reshape(*ends.shape[:-1], -1)
    weights = (half[..., None] * w).reshape(nodes.shape)
    return nodes, weights * np.exp(-0.5 * nodes**2) / math.sqrt(2.0 * math.pi)
