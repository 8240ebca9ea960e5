"""Compiled loops over blocks of pairs: the cost of a kernel beyond its Gram matrix.

Every loop works on one block, on one thread and without the interpreter's lock: blocks are shared
among threads by the caller.  Columns go in strips of 64, so that the innermost loops are vector
instructions.  A pair that a loop cannot do to full accuracy is marked
with NaN and counted, never guessed: `single_pairs` does it again.  Everything is in one file,
because the cache of compiled code is renewed when the file of a loop changes, and not when only a
file changes from which it has a part.

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

BINS = 256
"""Resolution in |ρ| of the table that says how many terms the series needs."""

TERMS_STEP = 4
"""Series and polynomials go four terms at a time: their lengths are multiples of this."""

PADDING = 64
"""Arrays about columns go this far beyond the last one."""

NEAR_ONE = 1e-6
"""Pairs with 1 − |ρ| below this are left to `single_pairs`."""

_STRIP = PADDING
# A Newton step below this times 1 − |ρ| leaves an error of its square; the factor is because the
# derivatives of P may grow with powers of 1/(1 − |ρ|).
_CLOSE = 1e-8
_MAX_STEPS = 60
_SHORT = 8  # terms of the first approximation

# The work array of a row is one piece of memory, cut into strips of 64 doubles (half a kilobyte).
# Entry t of every strip belongs to the pair (row, column + t):
#
#     offset   0      64     128    192    256     320       384        448      512       576
#              ├──────┼──────┼──────┼──────┼───────┼─────────┼──────────┼────────┼─────────┤
#     strip    │  ρ   │  P   │  P′  │ P″/2 │   s   │ centring│ σb² x·y  │  step  │ scratch │
#     name        –      _P     _D     _E    _SIZE   _OFFSET      _C      _STEP    _SCRATCH
#
# "centring" is what centring takes off P; "step" is 1 where the last Newton step was too long, else
# 0.  At the end _C and _E hold the two kernels.  One array and constant offsets let the compiler
# prove that strips do not overlap, and turn every loop over t into vector instructions; a strip of
# all nine is 4.6 kB and stays in the first-level cache.
_P, _D, _E, _SIZE, _OFFSET, _C, _STEP, _SCRATCH = (k * _STRIP for k in range(1, 9))
_STRIPS = 9


def _arccos_coefficients() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Arccos x = √(1−x)·Q(2x−1) on [0, 1]; Q as powers, increasing, error below 1e-15."""

    def quotient(t: Any) -> Any:
        rest = 0.5 * (1.0 - t)
        safe = np.maximum(rest, 1e-30)
        return 2.0 * np.arcsin(np.sqrt(0.5 * safe)) / np.sqrt(safe)

    series = np.polynomial.chebyshev.chebinterpolate(quotient, 24)
    return np.asarray(np.polynomial.chebyshev.cheb2poly(series), dtype=np.float64)


