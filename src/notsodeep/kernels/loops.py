"""Compiled loops over pairs of samples: the cost of a kernel beyond its Gram matrix.

Two loops.  `table_block` turns a block of x·y into kernels by polynomials that
`notsodeep.kernels.table` has fitted: no division, no iteration, and near the processor's peak.
`solve_ring` solves for every pair of a list, by series or closed forms inside Newton's method; it
serves the nodes of a fit, pairs beyond its reach, and jobs too small for one.

Every loop works on one thread and without the interpreter's lock: blocks are shared among threads
by the caller.  Pairs go in strips of 64, so that the innermost loops are vector instructions.  A
pair that a loop cannot do to full accuracy is marked, never guessed: `careful` does it again.
Everything is in one file, because the cache of compiled code is renewed when the file of a loop
changes, and not when only a file changes from which it has a part.

Notation: ρ is the correlation of two pre-activations with standard deviations τ_i, τ_j;
s = τ_i τ_j; P(ρ) = E[φ(u)φ(v)] as a function of ρ, so that E[φ′(u)φ′(v)] = P′(ρ)/s.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

SERIES, HINGE = 0, 1
"""How P is evaluated: Mehler's series, or the arc-cosine form of a hinge at zero."""

DONE, CAREFUL, LONGER = 0, 1, 2
"""What became of a pair: done; left to `careful`; a longer series would do it."""

BINS = 256
"""Resolution in |ρ| of the table that says how many terms the series needs."""

TERMS_STEP = 4
"""Series and polynomials go four terms at a time: their lengths are multiples of this."""

PADDING = 64
"""Arrays about columns go this far beyond the last one."""

NEAR_ONE = 1e-6
"""Pairs with 1 − |ρ| below this are left to `careful`."""

_STRIP = PADDING
# A Newton step below this times 1 − |ρ| leaves an error of its square; the factor is because the
# derivatives of P may grow with powers of 1/(1 − |ρ|).
_CLOSE = 1e-8
_MAX_STEPS = 60
_SHORT = 8  # terms of the first approximation
_SQUARE = 16  # entries of a row that are transposed together: two lines of the cache
_GATHERED = 32  # coefficients of a pair gathered at a time: 32 strips are half of the first cache

# What `solve_ring` gets about each sample in each layer, and about each layer.
TAU, INNER, FACTOR, TAKEN, MEAN = range(5)
SAMPLE_FACTS = 5
_BOTH, _CROSS, _WEIGHT, _INJECT, _BIAS, _TRAINED = range(6)

# The work array of `solve_ring` is one piece of memory, cut into strips of 64 doubles (half a
# kilobyte).  Entry t of every strip belongs to pair t of the 64 in work.  First the scratch of all
# layers, then ten strips for each layer, where ρ is slope·V + start for the covariance V that the
# layer reads, and "hinge" are products over the two samples of what the hinge wants:
#
#     offset   0      64     128    192    256     320       384        448      512       576
#              ├──────┼──────┼──────┼──────┼───────┼─────────┼──────────┼────────┼─────────┼─────┤
#     scratch  │  ρ   │  P   │  P′  │ P″/2 │   s   │ centring│    V     │  step  │ scratch │ x·y │
#     layer    │slope │start │  ρ   │  P   │  P′   │  P″/2   │  τ_iτ_j  │ a_ia_j │  hinge  │hinge│
#
# "centring" is what centring takes off P; "step" is 1 where the last Newton step was too long, else
# 0.  At the end V and P″/2 hold the two kernels.  One array and constant offsets let the compiler
# prove that strips do not overlap, and turn every loop over t into vector instructions.
_P, _D, _E, _SIZE, _OFFSET, _C, _STEP, _SCRATCH, _INPUTS = (k * _STRIP for k in range(1, 10))
_SLOPE, _START, _RHO, _VALUE, _FIRST, _SECOND, _SPREAD, _SQUASH, _FACTOR, _TAKEN = (
    k * _STRIP for k in range(10)
)
_STRIPS = 10


