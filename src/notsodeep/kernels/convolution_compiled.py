"""Compiled loops over pairs of images: the fixed point of a convolutional cell on all pixels.

A strip is one image of the rows with `LANES` images of the columns.  Every array about a strip is
flat, pixel after pixel, with the pairs innermost: entry s·LANES + t is pixel s of pair t.  So all
that happens pixel by pixel is one long loop, a step to the next pixel is a shift by LANES, and the
compiler turns everything into vector instructions.  A strip is worked on until it is done, and
stays in the second-level cache.

The unknown of a layer is not the covariance G of two pre-activations but their squared distance
V = E(u − v)² = q₁ + q₂ − 2G, for which equation (3) of docs/convolutions.md reads

    V = w M Ψ + u M |x − x′|²,    Ψ = E(φ(u) − φ(v))² ,    dΨ/dV = E[φ′(u)φ′(v)] = D.

Where two images have the same background, V is tiny or zero and known to as many digits as
anything else; from G one could only subtract it, and the slope of a kinked activation, which
depends on √V, would lose half of the digits.  Biases and centring cancel.

Everything is in one file: see `compiled`.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

SERIES, HINGE, ODD = 0, 1, 2
"""How Ψ is evaluated: Mehler's series, the arc-cosine form of a hinge at zero, or the series of an
odd function, of which every other coefficient is zero and left out."""

LANES = 8
"""Pairs in a strip; arrays about columns are padded to whole strips."""

BINS = 64
"""Resolution in |ρ| of the tables that say how many terms the series needs."""

TERMS_STEP = 4
"""Series go four terms at a time: their lengths are multiples of this."""

RESIDUAL = 2e-14
"""A pair is done when no pixel's V changes by more than this times its largest q₁ + q₂."""

_ACCEPTED = 1e-13  # what is left when rounding stops the iteration short of RESIDUAL
_MAX_STEPS = 40
_MAX_SWEEPS = 4000
_LOWEST = -1.0 / 3.0  # M has its eigenvalues in [−1/3, 1], whatever its size and the padding


def _arcsine_coefficients() -> np.ndarray[Any, np.dtype[np.float64]]:
    """2 arcsin √g = √g·Q(4g − 1) on [0, 1/2]; Q as powers, increasing, error below 1e-15."""

    def quotient(t: Any) -> Any:
        root = np.sqrt(np.maximum(0.25 * (1.0 + t), 1e-30))
        return 2.0 * np.arcsin(root) / root

    series = np.polynomial.chebyshev.chebinterpolate(quotient, 21)
    return np.asarray(np.polynomial.chebyshev.cheb2poly(series), dtype=np.float64)


_Q = tuple(float(c) for c in _arcsine_coefficients())
_options = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_compile = numba.njit(**_options)
_compile_part = numba.njit(**_options, forceinline=True)
# Maxima are vectorised only if told that there are no NaNs; what a NaN does is checked at the end.
_compile_maximum = numba.njit(
    cache=True, nogil=True, fastmath={"contract", "nnan", "nsz", "reassoc"}, forceinline=True
)


@_compile_part
def _average(out, given, slopes, scaled, rows, line, h, w, size, wrap, factor):
    """Put factor·M(given) into `out`, or factor·M(slopes ∘ given) if `scaled`.

    M is the mean over a size × size window, in which pixels outside count as zero, or are those of
    the opposite side if `wrap`.  First along rows, into `rows`, with `line` as a row and its halo.
    """
    reach = size // 2
    width = w * LANES
    for y in range(h):
        here = y * width
        halo = reach * LANES
        if scaled:
            for e in range(width):
                line[halo + e] = slopes[here + e] * given[here + e]
        else:
            for e in range(width):
                line[halo + e] = given[here + e]
        for k in range(reach):
            left, right = (reach - 1 - k) * LANES, halo + width + k * LANES
            if wrap:
                from_left = halo + (w - 1 - k % w) * LANES
                from_right = halo + (k % w) * LANES
                for t in range(LANES):
                    line[left + t] = line[from_left + t]
                    line[right + t] = line[from_right + t]
            else:
                for t in range(LANES):
                    line[left + t] = 0.0
                    line[right + t] = 0.0
        if size == 3:
            for e in range(width):
                rows[here + e] = line[e] + line[LANES + e] + line[2 * LANES + e]
        else:
            for e in range(width):
                rows[here + e] = line[e]
            for k in range(1, size):
                for e in range(width):
                    rows[here + e] += line[k * LANES + e]
    factor = factor / (size * size)
    for y in range(h):
        here = y * width
        if size == 3 and 0 < y < h - 1:
            above, below = here - width, here + width
            for e in range(width):
                out[here + e] = factor * (rows[above + e] + rows[here + e] + rows[below + e])
        else:
            for e in range(width):
                line[e] = 0.0
            for k in range(-reach, reach + 1):
                if wrap or 0 <= y + k < h:
                    there = ((y + k) % h) * width
                    for e in range(width):
                        line[e] += rows[there + e]
            for e in range(width):
                out[here + e] = factor * line[e]


