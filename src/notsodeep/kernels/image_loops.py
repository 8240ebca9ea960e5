"""Compiled loops over pairs of images: the fixed point of a convolutional ring on all pixels.

A strip is one image of the rows with `LANES` images of the columns.  Every array about a strip is
flat, pixel after pixel, with the pairs innermost: entry s·LANES + t is pixel s of pair t.  So all
that happens pixel by pixel is one long loop, a step to the next pixel is a shift by LANES, and the
compiler turns everything into vector instructions.  A strip is worked on until it is done, and
stays in the second-level cache.

The unknown of a layer is not the covariance G of two pre-activations but their squared distance
V = E(u − v)² = q₁ + q₂ − 2G, for which docs/other-models.md has

    V = w M Ψ + u M |x − x′|²,    Ψ = E(φ(u) − φ(v))² ,    dΨ/dV = E[φ′(u)φ′(v)] = D.

Where two images have the same background, V is tiny or zero and known to as many digits as
anything else; from G one could only subtract it, and the slope of a kinked activation, which
depends on √V, would lose half of the digits.  Biases and centring cancel.  Where nothing but sizes
distinguishes images, every image is given in units of its own: see `images`.

Everything is in one file: see `loops`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

SERIES, HINGE = 0, 1
"""How Ψ is evaluated: Mehler's series, or the arc-cosine form of a hinge at zero."""

LANES = 16
"""Pairs in a strip; arrays about columns are filled up to whole strips, with the last image."""

BINS = 512
"""Resolution in |ρ| of the tables that say how many terms the series needs."""

TERMS_STEP = 4
"""Series go four terms at a time: their lengths are multiples of this."""

RESIDUAL = 2e-14
"""A pair is done when no pixel's V changes by more than this times its largest q₁ + q₂."""

_CHUNK = 64  # entries that are compared or summed side by side
_ACCEPTED = 5.0  # times the residual: what is left when rounding stops the iteration short of it
_FINEST = 1e-16
_HUGE = 1e300
_MAX_STEPS = 40
_MAX_SWEEPS = 4000
_LOWEST = -1.0 / 3.0  # M has its eigenvalues in [−1/3, 1], whatever its size and the padding
_NEAR_ONE = 0.99  # |ρ| from which Ψ is summed from distances, for the digits of what is small
_COPIES = 1e-3  # largest V/(q₁ + q₂) of images that count as near copies