def _arccos_coefficients() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Arccos x = √(1−x)·Q(2x−1) on [0, 1]; Q as powers, increasing, error below 1e-15."""

    def quotient(t: Any) -> Any:
        rest = 0.5 * (1.0 - t)
        safe = np.maximum(rest, 1e-30)
        return 2.0 * np.arcsin(np.sqrt(0.5 * safe)) / np.sqrt(safe)

    series = np.polynomial.chebyshev.chebinterpolate(quotient, 24)
    return np.asarray(np.polynomial.chebyshev.cheb2poly(series), dtype=np.float64)


_ARCCOS = _arccos_coefficients()
# Only contraction, x·y + z in one rounding: the other liberties of fastmath reorder sums, with
# results that depend on the width of the vectors, and assume that there is no NaN.  The error model
# of NumPy spares the test for zero before each division, which would end vectorisation.
_options = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_compile = numba.njit(**_options)
# A part of a loop becomes part of its machine code.  As a function of its own it would be there
# twice in the process that compiles, by itself and with its caller, with other roundings; and once
# in a process that loads the caller from the cache.
_compile_part = numba.njit(**_options, forceinline=True)


@_compile_part
def _series(work, products, terms):
    """P, P′ and P″/2 by Horner's rule on the coefficients products[64 k + t] of pair t.

    Four terms at a time save loads and stores; `terms` is a multiple of four.
    """
    for t in range(_STRIP):
        work[_P + t] = 0.0
        work[_D + t] = 0.0
        work[_E + t] = 0.0
    for k in range(terms - 1, 0, -4):
        a = k * _STRIP
        for t in range(_STRIP):
            r = work[t]
            p0 = work[_P + t]
            d0 = work[_D + t]
            e0 = work[_E + t]
            # Synthetic division: e, d and p are P″/2, P′ and P of the terms so far, each from the
            # one before it, so that second derivatives cost one more multiplication with addition.
            e1 = e0 * r + d0
            d1 = d0 * r + p0
            p1 = p0 * r + products[a + t]
            e2 = e1 * r + d1
            d2 = d1 * r + p1
            p2 = p1 * r + products[a - _STRIP + t]
            e3 = e2 * r + d2
            d3 = d2 * r + p2
            p3 = p2 * r + products[a - 2 * _STRIP + t]
            work[_E + t] = e3 * r + d3
            work[_D + t] = d3 * r + p3
            work[_P + t] = p3 * r + products[a - 3 * _STRIP + t]


@_compile_part
def _gather(products, series, rows, columns, begin, end):
    """Put series[i, k]·series[j, k] of the 64 pairs into the strips k = begin, …, end − 1."""
    for block in range(begin, end, _GATHERED):
        last = min(block + _GATHERED, end)
        for t in range(_STRIP):
            i, j = rows[t], columns[t]
            for k in range(block, last):
                products[k * _STRIP + t] = series[i, k] * series[j, k]


@_compile_part
def _indices(rows, columns, row_of, column_of, start, count):
    """Copy the indices of a strip of pairs; behind the last, it is repeated."""
    for t in range(_STRIP):
        # The strip is always full: a copy of the last pair converges with it, and is not written
        # back.
        place = min(start + t, count - 1)
        rows[t], columns[t] = row_of[place], column_of[place]


@_compile_part
def _hinge(work, both, cross):
    """P, P′ and P″/2 for right·x₊ − left·(−x)₊ − c, by a vectorised arccos."""
    degree = _ARCCOS.size - 1
    for t in range(_STRIP):
        work[_P + t] = _ARCCOS[degree]
    for k in range(degree - 1, 0, -2):
        a, b = _ARCCOS[k], _ARCCOS[k - 1]
        for t in range(_STRIP):
            x = 2.0 * abs(work[t]) - 1.0
            work[_P + t] = (work[_P + t] * x + a) * x + b
    scale = 1.0 / (2.0 * math.pi)
    for t in range(_STRIP):
        r = work[t]
        rest = 1.0 - abs(r)
        # arccos |ρ| with its square root taken out, of which the rest is a polynomial: right to the
        # last digits at |ρ| → 1, where arccos itself has an infinite slope.
        angle = math.sqrt(rest) * work[_P + t]
        angle = angle if r >= 0.0 else math.pi - angle
        root = math.sqrt(rest * (1.0 + abs(r)))
        toward = math.pi - angle
        s = work[_SIZE + t] * scale
        value = s * (both * (root + r * toward) - cross * (root - r * angle))
        work[_P + t] = value + work[_OFFSET + t]
        work[_D + t] = s * (both * toward + cross * angle)
        # P″ is infinite at ρ = ±1; pairs that end there are marked by `NEAR_ONE`.
        work[_E + t] = 0.5 * s * (both - cross) / max(root, 1e-30)


@_compile_part
def _terms_for(largest, table):
    """Terms that the series needs at |ρ| = largest; negative if the table cannot say."""
    if not largest <= 1.0:
        return -1
    # The upper end of the bin: never fewer terms than |ρ| asks for.
    return table[min(int(largest * BINS) + 1, BINS)]


@_compile_part
def _largest(work, strip):
    """Largest |entry| of a strip, by halving: a running maximum would not be vectorised."""
    for t in range(_STRIP):
        work[_SCRATCH + t] = abs(work[strip + t])
    half = _STRIP // 2
    while half >= 4:
        for t in range(half):
            a, b = work[_SCRATCH + t], work[_SCRATCH + half + t]
            work[_SCRATCH + t] = a if a > b else b
        half //= 2
    a = max(work[_SCRATCH], work[_SCRATCH + 1])
    return max(a, max(work[_SCRATCH + 2], work[_SCRATCH + 3]))


@_compile_part
def _clipped(rho):
    rho = -1.0 if rho < -1.0 else rho
    return 1.0 if rho > 1.0 else rho


@_compile_part
def _layer_facts(work, base, facts, layer, rows, columns):
    """Put what a layer knows of the two samples of each pair into its strips."""
    weight, inject, bias = layer[_WEIGHT], layer[_INJECT], layer[_BIAS]
    for t in range(_STRIP):
        i, j = rows[t], columns[t]
        size = facts[TAU, i] * facts[TAU, j]
        squash = facts[INNER, i] * facts[INNER, j]
        work[base + _SPREAD + t] = size
        work[base + _SQUASH + t] = squash
        work[base + _SLOPE + t] = squash * weight / size
        work[base + _START + t] = squash * (inject * work[_INPUTS + t] + bias) / size
        work[base + _FACTOR + t] = facts[FACTOR, i] * facts[FACTOR, j]
        product = facts[MEAN, i] * facts[MEAN, j]
        work[base + _TAKEN + t] = -(facts[TAKEN, i] + facts[TAKEN, j] + product)


@_compile_part
def _facts_of_hinge(work, base):
    """Put what `_hinge` wants of a layer into the strips _SIZE and _OFFSET."""
    for t in range(_STRIP):
        work[_SIZE + t] = work[base + _FACTOR + t]
        work[_OFFSET + t] = work[base + _TAKEN + t]


@_compile_part
def _layer_start(work, base, kind, both, cross):
    """Carry V = α + β·(unknown), in _E and _STEP, through a layer's tangent at ρ = 0."""
    for t in range(_STRIP):
        size = work[_SIZE + t]
        if kind == SERIES:
            height, slope = work[_P + t], work[_D + t]
        else:
            height = size * (both - cross) / (2.0 * math.pi) + work[_OFFSET + t]
            slope = 0.25 * size * (both + cross)
        rise = slope * work[base + _SLOPE + t]
        work[_E + t] = height + slope * work[base + _START + t] + rise * work[_E + t]
        work[_STEP + t] = rise * work[_STEP + t]