@_compile_part
def _hinge(V, gap, inverse, psi, slopes, n, both, cross):
    """Ψ and D of right·x₊ − left·(−x)₊, both = right² + left², cross = 2·right·left.

    With θ the angle of the pair, sin²(θ/2) = (V − (τ₁ − τ₂)²)/(4τ₁τ₂):
    Ψ = both·V/2 − τ₁τ₂ (both − cross)(sin θ − θ cos θ)/π and D = (both (π − θ) + cross θ)/2π.
    """
    bend = (both - cross) / math.pi
    for e in range(n):
        g = (V[e] - gap[e]) * inverse[e]
        g = 0.0 if g < 0.0 else g
        g = 1.0 if g > 1.0 else g
        cosine = 1.0 - 2.0 * g
        obtuse = g > 0.5
        g = 1.0 - g if obtuse else g
        y = 4.0 * g - 1.0
        z = y * y
        even = (_Q[20] * z + _Q[18]) * z + _Q[16]
        even = (((even * z + _Q[14]) * z + _Q[12]) * z + _Q[10]) * z + _Q[8]
        even = (((even * z + _Q[6]) * z + _Q[4]) * z + _Q[2]) * z + _Q[0]
        odd = (_Q[21] * z + _Q[19]) * z + _Q[17]
        odd = (((odd * z + _Q[15]) * z + _Q[13]) * z + _Q[11]) * z + _Q[9]
        odd = (((odd * z + _Q[7]) * z + _Q[5]) * z + _Q[3]) * z + _Q[1]
        root = math.sqrt(g)
        angle = root * (even + y * odd)
        angle = math.pi - angle if obtuse else angle
        sine = 2.0 * root * math.sqrt(1.0 - g)
        psi[e] = 0.5 * both * V[e] - 0.25 * bend * (sine - angle * cosine) / inverse[e]
        slopes[e] = 0.5 * (both - bend * angle)


@_compile_part
def _terms_for(largest, table):
    """Terms that the series needs at |ρ| = largest; negative if the table cannot say."""
    return table[min(int(largest * BINS) + 1, BINS)] if largest < 1.0 else table[BINS]


