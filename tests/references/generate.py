"""Write and check the high-precision reference tables moments.json and pairs.json.

Run ``python generate.py moments``, ``python generate.py pairs`` or ``python generate.py check``.
A stopped run resumes: records that are already in the table are kept. Only the standard library
and mpmath are used, so that a test against these tables is evidence about the package.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import mpmath
from mpmath import mp, mpf

FOLDER = Path(__file__).parent
MOMENT_NAMES = ("mean", "first", "second", "square", "derivative_square", "square_second")
SCALES = (0.1, 0.5, 1.0, 2.0)
HERMITE_TERMS = 12
VARIANCES = ((1.0, 1.0), (0.25, 4.0))
CORRELATIONS = (0.0, 0.5, -0.5, 0.999999, -0.999999, 1.0, -1.0)
MOMENT_DIGITS, PAIR_DIGITS = 80, 34

log = logging.getLogger("references")
Jet = Callable[[mpf], tuple[mpf, mpf]]
Record = dict[str, Any]


# --- activations -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """φ as x ↦ (φ(x), φ′(x)), with what is known exactly about it.

    `symmetry` is "odd", "even", "line_plus_even" (φ = cx + an even function) or "none";
    `regularity` is "smooth", "piecewise_linear" or "kinked"; `degree` that of a polynomial.
    """

    name: str
    jet: Jet
    symmetry: str
    regularity: str = "smooth"
    kinks: tuple[mpf, ...] = ()
    degree: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    def coefficient_vanishes(self, k: int) -> bool:
        """Whether E[φ(τξ) h_k(ξ)] = 0 for every τ."""
        by_symmetry = {
            "odd": k % 2 == 0,
            "even": k % 2 == 1,
            "line_plus_even": k % 2 == 1 and k > 1,
            "none": False,
        }[self.symmetry]
        return by_symmetry or (self.degree is not None and k > self.degree)


def exact(number: float) -> mpf:
    """Return the short decimal that is written for `number`, not the nearest double."""
    return mpf(repr(number))


def piecewise_linear(knots: Sequence[mpf], slopes: Sequence[mpf]) -> Jet:
    """φ(0) = 0, slope `slopes[i]` up to `knots[i]`: slopes[0] x + Σ_k J_k ((x−k)₊ − (−k)₊)."""
    jumps = [after - before for before, after in pairwise(slopes)]
    at_zero = mp.fsum(j * max(-k, 0) for j, k in zip(jumps, knots, strict=True))
    intercepts = [-at_zero - mp.fdot(jumps[:i], knots[:i]) for i in range(len(slopes))]

    def jet(x: mpf) -> tuple[mpf, mpf]:
        i = 0
        while i < len(knots) and x > knots[i]:
            i += 1
        return slopes[i] * x + intercepts[i], slopes[i]

    return jet


def power_series(coefficients: Sequence[mpf]) -> Jet:
    """Σ coefficients[k] x^k."""
    descending = list(reversed(coefficients))
    return lambda x: mp.polyval(descending, x, derivative=True)


def hermite_series(coefficients: Sequence[mpf]) -> Jet:
    """Σ coefficients[k] h_k(x), h_k orthonormal for N(0, 1); h_k′ = √k h_{k−1}."""

    def jet(x: mpf) -> tuple[mpf, mpf]:
        h = hermite_values(x, len(coefficients))
        slopes = [mp.sqrt(k) * h[k - 1] for k in range(1, len(h))]
        return mp.fdot(coefficients, h), mp.fdot(coefficients[1:], slopes)

    return jet


def hermite_values(x: mpf, terms: int) -> list[mpf]:
    """h_0(x), ..., h_{terms−1}(x)."""
    h = [mpf(1), x]
    for k in range(1, terms - 1):
        h.append((x * h[k] - mp.sqrt(k) * h[k - 1]) / mp.sqrt(k + 1))
    return h[:terms]


def tanh_jet(x: mpf) -> tuple[mpf, mpf]:
    value = mp.tanh(x)
    return value, 1 - value * value


def erf_jet(x: mpf) -> tuple[mpf, mpf]:
    return mp.erf(x), 2 * mp.exp(-x * x) / mp.sqrt(mp.pi)


def cos_jet(x: mpf) -> tuple[mpf, mpf]:
    cosine, sine = mp.cos_sin(x)
    return cosine, -sine


def sin_jet(x: mpf) -> tuple[mpf, mpf]:
    cosine, sine = mp.cos_sin(x)
    return sine, cosine


def swish_jet(x: mpf) -> tuple[mpf, mpf]:
    gate = 1 / (1 + mp.exp(-x))
    return x * gate, gate * (1 + x * (1 - gate))


def gelu_jet(x: mpf) -> tuple[mpf, mpf]:
    gate = mp.ncdf(x)
    return x * gate, gate + x * mp.npdf(x)


def softplus_jet(x: mpf) -> tuple[mpf, mpf]:
    exponential = mp.exp(x)
    return mp.log(1 + exponential), exponential / (1 + exponential)


def elu_jet(alpha: mpf) -> Jet:
    def jet(x: mpf) -> tuple[mpf, mpf]:
        if x > 0:
            return x, mpf(1)
        exponential = alpha * mp.exp(x)
        return exponential - alpha, exponential

    return jet


def activations() -> list[Activation]:
    """Return the table of activations; parameters are exact at the precision in force."""

    def pieces(name: str, symmetry: str, kinks: Sequence[mpf], slopes: Sequence[mpf],
               parameters: Record | None = None) -> Activation:  # fmt: skip
        jet = piecewise_linear(kinks, slopes)
        return Activation(
            name, jet, symmetry, "piecewise_linear", tuple(kinks), parameters=parameters or {}
        )

    def hard_tanh(scale: float, clip: float) -> Activation:
        c, parameters = exact(clip), {"scale": scale, "clip": clip}
        return pieces("hard_tanh", "odd", (-c, c), (zero, exact(scale), zero), parameters)

    def elu(alpha: float) -> Activation:
        jet = elu_jet(exact(alpha))
        parameters = {"alpha": alpha}
        return Activation("elu", jet, "none", "kinked", (mpf(0),), parameters=parameters)

    def series(name: str, family: Callable[[Sequence[mpf]], Jet], *c: float) -> Activation:
        jet = family([exact(number) for number in c])
        parameters = {"coefficients": list(c)}
        return Activation(name, jet, "none", degree=len(c) - 1, parameters=parameters)

    zero, one = mpf(0), mpf(1)
    leaky = {"positive_slope": 1.1, "negative_slope": 0.7}
    knots, slopes = [-1.0, 0.0, 1.5], [0.1, 0.5, 1.2, 0.0]
    bent = {"knots": knots, "slopes": slopes}
    line = "line_plus_even"
    return [
        pieces("relu", line, (zero,), (zero, one)),
        pieces("normalized_relu", line, (zero,), (zero, mp.sqrt(2))),
        pieces("leaky_relu", line, (zero,), (exact(0.7), exact(1.1)), leaky),
        pieces("abs", "even", (zero,), (-one, one)),
        hard_tanh(0.7643, 1.1965),
        hard_tanh(1.0, 1.0),
        Activation("identity", lambda x: (x, one), "odd", degree=1),
        Activation("tanh", tanh_jet, "odd"),
        Activation("erf", erf_jet, "odd"),
        Activation("arctan", lambda x: (mp.atan(x), 1 / (1 + x * x)), "odd"),
        Activation("sin", sin_jet, "odd"),
        Activation("cos", cos_jet, "even"),
        Activation("swish", swish_jet, line),
        Activation("gelu", gelu_jet, line),
        elu(1.0),
        elu(1.5),
        Activation("softplus", softplus_jet, line),
        series("polynomial", power_series, 0.3, 1.0, -0.5, 0.25),
        series("hermite", hermite_series, 0.2, 0.7, 0.4, -0.3),
        pieces("piecewise_linear", "none", [*map(exact, knots)], [*map(exact, slopes)], bent),
    ]


# --- quadrature --------------------------------------------------------------------------------


@lru_cache
def legendre_rule(order: int, precision: int) -> tuple[tuple[mpf, mpf], ...]:
    """Gauss–Legendre nodes and weights on (−1, 1) at `precision` bits, by Newton's method."""
    rule = []
    with mpmath.workprec(precision + 20):
        for i in range(order):
            x = mp.cos(mp.pi * (i + mpf("0.75")) / (order + mpf("0.5")))
            for _ in range(12):
                before, value = mpf(1), x
                for k in range(1, order):
                    before, value = value, ((2 * k + 1) * x * value - k * before) / (k + 1)
                slope = order * (before - x * value) / (1 - x * x)
                x -= value / slope
            rule.append((x, 2 / ((1 - x * x) * slope * slope)))
    return tuple(rule)