@_compile_part
def _begin(work, products, gathered, kinds, starts, series, facts, layers, rows, columns):
    """Lay out a strip of pairs; V becomes the fixed point of the layers' tangents at ρ = 0."""
    for t in range(_STRIP):
        work[_E + t] = 0.0
        work[_STEP + t] = 1.0
    for index in range(kinds.size):
        base = (index + 1) * _STRIPS * _STRIP
        _layer_facts(work, base, facts[index], layers[index], rows, columns)
        _facts_of_hinge(work, base)
        a, b = starts[index], starts[index + 1]
        if kinds[index] == SERIES:
            gathered[index] = min(a + _SHORT, b)
            _gather(products, series, rows, columns, a, gathered[index])
            for t in range(_STRIP):
                work[_P + t] = products[a * _STRIP + t]
                work[_D + t] = products[(a + 1) * _STRIP + t]
        _layer_start(work, base, kinds[index], layers[index, _BOTH], layers[index, _CROSS])
    for t in range(_STRIP):
        # A turn of tangents is V ↦ α + βV, with α in _E and β in _STEP.
        work[_C + t] = work[_E + t] / (1.0 - work[_STEP + t])


@_compile_part
def _newton_step(work, depth):
    """Step on V after a turn, whose end is in _STEP; every layer follows it to second order.

    The slope of a turn is the product of those of the layers.  _STEP becomes 1 where the step was
    too long to be the last.
    """
    for t in range(_STRIP):
        work[_D + t] = 1.0
    for index in range(depth):
        base = (index + 1) * _STRIPS * _STRIP
        for t in range(_STRIP):
            work[_D + t] *= work[base + _SLOPE + t] * work[base + _FIRST + t]
    for t in range(_STRIP):
        step = (work[_STEP + t] - work[_C + t]) / (1.0 - work[_D + t])
        work[_C + t] += step
        work[_E + t] = step
        work[_STEP + t] = 0.0
    for index in range(depth):
        base = (index + 1) * _STRIPS * _STRIP
        for t in range(_STRIP):
            rho = work[base + _RHO + t]
            moved = _clipped(rho + work[base + _SLOPE + t] * work[_E + t])
            step = moved - rho
            rise = step * (work[base + _FIRST + t] + step * work[base + _SECOND + t])
            work[base + _RHO + t] = moved
            work[base + _VALUE + t] += rise
            work[base + _FIRST + t] += 2.0 * step * work[base + _SECOND + t]
            work[_E + t] = rise
            close = abs(step) <= _CLOSE * (1.0 - abs(moved))
            work[_STEP + t] = work[_STEP + t] if close else 1.0