@_compile_part
def _series(V, gap, inverse, psi, slopes, pixels, left, right, column, index1, index2,
            squares1, squares2, start, tables, levels1, levels2, odd, lanes):  # fmt: skip
    """Ψ and D of any activation by Mehler's series; False if some pixel needs more terms.

    E[φφ] = Σ_k a_k(τ₁) a_k(τ₂) ρ^k, by Horner's rule, and D from its derivative.  An odd function
    has ρ Σ_j a_{2j+1}(τ₁) a_{2j+1}(τ₂) x^j, x = ρ²: half of the terms.  `lanes` has x or ρ, the
    sum, its derivative and ρ in four strips.
    """
    enough = True
    for s in range(pixels):
        here, one, two = s * LANES, index1[s], index2[s]
        largest = 0.0
        for t in range(LANES):
            rho = 1.0 - 2.0 * (V[here + t] - gap[here + t]) * inverse[here + t]
            rho = 1.0 if rho > 1.0 else rho
            rho = -1.0 if rho < -1.0 else rho
            lanes[t] = rho * rho if odd else rho
            lanes[3 * LANES + t] = rho
            lanes[LANES + t] = 0.0
            lanes[2 * LANES + t] = 0.0
            largest = max(largest, abs(rho))
        level = max(levels1[one], levels2[two, column // LANES])
        terms = _terms_for(largest, tables[level])
        if terms < 0:
            enough = False
            terms = tables[level, BINS + 1]
        for k in range(start + terms - 1, start, -4):
            a, b = left[one, k], left[one, k - 1]
            c, d = left[one, k - 2], left[one, k - 3]
            for t in range(LANES):
                rho = lanes[t]
                p0 = lanes[LANES + t]
                d1 = lanes[2 * LANES + t] * rho + p0
                p1 = p0 * rho + a * right[two, k, column + t]
                d2 = d1 * rho + p1
                p2 = p1 * rho + b * right[two, k - 1, column + t]
                d3 = d2 * rho + p2
                p3 = p2 * rho + c * right[two, k - 2, column + t]
                lanes[2 * LANES + t] = d3 * rho + p3
                lanes[LANES + t] = p3 * rho + d * right[two, k - 3, column + t]
        if odd:
            for t in range(LANES):
                p = lanes[LANES + t]
                lanes[LANES + t] = lanes[3 * LANES + t] * p
                lanes[2 * LANES + t] = p + 2.0 * lanes[t] * lanes[2 * LANES + t]
        for t in range(LANES):
            both = squares1[one] + squares2[two, column + t]
            psi[here + t] = both - 2.0 * lanes[LANES + t]
            slopes[here + t] = 4.0 * inverse[here + t] * lanes[2 * LANES + t]
    return enough


@_compile_maximum
def _largest(values, n):
    """Largest |entry|."""
    largest = 0.0
    for e in range(n):
        largest = max(largest, abs(values[e]))
    return largest


@_compile_maximum
def _extremes(values, n):
    """Smallest and largest entry."""
    low, high = values[0], values[0]
    for e in range(n):
        low = min(low, values[e])
        high = max(high, values[e])
    return low, high


@_compile_part
def _sweeps(tolerance, rate):
    """Sweeps that make an error of one smaller than the tolerance."""
    if rate < 1e-12:
        return 2
    needed = math.log(0.5 * tolerance) / math.log(rate)
    return min(int(needed) + 2, _MAX_SWEEPS)


@_compile_part
def _solve(x, before, image, given, slopes, rows, line, h, w, size, wrap, weight, tolerance):
    """Solve x = wM(D ∘ x) + given for one layer, from x = given; the answer is in `x`.

    M is symmetric, so for D ≥ 0 the operator wMD is similar to a symmetric one with eigenvalues in
    [−c/3, c], c = w max D: Chebyshev's semi-iteration, which needs no inner products.  If D
    changes sign, plain sweeps.  (Golub and Varga, 1961.)
    """
    n = h * w * LANES
    low, high = _extremes(slopes, n)
    high = max(high, 0.0) * weight
    for e in range(n):
        x[e] = given[e]
        before[e] = given[e]
    if high == 0.0 and low == 0.0:
        return
    chebyshev = low >= 0.0 and high < 1.0
    if chebyshev:
        bottom = (_LOWEST if size > 1 else 0.0) * high
        scale = 2.0 / (2.0 - bottom - high)
        sigma = (high - bottom) / (2.0 - bottom - high)
        rate = sigma / (1.0 + math.sqrt(1.0 - sigma * sigma))
    else:
        scale, sigma = 1.0, 0.0
        rate = min(max(high, -low * weight), 0.999)
    omega = 1.0
    for k in range(_sweeps(tolerance, rate)):
        _average(image, x, slopes, True, rows, line, h, w, size, wrap, weight)
        if chebyshev:
            if k == 1:
                omega = 1.0 / (1.0 - 0.5 * sigma * sigma)
            elif k > 1:
                omega = 1.0 / (1.0 - 0.25 * sigma * sigma * omega)
        for e in range(n):
            now, last = x[e], before[e]
            before[e] = now
            x[e] = omega * (scale * (image[e] + given[e] - now) + now - last) + last


@_compile_part
def _worst(values, limits, pixels):
    """Largest of |value|/limit over all pixels and pairs, NaN if any is."""
    worst = 0.0
    for s in range(pixels):
        for t in range(LANES):
            ratio = abs(values[s * LANES + t]) * limits[t]
            if not ratio <= worst:
                worst = ratio
    return worst


@_compile_part
def _worst_slope(values, limits, pixels, V, gap, inverse, kinds):
    """Like `_worst`, of what the values do to the slope of a hinge.

    An error e of V moves the angle by about e/√(τ₁τ₂ V), and so τ₁τ₂D by e/(2 sin(θ/2)).
    """
    worst = 0.0
    for s in range(pixels):
        for t in range(LANES):
            e = s * LANES + t
            g = 1.0
            for layer in range(len(kinds)):
                if kinds[layer] == HINGE:
                    g = min(g, max((V[layer, e] - gap[layer, e]) * inverse[layer, e], 0.0))
            ratio = abs(values[e]) * limits[t] * max(1.0, 0.5 / math.sqrt(g + 1e-36))
            worst = ratio if ratio > worst else worst
    return worst


@_compile
def clenshaw(series, x):
    """Evaluate Chebyshev series, the columns of `series`, at points x; shape (points, columns)."""
    terms, columns = series.shape
    values = np.empty((len(x), columns))
    one, two = np.empty(columns), np.empty(columns)
    for i in range(len(x)):
        double = 2.0 * x[i]
        for c in range(columns):
            one[c] = 0.0
            two[c] = 0.0
        for k in range(terms - 1, 0, -1):
            for c in range(columns):
                now = double * one[c] - two[c] + series[k, c]
                two[c] = one[c]
                one[c] = now
        for c in range(columns):
            values[i, c] = x[i] * one[c] - two[c] + series[0, c]
    return values


@_compile
def solve_pairs(
    conjugate, tangent, first, h, w, wrap, index1, index2, shares,
    weights, injections, sizes, kinds, both, cross,
    x1, x2, spread, extra1, extra2, scales1, scales2, squares1, squares2,
    left, right, starts, tables, levels1, levels2, feature, marked,
):  # fmt: skip
    """Add one offset's share of both kernels for every pair of a tile of images.

    Parameters
    ----------
    conjugate, tangent : (rows, columns), whole strips of columns
        Receive the mean over pixels, with the weights `shares`, of the last layer's kernels; NaN
        and a mark for pairs that need more terms of a series, or do not converge.
    first : (rows,)
        The column at which the work on a row begins.
    h, w, wrap
        The pixels where both images are: a torus, or a rectangle outside which all is zero.
    index1, index2 : (h·w,)
        The pixel of either image that a pixel of the rectangle is: offsets live here alone.
    weights, injections, sizes, kinds, both, cross : (L,)
        The layers; the first reads the last.
    x1, x2 : (A, rows, P, C), (A, P, C, columns)
        Pixels; A is 1 and `spread` true if every layer averages them over its windows, otherwise A
        is L and they are the patches that each layer reads.
    extra1, extra2 : (L, rows, h·w), (L, h·w, columns), or empty
        What V has from places that only one of the images has, with zeros beyond the border.
    scales1, squares1 : (L, rows, P); scales2, squares2 : (L, P, columns)
        √q and E φ² at every pixel.
    left, right, starts : (rows, P, K), (P, K, columns), (L,)
        Hermite coefficients, and where those of a layer begin.
    tables, levels1, levels2 : (L, levels, BINS + 2), (L, rows, P), (L, P, strips)
        Terms needed at each |ρ| by scales of a level, the last entry being all there are; and the
        level of every pixel, of columns the highest in a strip.
    """
    rows_of_tile, columns = conjugate.shape
    layers = len(weights)
    last = layers - 1
    pixels = h * w
    n = pixels * LANES
    widest = 0
    for k in sizes:
        widest = max(widest, k)
    line = np.empty((w + widest) * LANES)
    work = np.empty((7, n))
    x, before, image, rows, residual, drive, chain = (
        work[0], work[1], work[2], work[3], work[4], work[5], work[6],
    )  # fmt: skip
    V, psi, slopes = np.empty((layers, n)), np.empty((layers, n)), np.empty((layers, n))
    source, gap = np.empty((layers, n)), np.empty((layers, n))
    inverse, total = np.empty((layers, n)), np.empty((layers, n))
    lanes = np.empty(4 * LANES)
    limits = np.empty(LANES)
    answer = np.empty((2, LANES))
    for r in range(rows_of_tile):
        bad = 0
        for column in range(first[r] // LANES * LANES, columns, LANES):
            # --- what the pair of images brings ---------------------------------------------------
            for t in range(LANES):
                limits[t] = 1e-300
            for layer in range(layers):
                if layer == 0 or not spread:
                    for s in range(pixels):
                        one, two, here = index1[s], index2[s], s * LANES
                        for t in range(LANES):
                            drive[here + t] = 0.0
                        for c in range(x1.shape[3]):
                            a = x1[layer, r, one, c]
                            for t in range(LANES):
                                step = a - x2[layer, two, c, column + t]
                                drive[here + t] += step * step
                if spread:
                    _average(source[layer], drive, drive, False, rows, line, h, w, sizes[layer],
                             wrap, injections[layer])  # fmt: skip
                else:
                    for e in range(n):
                        source[layer, e] = injections[layer] * drive[e]
                if extra1.size > 0:
                    for s in range(pixels):
                        a, here = extra1[layer, r, s], s * LANES
                        for t in range(LANES):
                            source[layer, here + t] += a + extra2[layer, s, column + t]
                for s in range(pixels):
                    one, two, here = index1[s], index2[s], s * LANES
                    a = scales1[layer, r, one]
                    for t in range(LANES):
                        b = scales2[layer, two, column + t]
                        gap[layer, here + t] = (a - b) * (a - b)
                        inverse[layer, here + t] = 0.25 / (a * b)
                        total[layer, here + t] = a * a + b * b
                        limits[t] = max(limits[t], a * a + b * b)
            for t in range(LANES):
                limits[t] = 1.0 / limits[t]
            # --- a start: the equation of the first layer linearised where all pairs are
            # uncorrelated, or what one turn through the ring makes of that point ------------------
            closed = weights[0] > 0.0
            for e in range(n):
                V[0, e] = total[0, e] if closed else source[0, e]
            step, worst, fine, enough = 0, np.inf, np.inf, True
            while step < _MAX_STEPS:
                # --- one turn: Ψ and D of every layer, and what is left of the equation -----------
                enough = True
                for layer in range(layers):
                    if kinds[layer] == HINGE and step == 0 and layers == 1 and closed:
                        bend = 0.25 * (both[0] - cross[0]) / math.pi
                        flat = 0.25 * (both[0] + cross[0])
                        for e in range(n):
                            psi[0, e] = 0.5 * both[0] * V[0, e] - bend / inverse[0, e]
                            slopes[0, e] = flat
                    elif kinds[layer] == HINGE:
                        _hinge(V[layer], gap[layer], inverse[layer], psi[layer], slopes[layer], n,
                               both[layer], cross[layer])  # fmt: skip
                    else:
                        enough &= _series(
                            V[layer], gap[layer], inverse[layer], psi[layer], slopes[layer],
                            pixels, left[r], right, column, index1, index2, squares1[layer, r],
                            squares2[layer], starts[layer], tables[layer], levels1[layer, r],
                            levels2[layer], kinds[layer] == ODD, lanes,
                        )  # fmt: skip
                    onto = (layer + 1) % layers
                    if onto > 0:
                        _average(V[onto], psi[layer], psi[layer], False, rows, line, h, w,
                                 sizes[onto], wrap, weights[onto])  # fmt: skip
                        for e in range(n):
                            V[onto, e] += source[onto, e]
                if not closed:
                    worst = 0.0
                    break
                _average(residual, psi[last], psi[last], False, rows, line, h, w, sizes[0], wrap,
                         weights[0])  # fmt: skip
                for e in range(n):
                    residual[e] += source[0, e] - V[0, e]
                worst = _worst(residual, limits, pixels)
                step += 1
                if not worst < np.inf:
                    break
                # The start's own residual is that of another equation if it is linearised.
                if worst <= _ACCEPTED and step > 1:
                    # Where images are nearly equal more is asked of V, as far as rounding allows.
                    previous, fine = (
                        fine,
                        _worst_slope(residual, limits, pixels, V, gap, inverse, kinds),
                    )
                    if fine <= RESIDUAL or fine > 0.25 * previous:
                        break
                # --- Newton's step: the inner equation as well as the outer one deserves ----------
                tolerance = max(1e-16, 0.1 * min(worst, 1e-2))
                if layers == 1:
                    _solve(x, before, image, residual, slopes[0], rows, line, h, w, sizes[0],
                           wrap, weights[0], tolerance)  # fmt: skip
                else:
                    for e in range(n):
                        x[e] = residual[e]
                    for _ in range(_MAX_SWEEPS):
                        if step == 1:
                            break
                        for e in range(n):
                            before[e] = x[e]
                            chain[e] = x[e]
                        for layer in range(layers):
                            onto = (layer + 1) % layers
                            _average(image, chain, slopes[layer], True, rows, line, h, w,
                                     sizes[onto], wrap, weights[onto])  # fmt: skip
                            for e in range(n):
                                chain[e] = image[e]
                        for e in range(n):
                            x[e] = residual[e] + chain[e]
                            before[e] -= x[e]
                        if _worst(before, limits, pixels) <= tolerance * worst:
                            break
                for e in range(n):
                    V[0, e] += x[e]
            # --- the tangent kernel: Θ = G + wM(D ∘ Θ), once around -------------------------------
            for layer in range(layers):
                for e in range(n):
                    source[layer, e] = 0.5 * (total[layer, e] - V[layer, e])  # now G
            if layers == 1 and closed:
                _solve(x, before, image, source[0], slopes[0], rows, line, h, w, sizes[0], wrap,
                       weights[0], 1e-16)  # fmt: skip
            else:
                for e in range(n):
                    x[e] = source[0, e]
                for _ in range(_MAX_SWEEPS):
                    for e in range(n):
                        chain[e] = x[e]
                    for layer in range(last):
                        _average(image, chain, slopes[layer], True, rows, line, h, w,
                                 sizes[layer + 1], wrap, weights[layer + 1])  # fmt: skip
                        for e in range(n):
                            chain[e] = source[layer + 1, e] + image[e]
                    if not closed:
                        break
                    _average(image, chain, slopes[last], True, rows, line, h, w, sizes[0], wrap,
                             weights[0])  # fmt: skip
                    for e in range(n):
                        now = source[0, e] + image[e]
                        before[e] = now - x[e]
                        x[e] = now
                    if _worst(before, limits, pixels) <= 1e-16:
                        break
                for e in range(n):
                    x[e] = chain[e]
            # --- read-out ------------------------------------------------------------------------
            for t in range(LANES):
                answer[0, t] = 0.0
                answer[1, t] = 0.0
            for s in range(pixels):
                one, two, here = index1[s], index2[s], s * LANES
                share = shares[s]
                if feature:
                    a = squares1[last, r, one]
                    for t in range(LANES):
                        value = 0.5 * (a + squares2[last, two, column + t] - psi[last, here + t])
                        full = value + slopes[last, here + t] * x[here + t]
                        answer[0, t] += share * value
                        answer[1, t] += share * full
                else:
                    for t in range(LANES):
                        answer[0, t] += share * source[last, here + t]
                        answer[1, t] += share * x[here + t]
            good = enough and worst <= _ACCEPTED
            for t in range(LANES):
                if good:
                    conjugate[r, column + t] += answer[0, t]
                    tangent[r, column + t] += answer[1, t]
                else:
                    conjugate[r, column + t] = np.nan
                    tangent[r, column + t] = np.nan
                    bad += 1
        marked[r] += bad