Rule = tuple[list[mpf], list[mpf]]


def gaussian_panels(ends: Iterable[mpf], order: int) -> Rule:
    """Nodes and weights of E[f(ξ)] with one Gauss–Legendre panel between successive `ends`."""
    nodes, weights = [], []
    for low, high in pairwise(sorted(set(ends))):
        middle, half = (low + high) / 2, (high - low) / 2
        for x, w in legendre_rule(order, mp.prec):
            nodes.append(middle + half * x)
            weights.append(half * w * mp.npdf(nodes[-1]))
    return nodes, weights


def grid(reach: int, per_unit: int) -> list[mpf]:
    return [mpf(i) / per_unit for i in range(-reach * per_unit, reach * per_unit + 1)]


def within(points: Iterable[mpf], reach: int) -> list[mpf]:
    return [x for x in points if abs(x) < reach]


def hermite_coefficients(values: Sequence[mpf], rule: Rule, terms: int) -> list[mpf]:
    """E[f(ξ) h_k(ξ)] for k < terms, from the values of f at the nodes."""
    nodes, weights = rule
    before = [mpf(0)] * len(nodes)
    current = [w * f for w, f in zip(weights, values, strict=True)]
    answer = []
    for k in range(terms):
        answer.append(mp.fsum(current))
        root, below = 1 / mp.sqrt(k + 1), mp.sqrt(mpf(k) / (k + 1))
        later = [x * root * c - below * b for x, c, b in zip(nodes, current, before, strict=True)]
        before, current = current, later
    return answer