@_compile_part
def _ring_kernels(work, layers, feature):
    """Turn V and the slopes into the two kernels, in _C and _E; the slope of a turn goes to _D.

    X_l = Θ_l/(τ_i τ_j) obeys X_l = T_l/(τ_i τ_j) + slope_l P′_{l−1} X_{l−1} around the ring.
    """
    depth = layers.shape[0]
    last = depth * _STRIPS * _STRIP
    for t in range(_STRIP):
        work[_D + t] = 1.0
        work[_E + t] = 0.0
        work[_P + t] = work[last + _FIRST + t]
        work[_C + t] = work[last + _VALUE + t]
    for index in range(depth):
        base = (index + 1) * _STRIPS * _STRIP
        weight, trained = layers[index, _WEIGHT], layers[index, _TRAINED]
        inject, bias = layers[index, _INJECT], layers[index, _BIAS]
        for t in range(_STRIP):
            carried = work[base + _SLOPE + t] * work[_P + t]
            squash, driven = work[base + _SQUASH + t], inject * work[_INPUTS + t] + bias
            source = squash * (trained * work[_C + t] + driven) / work[base + _SPREAD + t]
            work[_E + t] = source + carried * work[_E + t]
            work[_D + t] = carried * work[_D + t]
            work[_SIZE + t] = squash * (weight * work[_C + t] + driven)
            work[_P + t] = work[base + _FIRST + t]
            work[_C + t] = work[base + _VALUE + t]
    for t in range(_STRIP):
        work[_E + t] /= 1.0 - work[_D + t]
    if feature:
        for t in range(_STRIP):
            work[_E + t] = work[_C + t] + work[last + _FIRST + t] * work[_E + t]
    else:
        for t in range(_STRIP):
            work[_E + t] *= work[last + _SPREAD + t]
            work[_C + t] = work[_SIZE + t]