_ARCCOS = _arccos_coefficients()
_options = {"cache": True, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
_compile = numba.njit(**_options)
# A part of a loop becomes part of its machine code.  As a function of its own it would be there
# twice in the process that compiles, by itself and with its caller, with other roundings; and once
# in a process that loads the caller from the cache.
_compile_part = numba.njit(**_options, forceinline=True)


@_compile_part
def _series(work, left, right, column, terms):
    """P, P′ and P″/2 by Horner's rule on the coefficients left[k]·right[k, column + t].

    `work` holds ρ, P, P′ and P″/2 in a row of strips: with one array, constant offsets and a
    constant count the compiler can prove that nothing overlaps, and vectorises.  Four terms at a
    time save loads and stores; `terms` is a multiple of four.
    """
    for t in range(_STRIP):
        work[_P + t] = 0.0
        work[_D + t] = 0.0
        work[_E + t] = 0.0
    for k in range(terms - 1, 0, -4):
        a, b, c, d = left[k], left[k - 1], left[k - 2], left[k - 3]
        for t in range(_STRIP):
            r = work[t]
            p0 = work[_P + t]
            d0 = work[_D + t]
            e0 = work[_E + t]
            e1 = e0 * r + d0
            d1 = d0 * r + p0
            p1 = p0 * r + a * right[k, column + t]
            e2 = e1 * r + d1
            d2 = d1 * r + p1
            p2 = p1 * r + b * right[k - 1, column + t]
            e3 = e2 * r + d2
            d3 = d2 * r + p2
            p3 = p2 * r + c * right[k - 2, column + t]
            work[_E + t] = e3 * r + d3
            work[_D + t] = d3 * r + p3
            work[_P + t] = p3 * r + d * right[k - 3, column + t]


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
        angle = math.sqrt(rest) * work[_P + t]
        angle = angle if r >= 0.0 else math.pi - angle
        root = math.sqrt(rest * (1.0 + abs(r)))
        toward = math.pi - angle
        s = work[_SIZE + t] * scale
        value = s * (both * (root + r * toward) - cross * (root - r * angle))
        work[_P + t] = value + work[_OFFSET + t]
        work[_D + t] = s * (both * toward + cross * angle)
        work[_E + t] = 0.5 * s * (both - cross) / max(root, 1e-30)


@_compile_part
def _terms_for(largest, table):
    """Terms that the series needs at |ρ| = largest; negative if the table cannot say."""
    if not largest <= 1.0:
        return -1
    return table[min(int(largest * BINS) + 1, BINS)]


@_compile_part
def _load(work, values, column, width, factor):
    """Put factor × values into the strip _C; what lies beyond the last column is harmless."""
    for t in range(width):
        work[_C + t] = factor * values[column + t]
    for t in range(width, _STRIP):
        work[_C + t] = 0.0


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
def _prepare(work, scale1, scale2, mean1, mean2, constant, column):
    """Put s and what centring takes off into their strips."""
    for t in range(_STRIP):
        work[_SIZE + t] = scale1 * scale2[column + t]
    for t in range(_STRIP):
        work[_OFFSET + t] = -constant * (mean1 + mean2[column + t] - constant)


@_compile_part
def _start_series(work, left, right, column, sigma_a2):
    """First approximation: P replaced by its tangent at ρ = 0."""
    zeroth, slope = sigma_a2 * left[0], sigma_a2 * left[1]
    for t in range(_STRIP):
        top = work[_C + t] + zeroth * right[0, column + t]
        work[t] = _clipped(top / (work[_SIZE + t] - slope * right[1, column + t]))


@_compile_part
def _start_hinge(work, both, cross, sigma_a2):
    """First approximation: P replaced by its tangent at ρ = 0."""
    flat = 1.0 - sigma_a2 * 0.25 * (both + cross)
    height = sigma_a2 * (both - cross) / (2.0 * math.pi)
    for t in range(_STRIP):
        top = work[_C + t] + height * work[_SIZE + t] + sigma_a2 * work[_OFFSET + t]
        work[t] = _clipped(top / (work[_SIZE + t] * flat))


@_compile_part
def _newton(work, sigma_a2):
    """One Newton step on ρ; P and P′ follow it to second and first order."""
    for t in range(_STRIP):
        rho, size, d, e = work[t], work[_SIZE + t], work[_D + t], work[_E + t]
        gap = sigma_a2 * work[_P + t] + work[_C + t] - size * rho
        moved = _clipped(rho + gap / (size - sigma_a2 * d))
        step = moved - rho
        work[t] = moved
        work[_P + t] = work[_P + t] + step * (d + step * e)
        work[_D + t] = d + 2.0 * step * e
        close = abs(step) <= _CLOSE * (1.0 - abs(moved))
        work[_STEP + t] = 0.0 if close else 1.0


@_compile_part
def _kernels(work, sigma_a2, feature):
    """Turn P and P′ into the two kernels, in the strips _C and _E; Ġ goes to _D."""
    if feature:
        for t in range(_STRIP):
            slope = work[_D + t] / work[_SIZE + t]
            value = sigma_a2 * work[_P + t] + work[_C + t]
            work[_C + t] = work[_P + t]
            work[_D + t] = sigma_a2 * slope
            work[_E + t] = work[_P + t] + value * slope / (1.0 - sigma_a2 * slope)
    else:
        for t in range(_STRIP):
            dot = sigma_a2 * work[_D + t] / work[_SIZE + t]
            work[_C + t] = sigma_a2 * work[_P + t] + work[_C + t]
            work[_D + t] = dot
            work[_E + t] = work[_C + t] / (1.0 - dot)


@_compile
def solve_block(
    gram, tangent, first, shift, kind, scale1, scale2, left, right, table,
    mean1, mean2, constant, both, cross, sigma_a2, feature, marked,
):  # fmt: skip
    """Solve G = σa² P(G/s) + σb² x·y for every pair of a block, by Newton's method.

    `gram` (rows × columns) holds x·y and receives the conjugate kernel; `tangent` receives the
    tangent kernel.  Row r is done from column first[r] on.  marked[r, 0] counts what was left as
    NaN, and marked[r, 1] how many of these a longer series would do.  The arrays about columns
    (scale2, right, mean2) begin `shift` columns before the block and end a strip after it.
    """
    rows, columns = gram.shape
    sigma_b2 = 1.0 - sigma_a2
    work = np.empty(_STRIPS * _STRIP)
    for r in range(rows):
        coefficients = left[r]
        bad = short = 0
        for column in range(first[r], columns, _STRIP):
            width = min(_STRIP, columns - column)
            _load(work, gram[r], column, width, sigma_b2)
            _prepare(work, scale1[r], scale2, mean1[r], mean2, constant, shift + column)
            if kind == SERIES:
                _start_series(work, coefficients, right, shift + column, sigma_a2)
            else:
                _start_hinge(work, both, cross, sigma_a2)
            for turn_of_newton in range(_MAX_STEPS):
                if kind == HINGE:
                    _hinge(work, both, cross)
                elif turn_of_newton == 0:
                    _series(work, coefficients, right, shift + column, _SHORT)
                else:
                    terms = _terms_for(_largest(work, 0), table)
                    terms = terms if terms > 0 else coefficients.size
                    _series(work, coefficients, right, shift + column, terms)
                _newton(work, sigma_a2)
                done = kind == HINGE or turn_of_newton > 0
                if done and _largest(work, _STEP) == 0.0:
                    break
            _kernels(work, sigma_a2, feature)
            # Most strips are good as a whole, and copied as a whole.
            largest = _largest(work, 0)
            fine = largest < 1.0 - NEAR_ONE
            fine = fine and _largest(work, _STEP) == 0.0 and _largest(work, _D) < 1.0
            if kind == SERIES:
                fine = fine and _terms_for(largest, table) > 0
            if fine:
                for t in range(width):
                    gram[r, column + t] = work[_C + t]
                    tangent[r, column + t] = work[_E + t]
                continue
            for t in range(width):
                ratio = abs(work[t])
                good = ratio < 1.0 - NEAR_ONE and work[_STEP + t] == 0.0 and work[_D + t] < 1.0
                if kind == SERIES and ratio < 1.0 - NEAR_ONE and _terms_for(ratio, table) < 0:
                    good = False
                    short += 1
                if good:
                    gram[r, column + t] = work[_C + t]
                    tangent[r, column + t] = work[_E + t]
                else:
                    bad += 1
                    gram[r, column + t] = np.nan
                    tangent[r, column + t] = np.nan
        marked[r, 0] = bad
        marked[r, 1] = short


@_compile
def map_block(
    covariance, tangent, first, shift, kind, scale1, scale2, left, right, table,
    mean1, mean2, constant, both, cross, marked,
):  # fmt: skip
    """Carry a block through one explicit layer: Σ ← P(Σ/s), Θ ← P + Θ·P′/s, in place."""
    rows, columns = covariance.shape
    work = np.empty(_STRIPS * _STRIP)
    for r in range(rows):
        coefficients = left[r]
        bad = short = 0
        for column in range(first[r], columns, _STRIP):
            width = min(_STRIP, columns - column)
            _load(work, covariance[r], column, width, 1.0)
            _prepare(work, scale1[r], scale2, mean1[r], mean2, constant, shift + column)
            for t in range(_STRIP):
                work[_C + t] = work[_C + t] / work[_SIZE + t]
                work[t] = _clipped(work[_C + t])
            if kind == SERIES:
                terms = _terms_for(_largest(work, 0), table)
                terms = terms if terms > 0 else coefficients.size
                _series(work, coefficients, right, shift + column, terms)
            else:
                _hinge(work, both, cross)
            largest = _largest(work, _C)
            fine = largest < 1.0 - NEAR_ONE
            if kind == SERIES:
                fine = fine and _terms_for(largest, table) > 0
            if fine:
                for t in range(width):
                    slope = work[_D + t] / work[_SIZE + t]
                    covariance[r, column + t] = work[_P + t]
                    tangent[r, column + t] = work[_P + t] + tangent[r, column + t] * slope
                continue
            for t in range(width):
                ratio = abs(work[_C + t])
                good = ratio < 1.0 - NEAR_ONE
                if kind == SERIES and good and _terms_for(ratio, table) < 0:
                    good = False
                    short += 1
                if good:
                    p, slope = work[_P + t], work[_D + t] / work[_SIZE + t]
                    covariance[r, column + t] = p
                    tangent[r, column + t] = p + tangent[r, column + t] * slope
                else:
                    bad += 1
                    covariance[r, column + t] = np.nan
                    tangent[r, column + t] = np.nan
        marked[r, 0] += bad
        marked[r, 1] += short


# What `cell_block` is told about each sample in each layer, and about each layer.
TAU, INNER, FACTOR, TAKEN, MEAN, COUPLING = range(6)
SAMPLE_FACTS = 6
BOTH, CROSS, WEIGHT, INJECT, BIAS = range(5)
LAYER_FACTS = 5

# Beside the strips above, `cell_block` keeps these for every layer of the cell; ρ is
# slope·V + start for the covariance V that the layer reads.
_SLOPE, _START, _RHO, _VALUE, _FIRST, _SECOND, _SPREAD, _SQUASH = (k * _STRIP for k in range(8))
_KEPT = 8


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


@_compile
def cell_block(
    gram, tangent, first, shift, kinds, starts, rows, columns, left, right, tables, layers,
    trained, feature, marked,
):  # fmt: skip
    """Solve V = P_L(… P_1(V)) for every pair of a block, V the covariance of the state.

    Layer l maps the covariance V that it reads to ρ = a_i a_j (w V + u x·y + b)/(τ_i τ_j), where a
    normalises, and ρ to the covariance P(ρ) that it passes on.  Newton's method goes through the
    composition, whose slope is the product of those of the layers.

    `gram` and `tangent`, `first`, `shift` and `marked` are as in `solve_block`.

    kinds, starts : (L,), (L + 1,)
        SERIES or HINGE; where the coefficients of a layer begin in `left` and `right`.
    rows, columns : (L, SAMPLE_FACTS, rows), (L, SAMPLE_FACTS, columns + a strip)
        τ; a; what stands for τ in the value of a hinge; what its centring takes off, as a sum and
        as a product; r, which adds r_i r_j to the weight and counts twice in the tangent kernel.
    left, right : (rows, terms of all layers), (terms of all layers, columns + a strip)
    tables : (L, BINS + 1)
    layers : (L, LAYER_FACTS)
    trained : (4,)
        Factors of weights, inputs, biases and read-out in the tangent kernel.
    """
    height, width_of_block = gram.shape
    depth = kinds.size
    work = np.empty((_STRIPS + 1 + depth * _KEPT) * _STRIP)
    inputs = _STRIPS * _STRIP  # the strip of x·y
    kept = (_STRIPS + 1) * _STRIP
    closed = True
    for index in range(depth):
        closed = closed and kinds[index] == HINGE
    for r in range(height):
        bad = short = 0
        for column in range(first[r], width_of_block, _STRIP):
            width = min(_STRIP, width_of_block - column)
            place = shift + column
            _load(work, gram[r], column, width, 1.0)
            for t in range(_STRIP):
                work[inputs + t] = work[_C + t]
                work[_E + t] = 0.0
                work[_STEP + t] = 1.0
            for index in range(depth):
                base = kept + index * _KEPT * _STRIP
                weight, coupling = layers[index, WEIGHT], rows[index, COUPLING, r]
                inject, bias = layers[index, INJECT], layers[index, BIAS]
                tau, inner = rows[index, TAU, r], rows[index, INNER, r]
                for t in range(_STRIP):
                    size = tau * columns[index, TAU, place + t]
                    squash = inner * columns[index, INNER, place + t]
                    strength = weight + coupling * columns[index, COUPLING, place + t]
                    work[base + _SPREAD + t] = size
                    work[base + _SQUASH + t] = squash
                    work[base + _SLOPE + t] = squash * strength / size
                    work[base + _START + t] = squash * (inject * work[inputs + t] + bias) / size
                _facts_of_hinge(work, rows, columns, index, r, place)
                a = starts[index]
                if kinds[index] == SERIES:
                    zeroth, slope = left[r, a], left[r, a + 1]
                    for t in range(_STRIP):
                        work[_P + t] = zeroth * right[a, place + t]
                        work[_D + t] = slope * right[a + 1, place + t]
                _layer_start(work, base, kinds[index], layers[index, BOTH], layers[index, CROSS])
            for t in range(_STRIP):
                work[_C + t] = work[_E + t] / (1.0 - work[_STEP + t])
            for turn_of_newton in range(_MAX_STEPS):
                # One turn through the cell, from V in _C; _SCRATCH is free between the layers.
                for t in range(_STRIP):
                    work[_STEP + t] = work[_C + t]
                for index in range(depth):
                    base = kept + index * _KEPT * _STRIP
                    for t in range(_STRIP):
                        rho = work[base + _SLOPE + t] * work[_STEP + t] + work[base + _START + t]
                        work[t] = _clipped(rho)
                        work[base + _RHO + t] = work[t]
                    if kinds[index] == HINGE:
                        _facts_of_hinge(work, rows, columns, index, r, place)
                        _hinge(work, layers[index, BOTH], layers[index, CROSS])
                    else:
                        a, b = starts[index], starts[index + 1]
                        terms = min(_SHORT, b - a)
                        if turn_of_newton > 0:
                            terms = _terms_for(_largest(work, 0), tables[index])
                            terms = terms if terms > 0 else b - a
                        _series(work, left[r, a:b], right[a:b], place, terms)
                    for t in range(_STRIP):
                        work[base + _VALUE + t] = work[_P + t]
                        work[base + _FIRST + t] = work[_D + t]
                        work[base + _SECOND + t] = work[_E + t]
                        work[_STEP + t] = work[_P + t]
                # The Newton step on V; every layer follows it to second order.
                for t in range(_STRIP):
                    work[_D + t] = 1.0
                for index in range(depth):
                    base = kept + index * _KEPT * _STRIP
                    for t in range(_STRIP):
                        work[_D + t] *= work[base + _SLOPE + t] * work[base + _FIRST + t]
                for t in range(_STRIP):
                    step = (work[_STEP + t] - work[_C + t]) / (1.0 - work[_D + t])
                    work[_C + t] += step
                    work[_E + t] = step
                    work[_STEP + t] = 0.0
                for index in range(depth):
                    base = kept + index * _KEPT * _STRIP
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
                done = closed or turn_of_newton > 0
                if done and _largest(work, _STEP) == 0.0:
                    break
            _cell_kernels(work, inputs, kept, rows, columns, r, place, layers, trained, feature)
            # Most strips are good as a whole, and copied as a whole.
            fine = _largest(work, _STEP) == 0.0 and _largest(work, _D) < 1.0
            for index in range(depth):
                largest = _largest(work, kept + index * _KEPT * _STRIP + _RHO)
                fine = fine and largest < 1.0 - NEAR_ONE
                if kinds[index] == SERIES:
                    fine = fine and _terms_for(largest, tables[index]) > 0
            if fine:
                for t in range(width):
                    gram[r, column + t] = work[_C + t]
                    tangent[r, column + t] = work[_E + t]
                continue
            for t in range(width):
                good = work[_STEP + t] == 0.0 and abs(work[_D + t]) < 1.0
                resolved = True
                for index in range(depth):
                    ratio = abs(work[kept + index * _KEPT * _STRIP + _RHO + t])
                    if not ratio < 1.0 - NEAR_ONE:
                        good = False
                    elif kinds[index] == SERIES and _terms_for(ratio, tables[index]) < 0:
                        resolved = False
                if good and resolved:
                    gram[r, column + t] = work[_C + t]
                    tangent[r, column + t] = work[_E + t]
                else:
                    bad += 1
                    short += not resolved
                    gram[r, column + t] = np.nan
                    tangent[r, column + t] = np.nan
        marked[r, 0] = bad
        marked[r, 1] = short


@_compile_part
def _facts_of_hinge(work, rows, columns, index, r, place):
    """Put what `_hinge` wants of a layer into the strips _SIZE and _OFFSET."""
    factor, taken, mean = rows[index, FACTOR, r], rows[index, TAKEN, r], rows[index, MEAN, r]
    for t in range(_STRIP):
        work[_SIZE + t] = factor * columns[index, FACTOR, place + t]
        product = mean * columns[index, MEAN, place + t]
        work[_OFFSET + t] = -(taken + columns[index, TAKEN, place + t] + product)


@_compile_part
def _cell_kernels(work, inputs, kept, rows, columns, r, place, layers, trained, feature):
    """Turn V and the slopes into the two kernels, in _C and _E; the slope of a turn goes to _D.

    X_l = Θ_l/(τ_i τ_j) obeys X_l = T_l/(τ_i τ_j) + slope_l P′_{l−1} X_{l−1} around the ring.
    """
    depth = layers.shape[0]
    last = kept + (depth - 1) * _KEPT * _STRIP
    for t in range(_STRIP):
        work[_D + t] = 1.0
        work[_E + t] = 0.0
        work[_P + t] = work[last + _FIRST + t]
        work[_C + t] = work[last + _VALUE + t]
    for index in range(depth):
        base = kept + index * _KEPT * _STRIP
        weight, inject, bias = layers[index, WEIGHT], layers[index, INJECT], layers[index, BIAS]
        coupling = rows[index, COUPLING, r]
        for t in range(_STRIP):
            both = coupling * columns[index, COUPLING, place + t]
            carried = work[base + _SLOPE + t] * work[_P + t]
            source = (
                trained[0] * (weight + 2.0 * both) * work[_C + t]
                + trained[1] * inject * work[inputs + t]
                + trained[2] * bias
            )
            source = source * work[base + _SQUASH + t] / work[base + _SPREAD + t]
            work[_E + t] = source + carried * work[_E + t]
            work[_D + t] = carried * work[_D + t]
            full = (weight + both) * work[_C + t] + inject * work[inputs + t] + bias
            work[_SIZE + t] = work[base + _SQUASH + t] * full
            work[_P + t] = work[base + _FIRST + t]
            work[_C + t] = work[base + _VALUE + t]
    if feature:
        for t in range(_STRIP):
            ratio = work[_E + t] / (1.0 - work[_D + t])
            work[_E + t] = trained[3] * work[_C + t] + work[last + _FIRST + t] * ratio
    else:
        for t in range(_STRIP):
            ratio = work[_E + t] / (1.0 - work[_D + t])
            work[_E + t] = ratio * work[last + _SPREAD + t]
            work[_C + t] = work[_SIZE + t]


@_compile_part
def _polynomials(work, one, two):
    """Put two polynomials in x, the first strip, into the strips _P and _D, four terms at once."""
    for t in range(_STRIP):
        work[_P + t] = 0.0
        work[_D + t] = 0.0
    for k in range(one.size - 1, 0, -4):
        a, b, c, d = one[k], one[k - 1], one[k - 2], one[k - 3]
        e, f, g, h = two[k], two[k - 1], two[k - 2], two[k - 3]
        for t in range(_STRIP):
            x = work[t]
            work[_P + t] = (((work[_P + t] * x + a) * x + b) * x + c) * x + d
            work[_D + t] = (((work[_D + t] * x + e) * x + f) * x + g) * x + h


@_compile
def univariate_block(
    gram, tangent, first, shift, norm1, norm2, homogeneous, reach,
    middle, middle_tangent, upper, upper_tangent, lower, lower_tangent, marked,
):  # fmt: skip
    """Apply t ↦ g(t), k(t), t = x·y/(‖x‖‖y‖), given as polynomials on three pieces.

    The middle piece is a polynomial in t/reach; the outer ones are polynomials in √(1 ∓ t), in
    which a kink leaves no singularity, mapped to [−1, 1].  The number of coefficients is a multiple
    of `TERMS_STEP`.  Empty outer ones mark their pairs; marked[r, 1] counts those they would do.
    """
    rows, columns = gram.shape
    span = math.sqrt(1.0 - reach)
    limit = reach if upper.size == 0 or lower.size == 0 else 1.0 - NEAR_ONE
    work = np.empty(_STRIPS * _STRIP)
    for r in range(rows):
        bad = far = 0
        for column in range(first[r], columns, _STRIP):
            width = min(_STRIP, columns - column)
            _load(work, gram[r], column, width, 1.0)
            for t in range(_STRIP):
                size = norm1[r] * norm2[shift + column + t]
                # A zero row has no angle: a cosine out of range has its pairs marked.  (NaN would
                # not do, the largest entry of a strip may miss it.)
                work[_C + t] = work[_C + t] / size if size > 0.0 else 2.0
                work[_SIZE + t] = size
                work[t] = work[_C + t]
            largest = _largest(work, 0)
            for t in range(_STRIP):
                work[t] = min(max(work[t] / reach, -1.0), 1.0)
            _polynomials(work, middle, middle_tangent)
            for t in range(_STRIP):
                work[_STEP + t] = work[_P + t]
                work[_E + t] = work[_D + t]
            if not largest <= reach:
                for t in range(_STRIP):
                    rest = max(1.0 - abs(work[_C + t]), 0.0)
                    work[t] = min(2.0 * math.sqrt(rest) / span - 1.0, 1.0)
                for side in range(2):
                    sign = 1.0 if side == 0 else -1.0
                    series = upper if side == 0 else lower
                    series_tangent = upper_tangent if side == 0 else lower_tangent
                    if series.size > 0:
                        _polynomials(work, series, series_tangent)
                        for t in range(_STRIP):
                            outer = sign * work[_C + t] > reach
                            work[_STEP + t] = work[_P + t] if outer else work[_STEP + t]
                            work[_E + t] = work[_D + t] if outer else work[_E + t]
            if largest <= limit:
                for t in range(width):
                    factor = work[_SIZE + t] if homogeneous else 1.0
                    gram[r, column + t] = factor * work[_STEP + t]
                    tangent[r, column + t] = factor * work[_E + t]
                continue
            for t in range(width):
                if abs(work[_C + t]) <= limit:
                    factor = work[_SIZE + t] if homogeneous else 1.0
                    gram[r, column + t] = factor * work[_STEP + t]
                    tangent[r, column + t] = factor * work[_E + t]
                else:
                    gram[r, column + t] = np.nan
                    tangent[r, column + t] = np.nan
                    bad += 1
                    far += abs(work[_C + t]) < 1.0 - NEAR_ONE
        marked[r, 0] = bad
        marked[r, 1] = far


@_compile
def mirror(matrix):
    """Copy the upper triangle of a small square matrix onto the lower one."""
    for j in range(len(matrix)):
        for i in range(j):
            matrix[j, i] = matrix[i, j]