def _arcsine_coefficients(degree: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """2 arcsin √g = √g·Q(4g − 1) on [0, 1/2]; Q as powers, increasing, error about 6^−degree."""

    def quotient(t: Any) -> Any:
        root = np.sqrt(np.maximum(0.25 * (1.0 + t), 1e-30))
        return 2.0 * np.arcsin(root) / root

    series = np.polynomial.chebyshev.chebinterpolate(quotient, degree)
    return np.asarray(np.polynomial.chebyshev.cheb2poly(series), dtype=np.float64)


_Q = tuple(float(c) for c in _arcsine_coefficients(21))
_options = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_compile = numba.njit(**_options)
_compile_part = numba.njit(**_options, forceinline=True)


class Grid(NamedTuple):
    """The pixels where both images are: a torus, or a rectangle outside which all is zero."""

    height: int
    width: int
    wrap: bool
    index1: Any  # (h·w,) the pixel of either image that a pixel of the rectangle is
    index2: Any
    shares: Any  # (h·w,) weights of the pixels in the read-out


class Layers(NamedTuple):
    """The layers of a ring, arrays (L,); the first reads the last, if its weight is not zero."""

    weights: Any
    injections: Any
    sizes: Any
    kinds: Any
    both: Any
    cross: Any
    odd: Any  # of an odd function every other coefficient is zero and left out
    near: Any  # a kink in the ring asks for the digits of a small Ψ
    rough: Any  # series that leave out more than rounding where ρ is near one
    spread: bool  # whether M is still to be applied to the pixels that layers read
    starts: Any  # where the coefficients of a layer begin
    tables: Any  # (L, 2, levels, BINS + 2) terms at each |ρ| for the result and the first steps


class Side(NamedTuple):
    """Images of the rows, axes (…, image, pixel), or of the columns, axes (…, pixel, image)."""

    pixels: Any  # (A, n, P, C) or (A, P, C, n); A is 1 if all layers average the same pixels
    scales: Any  # (L, n, P) or (L, P, n): √q
    squares: Any  # the same of E φ²
    coefficients: Any  # (n, P, K) or (strips, P, K, LANES)
    levels: Any  # (L, n, P) or (L, P, strips): which of a layer's tables
    extra: Any  # (L, n, h·w) or (L, h·w, n): what V has from where only one image is; or empty


class _Strip(NamedTuple):
    """Memory of a strip: a line of sums with a halo, and fields of h·w·LANES numbers."""

    line: Any
    sums: Any
    x: Any
    before: Any
    image: Any
    residual: Any
    chain: Any
    V: Any  # (L, n), as are the others
    psi: Any
    slopes: Any
    source: Any
    gap: Any  # (τ₁ − τ₂)²
    inverse: Any  # 1/(4τ₁τ₂)
    total: Any  # q₁ + q₂
    squares: Any  # E φ² of both
    limits: Any  # (LANES,) 1/max(q₁ + q₂) of a pair; 0 for pairs that are not wanted
    top: Any  # (2·CHUNK,)


@_compile
def _new_strip(layers, n, width, widest):
    line, sums = np.empty((width + widest) * LANES), np.empty(width * LANES)
    work, fields = np.zeros((5, n)), np.empty((8, layers, n))
    return _Strip(
        line, sums, work[0], work[1], work[2], work[3], work[4], fields[0], fields[1], fields[2],
        fields[3], fields[4], fields[5], fields[6], fields[7], np.empty(LANES),
        np.empty(2 * _CHUNK),
    )  # fmt: skip


# --- the mean over a window -----------------------------------------------------------------------


@_compile_part
def _halo(line, w, reach, wrap):
    """Put the pixels of the other end, or zeros, beside the w pixels of a line."""
    middle = line[reach * LANES :]
    for k in range(reach):
        left, right = line[(reach - 1 - k) * LANES :], middle[(w + k) * LANES :]
        from_left, from_right = middle[(w - 1 - k % w) * LANES :], middle[(k % w) * LANES :]
        for t in range(LANES):
            left[t] = from_left[t] if wrap else 0.0
            right[t] = from_right[t] if wrap else 0.0


@_compile_part
def _column_sums(line, given, slopes, y, h, w, size, wrap):
    """Sum `given`, or slopes ∘ given, over the rows of the windows around row y."""
    reach, width = size // 2, w * LANES
    # Slices, from zero on, so that the compiler need not think of negative indices.
    middle = line[reach * LANES :]
    if size == 3 and (wrap or 0 < y < h - 1):
        above, below = given[(y - 1) % h * width :], given[(y + 1) % h * width :]
        here = given[y * width :]
        if slopes is None:
            for e in range(width):
                middle[e] = above[e] + here[e] + below[e]
        else:
            slope_above, slope_below = slopes[(y - 1) % h * width :], slopes[(y + 1) % h * width :]
            slope = slopes[y * width :]
            for e in range(width):
                middle[e] = (
                    slope_above[e] * above[e] + slope[e] * here[e] + slope_below[e] * below[e]
                )
        return
    for e in range(width):
        middle[e] = 0.0
    for k in range(y - reach, y + reach + 1):
        if wrap or 0 <= k < h:
            row = given[k % h * width :]
            if slopes is None:
                for e in range(width):
                    middle[e] += row[e]
            else:
                slope = slopes[k % h * width :]
                for e in range(width):
                    middle[e] += slope[e] * row[e]


@_compile_part
def _row_sums(sums, line, w, size):
    """Sum a line with its halo over the columns of the windows."""
    width = w * LANES
    for e in range(width):
        sums[e] = line[e]
    for k in range(1, size):
        moved = line[k * LANES :]
        for e in range(width):
            sums[e] += moved[e]


@_compile
def _average(out, given, slopes, line, sums, h, w, wrap, size, factor):
    """Put factor·M(given) into `out`, or factor·M(slopes ∘ given) if there are slopes.

    M is the mean over a size × size window, in which pixels outside count as zero, or are those of
    the opposite side if they wrap.
    """
    width = w * LANES
    factor = factor / (size * size)
    for y in range(h):
        _column_sums(line, given, slopes, y, h, w, size, wrap)
        _halo(line, w, size // 2, wrap)
        row = out[y * width :]
        if size == 3:
            one, two = line[LANES:], line[2 * LANES :]
            for e in range(width):
                row[e] = factor * (line[e] + one[e] + two[e])
        else:
            _row_sums(sums, line, w, size)
            for e in range(width):
                row[e] = factor * sums[e]


@_compile_part
def _mean(out, given, slopes, strip, grid, size, factor):
    """Call `_average`, with no more arrays than it needs."""
    h, w, wrap = grid.height, grid.width, grid.wrap
    _average(out, given, slopes, strip.line, strip.sums, h, w, wrap, size, factor)


@_compile
def _chebyshev(
    before, x, slopes, line, sums, h, w, wrap, size, factor, source, omega, scale
):  # fmt: skip
    """Make a step of Chebyshev's semi-iteration; the next iterate takes the place of `before`.

    before ← ω(scale·(source + factor·M(slopes ∘ x) − x) + x − before) + before.
    """
    width = w * LANES
    factor = factor / (size * size)
    for y in range(h):
        _column_sums(line, x, slopes, y, h, w, size, wrap)
        _halo(line, w, size // 2, wrap)
        start = y * width
        now, driven, last = x[start:], source[start:], before[start:]
        if size == 3:
            one, two = line[LANES:], line[2 * LANES :]
            for e in range(width):
                change = factor * (line[e] + one[e] + two[e]) + driven[e] - now[e]
                last[e] = omega * (scale * change + now[e] - last[e]) + last[e]
        else:
            _row_sums(sums, line, w, size)
            for e in range(width):
                change = factor * sums[e] + driven[e] - now[e]
                last[e] = omega * (scale * change + now[e] - last[e]) + last[e]


# --- largest values -------------------------------------------------------------------------------


@_compile_part
def _largest(top, values, n):
    """Put the largest |value| of each pair into `top`; infinite if any is not finite."""
    most, total = top[:_CHUNK], top[_CHUNK:]
    for t in range(_CHUNK):
        most[t] = 0.0
        total[t] = 0.0
    for start in range(0, n, _CHUNK):
        part = values[start:]
        for t in range(min(_CHUNK, n - start)):
            size = abs(part[t])
            most[t] = size if size > most[t] else most[t]
            total[t] += size  # what a comparison with NaN forgets is seen in the sum
    for t in range(LANES):
        largest = 0.0
        for k in range(t, _CHUNK, LANES):
            largest = max(largest, most[k] if total[k] < np.inf else np.inf)
        most[t] = largest


@_compile_part
def _worst(values, strip):
    """Largest of |value|·limit over all pixels and pairs."""
    _largest(strip.top, values, values.size)
    worst = 0.0
    for t in range(LANES):
        worst = max(worst, strip.top[t] * strip.limits[t])
    return worst


@_compile_part
def _worst_slope(strip, layers):
    """Like `_worst` of the residual, of what it does to the slope of a hinge.

    An error e of V moves the angle by about e/√(τ₁τ₂ V), and so τ₁τ₂D by e/(2 sin(θ/2)).
    """
    worst = 0.0
    for layer in range(layers.weights.size):
        V, gap, inverse = strip.V[layer], strip.gap[layer], strip.inverse[layer]
        hinge = 0.5 if layers.kinds[layer] == HINGE else 0.0
        for e in range(V.size):
            g = max((V[e] - gap[e]) * inverse[e], 0.0)
            steep = hinge / math.sqrt(g + 1e-36)
            strip.image[e] = strip.residual[e] * (steep if steep > 1.0 else 1.0)
        worst = max(worst, _worst(strip.image, strip))
    return worst


# --- Ψ and D --------------------------------------------------------------------------------------


@_compile_part
def _arcsine(y):
    """Evaluate Q."""
    z = y * y
    even = (_Q[20] * z + _Q[18]) * z + _Q[16]
    even = (((even * z + _Q[14]) * z + _Q[12]) * z + _Q[10]) * z + _Q[8]
    even = (((even * z + _Q[6]) * z + _Q[4]) * z + _Q[2]) * z + _Q[0]
    odd = (_Q[21] * z + _Q[19]) * z + _Q[17]
    odd = (((odd * z + _Q[15]) * z + _Q[13]) * z + _Q[11]) * z + _Q[9]
    odd = (((odd * z + _Q[7]) * z + _Q[5]) * z + _Q[3]) * z + _Q[1]
    return even + y * odd


@_compile_part
def _hinge(V, gap, inverse, total, psi, slopes, both, cross):
    """Ψ and D of right·x₊ − left·(−x)₊, both = right² + left², cross = 2·right·left.

    With θ the angle of the pair, sin²(θ/2) = (V − (τ₁ − τ₂)²)/(4τ₁τ₂):
    Ψ = both·V/2 − τ₁τ₂ (both − cross)(sin θ − θ cos θ)/π and D = (both (π − θ) + cross θ)/2π.
    """
    bend = (both - cross) / math.pi
    for e in range(V.size):
        g = (V[e] - gap[e]) * inverse[e]
        g = 0.0 if g < 0.0 else g
        g = 1.0 if g > 1.0 else g
        cosine = 1.0 - 2.0 * g
        obtuse = g > 0.5
        g = 1.0 - g if obtuse else g
        root = math.sqrt(g)
        angle = root * _arcsine(4.0 * g - 1.0)
        angle = math.pi - angle if obtuse else angle
        sine = 2.0 * root * math.sqrt(1.0 - g)
        product = 0.5 * (total[e] - gap[e])  # τ₁τ₂
        psi[e] = 0.5 * both * V[e] - bend * product * (sine - angle * cosine)
        slopes[e] = 0.5 * (both - bend * angle)


@_compile_part
def _horner(psi, slopes, x, left, right, terms):
    """Put Σ_k a_k b_k x^k of a pixel's pairs and its derivative into psi and slopes.

    a_k = left[k] is a number, b_k = right[k] and x are strips.
    """
    for t in range(LANES):
        psi[t] = 0.0
        slopes[t] = 0.0
    for k in range(terms - 1, 0, -4):
        a0, a1, a2, a3 = left[k], left[k - 1], left[k - 2], left[k - 3]
        for t in range(LANES):
            r, p0, d0 = x[t], psi[t], slopes[t]
            d1 = d0 * r + p0
            p1 = p0 * r + a0 * right[k, t]
            d2 = d1 * r + p1
            p2 = p1 * r + a1 * right[k - 1, t]
            d3 = d2 * r + p2
            p3 = p2 * r + a2 * right[k - 2, t]
            slopes[t] = d3 * r + p3
            psi[t] = p3 * r + a3 * right[k - 3, t]


@_compile_part
def _distances(psi, x, one_minus, left, right, terms, odd):
    """Replace psi = Σ_k a_k b_k x^k by Ψ/2 = ½Σ(a_k − b_k)² + Σ a_k b_k (1 − ρ^{k′}).

    k′ = k, or 2k + 1 of an odd function, where x = ρ².  The second sum has a factor 1 − x, and what
    is left of it are sums Σ_{j>k} a_j b_j as coefficients: nothing cancels near ρ = 1.
    """
    for t in range(LANES):
        rest, rho = one_minus[t], 1.0 - one_minus[t]
        suffix, quotient, apart = 0.0, 0.0, 0.0
        for k in range(terms - 1, -1, -1):
            a, b = left[k], right[k, t]
            apart += (a - b) * (a - b)
            if k > 0:
                suffix += a * b
                quotient = quotient * x[t] + suffix
        if odd:
            psi[t] = 0.5 * apart + rest * ((1.0 + rho) * quotient + psi[t])
        else:
            psi[t] = 0.5 * apart + rest * quotient


@_compile_part
def _series(strip, layers, index, table, rows, columns, r, column, grid, skip):
    """Ψ and D of any activation by Mehler's series; False if some pixel needs more terms.

    The first `skip` lanes are not wanted, and may need more.

    E[φφ] = Σ_k a_k(τ₁) a_k(τ₂) ρ^k, by Horner's rule, and D from its derivative.  An odd function
    has ρ Σ_j a_{2j+1}(τ₁) a_{2j+1}(τ₂) x^j, x = ρ²: half of the terms.
    """
    V, gap, inverse = strip.V[index], strip.gap[index], strip.inverse[index]
    psi, slopes, squares = strip.psi[index], strip.slopes[index], strip.squares[index]
    one_minus, x = strip.image, strip.chain
    odd, start = layers.odd[index], layers.starts[index]
    for e in range(V.size):
        g = 2.0 * (V[e] - gap[e]) * inverse[e]
        g = 0.0 if g < 0.0 else g
        g = 2.0 if g > 2.0 else g
        one_minus[e] = g
        rho = 1.0 - g
        x[e] = rho * rho if odd else rho
    enough = True
    for s in range(V.size // LANES):
        at1, at2 = grid.index1[s], grid.index2[s]
        here = s * LANES
        largest = 0.0
        for e in range(here + skip, here + LANES):
            largest = max(largest, abs(1.0 - one_minus[e]))
        level = max(rows.levels[index, r, at1], columns.levels[index, at2, column])
        place = min(int(largest * BINS) + 1, BINS) if largest < 1.0 else BINS
        terms = table[level, place]
        if terms < 0:
            enough = False
            terms = table[level, BINS + 1]
        near = layers.near[index] and largest > _NEAR_ONE
        if near:
            terms = table[level, BINS + 1]
        left = rows.coefficients[r, at1, start:]
        right = columns.coefficients[column, at2, start:]
        _horner(psi[here:], slopes[here:], x[here:], left, right, terms)
        if near:
            for e in range(here, here + LANES):
                slopes[e] = (
                    4.0 * inverse[e] * (psi[e] + 2.0 * x[e] * slopes[e] if odd else slopes[e])
                )
            _distances(psi[here:], x[here:], one_minus[here:], left, right, terms, odd)
            for e in range(here, here + LANES):
                psi[e] *= 2.0
        elif odd:
            for e in range(here, here + LANES):
                p, d = psi[e], slopes[e]
                psi[e] = squares[e] - 2.0 * (1.0 - one_minus[e]) * p
                slopes[e] = 4.0 * inverse[e] * (p + 2.0 * x[e] * d)
        else:
            for e in range(here, here + LANES):
                psi[e] = squares[e] - 2.0 * psi[e]
                slopes[e] *= 4.0 * inverse[e]
    return enough


# --- linear equations around the ring -------------------------------------------------------------


@_compile_part
def _sweeps(tolerance, rate, contraction):
    """Sweeps that make the error of the start smaller than the tolerance, both relative to x.

    From x = given the error is at most contraction·|x|, and k sweeps leave 2·rate^k of it.
    """
    if rate < 1e-12:
        return 2
    needed = math.log(0.5 * tolerance / min(contraction, 1.0)) / math.log(rate)
    return min(max(math.ceil(needed), 0) + 1, _MAX_SWEEPS)


@_compile_part
def _solve_layer(strip, grid, given, size, weight, tolerance):
    """Solve x = wM(D ∘ x) + given for one layer into strip.x, from x = given.

    M is symmetric, so for D ≥ 0 the operator wMD is similar to a symmetric one with eigenvalues in
    [−c/3, c], c = w max D: Chebyshev's semi-iteration, which needs no inner products.  If D
    changes sign, plain sweeps.  (Golub and Varga, 1961.)
    """
    x, before, slopes = strip.x, strip.before, strip.slopes[0]
    line, sums, h, w, wrap = strip.line, strip.sums, grid.height, grid.width, grid.wrap
    low, high = 0.0, 0.0
    for e in range(x.size):
        low = min(low, slopes[e])
    _largest(strip.top, slopes, slopes.size)
    for t in range(LANES):
        high = max(high, strip.top[t])
    high *= weight
    for e in range(x.size):
        x[e] = given[e]
        before[e] = given[e]
    if high == 0.0:
        return
    if low >= 0.0 and high < 1.0:
        bottom = (_LOWEST if size > 1 else 0.0) * high
        scale = 2.0 / (2.0 - bottom - high)
        sigma = (high - bottom) / (2.0 - bottom - high)
        rate = sigma / (1.0 + math.sqrt(1.0 - sigma * sigma))
    else:
        scale, sigma, rate = 1.0, 0.0, min(high, 0.999)
    omega = 1.0
    count = _sweeps(tolerance, rate, high)
    count += count % 2  # an even number of steps ends in x
    for k in range(count):
        if k > 0:
            omega = 1.0 / (1.0 - (0.5 if k == 1 else 0.25 * omega) * sigma * sigma)
        if k % 2 == 0:
            _chebyshev(before, x, slopes, line, sums, h, w, wrap, size, weight, given, omega, scale)
        else:
            _chebyshev(x, before, slopes, line, sums, h, w, wrap, size, weight, given, omega, scale)


@_compile_part
def _solve_ring(strip, grid, layers, tolerance):
    """Solve x = residual + (a turn of all layers)(x) into strip.x by plain sweeps.

    Around a ring the operator is a product, not symmetric.
    """
    x, before, image, chain = strip.x, strip.before, strip.image, strip.chain
    depth = layers.weights.size
    for e in range(x.size):
        x[e] = strip.residual[e]
    for _ in range(_MAX_SWEEPS):
        for e in range(x.size):
            before[e] = x[e]
            chain[e] = x[e]
        for layer in range(depth):
            onto = (layer + 1) % depth
            size, weight = layers.sizes[onto], layers.weights[onto]
            _mean(image, chain, strip.slopes[layer], strip, grid, size, weight)
            for e in range(x.size):
                chain[e] = image[e]
        for e in range(x.size):
            x[e] = strip.residual[e] + chain[e]
            before[e] -= x[e]
        if _worst(before, strip) <= tolerance:
            break


@_compile_part
def _tangent(strip, grid, layers):
    """Θ = G + wM(D ∘ Θ), once around, of the last layer into strip.x; G is in strip.source."""
    x, before, image, chain = strip.x, strip.before, strip.image, strip.chain
    source, slopes = strip.source, strip.slopes
    depth, closed = layers.weights.size, layers.weights[0] > 0.0
    if depth == 1 and closed:
        _solve_layer(strip, grid, source[0], layers.sizes[0], layers.weights[0], _FINEST)
        return
    for e in range(x.size):
        x[e] = source[0, e]
    for _ in range(_MAX_SWEEPS):
        for e in range(x.size):
            chain[e] = x[e]
        for layer in range(1, depth):
            size, weight = layers.sizes[layer], layers.weights[layer]
            _mean(image, chain, slopes[layer - 1], strip, grid, size, weight)
            for e in range(x.size):
                chain[e] = source[layer, e] + image[e]
        if not closed:
            break
        _mean(image, chain, slopes[depth - 1], strip, grid, layers.sizes[0], layers.weights[0])
        for e in range(x.size):
            now = source[0, e] + image[e]
            before[e] = now - x[e]
            x[e] = now
        if _worst(before, strip) <= _FINEST:
            break
    for e in range(x.size):
        x[e] = chain[e]


# --- pairs of images ------------------------------------------------------------------------------


@_compile_part
def _pixel_distances(out, rows, columns, a, r, column, grid):
    """Put |x − x′|² of every pixel's pairs into `out`."""
    channels = rows.pixels.shape[3]
    for s in range(grid.index1.size):
        part = out[s * LANES :]
        for t in range(LANES):
            part[t] = 0.0
        for c in range(channels):
            value = rows.pixels[a, r, grid.index1[s], c]
            others = columns.pixels[a, grid.index2[s], c, column:]
            for t in range(LANES):
                step = value - others[t]
                part[t] += step * step


@_compile_part
def _set_up(strip, grid, layers, rows, columns, r, column, skip):
    """Put what a strip of pairs brings into its fields: all but V, Ψ and D."""
    limits = strip.limits
    for t in range(LANES):
        limits[t] = 1e-300
    spread = layers.spread
    for layer in range(layers.weights.size):
        source, inject = strip.source[layer], layers.injections[layer]
        if layer == 0 or not spread:
            _pixel_distances(strip.residual, rows, columns, layer, r, column, grid)
        if spread:
            _mean(source, strip.residual, None, strip, grid, layers.sizes[layer], inject)
        else:
            for e in range(source.size):
                source[e] = inject * strip.residual[e]
        if rows.extra.size > 0:
            for s in range(grid.index1.size):
                value, part = rows.extra[layer, r, s], source[s * LANES :]
                others = columns.extra[layer, s, column:]
                for t in range(LANES):
                    part[t] += value + others[t]
        for s in range(grid.index1.size):
            here = s * LANES
            gap, inverse = strip.gap[layer, here:], strip.inverse[layer, here:]
            total, squares = strip.total[layer, here:], strip.squares[layer, here:]
            a, square = (
                rows.scales[layer, r, grid.index1[s]],
                rows.squares[layer, r, grid.index1[s]],
            )
            scales2 = columns.scales[layer, grid.index2[s], column:]
            squares2 = columns.squares[layer, grid.index2[s], column:]
            for t in range(LANES):
                b = scales2[t]
                gap[t] = (a - b) * (a - b)
                total[t] = a * a + b * b
                quotient = 0.25 / (a * b)
                inverse[t] = quotient if quotient < _HUGE else _HUGE
                squares[t] = square + squares2[t]
        _largest(strip.top, strip.total[layer], strip.x.size)
        for t in range(LANES):
            limits[t] = max(limits[t], strip.top[t])
    for t in range(LANES):
        limits[t] = 1.0 / limits[t] if t >= skip else 0.0


@_compile_part
def _turn(strip, grid, layers, rows, columns, r, column, skip, step):
    """Make Ψ and D of every layer, and what is left of the equation; False if a series is short."""
    depth = layers.weights.size
    closed = layers.weights[0] > 0.0
    # Two steps from the start errors are above what a short series leaves out.
    rough = 1 if step < 2 and closed else 0
    enough = True
    for index in range(depth):
        V, psi, slopes = strip.V[index], strip.psi[index], strip.slopes[index]
        both, cross = layers.both[index], layers.cross[index]
        if layers.kinds[index] == HINGE and step == 0 and depth == 1 and closed:
            # ρ = 0 everywhere: θ = π/2, and no arcsine.
            bend = 0.25 * (both - cross) / math.pi
            for e in range(V.size):
                psi[e] = 0.5 * both * V[e] - bend / strip.inverse[index, e]
                slopes[e] = 0.25 * (both + cross)
        elif layers.kinds[index] == HINGE:
            gap, inverse, total = strip.gap[index], strip.inverse[index], strip.total[index]
            _hinge(V, gap, inverse, total, psi, slopes, both, cross)
        else:
            table = layers.tables[index, rough]
            enough &= _series(
                strip, layers, index, table, rows, columns, r, column // LANES, grid, skip
            )
        onto = (index + 1) % depth
        if onto > 0:
            weight = layers.weights[onto]
            _mean(strip.V[onto], psi, None, strip, grid, layers.sizes[onto], weight)
            for e in range(V.size):
                strip.V[onto, e] += strip.source[onto, e]
    if closed:
        weight, size = layers.weights[0], layers.sizes[0]
        _mean(strip.residual, strip.psi[depth - 1], None, strip, grid, size, weight)
        for e in range(strip.x.size):
            strip.residual[e] += strip.source[0, e] - strip.V[0, e]
    return enough


@_compile_part
def _newton(strip, grid, layers, rows, columns, r, column, skip):
    """Solve for V of every layer; False if the pairs need more than series, or do not converge.

    The start is the equation of the first layer linearised where all pairs are uncorrelated, or
    what one turn through the ring makes of that point.  Other pairs have no part in it: an entry
    has the same bits in whatever order tiles are made.
    """
    depth, closed = layers.weights.size, layers.weights[0] > 0.0
    series = False
    for kind in layers.kinds:
        series |= kind != HINGE
    for e in range(strip.x.size):
        strip.V[0, e] = strip.total[0, e] if closed else strip.source[0, e]
    enough, worst, fine = True, np.inf, np.inf
    for step in range(_MAX_STEPS):
        enough = _turn(strip, grid, layers, rows, columns, r, column, skip, step)
        if not closed:
            return enough
        worst = _worst(strip.residual, strip)
        if not worst < np.inf:
            break
        # A start that is linearised, or a rough series, solves another equation.
        if worst <= _ACCEPTED * RESIDUAL and step >= (2 if series else 1):
            # Where images are nearly equal more is asked of V, as far as rounding allows.
            previous, fine = fine, _worst_slope(strip, layers)
            if fine <= RESIDUAL or fine > 0.25 * previous:
                break  # the second: Newton squares errors, so this is rounding
        # A step wrong by as much as the residual leaves its square, as Newton's does.
        tolerance = max(_FINEST, 0.1 * min(worst, 1e-2))
        if depth == 1:
            weight, size = layers.weights[0], layers.sizes[0]
            _solve_layer(strip, grid, strip.residual, size, weight, tolerance)
        elif step == 0:  # the start is a point, not a linearisation: take one turn
            for e in range(strip.x.size):
                strip.x[e] = strip.residual[e]
        else:
            _solve_ring(strip, grid, layers, tolerance * worst)
        for e in range(strip.x.size):
            strip.V[0, e] += strip.x[e]
    return enough and worst <= _ACCEPTED * RESIDUAL


@_compile_part
def _near_copies(strip, layers):
    """Whether some pair is nearly equal at every pixel of a layer whose series is rough there."""
    found = False
    for index in range(layers.weights.size):
        if layers.rough[index]:
            for e in range(strip.x.size):
                V, total = strip.V[index, e], strip.total[index, e]
                strip.image[e] = V / total if total > 0.0 else 0.0
            _largest(strip.top, strip.image, strip.x.size)
            for t in range(LANES):
                found |= strip.limits[t] > 0.0 and strip.top[t] < _COPIES
    return found


@_compile
def solve_images(conjugate, tangent, marked, first, grid, layers, rows, columns, feature, wanted):
    """Add one offset's share of the kernels for every pair of a tile of images.

    Parameters
    ----------
    conjugate, tangent : (rows, columns), whole strips of columns
        Receive the mean over pixels, with the weights `shares`, of the last layer's kernels; NaN
        for pairs that need more terms of a series or do not converge.
    marked : (rows,)
        Counts these.
    first : (rows,)
        The first column of each row that is wanted.
    grid : Grid
    layers : Layers
    rows, columns : Side
    feature : bool
        Whether the kernels are those of φ(h), or of h.
    wanted : bool
        Whether the tangent kernel is.
    """
    depth, widest = layers.weights.size, 0
    for size in layers.sizes:
        widest = max(widest, size)
    pixels = grid.height * grid.width
    strip = _new_strip(depth, pixels * LANES, grid.width, widest)
    last = depth - 1
    sums = np.empty((2, LANES))
    # The coefficients of a strip stay in the cache while those of the rows pass by.
    for column in range(0, conjugate.shape[1], LANES):
        for r in range(conjugate.shape[0]):
            if first[r] >= column + LANES:
                continue
            skip = max(first[r] - column, 0)
            _set_up(strip, grid, layers, rows, columns, r, column, skip)
            good = _newton(strip, grid, layers, rows, columns, r, column, skip)
            good = good and not _near_copies(strip, layers)
            if not good:
                for t in range(LANES):
                    conjugate[r, column + t], tangent[r, column + t] = np.nan, np.nan
                marked[r] += LANES
                continue
            for layer in range(depth):
                for e in range(strip.x.size):
                    strip.source[layer, e] = 0.5 * (strip.total[layer, e] - strip.V[layer, e])  # G
            if wanted:
                _tangent(strip, grid, layers)
            values = strip.source[last]
            if feature:
                values = strip.image
                for e in range(strip.x.size):
                    values[e] = 0.5 * (strip.squares[last, e] - strip.psi[last, e])
                    strip.x[e] = values[e] + strip.slopes[last, e] * strip.x[e]
            sums[:] = 0.0
            for s in range(pixels):
                for t in range(LANES):
                    sums[0, t] += grid.shares[s] * values[s * LANES + t]
                    sums[1, t] += grid.shares[s] * strip.x[s * LANES + t]
            for t in range(LANES):
                conjugate[r, column + t] += sums[0, t]
                tangent[r, column + t] += sums[1, t]


@_compile
def fill_strips(strips, values):
    """Put images (n, P, K) into strips, (strips, P, K, LANES), with the last image once more."""
    n, pixels, terms = values.shape
    for strip in range(len(strips)):
        for s in range(pixels):
            to = strips[strip, s]
            for t in range(LANES):
                given = values[min(strip * LANES + t, n - 1), s]
                for k in range(terms):
                    to[k, t] = given[k]


@_compile
def clenshaw(series, x):
    """Evaluate a Chebyshev series at points x, many of them side by side."""
    values = np.empty(len(x))
    one, two = np.empty(_CHUNK), np.empty(_CHUNK)
    for start in range(0, len(x), _CHUNK):
        points, found = x[start : start + _CHUNK], values[start : start + _CHUNK]
        count = len(points)
        one[:] = 0.0
        two[:] = 0.0
        for k in range(len(series) - 1, 0, -1):
            for i in range(count):
                now = 2.0 * points[i] * one[i] - two[i] + series[k]
                two[i] = one[i]
                one[i] = now
        for i in range(count):
            found[i] = points[i] * one[i] - two[i] + series[0]
    return values
