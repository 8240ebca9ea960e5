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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotIntegrable, QuadratureError

# A panel [h, 2h] is [−1, 1] with the origin at −3: a function that is analytic but for 0 is so in
# the Bernstein ellipse of parameter 3 + √8 = 5.8.
NODES = 16
"""Nodes per panel; on a geometric panel the error is about 5.8^(-2·NODES) = 4e-25."""

CUTOFF = 16.0
"""Integrals stop at |ξ| = CUTOFF, where even h_k(ξ)·exp(-ξ²/2), k large, is below 1e-27."""

TOLERANCE = 1e-13
"""Largest estimated error of an integral, relative to the integral of the absolute value."""

_MAX_HALVINGS = 6
_BLOCK = 1 << 17  # function values held at a time, so that a block stays in cache

ArrayFunction = Callable[[FloatArray], FloatArray]


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
    # c_k = (k + ½) ∫ f P_k; two of them, since one vanishes where the integrand is odd or even.
    return np.asarray((basis * w[:, None] * (np.arange(nodes - 2, nodes) + 0.5)).T)


class GaussianRule(NamedTuple):
    """A quadrature rule for the standard Gaussian measure, made of panels.

    Both arrays have the shape (1, panels·NODES) or (n_scales, panels·NODES): one row serves every
    scale unless a kink other than 0 ties the panels to the scale.
    """

    nodes: FloatArray
    weights: FloatArray  # they contain the Gaussian density

    @property
    def shared(self) -> bool:
        """Whether one row of nodes serves every scale."""
        return len(self.nodes) == 1

    def rows(self, chosen: NDArray[np.bool_]) -> GaussianRule:
        """Return the rule of some of the scales."""
        return self if self.shared else GaussianRule(self.nodes[chosen], self.weights[chosen])


def gauss_legendre_errors(weighted: FloatArray, nodes: int) -> FloatArray:
    """Estimate the error on each panel, shape (…, panels), from weight × value, (…, panels·nodes).

    If the Legendre coefficients of the integrand fall geometrically, a Gauss rule with N nodes
    misses the coefficient of degree 2N, which is about (last coefficient)²/(largest).
    """
    _, w = gauss_legendre(nodes)
    # Only the Legendre weights are divided out: the Gaussian density belongs to the integrand, as
    # does the half-width of the panel.
    integrand = weighted.reshape(*weighted.shape[:-1], -1, nodes) / w
    last = np.abs(integrand @ _last_legendre_coefficients(nodes).T).sum(axis=-1)
    largest = np.abs(integrand).max(axis=-1)
    ratio = np.divide(last, largest, out=np.zeros_like(last), where=largest > 0.0)
    return np.asarray(2.0 * last * ratio)


def gaussian_rule(
    scales: FloatArray, kinks: tuple[float, ...] = (), halvings: int = 0
) -> GaussianRule:
    """Build the panels for E[f(τξ)] at positive scales τ, split at ξ = kink/τ and halved."""
    # The innermost panel is at most 1/(2τ) wide in ξ, half a unit in x.
    octaves = max(1, math.ceil(math.log2(float(scales.max()))) + 1)
    # A kink beyond the cutoff of every scale is dropped; beyond that of some, it makes an empty
    # panel at the end: harmless, and keeps rows equal.
    cutoff = CUTOFF * float(scales.max())
    elsewhere = np.array([k for k in kinks if k != 0.0 and abs(k) < cutoff])
    if not elsewhere.size:
        return _shared_rule(octaves, halvings)
    with np.errstate(over="ignore"):
        split = np.clip(elsewhere / scales[:, None], -CUTOFF, CUTOFF)
    ends = np.repeat(_panel_ends(octaves), len(scales), axis=0)
    return _rule_on(np.sort(np.concatenate([ends, split], axis=1), axis=1), halvings)


def _panel_ends(octaves: int) -> FloatArray:
    """Return panel ends, shape (1, panels + 1): geometric towards 0, one unit wide outside."""
    positive = np.concatenate([np.ldexp(1.0, np.arange(-octaves, 1)), np.arange(2.0, CUTOFF + 1.0)])
    return np.concatenate([-positive[::-1], [0.0], positive])[None, :]


@functools.lru_cache(maxsize=64)
def _shared_rule(octaves: int, halvings: int) -> GaussianRule:
    return _rule_on(_panel_ends(octaves), halvings)


def _rule_on(ends: FloatArray, halvings: int) -> GaussianRule:
    """Gauss–Legendre on the panels between the given ends, each cut into 2**halvings."""
    if halvings:
        parts = np.arange(1 << halvings) / (1 << halvings)
        fine = ends[:, :-1, None] + np.diff(ends)[:, :, None] * parts
        ends = np.concatenate([fine.reshape(len(ends), -1), ends[:, -1:]], axis=1)
    x, w = gauss_legendre(NODES)
    half = 0.5 * np.diff(ends)
    middle = 0.5 * (ends[:, 1:] + ends[:, :-1])
    nodes = (middle[:, :, None] + half[:, :, None] * x).reshape(len(ends), -1)
    weights = (half[:, :, None] * w).reshape(len(ends), -1) * gaussian_density(nodes)
    nodes.flags.writeable = weights.flags.writeable = False
    return GaussianRule(nodes, weights)