# --- moments -----------------------------------------------------------------------------------


def moments(phi: Activation, tau: mpf, *, order: int, per_unit: int, reach: int) -> Record:
    """The six moments (names of `MOMENT_NAMES`) and "hermite", as numbers."""
    ends = grid(reach, per_unit) + within((k / tau for k in phi.kinks), reach)
    rule = gaussian_panels(ends, order)
    values, slopes = zip(*(phi.jet(tau * x) for x in rule[0]), strict=True)
    coefficients = hermite_coefficients(values, rule, HERMITE_TERMS)
    squares = hermite_coefficients([f * f for f in values], rule, 3)
    # The weak second derivative: E f″(τξ) = E[(ξ² − 1) f(τξ)]/τ², and ξ² − 1 = √2 h_2.
    weak_second = mp.sqrt(2) / tau**2
    return {
        "mean": coefficients[0],
        "first": mp.fdot(rule[1], slopes),
        "second": weak_second * coefficients[2],
        "square": squares[0],
        "derivative_square": mp.fdot(rule[1], [s * s for s in slopes]),
        "square_second": weak_second * squares[2],
        "hermite": coefficients,
    }


def flat(record: Record) -> list[mpf]:
    return [record[name] for name in MOMENT_NAMES] + list(record["hermite"])