@_compile
def solve_ring(
    row_of, column_of, inner, conjugate, tangent, state, kinds, starts, series, tables, facts,
    layers, feature,
):  # fmt: skip
    """Solve V = P_L(… P_1(V)) for every pair of a list, V the covariance of the state.

    Layer l maps the covariance V that it reads to ρ = a_i a_j (w V + u x·y + b)/(τ_i τ_j), where a
    normalises, and ρ to the covariance P(ρ) that it passes on.  Newton's method goes through the
    composition.

    row_of, column_of, inner : (pairs,)
        Pair k is that of samples row_of[k] and column_of[k], whose product x·y is inner[k].
    conjugate, tangent, state : (pairs,)
        Receive the kernels, and what became of each pair.
    kinds, starts : (L,), (L + 1,)
        SERIES or HINGE; where the Hermite coefficients of a layer begin in `series`.
    series, tables : (n, terms of all layers), (L, BINS + 1)
    facts : (L, SAMPLE_FACTS, n)
        τ; a; what stands for τ in the value of a hinge; what its centring takes off, as a sum and
        as a product.
    layers : (L, 6)
    """
    count, depth = len(inner), kinds.size
    work = np.empty((depth + 1) * _STRIPS * _STRIP)
    products = np.empty(series.shape[1] * _STRIP)
    gathered = np.empty(depth, np.int64)
    rows, columns = np.empty(_STRIP, np.int64), np.empty(_STRIP, np.int64)
    # Closed forms need no short turn to begin with, and an open ring is solved by a single one.
    closed = layers[0, _WEIGHT] > 0.0
    first_is_short = False
    for index in range(depth):
        first_is_short |= closed and kinds[index] == SERIES
    for start in range(0, count, _STRIP):
        _indices(rows, columns, row_of, column_of, start, count)
        for t in range(_STRIP):
            work[_INPUTS + t] = inner[min(start + t, count - 1)]
        _begin(work, products, gathered, kinds, starts, series, facts, layers, rows, columns)
        for sweep in range(_MAX_STEPS):
            # One turn around the ring, from V in _C; _SCRATCH is free between the layers.
            for t in range(_STRIP):
                work[_STEP + t] = work[_C + t]
            for index in range(depth):
                base = (index + 1) * _STRIPS * _STRIP
                for t in range(_STRIP):
                    rho = work[base + _SLOPE + t] * work[_STEP + t] + work[base + _START + t]
                    work[t] = _clipped(rho)
                    work[base + _RHO + t] = work[t]
                if kinds[index] == HINGE:
                    _facts_of_hinge(work, base)
                    _hinge(work, layers[index, _BOTH], layers[index, _CROSS])
                else:
                    a, b = starts[index], starts[index + 1]
                    terms = min(_SHORT, b - a)
                    # After a short turn ρ is known well enough to say how many terms it needs.
                    if sweep > 0 or not closed:
                        terms = _terms_for(_largest(work, 0), tables[index])
                        terms = terms if terms > 0 else b - a
                    if a + terms > gathered[index]:
                        _gather(products, series, rows, columns, gathered[index], a + terms)
                        gathered[index] = a + terms
                    _series(work, products[a * _STRIP :], terms)
                for t in range(_STRIP):
                    work[base + _VALUE + t] = work[_P + t]
                    work[base + _FIRST + t] = work[_D + t]
                    work[base + _SECOND + t] = work[_E + t]
                    work[_STEP + t] = work[_P + t]
            _newton_step(work, depth)
            # The short turn is never the last.  A strip is iterated until its slowest pair has
            # settled; the others stay where they are, since their steps are rounding errors.
            if not (sweep == 0 and first_is_short) and _largest(work, _STEP) == 0.0:
                break
        _ring_kernels(work, layers, feature)
        for t in range(min(_STRIP, count - start)):
            good = work[_STEP + t] == 0.0 and abs(work[_D + t]) < 1.0
            resolved = True
            for index in range(depth):
                ratio = abs(work[(index + 1) * _STRIPS * _STRIP + _RHO + t])
                if not ratio < 1.0 - NEAR_ONE:
                    good = False
                elif kinds[index] == SERIES and _terms_for(ratio, tables[index]) < 0:
                    resolved = False
            conjugate[start + t], tangent[start + t] = work[_C + t], work[_E + t]
            state[start + t] = (DONE if good else CAREFUL) if resolved else LONGER