def gaussian_density(x: FloatArray) -> FloatArray:
    """Density of the standard normal distribution."""
    return np.asarray(np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi))


@dataclass(frozen=True)
class Samples:
    """Values of a function at the nodes of a rule that resolves it, for some of the scales."""

    index: NDArray[np.intp]  # the scales that these rows belong to
    rule: GaussianRule
    values: FloatArray  # (channels, len(index), nodes)


def resolved_samples(
    function: ArrayFunction,
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
        smooth between the kinks.
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
    for halvings in range(_MAX_HALVINGS):
        unresolved = []
        largest = scales[pending[-1:]]
        rows = max(1, _BLOCK // gaussian_rule(largest, kinks, halvings).nodes.shape[1])
        for start in range(0, len(pending), rows):
            index = pending[start : start + rows]
            rule = gaussian_rule(scales[index], kinks, halvings)
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
            elif good.any():
                yield Samples(index[good], rule.rows(good), values[:, good])
            if not good.all():
                unresolved.append(index[~good])
                worst = errors[:, ~good][:, -1], rule.rows(~good).nodes[-1]
        if not unresolved:
            return
        pending = np.concatenate(unresolved)
    raise _unresolved(*worst, float(scales[pending[-1]]), name)


def _require_second_moment(weighted: FloatArray, scales: FloatArray, name: str) -> None:
    """Reject weight × f² that is not finite, or has not died out at the end of the range."""
    with np.errstate(over="ignore", invalid="ignore"):
        outermost = weighted[..., :NODES].sum(-1) + weighted[..., -NODES:].sum(-1)
        total = weighted.sum(-1)
        # The outermost panels are 15 < |ξ| < 16, where the density is below 1e-49.
        bad = ~(np.isfinite(total) & (outermost <= 1e-15 * total)).all(axis=0)
    if bad.any():
        scale = float(scales[bad.argmax()])
        raise NotIntegrable(
            f"{name} has no finite Gaussian second moment at scale τ = {scale:.6g}: the function "
            f"or its derivative has not died out under the density by |x| = {CUTOFF * scale:.4g}. "
            "Use a function that grows at most polynomially, or a smaller scale."
        )


def _unresolved(errors: FloatArray, nodes: FloatArray, scale: float, name: str) -> QuadratureError:
    """Build the error, with the place x where the worst panel lies."""
    worst = int(errors.max(axis=0).argmax())
    panel = nodes[worst * NODES : (worst + 1) * NODES] * scale
    middle = 0.5 * float(panel[0] + panel[-1])
    return QuadratureError(
        f"The integral of {name} at scale τ = {scale:.6g} could not be computed: the function is "
        f"not smooth, or varies very fast, near x = {middle:.6g} (between {panel[0]:.6g} and "
        f"{panel[-1]:.6g}). If it has a kink there, declare it, as in kinks=({middle:.6g},)."
    )


# Hermite series ------------------------------------------------------------------------------


def iterate_hermite(x: FloatArray, terms: int) -> Iterator[FloatArray]:
    """Yield h_0(x), …, h_{terms−1}(x), the Hermite polynomials with E[h_j(ξ) h_k(ξ)] = δ_jk.

    Recurrence: √(k+1) h_{k+1} = x h_k − √k h_{k−1}.  Stable for all x; |h_k(x)| ≤ exp(x²/4).
    """
    previous, current = np.zeros_like(x), np.ones_like(x)
    for k in range(terms):
        yield current
        following = (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
        previous, current = current, following


def hermite_polynomials(x: FloatArray, terms: int) -> FloatArray:
    """Stack h_0(x), …, h_{terms−1}(x); shape (terms, *x.shape)."""
    return np.stack(list(iterate_hermite(np.asarray(x, dtype=np.float64), terms)))


def hermite_expansion(
    function: ArrayFunction,
    scales: FloatArray,
    terms: int,
    kinks: tuple[float, ...] = (),
    *,
    name: str = "the function",
) -> tuple[FloatArray, FloatArray]:
    """Coefficients a_k(τ) = E[f(τξ) h_k(ξ)], shape (n_scales, terms), and E f²(τξ), (n_scales,).

    Examples
    --------
    >>> coefficients, squares = hermite_expansion(lambda x: x**2, np.array([1.0, 2.0]), 4)
    >>> coefficients.round(12) + 0.0
    array([[1.        , 0.        , 1.41421356, 0.        ],
           [4.        , 0.        , 5.65685425, 0.        ]])
    >>> squares.round(12)
    array([ 3., 48.])
    """
    coefficients, squares = np.empty((len(scales), terms)), np.empty(len(scales))
    for part in resolved_samples(lambda x: function(x)[None], scales, kinks, name=name):
        weighted = part.rule.weights * part.values[0]
        squares[part.index] = (weighted * part.values[0]).sum(axis=-1)
        # One set of nodes for all scales: one matrix product, and polynomials evaluated once.
        if part.rule.shared:
            coefficients[part.index] = weighted @ hermite_polynomials(part.rule.nodes[0], terms).T
        else:
            for k, polynomial in enumerate(iterate_hermite(part.rule.nodes, terms)):
                coefficients[part.index, k] = np.einsum("ij,ij->i", weighted, polynomial)
    return coefficients, squares