def moment_record(phi: Activation, scale: float) -> Record:
    """One line of moments.json; refuses to write numbers that two rules do not share."""
    tau = exact(scale)
    numbers = moments(phi, tau, order=64, per_unit=2, reach=20)
    finer = moments(phi, tau, order=60, per_unit=3, reach=21)
    for one, other in zip(flat(numbers), flat(finer), strict=True):
        agree(f"two rules, {phi.name}, {scale}", one, other, relative="1e-32", absolute="1e-62")
    agree(f"E φ′ = E[ξφ]/τ, {phi.name}", numbers["first"], numbers["hermite"][1] / tau, "1e-40")
    zero = [phi.coefficient_vanishes(k) for k in range(HERMITE_TERMS)]
    vanishing = {"mean": zero[0], "first": zero[1], "second": zero[2]}
    record: Record = {"activation": phi.name, "parameters": phi.parameters, "tau": scale}
    for name in MOMENT_NAMES:
        record[name] = decimal(numbers[name], 30, vanishing.get(name, False), "1e-40")
    record["hermite"] = [
        decimal(a, 30, z, "1e-40") for a, z in zip(numbers["hermite"], zero, strict=True)
    ]
    return record


# --- pairs -------------------------------------------------------------------------------------


def conditional_means(phi: Activation, mean: mpf, deviation: mpf,
                      panels: Sequence[tuple[mpf, mpf, Rule]]) -> tuple[mpf, mpf]:  # fmt: skip
    """E φ(mean + deviation·η) and E φ′(mean + deviation·η), panels cut at the kinks."""
    value = slope = mpf(0)
    cuts = [(k - mean) / deviation for k in phi.kinks]
    for low, high, rule in panels:
        inside = [c for c in cuts if low < c < high]
        nodes, weights = gaussian_panels([low, *inside, high], 30) if inside else rule
        values, slopes = zip(*(phi.jet(mean + deviation * x) for x in nodes), strict=True)
        value += mp.fdot(weights, values)
        slope += mp.fdot(weights, slopes)
    return value, slope


def outer_ends(phi: Activation, sd1: mpf, sd2: mpf, rho: mpf, reach: int) -> list[mpf]:
    """Panel ends for ξ: the kinks of φ(±sd1 ξ), and panels graded down to a quarter of √(1−ρ²).

    φ(sd2(ρξ + √(1−ρ²)η)), averaged over η, bends at ξ = k/(ρ sd2) over a width √(1−ρ²).
    """
    width = mp.sqrt(1 - rho * rho)
    hard = sorted({sign * k / sd1 for k in phi.kinks for sign in (1, -1)})
    graded = []
    for centre in (k / (rho * sd2) for k in phi.kinks):
        steps = [width * mpf(2) ** j for j in range(-2, 14) if width * mpf(2) ** j < 1]
        graded += [centre, *(centre + s for s in steps), *(centre - s for s in steps)]
    kept = [*within(hard, reach), mpf(-reach), mpf(reach)]
    # Soft ends closer to another than the finest grading only make slivers.
    for end in within(graded, reach) + grid(reach, 1):
        if all(abs(end - other) > width / 8 for other in kept):
            kept.append(end)
    return kept


def correlated_pairs(phi: Activation, var1: mpf, var2: mpf, rho: mpf) -> dict[int, tuple]:
    """(E φ(u)φ(v), E φ′(u)φ′(v)) at correlations ρ and −ρ, 0 < ρ < 1, by sign.

    u = √var1 ξ, v = √var2 (ρξ + √(1−ρ²) η). Turning ξ into −ξ in u alone turns ρ into −ρ,
    so both signs share the inner integrals.
    """
    reach, order = 12, 36
    sd1, sd2 = mp.sqrt(var1), mp.sqrt(var2)
    deviation = sd2 * mp.sqrt(1 - rho * rho)
    marks = grid(reach, 1) if deviation > mpf("0.1") else grid(reach, 1)[::2]
    panels = [(a, b, gaussian_panels((a, b), 30)) for a, b in pairwise(marks)]
    nodes, weights = gaussian_panels(outer_ends(phi, sd1, sd2, rho, reach), order)
    inner = [conditional_means(phi, sd2 * rho * x, deviation, panels) for x in nodes]
    answer = {}
    for sign in (1, -1):
        outer = [phi.jet(sign * sd1 * x) for x in nodes]
        answer[sign] = tuple(
            mp.fsum(w * f[i] * g[i] for w, f, g in zip(weights, outer, inner, strict=True))
            for i in (0, 1)
        )
    return answer


def line_rule(kinks: Iterable[mpf]) -> Rule:
    return gaussian_panels(grid(13, 2) + within(kinks, 13), 40)


