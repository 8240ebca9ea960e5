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
from numba.extending import intrinsic, overload

SERIES, HINGE, ODD = 0, 1, 2
"""How Ψ is evaluated: Mehler's series, the arc-cosine form of a hinge at zero, or the series of an
odd function, of which every other coefficient is zero and left out."""

LANES = 8
"""Pairs in a strip; arrays about columns are filled up to whole strips, with the last image."""

BINS = 512
"""Resolution in |ρ| of the tables that say how many terms the series needs."""

TERMS_STEP = 4
"""Series go four terms at a time: their lengths are multiples of this."""

RESIDUAL = 2e-14
"""A pair is done when no pixel's V changes by more than this times its largest q₁ + q₂."""

SINGLE_RESIDUAL = 1e-6
"""The same in float32."""

SINGLE_SLOPES = 1e-6
"""Error of a hinge's slopes by rounding, in the mean over pixels, above which float32 gives up."""

SINGLE_UNEVEN = 16.0
"""So does it where q₁ + q₂, from which G is a difference, is more than this times 2√(q₁q₂)."""

_POINTS = 64  # of a series, worked on side by side
_ACCEPTED = 5.0  # times the residual: what is left when rounding stops the iteration short of it
_MAX_STEPS = 40
_MAX_SWEEPS = 4000
_LOWEST = -1.0 / 3.0  # M has its eigenvalues in [−1/3, 1], whatever its size and the padding


