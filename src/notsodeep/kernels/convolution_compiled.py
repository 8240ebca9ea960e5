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
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

SERIES, HINGE, ODD = 0, 1, 2
"""How Ψ is evaluated: Mehler's series, the arc-cosine form of a hinge at zero, or the series of an
odd function, of which every other coefficient is zero and left out."""

LANES = 8
"""Pairs in a strip; arrays about columns are padded to whole strips."""

BINS = 512
"""Resolution in |ρ| of the tables that say how many terms the series needs."""

TERMS_STEP = 4
"""Series go four terms at a time: their lengths are multiples of this."""

RESIDUAL = 2e-14
"""A pair is done when no pixel's V changes by more than this times its largest q₁ + q₂."""

_POINTS = 64  # of a series, worked on side by side
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
def _row_sums(out, line, given, slopes, scaled, w, size, wrap):
    """Sum a row of `given`, or slopes ∘ given, over horizontal windows; `line` has it with a halo.

    Rows are slices of their own: from zero on, the compiler need not think of negative indices.
    """
    reach = size // 2
    width = w * LANES
    middle = line[reach * LANES :]
    if scaled:
        for e in range(width):
            middle[e] = slopes[e] * given[e]
    else:
        for e in range(width):
            middle[e] = given[e]
    for k in range(reach):
        left, right = line[(reach - 1 - k) * LANES :], middle[width + k * LANES :]
        if wrap:
            from_left, from_right = middle[(w - 1 - k % w) * LANES :], middle[(k % w) * LANES :]
            for t in range(LANES):
                left[t] = from_left[t]
                right[t] = from_right[t]
        else:
            for t in range(LANES):
                left[t] = 0.0
                right[t] = 0.0
    if size == 3:
        second, third = line[LANES:], line[2 * LANES :]
        for e in range(width):
            out[e] = line[e] + second[e] + third[e]
    else:
        for e in range(width):
            out[e] = line[e]
        for k in range(1, size):
            next_one = line[k * LANES :]
            for e in range(width):
                out[e] += next_one[e]


@_compile
def _average(out, given, slopes, scaled, ring, line, h, w, size, wrap, factor,
             source, before, omega, scale):  # fmt: skip
    """Put factor·M(given) into `out`, or factor·M(slopes ∘ given) if `scaled`.

    M is the mean over a size × size window, in which pixels outside count as zero, or are those of
    the opposite side if `wrap`.  If omega > 0 it is a step of Chebyshev's semi-iteration instead,
    x ← ω(scale·(source + factor·M(slopes ∘ x) − x) + x − before) + before, with x = given = out.

    One pass: `ring` has the horizontal sums of as many rows as a window is high, and then those of
    the first rows, which the last ones need again when the first are overwritten.
    """
    reach = size // 2
    width = w * LANES
    factor = factor / (size * size)
    for k in range(2 * reach + min(reach, h)):
        # Rows −reach … reach − 1, and the first ones once more.
        y = k - reach if k < 2 * reach else k - 2 * reach
        slot = (y + size) % size if k < 2 * reach else size + y
        row = ring[slot * width : (slot + 1) * width]
        if wrap or 0 <= y < h:
            here = y % h * width
            _row_sums(row, line, given[here:], slopes[here:], scaled, w, size, wrap)
        else:
            for e in range(width):
                row[e] = 0.0
    one, two, three = ring[:width], ring[width:], ring[2 * width :]
    for y in range(h):
        slot = (y + reach) % size
        row = ring[slot * width : (slot + 1) * width]
        if y + reach < h:
            ahead = (y + reach) * width
            _row_sums(row, line, given[ahead:], slopes[ahead:], scaled, w, size, wrap)
        else:
            first = ring[(size + (y + reach) % h) * width :]
            for e in range(width):
                row[e] = first[e] if wrap else 0.0
        here = y * width
        here_out, here_source, here_before = out[here:], source[here:], before[here:]
        if size != 3:
            for e in range(width):
                line[e] = 0.0
            for k in range(size):
                row = ring[k * width :]
                for e in range(width):
                    line[e] += row[e]
        if omega > 0.0:
            for e in range(width):
                mean = factor * (one[e] + two[e] + three[e] if size == 3 else line[e])
                now, last = here_out[e], here_before[e]
                here_before[e] = now
                here_out[e] = omega * (scale * (mean + here_source[e] - now) + now - last) + last
        else:
            for e in range(width):
                mean = factor * (one[e] + two[e] + three[e] if size == 3 else line[e])
                here_out[e] = mean