def collinear_pair(phi: Activation, var1: mpf, var2: mpf, sign: int) -> tuple[mpf, mpf]:
    """Return the two expectations at ρ = ±1."""
    sd1, sd2 = mp.sqrt(var1), sign * mp.sqrt(var2)
    nodes, weights = line_rule(k / sd for k in phi.kinks for sd in (sd1, sd2))
    jets = [(phi.jet(sd1 * x), phi.jet(sd2 * x)) for x in nodes]
    value, derivative = (mp.fdot(weights, [f[i] * g[i] for f, g in jets]) for i in (0, 1))
    return value, derivative


def independent_pair(phi: Activation, var1: mpf, var2: mpf) -> tuple[mpf, mpf]:
    """Return the two expectations at ρ = 0: products of one-dimensional means."""
    value = derivative = mpf(1)
    for sd in (mp.sqrt(var1), mp.sqrt(var2)):
        nodes, weights = line_rule(k / sd for k in phi.kinks)
        values, slopes = zip(*(phi.jet(sd * x) for x in nodes), strict=True)
        value *= mp.fdot(weights, values)
        derivative *= mp.fdot(weights, slopes)
    return value, derivative


def pair_vanishes(phi: Activation, correlation: float) -> tuple[bool, bool]:
    """Whether the value and the derivative are zero by symmetry or by disjoint supports."""
    if correlation == 0:
        return phi.coefficient_vanishes(0), phi.coefficient_vanishes(1)
    disjoint = correlation == -1 and phi.name in {"relu", "normalized_relu"}
    return disjoint, disjoint


def pair_records(phi: Activation, var1: float, var2: float, size: float) -> list[Record]:
    """Return the lines of pairs.json with |ρ| = `size`."""
    one, two = exact(var1), exact(var2)
    if size == 0:
        numbers = {0.0: independent_pair(phi, one, two)}
    elif size == 1:
        numbers = {float(s): collinear_pair(phi, one, two, s) for s in (1, -1)}
    else:
        both = correlated_pairs(phi, one, two, exact(size))
        numbers = {size: both[1], -size: both[-1]}
    records = []
    for correlation, pair in numbers.items():
        texts = [
            decimal(x, 20, z, "1e-24")
            for x, z in zip(pair, pair_vanishes(phi, correlation), strict=True)
        ]
        records.append({
            "activation": phi.name, "parameters": phi.parameters, "var1": var1, "var2": var2,
            "correlation": correlation, "value": texts[0], "derivative": texts[1],
        })  # fmt: skip
    return records


# --- checks by other ways ----------------------------------------------------------------------


def agree(what: str, one: mpf, other: mpf, relative: str, absolute: str = "1e-60") -> None:
    """Fail loudly when two numbers that must be equal are not."""
    if abs(one - other) > mpf(relative) * abs(other) + mpf(absolute):
        raise ArithmeticError(f"{what}: {mp.nstr(one, 32)} against {mp.nstr(other, 32)}")