@_compile
def angle_kernels(cosine, factor, series, kernels):
    """Put factor·Σ_k series[k]·T_k(2θ/π − 1), θ the angles of the cosines, into `kernels`."""
    one, two = np.empty((_STRIP, 2)), np.empty((_STRIP, 2))
    x = np.empty(_STRIP)
    for start in range(0, len(cosine), _STRIP):
        count = min(_STRIP, len(cosine) - start)
        for t in range(count):
            x[t] = 2.0 / math.pi * math.acos(cosine[start + t]) - 1.0
        one[:] = 0.0
        two[:] = 0.0
        for k in range(len(series) - 1, 0, -1):  # Clenshaw's recurrence
            for t in range(count):
                for kind in range(2):
                    now = 2.0 * x[t] * one[t, kind] - two[t, kind] + series[k, kind]
                    two[t, kind] = one[t, kind]
                    one[t, kind] = now
        for t in range(count):
            for kind in range(2):
                value = x[t] * one[t, kind] - two[t, kind] + series[0, kind]
                kernels[start + t, kind] = factor[start + t] * value


# The work array of `table_block`, again strips of 64 doubles, of one row of the block:
#
#     offset   0      64     128    192    256     320    …
#              ├──────┼──────┼──────┼──────┼───────┼───────┼─
#     strip    │  z   │ z, z²│  CK  │  NTK │  ψ_0  │  ψ_1  │  …  ψ_31
#     name       –     _POWER  _ONE   _TWO  _BASIS
#
# The ψ belong to the columns and stay while the rows change.
_POWER, _ONE, _TWO, _BASIS = (k * _STRIP for k in range(1, 5))

MOST_RANKS = 32
"""Functions of a column's norm that `table_block` can combine."""

_PANEL = 4  # rows that share the ψ of a strip; more would be too many streams of memory


@_compile_part
def _add_four(work, numbers, place, first, begin, two):
    """Add four of the ψ, from ψ_first on, to the kernels; with `begin`, multiply by z before."""
    base, step = _BASIS + first * _STRIP, 2 if two else 1
    a0, a1 = numbers[place], numbers[place + step]
    a2, a3 = numbers[place + 2 * step], numbers[place + 3 * step]
    if two:
        b0, b1, b2, b3 = (
            numbers[place + 1],
            numbers[place + 3],
            numbers[place + 5],
            numbers[place + 7],
        )
    for t in range(_STRIP):
        p0, p1 = work[base + t], work[base + _STRIP + t]
        p2, p3 = work[base + 2 * _STRIP + t], work[base + 3 * _STRIP + t]
        power = work[_POWER + t]
        one = work[_ONE + t] * power if begin else work[_ONE + t]
        work[_ONE + t] = a3 * p3 + (a2 * p2 + (a1 * p1 + (a0 * p0 + one)))
        if two:
            other = work[_TWO + t] * power if begin else work[_TWO + t]
            work[_TWO + t] = b3 * p3 + (b2 * p2 + (b1 * p1 + (b0 * p0 + other)))


@_compile_part
def _add_two(work, numbers, place, first, begin, two):
    """Add two of the ψ, as `_add_four` does four."""
    base, step = _BASIS + first * _STRIP, 2 if two else 1
    a0, a1 = numbers[place], numbers[place + step]
    if two:
        b0, b1 = numbers[place + 1], numbers[place + 3]
    for t in range(_STRIP):
        p0, p1 = work[base + t], work[base + _STRIP + t]
        power = work[_POWER + t]
        one = work[_ONE + t] * power if begin else work[_ONE + t]
        work[_ONE + t] = a1 * p1 + (a0 * p0 + one)
        if two:
            other = work[_TWO + t] * power if begin else work[_TWO + t]
            work[_TWO + t] = b1 * p1 + (b0 * p0 + other)


