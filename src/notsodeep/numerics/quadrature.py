"""Gaussian expectations E[f(τξ)], ξ ~ N(0, 1), for functions that are smooth between known kinks.

Gauss–Hermite rules are useless here: at a kink they converge like 1/nodes.  Instead the line is cut
into panels with a Gauss–Legendre rule on each.  In the variable ξ the panels are one unit wide in
the tails and shrink geometrically towards 0, down to 1/τ, so that a feature of unit width in x = τξ
is resolved whatever the scale; every kink k is a panel end, at ξ = k/τ.

The error estimate costs no further evaluations: on each panel the last Legendre coefficients of the
integrand say how fast they decay.  Where they do not, the panels are halved, and after a few rounds
the function is rejected with the place where it is not smooth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotIntegrable, QuadratureError

# A panel [h, 2h] is [−1, 1] with the origin at −3: a function that is analytic but for 0 is so in
# the Bernstein ellipse of parameter 3 + √8 = 5.8.
NODES = 16
"""Nodes per panel; on a geometric panel the error is about 5.8^(-2·NODES) = 4e-25."""

REACH = 16.0
"""Integrals stop at |ξ| = REACH, where even h_k(ξ)·exp(-ξ²/2), k large, is below 1e-27."""

TOLERANCE = 1e-13
"""Largest estimated error of an integral, relative to the integral of the absolute value."""

_REFINEMENTS = 4
_BLOCK = 1 << 17  # function values held at a time, so that a block stays in cache


@functools.cache
def gauss_legendre(nodes: int) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on [-1, 1] (read-only)."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    x.flags.writeable = w.flags.writeable = False
    return x, w


@functools.cache
def _last_legendre_coefficients(nodes: int) -> FloatArray:
    """Rows that map values at the Gauss nodes to the last two Legendre coefficients."""
    x, w = gauss_legendre(nodes)
    basis = np.polynomial.legendre.legvander(x, nodes - 1)[:, -2:]
    degrees = np.arange(nodes - 2, nodes)
    # c_k = (k + ½) ∫ f P_k; two of them, since one vanishes where the integrand is odd or even.
    rows: FloatArray = (basis * w[:, None] * (degrees + 0.5)).T
    return rows


@dataclass(frozen=True)
class GaussianRule:
    """A quadrature rule for the standard Gaussian measure, made of panels.

    Attributes
    ----------
    nodes, weights : ndarray of shape (1, panels·NODES) or (n_scales, panels·NODES)
        One row serves every scale unless a kink other than 0 ties the panels to the scale.
        The weights contain the Gaussian density.
    """

    nodes: FloatArray
    weights: FloatArray

    @property
    def shared(self) -> bool:
        """Whether one row of nodes serves every scale."""
        return len(self.nodes) == 1


def gauss_legendre_errors(weighted: FloatArray, nodes: int) -> FloatArray:
    """Estimate the error on each panel from weight × value, of shape (…, panels·nodes).

    If the Legendre coefficients of the integrand fall geometrically, a Gauss rule with N nodes
    misses the coefficient of degree 2N, which is about (last coefficient)²/(largest).

    Returns
    -------
    ndarray of shape (…, panels)
    """
    _, w = gauss_legendre(nodes)
    # Only the Legendre weights are divided out: the Gaussian density belongs to the integrand, as
    # does the half-width of the panel.
    integrand = weighted.reshape(*weighted.shape[:-1], -1, nodes) / w
    last = np.abs(integrand @ _last_legendre_coefficients(nodes).T).sum(axis=-1)
    largest = np.abs(integrand).max(axis=-1)
    ratio = np.divide(last, largest, out=np.zeros_like(last), where=largest > 0.0)
    estimate: FloatArray = 2.0 * last * ratio
    return estimate


def gaussian_rule(
    scales: FloatArray, kinks: tuple[float, ...] = (), refinement: int = 0
) -> GaussianRule:
    """Panels for E[f(τξ)] at the given scales τ, split at ξ = kink/τ.

    Parameters
    ----------
    scales : ndarray of shape (n_scales,)
        Positive.
    kinks : tuple of float
        Points x at which f is not smooth, or panels must end for other reasons.
    refinement : int, default 0
        Each panel is cut into 2**refinement equal ones.
    """
    # The innermost panel is at most 1/(2τ) wide in ξ, half a unit in x.
    octaves = max(1, math.ceil(math.log2(float(scales.max()))) + 1)
    # What is beyond the reach of every scale is left out; beyond that of some, it makes an empty
    # panel at the end: harmless, and keeps rows equal.
    reach = REACH * float(scales.max())
    elsewhere = np.array([k for k in kinks if k != 0.0 and abs(k) < reach])
    if not elsewhere.size:
        return _shared_rule(octaves, refinement)
    with np.errstate(over="ignore"):
        split = np.clip(elsewhere / scales[:, None], -REACH, REACH)
    ends = np.repeat(_panel_ends(octaves), len(scales), axis=0)
    return _rule_on(np.sort(np.concatenate([ends, split], axis=1), axis=1), refinement)


def _panel_ends(octaves: int) -> FloatArray:
    """Return panel ends, shape (1, panels + 1): geometric towards 0, one unit wide outside."""
    positive = np.concatenate([np.ldexp(1.0, np.arange(-octaves, 1)), np.arange(2.0, REACH + 1.0)])
    return np.concatenate([-positive[::-1], [0.0], positive])[None, :]


@functools.lru_cache(maxsize=64)
def _shared_rule(octaves: int, refinement: int) -> GaussianRule:
    return _rule_on(_panel_ends(octaves), refinement)


def _rule_on(ends: FloatArray, refinement: int) -> GaussianRule:
    """Gauss–Legendre on the panels between the given ends, each cut into 2**refinement."""
    if refinement:
        parts = np.arange(1 << refinement) / (1 << refinement)
        fine = ends[:, :-1, None] + np.diff(ends)[:, :, None] * parts
        ends = np.concatenate([fine.reshape(len(ends), -1), ends[:, -1:]], axis=1)
    x, w = gauss_legendre(NODES)
    half = 0.5 * np.diff(ends)
    middle = 0.5 * (ends[:, 1:] + ends[:, :-1])
    nodes = (middle[:, :, None] + half[:, :, None] * x).reshape(len(ends), -1)
    density = np.exp(-0.5 * nodes**2) / math.sqrt(2.0 * math.pi)
    weights = (half[:, :, None] * w).reshape(len(ends), -1) * density
    nodes.flags.writeable = weights.flags.writeable = False
    return GaussianRule(nodes, weights)


@dataclass(frozen=True)
class Samples:
    """Values of a function at the nodes of a rule that resolves it, for some of the scales.

    Attributes
    ----------
    index : ndarray of int
        Which of the scales asked for these rows belong to.
    rule : GaussianRule
    values : ndarray of shape (channels, len(index), nodes)
    """

    index: NDArray[np.intp]
    rule: GaussianRule
    values: FloatArray


def resolved_samples(
    function: Callable[[FloatArray], FloatArray],
    scales: FloatArray,
    kinks: tuple[float, ...] = (),
    *,
    name: str = "the function",
) -> Iterator[Samples]:
    """Yield the values f(τ·nodes) in blocks of scales, on rules that integrate f and f².

    Parameters
    ----------
    function : callable
        Maps an array x to an array of shape (channels, *x.shape): several functions at once, each
        smooth between the kinks.  The first channel is f itself.
    scales : ndarray of shape (n_scales,)
    kinks : tuple of float
    name : str
        What messages call the function.

    Raises
    ------
    NotIntegrable
        f(τξ) has no finite second moment, or one that double precision cannot reach.
    QuadratureError
        Some channel is not smooth away from the declared kinks, or varies too fast for the rule.
    """
    # In order of size: small scales have no use for panels at kinks that only large ones reach.
    pending = np.argsort(scales, kind="stable")
    for refinement in range(_REFINEMENTS):
        unresolved = []
        largest = scales[pending[-1:]]
        rows = max(1, _BLOCK // gaussian_rule(largest, kinks, refinement).nodes.shape[1])
        for start in range(0, len(pending), rows):
            index = pending[start : start + rows]
            rule = gaussian_rule(scales[index], kinks, refinement)
            with np.errstate(over="ignore", invalid="ignore"):
                values = function(scales[index, None] * rule.nodes)
                # A rule is good only if f² passes too: variances are integrated on the same nodes.
                weighted = rule.weights * np.concatenate([values, values**2])
            _require_second_moment(weighted[len(values) :], scales[index], name)
            errors = gauss_legendre_errors(weighted, NODES)
            totals = np.abs(weighted).sum(axis=-1)
            good = (errors.sum(axis=-1) <= TOLERANCE * totals).all(axis=0)
            if good.all():
                yield Samples(index, rule, values)
                continue
            unresolved.append(index[~good])
            if good.any():
                part = rule if rule.shared else _rows(rule, good)
                yield Samples(index[good], part, values[:, good])
            worst = (errors[:, ~good], rule if rule.shared else _rows(rule, ~good))
        if not unresolved:
            return
        pending = np.concatenate(unresolved)
    raise _unresolved(worst[0], worst[1], float(scales[pending[-1]]), name)


def _rows(rule: GaussianRule, rows: NDArray[np.bool_]) -> GaussianRule:
    return GaussianRule(rule.nodes[rows], rule.weights[rows])


def _require_second_moment(weighted: FloatArray, scales: FloatArray, name: str) -> None:
    """Reject weight × f² that is not finite, or has not died out at the end of the range."""
    with np.errstate(over="ignore", invalid="ignore"):
        outermost = weighted[..., :NODES].sum(-1) + weighted[..., -NODES:].sum(-1)
        total = weighted.sum(-1)
        # The outermost panels are 15 < |ξ| < 16, where the density is below 1e-49.
        dead = np.isfinite(total) & (outermost <= 1e-15 * total)
    bad = ~dead.all(axis=0)
    if bad.any():
        scale = float(scales[np.flatnonzero(bad)[0]])
        raise NotIntegrable(
            f"{name} has no finite Gaussian second moment at scale τ = {scale:.6g}: the function "
            "or its derivative, squared and times the Gaussian density, does not die out by "
            f"|x| = {REACH * scale:.4g} (or is not a number there). "
            "Use a function that grows at most polynomially, or a smaller scale."
        )


def _unresolved(errors: FloatArray, rule: GaussianRule, scale: float, name: str) -> QuadratureError:
    """Word the failure, with the place x where the worst panel lies."""
    row = errors[:, -1].max(axis=0)
    worst = int(row.argmax())
    panel = rule.nodes[-1, worst * NODES : (worst + 1) * NODES] * scale
    middle = 0.5 * float(panel[0] + panel[-1])
    return QuadratureError(
        f"The integral of {name} at scale τ = {scale:.6g} could not be computed: the function is "
        f"not smooth, or varies very fast, near x = {middle:.6g} (between {panel[0]:.6g} and "
        f"{panel[-1]:.6g}). If it has a kink there, declare it, as in kinks=({middle:.6g},)."
    )