def moment_closed_forms(tau: mpf) -> list[tuple[str, str, mpf]]:
    """Known moments as (activation with default parameters, moment, value)."""
    root = mp.sqrt(2 * mp.pi)
    damp = mp.exp(-(tau**2) / 2)
    clip = mp.erf(1 / (tau * mp.sqrt(2)))
    return [
        ("relu", "mean", tau / root), ("relu", "first", mpf("0.5")),
        ("relu", "second", 1 / (tau * root)), ("relu", "square", tau**2 / 2),
        ("relu", "square_second", mpf(1)), ("relu", "derivative_square", mpf("0.5")),
        ("normalized_relu", "square", tau**2), ("normalized_relu", "square_second", mpf(2)),
        ("abs", "mean", 2 * tau / root), ("abs", "second", 2 / (tau * root)),
        ("abs", "derivative_square", mpf(1)), ("abs", "square_second", mpf(2)),
        ("leaky_relu", "first", mpf("0.9")), ("leaky_relu", "mean", mpf("0.4") * tau / root),
        ("leaky_relu", "derivative_square", mpf("0.85")),
        ("identity", "first", mpf(1)), ("identity", "square", tau**2),
        ("cos", "mean", damp), ("cos", "second", -damp), ("sin", "first", damp),
        ("cos", "square", (1 + damp**4) / 2), ("sin", "square_second", 2 * damp**4),
        ("erf", "first", 2 / mp.sqrt(mp.pi * (1 + 2 * tau**2))),
        ("erf", "square", 2 / mp.pi * mp.asin(2 * tau**2 / (1 + 2 * tau**2))),
        ("gelu", "mean", tau**2 / mp.sqrt(2 * mp.pi * (1 + tau**2))),
        ("gelu", "first", mpf("0.5")), ("swish", "first", mpf("0.5")),
        ("softplus", "first", mpf("0.5")),
        ("elu", "mean", tau / root + mp.exp(tau**2 / 2) * mp.ncdf(-tau) - mpf("0.5")),
        ("elu", "first", mpf("0.5") + mp.exp(tau**2 / 2) * mp.ncdf(-tau)),
        ("hard_tanh", "first", clip), ("hard_tanh", "derivative_square", clip),
        ("hard_tanh", "square",
         tau**2 * clip + 1 - clip - 2 * tau / root * mp.exp(-1 / (2 * tau**2))),
        ("piecewise_linear", "second",
         (mpf("0.4") * mp.npdf(1 / tau) + mpf("0.7") * mp.npdf(0)
          - mpf("1.2") * mp.npdf(mpf("1.5") / tau)) / tau),
        ("polynomial", "mean", mpf("0.3") - tau**2 / 2),
        ("polynomial", "first", 1 + mpf("0.75") * tau**2), ("polynomial", "second", mpf(-1)),
        ("hermite", "mean", mpf("0.2") + mpf("0.4") * (tau**2 - 1) / mp.sqrt(2)),
    ]  # fmt: skip


DEFAULTS = {"elu": {"alpha": 1.0}, "hard_tanh": {"scale": 1.0, "clip": 1.0}}