@_compile_part
def _add_powers(work, numbers, place, two):
    """Four powers at once, without the ψ."""
    step = 2 if two else 1
    a0, a1 = numbers[place], numbers[place + step]
    a2, a3 = numbers[place + 2 * step], numbers[place + 3 * step]
    if two:
        b0, b1, b2, b3 = (
            numbers[place + 1],
            numbers[place + 3],
            numbers[place + 5],
            numbers[place + 7],
        )
    for t in range(_STRIP):
        z, one = work[_POWER + t], work[_ONE + t]
        work[_ONE + t] = (((one * z + a0) * z + a1) * z + a2) * z + a3
        if two:
            other = work[_TWO + t]
            work[_TWO + t] = (((other * z + b0) * z + b1) * z + b2) * z + b3


@_compile_part
def _add_more(work, numbers, place, rank, first, two):
    """Add the ψ from ψ_first on, four or two of them; `first` is a constant at every call."""
    step = 2 if two else 1
    if rank >= first + 4:
        _add_four(work, numbers, place + step * first, first, False, two)
    elif rank > first:
        _add_two(work, numbers, place + step * first, first, False, two)


@_compile_part
def _table_sums(work, numbers, ranks, two):
    """Horner's rule over the powers, highest first; every coefficient is a sum over the ψ."""
    place, step = 0, 2 if two else 1
    if ranks[0] == 1:
        # The norms do not matter: ψ_0 is all there is, and a factor of everything.
        for k in range(0, ranks.size, TERMS_STEP):
            _add_powers(work, numbers, step * k, two)
        for t in range(_STRIP):
            work[_ONE + t] *= work[_BASIS + t]
            if two:
                work[_TWO + t] *= work[_BASIS + t]
        return
    for k in range(ranks.size):
        rank = ranks[k]
        if rank >= 4:
            _add_four(work, numbers, place, 0, True, two)
        else:
            _add_two(work, numbers, place, 0, True, two)
        if rank > 4:
            _add_more(work, numbers, place, rank, 4, two)
            if rank > 8:
                _add_more(work, numbers, place, rank, 8, two)
                if rank > 12:
                    _add_more(work, numbers, place, rank, 12, two)
                    _add_more(work, numbers, place, rank, 16, two)
                    _add_more(work, numbers, place, rank, 20, two)
                    _add_more(work, numbers, place, rank, 24, two)
                    _add_more(work, numbers, place, rank, 28, two)
        place += step * rank