@_compile_part
def _hinge(V, gap, inverse, total, psi, slopes, n, both, cross):
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
        product = 0.5 * (total[e] - gap[e])  # τ₁τ₂
        psi[e] = 0.5 * both * V[e] - bend * product * (sine - angle * cosine)
        slopes[e] = 0.5 * (both - bend * angle)


@_compile_part
def _terms_for(largest, table):
    """Terms that the series needs at |ρ| = largest; negative if the table cannot say."""
    return table[min(int(largest * BINS) + 1, BINS)] if largest < 1.0 else table[BINS]


@intrinsic
def _horner(_, psi, slopes, x, here, left, left_at, right, right_at, terms):
    """Put Σ_k a_k b_k x^k of a pixel's pairs and its derivative into psi[here:] and slopes[here:].

    a_k = left[left_at + k] is a number, b_k = right[right_at + LANES·k:] and x[here:] are strips;
    all arrays count as flat.  Vectors are spelt out: of a loop over so few lanes, whose arrays
    might overlap, the compiler makes none.
    """

    def generate(context, builder, signature, arguments):
        arrays = [
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array)
            else value
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        psi, slopes, x, here, left, left_at, right, right_at, terms = arrays
        number, strip = ir.DoubleType(), ir.VectorType(ir.DoubleType(), LANES)
        fast = ("contract",)

        def flat(array, place):
            start = builder.bitcast(array, number.as_pointer())
            return builder.gep(start, [place])

        def lanes(array, place):
            return builder.bitcast(flat(array, place), strip.as_pointer())

        point = builder.load(lanes(x, here), align=8)
        value, slope = (cgutils.alloca_once(builder, strip) for _ in range(2))
        for place in (value, slope):
            builder.store(ir.Constant(strip, [0.0] * LANES), place)
        one = ir.Constant(terms.type, 1)
        with cgutils.for_range(builder, terms) as loop:
            k = builder.sub(builder.sub(terms, one), loop.index)
            a = builder.load(flat(left, builder.add(left_at, k)))
            across = builder.add(right_at, builder.mul(k, ir.Constant(k.type, LANES)))
            b = builder.load(lanes(right, across), align=8)
            filled = ir.Constant(strip, ir.Undefined)
            for t in range(LANES):
                filled = builder.insert_element(filled, a, ir.Constant(ir.IntType(32), t))
            before = builder.load(value)
            turned = builder.fmul(builder.load(slope), point, flags=fast)
            builder.store(builder.fadd(turned, before, flags=fast), slope)
            turned = builder.fmul(before, point, flags=fast)
            term = builder.fmul(filled, b, flags=fast)
            builder.store(builder.fadd(turned, term, flags=fast), value)
        builder.store(builder.load(value), lanes(psi, here), align=8)
        builder.store(builder.load(slope), lanes(slopes, here), align=8)
        return context.get_dummy_value()

    return types.void(psi, slopes, x, here, left, left_at, right, right_at, terms), generate