def check_moments(records: Sequence[Record]) -> int:
    """Stored moments against closed forms and against mpmath's own quadrature."""
    checked = 0
    stored = {
        (r["activation"], r["tau"]): r
        for r in records
        if DEFAULTS.get(r["activation"], r["parameters"]) == r["parameters"]
    }
    for scale in SCALES:
        tau = exact(scale)
        for name, moment, expected in moment_closed_forms(tau):
            text = stored[name, scale][moment]
            agree(f"{name}, {moment}, τ = {scale}", mpf(text), expected, "1e-28")
            checked += 1
        for k in range(HERMITE_TERMS):
            size = tau**k / mp.sqrt(mp.factorial(k)) * mp.exp(-(tau**2) / 2)
            name, expected = ("sin" if k % 2 else "cos"), (-1) ** (k // 2) * size
            text = stored[name, scale]["hermite"][k]
            agree(f"{name}, coefficient {k}", mpf(text), expected, "1e-28")
            checked += 1
    for k, c in enumerate(("0.2", "0.7", "0.4", "-0.3")):
        agree("hermite at τ = 1", mpf(stored["hermite", 1.0]["hermite"][k]), mpf(c), "1e-28")
        checked += 1
    by_name = {phi.name: phi for phi in activations()}
    for name in ("tanh", "arctan", "swish", "softplus"):
        for k in (0, 1, 3, 10):
            jet = by_name[name].jet
            integral = mp.quad(
                lambda x, jet=jet, k=k: mp.npdf(x) * hermite_values(x, 12)[k] * jet(x)[0],
                mp.linspace(-17, 17, 35),
            )
            text = stored[name, 1.0]["hermite"][k]
            agree(f"{name}, {k}, mp.quad", mpf(text), integral, "1e-28", "1e-45")
            checked += 1
    return checked


def mehler_coefficients(phi: Activation, var: mpf, terms: int) -> tuple[list[mpf], list[mpf]]:
    """E[φ(√var ξ) h_k(ξ)] and the same of φ′."""
    sd = mp.sqrt(var)
    rule = gaussian_panels(grid(17, 3) + within([k / sd for k in phi.kinks], 17), 36)
    values, slopes = zip(*(phi.jet(sd * x) for x in rule[0]), strict=True)
    return hermite_coefficients(values, rule, terms), hermite_coefficients(slopes, rule, terms)


def mehler_pair(one: Sequence[list[mpf]], two: Sequence[list[mpf]], rho: mpf) -> list[mpf]:
    """Σ_k a_k(√var1) a_k(√var2) ρ^k, for φ and for φ′."""
    powers = [rho**k for k in range(len(one[0]))]
    return [mp.fdot(powers, [a * b for a, b in zip(one[i], two[i], strict=True)]) for i in (0, 1)]


def plackett_pair(phi: Activation, var1: mpf, var2: mpf, rho: mpf) -> tuple[mpf, mpf]:
    """Pair expectations of a piecewise-linear φ from ∂E[φ′φ′]/∂cov = Σ J_k J_l p(k, l).

    J_k is the jump of φ′ at k and p the bivariate density; E[φφ] has E[φ′φ′] as its derivative.
    """
    sd1, sd2 = mp.sqrt(var1), mp.sqrt(var2)
    start_value, start_slope = independent_pair(phi, var1, var2)
    near = mpf("1e-9")
    jumps = [(k, phi.jet(k + near)[1] - phi.jet(k - near)[1]) for k in phi.kinks]

    def bend(angle: mpf) -> mpf:
        r, c = mp.sin(angle), mp.cos(angle)
        total = mpf(0)
        for k, jump1 in jumps:
            for m, jump2 in jumps:
                x, y = k / sd1, m / sd2
                exponent = -((x - r * y) ** 2 / (2 * c * c)) - y * y / 2
                total += jump1 * jump2 * mp.exp(exponent)
        return total / (2 * mp.pi)

    end = mp.asin(rho)
    # Towards |ρ| = 1 the terms with x ≠ y switch off over a width cos(angle): graded panels.
    gap = mp.pi / 2 - abs(end)
    steps = [gap * 2**j for j in range(12, 0, -1) if gap * 2**j < 1.5]
    ends = [mpf(0), *(mp.sign(rho) * (mp.pi / 2 - step) for step in steps), end]
    slope = start_slope + mp.quad(bend, ends)
    moved = mp.quad(lambda angle: (rho - mp.sin(angle)) * bend(angle), ends)
    return start_value + sd1 * sd2 * (rho * start_slope + moved), slope


def elu_pair(phi: Activation, var1: mpf, var2: mpf, rho: mpf) -> tuple[mpf, mpf]:
    """Pair expectations of elu with the inner expectation in closed form."""
    alpha = exact(phi.parameters["alpha"])
    sd1, sd2 = mp.sqrt(var1), mp.sqrt(var2)
    s = sd2 * mp.sqrt(1 - rho * rho)

    def inner(m: mpf) -> tuple[mpf, mpf]:
        tail = alpha * mp.exp(m + s * s / 2) * mp.ncdf(-(m + s * s) / s)
        above = mp.ncdf(m / s)
        return m * above + s * mp.npdf(m / s) + tail - alpha * mp.ncdf(-m / s), above + tail

    nodes, weights = gaussian_panels(outer_ends(phi, sd1, sd2, abs(rho), 12), 36)
    jets = [(phi.jet(sd1 * x), inner(sd2 * rho * x)) for x in nodes]
    value, derivative = (mp.fdot(weights, [f[i] * g[i] for f, g in jets]) for i in (0, 1))
    return value, derivative


def check_pairs(records: Sequence[Record]) -> int:
    """Every stored pair with ρ ≠ 0 against a second way that has no double integral.

    Mehler's series for smooth φ (400 terms reach |ρ| = 1) and for every φ at |ρ| = 1/2,
    Plackett's identity for piecewise-linear φ, the closed inner expectation for elu.
    """
    stored = {key(r): r for r in records}
    checked = 0
    for phi in activations():
        smooth = phi.regularity == "smooth"
        terms = 100 if not smooth else 700 if phi.name == "arctan" else 400
        coefficients = {
            var: mehler_coefficients(phi, exact(var), terms) for pair in VARIANCES for var in pair
        }
        for (var1, var2), correlation in product(VARIANCES, CORRELATIONS[1:]):
            one, two, rho = exact(var1), exact(var2), exact(correlation)
            ways = []
            if smooth or abs(correlation) == 0.5:
                ways.append(mehler_pair(coefficients[var1], coefficients[var2], rho))
            if phi.regularity == "piecewise_linear" and abs(correlation) < 1:
                ways.append(plackett_pair(phi, one, two, rho))
            if phi.name == "elu" and abs(correlation) < 1:
                ways.append(elu_pair(phi, one, two, rho))
            name = pair_key(phi, var1, var2, correlation)
            for way in ways:
                for what, expected in zip(("value", "derivative"), way, strict=True):
                    found = mpf(stored[name][what])
                    agree(f"{what}, {name}", found, expected, "2e-17", "1e-27")
                    checked += 1
        log.info("checked pairs of %s %s", phi.name, phi.parameters)
    return checked


# --- tables ------------------------------------------------------------------------------------


def decimal(number: mpf, digits: int, vanishes: bool, below: str) -> str:
    """Return `number` as text; "0" only for what is known to vanish and was computed so."""
    if vanishes != (abs(number) < mpf(below)):
        raise ArithmeticError(f"expected zero: {vanishes}; computed {mp.nstr(number, 20)}")
    return "0" if vanishes else mp.nstr(number, digits)


def key(record: Record) -> str:
    """Return what identifies a record: everything but its numbers."""
    names = ("activation", "parameters", "tau", "var1", "var2", "correlation")
    return json.dumps([record.get(name) for name in names])


def pair_key(phi: Activation, var1: float, var2: float, correlation: float) -> str:
    record = {"activation": phi.name, "parameters": phi.parameters}
    return key(record | {"var1": var1, "var2": var2, "correlation": correlation})


def load(path: Path) -> dict[str, Record]:
    return {key(r): r for r in json.loads(path.read_text())} if path.exists() else {}


def save(path: Path, records: Iterable[Record]) -> None:
    """Write one record per line, atomically."""
    text = "[\n" + ",\n".join(json.dumps(r, ensure_ascii=False) for r in records) + "\n]\n"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def write_moments(path: Path) -> None:
    done = load(path)
    table = [(phi, scale) for phi in activations() for scale in SCALES]
    order = [key({"activation": p.name, "parameters": p.parameters, "tau": s}) for p, s in table]
    for name, (phi, scale) in zip(order, table, strict=True):
        if name not in done:
            done[name] = moment_record(phi, scale)
            save(path, [done[n] for n in order if n in done])
            log.info("moments of %s %s at τ = %s", phi.name, phi.parameters, scale)


def write_pairs(path: Path) -> None:
    done = load(path)
    table = [(phi, *v, c) for phi in activations() for v in VARIANCES for c in CORRELATIONS]
    order = [pair_key(*entry) for entry in table]
    for name, (phi, one, two, correlation) in zip(order, table, strict=True):
        if name not in done:
            new = pair_records(phi, one, two, abs(correlation))
            done.update((key(r), r) for r in new)
            save(path, [done[n] for n in order if n in done])
            log.info("pairs of %s %s, %s, %s, ±%s", phi.name, phi.parameters, one, two, correlation)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("moments", "pairs", "check"))
    task = parser.parse_args(arguments).task
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    moment_path, pair_path = FOLDER / "moments.json", FOLDER / "pairs.json"
    if task == "moments":
        with mpmath.workdps(MOMENT_DIGITS):
            write_moments(moment_path)
            log.info("%d moments checked", check_moments(list(load(moment_path).values())))
    elif task == "pairs":
        with mpmath.workdps(PAIR_DIGITS):
            write_pairs(pair_path)
    else:
        with mpmath.workdps(MOMENT_DIGITS):
            log.info("%d moments checked", check_moments(list(load(moment_path).values())))
        with mpmath.workdps(PAIR_DIGITS):
            log.info("%d pairs checked", check_pairs(list(load(pair_path).values())))


if __name__ == "__main__":
    main()