@_compile
def table_block(
    inner, kernel, second, top, side, first, scale1, scale2, shift, basis, numbers, ranks, odd
):
    """Turn a block of x·y into kernels by the polynomials of a table; return what is left.

    With z = x·y·scale1·scale2, the kernels of row r and column j are Horner sums over the powers
    of z (of z², and once more times z, if `odd`), highest first.  The coefficient of power k is
    Σ_m numbers[r, …]·basis[m, j] over ranks[k] of the functions ψ; `numbers` has those of two
    kernels in turn, in the order of use, or those of one kernel, if `second` is empty.
    Row r is done from column first[r] on.  A pair with |z| > 1 is beyond the table, and left as
    NaN; the number of such pairs is returned.

    `kernel` and `second` receive the block at row `top` and column `side`; all arrays are
    contiguous, without which there are no vector instructions.  `scale2` and `basis` begin `shift`
    columns before the block and go a strip beyond it.  Ranks are even and at most
    `MOST_RANKS`, or all of them are 1, and their number is a multiple of `TERMS_STEP`.
    """
    rows, columns = inner.shape
    two = second.size > 0
    work = np.empty((4 + MOST_RANKS) * _STRIP, inner.dtype)
    edge = inner.dtype.type(1.0)  # a double would turn the comparison of floats into one of doubles
    beyond = 0
    # One panel: four rows, strips of 64 columns.  The ψ of a strip are loaded once for all four.
    #
    #              column  column+64
    #                ├────────┼────────┼────────┼──
    #   panel      r0│▒▒▒▒▒▒▒▒│░░░░░░░░│        │       ▒ strip in work
    #              r1│▒▒▒▒▒▒▒▒│░░░░░░░░│        │       ░ the next one
    #              r2│▒▒▒▒▒▒▒▒│░░░░░░░░│        │
    #              r3│▒▒▒▒▒▒▒▒│░░░░░░░░│        │
    for panel in range(0, rows, _PANEL):
        last = min(panel + _PANEL, rows)
        # Row by row the columns begin further to the right, or all at the same.
        for column in range(first[panel] // _STRIP * _STRIP, columns, _STRIP):
            width = min(_STRIP, columns - column)
            # Slices begin at zero: an index that might be negative costs the vector instructions.
            factors = scale2[shift + column : shift + column + _STRIP]
            for m in range(basis.shape[0]):
                functions = basis[m, shift + column : shift + column + _STRIP]
                for t in range(_STRIP):
                    work[_BASIS + m * _STRIP + t] = functions[t]
            for r in range(panel, last):
                source = inner[r, column : column + width]
                for t in range(width):
                    work[t] = source[t]
                for t in range(width, _STRIP):
                    work[t] = 0.0
                scale = scale1[r]
                far = 0
                for t in range(_STRIP):
                    z = work[t] * (scale * factors[t])
                    work[t] = z
                    work[_POWER + t] = z * z if odd else z
                    work[_ONE + t] = 0.0
                    work[_TWO + t] = 0.0
                    # Written so that NaN, from samples outside of the table's range, counts as far.
                    far += 0 if abs(z) <= edge else 1
                if two:
                    _table_sums(work, numbers[r], ranks, True)
                else:
                    _table_sums(work, numbers[r], ranks, False)
                if odd:
                    for t in range(_STRIP):
                        work[_ONE + t] *= work[t]
                        work[_TWO + t] *= work[t]
                begin = max(first[r] - column, 0)
                place = side + column + begin
                one = kernel[top + r, place : place + width - begin]
                for t in range(width - begin):
                    one[t] = work[_ONE + begin + t]
                if two:
                    other = second[top + r, place : place + width - begin]
                    for t in range(width - begin):
                        other[t] = work[_TWO + begin + t]
                if far > 0:
                    for t in range(width - begin):
                        if not abs(work[begin + t]) <= edge:
                            one[t] = np.nan
                            beyond += 1
    return beyond


@_compile
def marked_places(kernel, top, side, first, width):
    """Return rows and columns, within a block, of the pairs that `table_block` left as NaN."""
    count = 0
    for r in range(len(first)):
        line = kernel[top + r, side : side + width]
        for j in range(first[r], width):
            count += 1 if line[j] != line[j] else 0
    rows, columns = np.empty(count, np.int64), np.empty(count, np.int64)
    found = 0
    for r in range(len(first)):
        line = kernel[top + r, side : side + width]
        for j in range(first[r], width):
            if line[j] != line[j]:
                rows[found], columns[found] = r, j
                found += 1
    return rows, columns


@_compile
def mirror(matrix, rows, columns, height, width):
    """Copy the block at (rows, columns) of a matrix to its mirror image below the diagonal.

    In squares whose lines are written as wholes; of a block on the diagonal, only what is above.
    """
    for i in range(0, height, _SQUARE):
        for j in range(i if rows == columns else 0, width, _SQUARE):
            down, right = rows + i, columns + j
            if i + _SQUARE <= height and j + _SQUARE <= width and down + _SQUARE <= right:
                for b in range(_SQUARE):
                    for a in range(_SQUARE):
                        matrix[right + b, down + a] = matrix[down + a, right + b]
            else:
                for b in range(right, min(right + _SQUARE, columns + width)):
                    for a in range(down, min(down + _SQUARE, rows + height, b)):
                        matrix[b, a] = matrix[a, b]