@_compile_part
def _series(V, gap, inverse, squares, psi, slopes, rho, x, n, left, right, index1, index2, start,
            tables, levels1, levels2, odd, skip):  # fmt: skip
    """Ψ and D of any activation by Mehler's series; False if some pixel needs more terms.

    The first `skip` lanes are not wanted, and may need more.

    E[φφ] = Σ_k a_k(τ₁) a_k(τ₂) ρ^k, by Horner's rule, and D from its derivative.  An odd function
    has ρ Σ_j a_{2j+1}(τ₁) a_{2j+1}(τ₂) x^j, x = ρ²: half of the terms.
    """
    for e in range(n):
        r = 1.0 - 2.0 * (V[e] - gap[e]) * inverse[e]
        r = 1.0 if r > 1.0 else r
        r = -1.0 if r < -1.0 else r
        rho[e] = r
        x[e] = r * r if odd else r
    enough = True
    length = left.shape[1]
    for s in range(n // LANES):
        one, two = index1[s], index2[s]
        low, high = _extremes(rho[s * LANES + skip :], LANES - skip)
        level = max(levels1[one], levels2[two])
        terms = _terms_for(max(high, -low), tables[level])
        if terms < 0:
            enough = False
            terms = tables[level, BINS + 1]
        _horner(psi, slopes, x, s * LANES, left, one * length + start,
                right, (two * length + start) * LANES, terms)  # fmt: skip
    for e in range(n):
        p, d = psi[e], slopes[e]
        psi[e] = squares[e] - 2.0 * (rho[e] * p if odd else p)
        slopes[e] = 4.0 * inverse[e] * (p + 2.0 * x[e] * d if odd else d)
    return enough


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
def _solve(x, before, given, slopes, ring, line, h, w, size, wrap, weight, tolerance):
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
        if k > 0:
            omega = 1.0 / (1.0 - (0.5 if k == 1 else 0.25 * omega) * sigma * sigma)
        _average(x, x, slopes, True, ring, line, h, w, size, wrap, weight,
                 given, before, omega, scale)  # fmt: skip


@_compile_part
def _worst(values, limits, pixels, top):
    """Largest of |value|/limit over all pixels and pairs, not finite if any is not."""
    for t in range(2 * LANES):
        top[t] = 0.0
    for s in range(pixels):
        for t in range(LANES):
            size = abs(values[s * LANES + t])
            top[t] = size if size > top[t] else top[t]
            top[LANES + t] += size  # what a comparison with NaN forgets is seen here
    worst, sum_of_all = 0.0, 0.0
    for t in range(LANES):
        worst = max(worst, top[t] * limits[t])
        sum_of_all += top[LANES + t]
    return worst if sum_of_all < np.inf else np.inf


@_compile_part
def _worst_slope(values, limits, pixels, V, gap, inverse, kinds, top):
    """Like `_worst`, of what the values do to the slope of a hinge.

    An error e of V moves the angle by about e/√(τ₁τ₂ V), and so τ₁τ₂D by e/(2 sin(θ/2)).
    """
    for t in range(LANES):
        top[t] = 0.0
    for layer in range(len(kinds)):
        hinge = 1.0 if kinds[layer] == HINGE else 0.0
        for s in range(pixels):
            here = s * LANES
            for t in range(LANES):
                e = here + t
                g = (V[layer, e] - gap[layer, e]) * inverse[layer, e]
                g = g if g > 0.0 else 0.0
                steep = 0.5 * hinge / math.sqrt(g + 1e-36)
                size = abs(values[e]) * (steep if steep > 1.0 else 1.0)
                top[t] = size if size > top[t] else top[t]
    worst = 0.0
    for t in range(LANES):
        worst = max(worst, top[t] * limits[t])
    return worst


@_compile
def fill_strips(strips, values):
    """Put images (n, P, K) into strips, (n/LANES rounded up, P, K, LANES), filled up with zeros."""
    n, pixels, terms = values.shape
    for strip in range(len(strips)):
        for s in range(pixels):
            to = strips[strip, s]
            for t in range(LANES):
                image = strip * LANES + t
                if image < n:
                    given = values[image, s]
                    for k in range(terms):
                        to[k, t] = given[k]
                else:
                    for k in range(terms):
                        to[k, t] = 0.0


@_compile
def clenshaw(series, x):
    """Evaluate a Chebyshev series at points x, many of them side by side."""
    values = np.empty(len(x))
    for start in range(0, len(x), _POINTS):
        points, found = x[start : start + _POINTS], values[start : start + _POINTS]
        count = len(points)
        one, two = np.zeros(_POINTS), np.zeros(_POINTS)
        for k in range(len(series) - 1, 0, -1):
            for i in range(count):
                now = 2.0 * points[i] * one[i] - two[i] + series[k]
                two[i] = one[i]
                one[i] = now
        for i in range(count):
            found[i] = points[i] * one[i] - two[i] + series[0]
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
        The first column of each row that is wanted.
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
    left, right, starts : (rows, P, K), (strips, P, K, LANES), (L,)
        Hermite coefficients, and where those of a layer begin.
    tables, levels1, levels2 : (L, 2, levels, BINS + 2), (L, rows, P), (L, P, strips)
        Terms needed at each |ρ| by scales of a level, the last entry being all there are, for the
        result and for the first steps; and the level of every pixel, of columns the highest in a
        strip.
    """
    rows_of_tile, columns = conjugate.shape
    layers = len(weights)
    last = layers - 1
    pixels = h * w
    n = pixels * LANES
    widest = 0
    for k in sizes:
        widest = max(widest, k)
    series = False
    for kind in kinds:
        series |= kind != HINGE
    line = np.empty((w + widest) * LANES)
    ring = np.empty((widest + widest // 2) * w * LANES)
    work = np.empty((6, n))
    x, before, image, residual, drive, chain = (
        work[0], work[1], work[2], work[3], work[4], work[5],
    )  # fmt: skip
    V, psi, slopes = np.empty((layers, n)), np.empty((layers, n)), np.empty((layers, n))
    source, gap = np.empty((layers, n)), np.empty((layers, n))
    inverse, total = np.empty((layers, n)), np.empty((layers, n))
    squares = np.empty((layers, n))
    limits = np.empty(LANES)
    top = np.empty(2 * LANES)
    answer = np.empty((2, LANES))
    # The coefficients of a strip stay in the cache while those of the rows pass by.
    for column in range(0, columns, LANES):
        for r in range(rows_of_tile):
            if first[r] >= column + LANES:
                continue
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
                    _average(source[layer], drive, drive, False, ring, line, h, w, sizes[layer],
                             wrap, injections[layer], drive, drive, 0.0, 0.0)  # fmt: skip
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
                    a, square = scales1[layer, r, one], squares1[layer, r, one]
                    for t in range(LANES):
                        b = scales2[layer, two, column + t]
                        squares[layer, here + t] = square + squares2[layer, two, column + t]
                        gap[layer, here + t] = (a - b) * (a - b)
                        inverse[layer, here + t] = 0.25 / (a * b)
                        total[layer, here + t] = a * a + b * b
                        limits[t] = max(limits[t], a * a + b * b)
            skip = max(first[r] - column, 0)
            for t in range(LANES):
                limits[t] = 1.0 / limits[t] if t >= skip else 0.0
            # --- a start: the equation of the first layer linearised where all pairs are
            # uncorrelated, or what one turn through the ring makes of that point.  Other pairs have
            # no part in it: an entry has the same bits in whatever order tiles are made -----------
            closed = weights[0] > 0.0
            for e in range(n):
                V[0, e] = total[0, e] if closed else source[0, e]
            step, worst, fine, enough = 0, np.inf, np.inf, True
            while step < _MAX_STEPS:
                # --- one turn: Ψ and D of every layer, and what is left of the equation -----------
                enough = True
                # Two steps from the start errors are above what a short series leaves out.
                rough = 1 if step < 2 and closed else 0
                for layer in range(layers):
                    if kinds[layer] == HINGE and step == 0 and layers == 1 and closed:
                        # ρ = 0 everywhere: θ = π/2, and no arcsine.
                        bend = 0.25 * (both[0] - cross[0]) / math.pi
                        flat = 0.25 * (both[0] + cross[0])
                        for e in range(n):
                            psi[0, e] = 0.5 * both[0] * V[0, e] - bend / inverse[0, e]
                            slopes[0, e] = flat
                    elif kinds[layer] == HINGE:
                        _hinge(V[layer], gap[layer], inverse[layer], total[layer], psi[layer],
                               slopes[layer], n, both[layer], cross[layer])  # fmt: skip
                    else:
                        strip = column // LANES
                        enough &= _series(
                            V[layer], gap[layer], inverse[layer], squares[layer], psi[layer],
                            slopes[layer], image, chain, n, left[r], right[strip], index1, index2,
                            starts[layer], tables[layer, rough], levels1[layer, r],
                            levels2[layer, :, strip], kinds[layer] == ODD, skip,
                        )  # fmt: skip
                    onto = (layer + 1) % layers
                    if onto > 0:
                        _average(V[onto], psi[layer], drive, False, ring, line, h, w,
                                 sizes[onto], wrap, weights[onto],
                                 drive, drive, 0.0, 0.0)  # fmt: skip
                        for e in range(n):
                            V[onto, e] += source[onto, e]
                if not closed:
                    worst = 0.0
                    break
                _average(residual, psi[last], drive, False, ring, line, h, w, sizes[0], wrap,
                         weights[0], drive, drive, 0.0, 0.0)  # fmt: skip
                for e in range(n):
                    residual[e] += source[0, e] - V[0, e]
                worst = _worst(residual, limits, pixels, top)
                step += 1
                if not worst < np.inf:
                    break
                # A start that is linearised, or a rough series, solves another equation.
                if worst <= _ACCEPTED and step > (2 if series else 1):
                    # Where images are nearly equal more is asked of V, as far as rounding allows.
                    previous, fine = (
                        fine,
                        _worst_slope(residual, limits, pixels, V, gap, inverse, kinds, top),
                    )
                    if fine <= RESIDUAL or fine > 0.25 * previous:
                        break  # the second: Newton squares errors, so this is rounding
                # --- Newton's step: the inner equation as well as the outer one deserves ----------
                # A step wrong by as much as the residual leaves its square, as Newton's does.
                tolerance = max(1e-16, 0.1 * min(worst, 1e-2))
                if layers == 1:
                    _solve(x, before, residual, slopes[0], ring, line, h, w, sizes[0], wrap,
                           weights[0], tolerance)  # fmt: skip
                else:
                    for e in range(n):
                        x[e] = residual[e]
                    # Around a ring the operator is a product, not symmetric: plain sweeps.
                    for _ in range(_MAX_SWEEPS):
                        if step == 1:
                            break  # the start is a point, not a linearisation: take one turn
                        for e in range(n):
                            before[e] = x[e]
                            chain[e] = x[e]
                        for layer in range(layers):
                            onto = (layer + 1) % layers
                            _average(image, chain, slopes[layer], True, ring, line, h, w,
                                     sizes[onto], wrap, weights[onto],
                                     drive, drive, 0.0, 0.0)  # fmt: skip
                            for e in range(n):
                                chain[e] = image[e]
                        for e in range(n):
                            x[e] = residual[e] + chain[e]
                            before[e] -= x[e]
                        if _worst(before, limits, pixels, top) <= tolerance * worst:
                            break
                for e in range(n):
                    V[0, e] += x[e]
            # --- the tangent kernel: Θ = G + wM(D ∘ Θ), once around -------------------------------
            for layer in range(layers):
                for e in range(n):
                    source[layer, e] = 0.5 * (total[layer, e] - V[layer, e])  # now G
            if layers == 1 and closed:
                _solve(x, before, source[0], slopes[0], ring, line, h, w, sizes[0], wrap,
                       weights[0], 1e-16)  # fmt: skip
            else:
                for e in range(n):
                    x[e] = source[0, e]
                for _ in range(_MAX_SWEEPS):
                    for e in range(n):
                        chain[e] = x[e]
                    for layer in range(last):
                        _average(image, chain, slopes[layer], True, ring, line, h, w,
                                 sizes[layer + 1], wrap, weights[layer + 1],
                                 drive, drive, 0.0, 0.0)  # fmt: skip
                        for e in range(n):
                            chain[e] = source[layer + 1, e] + image[e]
                    if not closed:
                        break
                    _average(image, chain, slopes[last], True, ring, line, h, w, sizes[0], wrap,
                             weights[0], drive, drive, 0.0, 0.0)  # fmt: skip
                    for e in range(n):
                        now = source[0, e] + image[e]
                        before[e] = now - x[e]
                        x[e] = now
                    if _worst(before, limits, pixels, top) <= 1e-16:
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
                    for t in range(LANES):
                        value = 0.5 * (squares[last, here + t] - psi[last, here + t])
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
                    marked[r] += 1