def _arcsine_coefficients(degree: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """2 arcsin √g = √g·Q(4g − 1) on [0, 1/2]; Q as powers, increasing, error about 6^−degree."""

    def quotient(t: Any) -> Any:
        root = np.sqrt(np.maximum(0.25 * (1.0 + t), 1e-30))
        return 2.0 * np.arcsin(root) / root

    series = np.polynomial.chebyshev.chebinterpolate(quotient, degree)
    return np.asarray(np.polynomial.chebyshev.cheb2poly(series), dtype=np.float64)


_Q = tuple(float(c) for c in _arcsine_coefficients(21))
_SINGLE_Q = tuple(np.float32(c) for c in _arcsine_coefficients(9))
_options = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_compile = numba.njit(**_options)
_compile_part = numba.njit(**_options, forceinline=True)


class _Strips:
    """Vectors of LANES numbers at places of flat arrays, while an intrinsic is generated.

    Vectors are spelt out: of loops whose arrays might overlap, or that are as short as a strip, the
    compiler makes none, or asks before each of them.
    """

    def __init__(self, context, builder, kind):
        self._context, self._builder = context, builder
        self.number = context.get_data_type(kind.dtype)
        self.vector = ir.VectorType(self.number, LANES)
        self._bytes = context.get_abi_sizeof(self.number)

    def data(self, kinds, arrays):
        """Pointers to the first numbers of arrays; None for None."""
        found = []
        for kind, array in zip(kinds, arrays, strict=True):
            if isinstance(kind, types.Array):
                start = self._context.make_array(kind)(self._context, self._builder, array).data
                found.append(self._builder.bitcast(start, self.number.as_pointer()))
            else:
                found.append(None)
        return found

    def load(self, start, place):
        return self._builder.load(self._at(start, place), align=self._bytes)

    def store(self, value, start, place):
        self._builder.store(value, self._at(start, place), align=self._bytes)

    def filled(self, value):
        """Make a vector of equal numbers."""
        vector = ir.Constant(self.vector, ir.Undefined)
        for t in range(LANES):
            vector = self._builder.insert_element(vector, value, ir.Constant(ir.IntType(32), t))
        return vector

    def multiply_add(self, a, b, c):
        """Make a·b + c, in one instruction if there is one."""
        product = self._builder.fmul(a, b, flags=("contract",))
        return self._builder.fadd(product, c, flags=("contract",))

    def rounded(self, vector, other):
        """Make the numbers of a vector those of other strips."""
        if self.number == other.number:
            return vector
        wider = isinstance(other.number, ir.DoubleType)
        cast = self._builder.fpext if wider else self._builder.fptrunc
        return cast(vector, other.vector)

    def sum_of_three(self, start, place):
        """Add a vector and the two after it."""
        total = self.load(start, place)
        for _ in range(2):
            place = self._builder.add(place, ir.Constant(place.type, LANES))
            total = self._builder.fadd(total, self.load(start, place))
        return total

    def fold(self, values, pixels, starts, step):
        """Go over the strips of all pixels; step(value, found) makes what is found from `starts`.

        Returns what is found in the end, vectors in registers all the time.
        """
        builder = self._builder
        places = [cgutils.alloca_once(builder, self.vector) for _ in starts]
        for start, place in zip(starts, places, strict=True):
            builder.store(start, place)
        with cgutils.for_range(builder, pixels) as loop:
            here = builder.mul(loop.index, ir.Constant(pixels.type, LANES))
            found = step(self.load(values, here), [builder.load(place) for place in places])
            for value, place in zip(found, places, strict=True):
                builder.store(value, place)
        return [builder.load(place) for place in places]

    def _at(self, start, place):
        here = self._builder.gep(start, [place])
        return self._builder.bitcast(here, self.vector.as_pointer())


@intrinsic
def _three_rows(_, line, given, slopes, above, here, below, w, wrap):
    """Put Σ given, or Σ slopes ∘ given, over rows that begin at these places into line[LANES:].

    The pixels beside them in `line` are those of the other end if `wrap`, and zero otherwise.
    """

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        line, given, slopes = strips.data(signature.args[:3], arguments[:3])
        rows, w, wrap = arguments[3:6], arguments[6], arguments[7]
        lanes = ir.Constant(w.type, LANES)
        zeros = ir.Constant(strips.vector, [0.0] * LANES)
        with cgutils.for_range(builder, w) as loop:
            here = builder.mul(loop.index, lanes)
            total = zeros
            for row in rows:
                place = builder.add(row, here)
                value = strips.load(given, place)
                if slopes is None:
                    total = builder.fadd(total, value)
                else:
                    total = strips.multiply_add(strips.load(slopes, place), value, total)
            strips.store(total, line, builder.add(here, lanes))
        width = builder.mul(w, lanes)
        ends = (ir.Constant(w.type, 0), width), (builder.add(width, lanes), lanes)
        for halo, end in ends:
            strips.store(builder.select(wrap, strips.load(line, end), zeros), line, halo)
        return context.get_dummy_value()

    return types.void(line, given, slopes, above, here, below, w, wrap), generate


@intrinsic
def _three_columns(_, out, line, start, w, factor):
    """Put factor times the sums over three pixels of `line` into a row that begins at `start`."""

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        out, line = strips.data(signature.args[:2], arguments[:2])
        start, w, factor = arguments[2:]
        factor = strips.filled(factor)
        lanes = ir.Constant(w.type, LANES)
        with cgutils.for_range(builder, w) as loop:
            place = builder.mul(loop.index, lanes)
            total = strips.sum_of_three(line, place)
            strips.store(builder.fmul(factor, total), out, builder.add(start, place))
        return context.get_dummy_value()

    return types.void(out, line, start, w, factor), generate


@intrinsic
def _chebyshev_row(_, before, x, source, line, start, w, factor, omega, scale):
    """Step on a row that begins at `start`; `line` has sums over three rows, with a halo."""

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        before, x, source, line = strips.data(signature.args[:4], arguments[:4])
        start, w = arguments[4:6]
        factor, omega, scale = (strips.filled(value) for value in arguments[6:])
        lanes = ir.Constant(w.type, LANES)
        with cgutils.for_range(builder, w) as loop:
            place = builder.mul(loop.index, lanes)
            here = builder.add(start, place)
            total = strips.sum_of_three(line, place)
            now, last = strips.load(x, here), strips.load(before, here)
            driven = strips.multiply_add(factor, total, strips.load(source, here))
            ahead = strips.multiply_add(scale, builder.fsub(driven, now), now)
            next_one = strips.multiply_add(omega, builder.fsub(ahead, last), last)
            strips.store(next_one, before, here)
        return context.get_dummy_value()

    return types.void(before, x, source, line, start, w, factor, omega, scale), generate


@_compile_part
def _window_sums(line, sums, given, slopes, y, h, w, size, wrap):
    """Sum `given`, or slopes ∘ given, over the windows around row y, into `sums`.

    `line` has sums over columns in passing, with a halo on either side.
    """
    reach = size // 2
    width = w * LANES
    # Slices, from zero on, so that the compiler need not think of negative indices.
    middle = line[reach * LANES :]
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
    for k in range(reach):
        left, right = line[(reach - 1 - k) * LANES :], middle[width + k * LANES :]
        from_left, from_right = middle[(w - 1 - k % w) * LANES :], middle[(k % w) * LANES :]
        for t in range(LANES):
            left[t] = from_left[t] if wrap else 0.0
            right[t] = from_right[t] if wrap else 0.0
    for e in range(width):
        sums[e] = 0.0
    for k in range(size):
        next_one = line[k * LANES :]
        for e in range(width):
            sums[e] += next_one[e]


@_compile_part
def _is_plain(y, h, size, wrap):
    """Whether a row has windows of the usual size with all their rows: these have fast loops."""
    return size == 3 and (wrap or 0 < y < h - 1)


@_compile
def _average(out, given, slopes, line, sums, h, w, size, wrap, factor):
    """Put factor·M(given) into `out`, or factor·M(slopes ∘ given) if there are slopes.

    M is the mean over a size × size window, in which pixels outside count as zero, or are those of
    the opposite side if `wrap`.
    """
    width = w * LANES
    factor = out.dtype.type(factor / (size * size))
    for y in range(h):
        start = y * width
        if _is_plain(y, h, size, wrap):
            above, below = (y - 1) % h * width, (y + 1) % h * width
            _three_rows(line, given, slopes, above, start, below, w, wrap)
            _three_columns(out, line, start, w, factor)
        else:
            _window_sums(line, sums, given, slopes, y, h, w, size, wrap)
            row = out[start:]
            for e in range(width):
                row[e] = factor * sums[e]


@_compile
def _chebyshev(before, x, slopes, line, sums, h, w, size, wrap, factor, source, omega, scale):
    """Make a step of Chebyshev's semi-iteration; the next iterate takes the place of `before`.

    before ← ω(scale·(source + factor·M(slopes ∘ x) − x) + x − before) + before.
    """
    number = x.dtype.type
    width = w * LANES
    factor, omega, scale = number(factor / (size * size)), number(omega), number(scale)
    for y in range(h):
        start = y * width
        if _is_plain(y, h, size, wrap):
            above, below = (y - 1) % h * width, (y + 1) % h * width
            _three_rows(line, x, slopes, above, start, below, w, wrap)
            _chebyshev_row(before, x, source, line, start, w, factor, omega, scale)
        else:
            _window_sums(line, sums, x, slopes, y, h, w, size, wrap)
            here, here_source, here_before = x[start:], source[start:], before[start:]
            for e in range(width):
                now, last = here[e], here_before[e]
                change = factor * sums[e] + here_source[e] - now
                here_before[e] = omega * (scale * change + now - last) + last


def _double_arcsine(y):
    z = y * y
    even = (_Q[20] * z + _Q[18]) * z + _Q[16]
    even = (((even * z + _Q[14]) * z + _Q[12]) * z + _Q[10]) * z + _Q[8]
    even = (((even * z + _Q[6]) * z + _Q[4]) * z + _Q[2]) * z + _Q[0]
    odd = (_Q[21] * z + _Q[19]) * z + _Q[17]
    odd = (((odd * z + _Q[15]) * z + _Q[13]) * z + _Q[11]) * z + _Q[9]
    odd = (((odd * z + _Q[7]) * z + _Q[5]) * z + _Q[3]) * z + _Q[1]
    return even + y * odd


def _single_arcsine(y):
    q, z = _SINGLE_Q, y * y
    even = (((q[8] * z + q[6]) * z + q[4]) * z + q[2]) * z + q[0]
    odd = (((q[9] * z + q[7]) * z + q[5]) * z + q[3]) * z + q[1]
    return even + y * odd


def _arcsine(y):
    """Q(y), with as many terms as the digits of y are worth."""
    raise NotImplementedError  # compiled code has the overload


@overload(_arcsine, jit_options={**_options, "cache": False, "forceinline": True})
def _arcsine_for(y):
    return _single_arcsine if y.bitwidth == 32 else _double_arcsine


@_compile_part
def _hinge(V, gap, inverse, total, psi, slopes, n, both, cross):
    """Ψ and D of right·x₊ − left·(−x)₊, both = right² + left², cross = 2·right·left.

    With θ the angle of the pair, sin²(θ/2) = (V − (τ₁ − τ₂)²)/(4τ₁τ₂):
    Ψ = both·V/2 − τ₁τ₂ (both − cross)(sin θ − θ cos θ)/π and D = (both (π − θ) + cross θ)/2π.
    """
    # A literal would make float64 of everything that it meets.
    number = V.dtype.type
    zero, half, one, two, four = number(0.0), number(0.5), number(1.0), number(2.0), number(4.0)
    pi, both, bend = number(math.pi), number(both), number((both - cross) / math.pi)
    for e in range(n):
        g = (V[e] - gap[e]) * inverse[e]
        g = zero if g < zero else g
        g = one if g > one else g
        cosine = one - two * g
        obtuse = g > half
        g = one - g if obtuse else g
        root = np.sqrt(g)
        angle = root * _arcsine(four * g - one)
        angle = pi - angle if obtuse else angle
        sine = two * root * np.sqrt(one - g)
        product = half * (total[e] - gap[e])  # τ₁τ₂
        psi[e] = half * both * V[e] - bend * product * (sine - angle * cosine)
        slopes[e] = half * (both - bend * angle)


@_compile_part
def _terms_for(largest, table):
    """Terms that the series needs at |ρ| = largest; negative if the table cannot say."""
    return table[min(int(largest * BINS) + 1, BINS)] if largest < 1.0 else table[BINS]


@intrinsic
def _horner(_, psi, slopes, x, here, left, left_at, right, right_at, terms):
    """Put Σ_k a_k b_k x^k of a pixel's pairs and its derivative into psi[here:] and slopes[here:].

    a_k = left[left_at + k] is a number, b_k = right[right_at + LANES·k:] and x[here:] are strips;
    all arrays count as flat.
    """

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        arrays = [arguments[k] for k in (0, 1, 2, 4, 6)]
        kinds = [signature.args[k] for k in (0, 1, 2, 4, 6)]
        psi, slopes, x, left, right = strips.data(kinds, arrays)
        here, left_at, right_at, terms = (arguments[k] for k in (3, 5, 7, 8))
        point = strips.load(x, here)
        value, slope = (cgutils.alloca_once(builder, strips.vector) for _ in range(2))
        for place in (value, slope):
            builder.store(ir.Constant(strips.vector, [0.0] * LANES), place)
        one = ir.Constant(terms.type, 1)
        with cgutils.for_range(builder, terms) as loop:
            k = builder.sub(builder.sub(terms, one), loop.index)
            a = builder.load(builder.gep(left, [builder.add(left_at, k)]))
            across = builder.add(right_at, builder.mul(k, ir.Constant(k.type, LANES)))
            before = builder.load(value)
            builder.store(strips.multiply_add(builder.load(slope), point, before), slope)
            term = builder.fmul(strips.filled(a), strips.load(right, across), flags=("contract",))
            builder.store(strips.multiply_add(before, point, term), value)
        strips.store(builder.load(value), psi, here)
        strips.store(builder.load(slope), slopes, here)
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
    number = V.dtype.type
    one, two, four = number(1.0), number(2.0), number(4.0)
    for e in range(n):
        r = one - two * (V[e] - gap[e]) * inverse[e]
        r = one if r > one else r
        r = -one if r < -one else r
        rho[e] = r
        x[e] = r * r if odd else r
    enough = True
    length = left.shape[1]
    for s in range(n // LANES):
        left_at, right_at = index1[s], index2[s]
        largest = 0.0
        for e in range(s * LANES + skip, (s + 1) * LANES):
            largest = max(largest, abs(rho[e]))
        level = max(levels1[left_at], levels2[right_at])
        terms = _terms_for(largest, tables[level])
        if terms < 0:
            enough = False
            terms = tables[level, BINS + 1]
        _horner(psi, slopes, x, s * LANES, left, left_at * length + start,
                right, (right_at * length + start) * LANES, terms)  # fmt: skip
    for e in range(n):
        p, d = psi[e], slopes[e]
        psi[e] = squares[e] - two * (rho[e] * p if odd else p)
        slopes[e] = four * inverse[e] * (p + two * x[e] * d if odd else d)
    return enough


@intrinsic
def _extremes(_, top, values, pixels):
    """Put the smallest value of each pair into `top`, and the largest after it."""

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        top, values = strips.data(signature.args[:2], arguments[:2])
        pixels = arguments[2]
        none, lanes = (ir.Constant(pixels.type, place) for place in (0, LANES))

        def step(value, found):
            better = [
                builder.fcmp_ordered(sign, value, before)
                for sign, before in zip("<>", found, strict=True)
            ]
            return [
                builder.select(is_it, value, before)
                for is_it, before in zip(better, found, strict=True)
            ]

        first = strips.load(values, none)
        least, largest = strips.fold(values, pixels, [first, first], step)
        strips.store(least, top, none)
        strips.store(largest, top, lanes)
        return context.get_dummy_value()

    return types.void(top, values, pixels), generate


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
def _solve(x, before, given, slopes, line, sums, top, h, w, size, wrap, weight, tolerance):
    """Solve x = wM(D ∘ x) + given for one layer, from x = given; return x and the one before it.

    M is symmetric, so for D ≥ 0 the operator wMD is similar to a symmetric one with eigenvalues in
    [−c/3, c], c = w max D: Chebyshev's semi-iteration, which needs no inner products.  If D
    changes sign, plain sweeps.  (Golub and Varga, 1961.)
    """
    n = h * w * LANES
    _extremes(top, slopes, h * w)
    low, high = np.inf, 0.0
    for t in range(LANES):
        low, high = min(low, float(top[t])), max(high, float(top[LANES + t]))
    high *= weight
    for e in range(n):
        x[e] = given[e]
        before[e] = given[e]
    if high == 0.0 and low == 0.0:
        return x, before
    chebyshev = low >= 0.0 and high < 1.0
    if chebyshev:
        bottom = (_LOWEST if size > 1 else 0.0) * high
        scale = 2.0 / (2.0 - bottom - high)
        sigma = (high - bottom) / (2.0 - bottom - high)
        rate = sigma / (1.0 + math.sqrt(1.0 - sigma * sigma))
    else:
        scale, sigma = 1.0, 0.0
        rate = min(max(high, -low * weight), 0.999)
    contraction = max(high, -low * weight)
    omega = 1.0
    for k in range(_sweeps(tolerance, rate, contraction)):
        if k > 0:
            omega = 1.0 / (1.0 - (0.5 if k == 1 else 0.25 * omega) * sigma * sigma)
        _chebyshev(before, x, slopes, line, sums, h, w, size, wrap, weight,
                   given, omega, scale)  # fmt: skip
        x, before = before, x
    return x, before


@intrinsic
def _largest(_, top, values, pixels):
    """Put the largest |value| of each pair into `top`, and the sum of all of them after it."""

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        top, values = strips.data(signature.args[:2], arguments[:2])
        pixels = arguments[2]
        zeros = ir.Constant(strips.vector, [0.0] * LANES)

        def step(value, found):
            negative = builder.fcmp_ordered("<", value, zeros)
            size = builder.select(negative, builder.fneg(value), value)
            larger = builder.fcmp_ordered(">", size, found[0])
            return builder.select(larger, size, found[0]), builder.fadd(found[1], size)

        largest, total = strips.fold(values, pixels, [zeros, zeros], step)
        strips.store(largest, top, ir.Constant(pixels.type, 0))
        strips.store(total, top, ir.Constant(pixels.type, LANES))
        return context.get_dummy_value()

    return types.void(top, values, pixels), generate


@_compile_part
def _worst(values, limits, pixels, top):
    """Largest of |value|·limit over all pixels and pairs, infinite if any is not finite."""
    _largest(top, values, pixels)
    worst = 0.0
    for t in range(LANES):
        # What a comparison with NaN forgets is seen in the sum.
        worst = max(worst, top[t] * limits[t] if top[LANES + t] < np.inf else np.inf)
    return worst


@_compile_part
def _worst_slope(values, limits, pixels, V, gap, inverse, kinds, room, top):
    """Like `_worst`, of what the values do to the slope of a hinge.

    An error e of V moves the angle by about e/√(τ₁τ₂ V), and so τ₁τ₂D by e/(2 sin(θ/2)).
    """
    number = V.dtype.type
    zero, half, one, least = number(0.0), number(0.5), number(1.0), number(1e-36)
    worst = 0.0
    for layer in range(len(kinds)):
        here_V, here_gap, here_inverse = V[layer], gap[layer], inverse[layer]
        hinge = half if kinds[layer] == HINGE else zero
        for e in range(pixels * LANES):
            g = (here_V[e] - here_gap[e]) * here_inverse[e]
            g = g if g > zero else zero
            steep = hinge / np.sqrt(g + least)
            room[e] = values[e] * (steep if steep > one else one)
        worst = max(worst, _worst(room, limits, pixels, top))
    return worst


@_compile_part
def _blurred(V, gap, inverse, rounded, pixels, room, top):
    """Error of a hinge's slopes if V has that of rounding such sizes to float32, of the worst pair.

    The mean over its pixels.  Where a pixel is a multiple of the other, V is all but the square of
    the difference of their scales: the angle is made of what rounding leaves of V − (τ₁ − τ₂)².
    """
    number = V.dtype.type
    zero, one, least, digits = number(0.0), number(1.0), number(1e-36), number(2.0**-24)
    for e in range(pixels * LANES):
        g = (V[e] - gap[e]) * inverse[e]
        g = g if g > zero else zero
        error = digits * rounded[e] * inverse[e] / np.sqrt(g + least)
        room[e] = error if error < one else one
    _largest(top, room, pixels)
    worst = 0.0
    for t in range(LANES):
        worst = max(worst, float(top[LANES + t]) / pixels)
    return worst


@intrinsic
def _distances(_, out, here, x1, at1, x2, at2, channels, columns):
    """Put Σ_c (x1[at1 + c] − x2[at2 + c·columns:])² of a pixel's pairs into out[here:].

    The pixels are float64 whatever `out` is: near-equal ones have differences with digits.
    """

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        double = _Strips(context, builder, signature.args[2])
        (out,) = strips.data(signature.args[:1], arguments[:1])
        x1, x2 = double.data(signature.args[2:5:2], arguments[2:5:2])
        here, at1, at2 = arguments[1:6:2]
        channels, columns = arguments[6:]
        total = cgutils.alloca_once(builder, double.vector)
        builder.store(ir.Constant(double.vector, [0.0] * LANES), total)
        with cgutils.for_range(builder, channels) as loop:
            one = builder.load(builder.gep(x1, [builder.add(at1, loop.index)]))
            two = double.load(x2, builder.add(at2, builder.mul(loop.index, columns)))
            step = builder.fsub(double.filled(one), two)
            builder.store(double.multiply_add(step, step, builder.load(total)), total)
        strips.store(double.rounded(builder.load(total), strips), out, here)
        return context.get_dummy_value()

    return types.void(out, here, x1, at1, x2, at2, channels, columns), generate


@intrinsic
def _pixel_fields(
    _, gap, inverse, total, squares, here, scale, square, scales2, squares2, at2, huge
):
    """Put (a − b)², 1/4ab, a² + b² and the sum of both E φ² of a pixel into four fields, at `here`.

    The scales a and b are float64 whatever the fields are: their differences keep their digits.
    """

    def generate(context, builder, signature, arguments):
        strips = _Strips(context, builder, signature.args[0])
        double = _Strips(context, builder, signature.args[7])
        gap, inverse, total, squares = strips.data(signature.args[:4], arguments[:4])
        (scales2,) = double.data(signature.args[7:8], arguments[7:8])
        (squares2,) = strips.data(signature.args[8:9], arguments[8:9])
        here, scale, square = arguments[4:7]
        at2, huge = arguments[9:]
        a, b = double.filled(scale), double.load(scales2, at2)
        apart = builder.fsub(a, b)
        strips.store(double.rounded(builder.fmul(apart, apart), strips), gap, here)
        both = double.multiply_add(b, b, builder.fmul(a, a))
        strips.store(double.rounded(both, strips), total, here)
        product = builder.fmul(double.rounded(a, strips), double.rounded(b, strips))
        quarter = ir.Constant(strips.vector, [0.25] * LANES)
        quotient, huge = builder.fdiv(quarter, product), strips.filled(huge)
        larger = builder.fcmp_ordered(">", quotient, huge)
        strips.store(builder.select(larger, huge, quotient), inverse, here)
        two = strips.load(squares2, at2)
        strips.store(builder.fadd(strips.filled(square), two), squares, here)
        return context.get_dummy_value()

    given = gap, inverse, total, squares, here, scale, square, scales2, squares2, at2, huge
    return types.void(*given), generate


@intrinsic
def _read_out(_, answer, shares, value, slopes, x, pixels):
    """Put Σ_s share·value of each pair into `answer`, and Σ_s share·(value + slopes ∘ x) after it.

    The sums are float64.  Without slopes the second is Σ_s share·x.
    """

    def generate(context, builder, signature, arguments):
        double = _Strips(context, builder, signature.args[0])
        strips = _Strips(context, builder, signature.args[2])
        answer, shares = double.data(signature.args[:2], arguments[:2])
        value, slopes, x = strips.data(signature.args[2:5], arguments[2:5])
        pixels = arguments[5]
        sums = [cgutils.alloca_once(builder, double.vector) for _ in range(2)]
        for place in sums:
            builder.store(ir.Constant(double.vector, [0.0] * LANES), place)
        lanes = ir.Constant(pixels.type, LANES)
        with cgutils.for_range(builder, pixels) as loop:
            here = builder.mul(loop.index, lanes)
            share = double.filled(builder.load(builder.gep(shares, [loop.index])))
            first, second = strips.load(value, here), strips.load(x, here)
            if slopes is not None:
                second = strips.multiply_add(strips.load(slopes, here), second, first)
            for part, place in zip((first, second), sums, strict=True):
                wide = strips.rounded(part, double)
                builder.store(double.multiply_add(share, wide, builder.load(place)), place)
        for k, place in enumerate(sums):
            strips_at = ir.Constant(pixels.type, k * LANES)
            double.store(builder.load(place), answer, strips_at)
        return context.get_dummy_value()

    return types.void(answer, shares, value, slopes, x, pixels), generate


@_compile
def _aligned(count, kind):
    """Make an array that begins on the boundary of a cache line, as its strips then do."""
    space = np.empty(count + LANES, kind)
    start = -(space.ctypes.data // space.itemsize) % LANES
    return space[start : start + count]


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
    left, right, starts, tables, levels1, levels2, contraction, feature, marked,
):  # fmt: skip
    """Add one offset's share of both kernels for every pair of a tile of images.

    Parameters
    ----------
    conjugate, tangent : (rows, columns), whole strips of columns
        Receive the mean over pixels, with the weights `shares`, of the last layer's kernels; NaN
        and a mark for pairs that need more terms of a series, do not converge, or ask for more
        digits than float32 has.
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
    contraction : float
        Bound on the product of w max D over the layers.
    """
    rows_of_tile, columns = conjugate.shape
    layers, channels = len(weights), x1.shape[3]
    last = layers - 1
    pixels = h * w
    n = pixels * LANES
    widest = 0
    for k in sizes:
        widest = max(widest, k)
    series = False
    for kind in kinds:
        series |= kind != HINGE
    kind_of = squares1.dtype
    number = kind_of.type
    half = number(0.5)
    # In float32 rounding is above what the iteration asks for in float64.
    single = number(1.0) + number(1e-12) == number(1.0)
    if single:
        asked, finest, huge = SINGLE_RESIDUAL, 2e-8, number(1e37)
        # Errors of V are residuals over one minus the contraction, which here matters.
        final = asked * max(1.0 - contraction, 0.0)
    else:
        asked, finest, huge = RESIDUAL, 1e-16, number(1e300)
        final = asked
    line, sums = _aligned((w + widest) * LANES, kind_of), _aligned(w * LANES, kind_of)
    work = _aligned(6 * n, kind_of).reshape((6, n))
    x, before, image, residual, drive, chain = (
        work[0], work[1], work[2], work[3], work[4], work[5],
    )  # fmt: skip
    fields = _aligned(8 * layers * n, kind_of).reshape((8, layers, n))
    V, psi, slopes, source = fields[0], fields[1], fields[2], fields[3]
    gap, inverse, total, squares = fields[4], fields[5], fields[6], fields[7]
    limits = np.empty(LANES)
    top = np.empty(2 * LANES, kind_of)
    answer = np.empty(2 * LANES)
    # The coefficients of a strip stay in the cache while those of the rows pass by.
    for column in range(0, columns, LANES):
        for r in range(rows_of_tile):
            if first[r] >= column + LANES:
                continue
            # --- what the pair of images brings ---------------------------------------------------
            even = True
            for t in range(LANES):
                limits[t] = 1e-300
            for layer in range(layers):
                if layer == 0 or not spread:
                    at1 = (layer * rows_of_tile + r) * x1.shape[2]
                    at2 = layer * x2.shape[1]
                    for s in range(pixels):
                        _distances(drive, s * LANES, x1, (at1 + index1[s]) * channels, x2,
                                   (at2 + index2[s]) * channels * columns + column,
                                   channels, columns)  # fmt: skip
                if spread:
                    _average(source[layer], drive, None, line, sums, h, w, sizes[layer],
                             wrap, injections[layer])  # fmt: skip
                else:
                    inject = number(injections[layer])
                    for e in range(n):
                        source[layer, e] = inject * drive[e]
                if extra1.size > 0:
                    for s in range(pixels):
                        a, here = extra1[layer, r, s], s * LANES
                        for t in range(LANES):
                            source[layer, here + t] += a + extra2[layer, s, column + t]
                for s in range(pixels):
                    one, here = index1[s], (layer * pixels + s) * LANES
                    at2 = (layer * scales2.shape[1] + index2[s]) * columns + column
                    _pixel_fields(gap, inverse, total, squares, here, scales1[layer, r, one],
                                  squares1[layer, r, one], scales2, squares2, at2,
                                  huge)  # fmt: skip
                _largest(top, total[layer], pixels)
                one_image = 0.0
                for s in range(pixels):
                    one_image += scales1[layer, r, index1[s]] ** 2
                for t in range(LANES):
                    limits[t] = max(limits[t], top[t])
                    both_images = float(top[LANES + t])
                    product = one_image * (both_images - one_image)
                    even &= both_images**2 <= (2.0 * SINGLE_UNEVEN) ** 2 * product
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
                        bend = number(0.25 * (both[0] - cross[0]) / math.pi)
                        flat = number(0.25 * (both[0] + cross[0]))
                        most = number(0.5 * both[0])
                        for e in range(n):
                            psi[0, e] = most * V[0, e] - bend / inverse[0, e]
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
                        _average(V[onto], psi[layer], None, line, sums, h, w,
                                 sizes[onto], wrap, weights[onto])  # fmt: skip
                        for e in range(n):
                            V[onto, e] += source[onto, e]
                if not closed:
                    worst = 0.0
                    break
                _average(residual, psi[last], None, line, sums, h, w, sizes[0], wrap,
                         weights[0])  # fmt: skip
                for e in range(n):
                    residual[e] += source[0, e] - V[0, e]
                worst = _worst(residual, limits, pixels, top)
                step += 1
                if not worst < np.inf:
                    break
                # A start that is linearised, or a rough series, solves another equation.
                if worst <= _ACCEPTED * asked and step > (2 if series else 1):
                    # Where images are nearly equal more is asked of V, as far as rounding allows.
                    previous, fine = (
                        fine,
                        _worst_slope(residual, limits, pixels, V, gap, inverse, kinds, image, top),
                    )
                    if fine <= final or fine > 0.25 * previous:
                        break  # the second: Newton squares errors, so this is rounding
                # --- Newton's step: the inner equation as well as the outer one deserves ----------
                # A step wrong by as much as the residual leaves its square, as Newton's does.
                tolerance = max(finest, 0.1 * min(worst, 1e-2))
                if layers == 1:
                    x, before = _solve(x, before, residual, slopes[0], line, sums, top, h, w,
                                       sizes[0], wrap, weights[0], tolerance)  # fmt: skip
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
                            _average(image, chain, slopes[layer], line, sums, h, w,
                                     sizes[onto], wrap, weights[onto])  # fmt: skip
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
                    source[layer, e] = half * (total[layer, e] - V[layer, e])  # now G
            if layers == 1 and closed:
                x, before = _solve(x, before, source[0], slopes[0], line, sums, top, h, w,
                                   sizes[0], wrap, weights[0], finest)  # fmt: skip
            else:
                for e in range(n):
                    x[e] = source[0, e]
                for _ in range(_MAX_SWEEPS):
                    for e in range(n):
                        chain[e] = x[e]
                    for layer in range(last):
                        _average(image, chain, slopes[layer], line, sums, h, w,
                                 sizes[layer + 1], wrap, weights[layer + 1])  # fmt: skip
                        for e in range(n):
                            chain[e] = source[layer + 1, e] + image[e]
                    if not closed:
                        break
                    _average(image, chain, slopes[last], line, sums, h, w, sizes[0], wrap,
                             weights[0])  # fmt: skip
                    for e in range(n):
                        now = source[0, e] + image[e]
                        before[e] = now - x[e]
                        x[e] = now
                    if _worst(before, limits, pixels, top) <= finest:
                        break
                for e in range(n):
                    x[e] = chain[e]
            # --- read-out ------------------------------------------------------------------------
            if feature:
                for e in range(n):
                    image[e] = half * (squares[last, e] - psi[last, e])
                _read_out(answer, shares, image, slopes[last], x, pixels)
            else:
                _read_out(answer, shares, source[last], None, x, pixels)
            good = enough and worst <= _ACCEPTED * asked
            if single:
                good &= even
                for layer in range(layers):
                    if kinds[layer] == HINGE:
                        # A series has the roundings of all its terms, of the size of E φ².
                        rounded = total[layer] if series else V[layer]
                        lost = _blurred(V[layer], gap[layer], inverse[layer], rounded, pixels,
                                        image, top)  # fmt: skip
                        good &= lost <= SINGLE_SLOPES
            for t in range(LANES):
                if good:
                    conjugate[r, column + t] += answer[t]
                    tangent[r, column + t] += answer[LANES + t]
                else:
                    conjugate[r, column + t] = np.nan
                    tangent[r, column + t] = np.nan
                    marked[r] += 1
