"""Hermite coefficients of every activation: 10,000 scales over three decades, 64 terms.

The ratio is to the matrix product that the coefficients amount to: (scales × nodes) @
(nodes × terms).  The error is against a rule of another kind, tanh–sinh between the kinks, at three
of the scales, relative to the largest coefficient.
"""

from __future__ import annotations

import itertools

import numpy as np

from clocks import best_times, peak_growth
from measure import Results, benchmark_parser
from notsodeep import activations
from notsodeep.activations import Activation
from notsodeep.numerics.quadrature import gaussian_rule

TERMS = 64
PARAMETRISED = ("piecewise_linear", "polynomial", "hermite")
CASES = [
    *(activations.named(name) for name in activations.names() if name not in PARAMETRISED),
    activations.piecewise_linear((-1.0, 0.0, 1.5), (0.1, 0.5, 1.2, 0.0)),
    activations.polynomial((0.3, 1.0, -0.5, 0.25)),
    activations.hermite((0.2, 0.7, 0.4, -0.3)),
    activations.centre(activations.named("swish"), 1.0),
    activations.from_formula("x / (1 + abs(x))", kinks=(0.0,)),
    activations.from_formula("tanh(x) + 0.2 * abs(x - 1)", kinks=(1.0,)),
]
REACH = 16.0  # where the Gaussian density, even times h_63, is below rounding


def tanh_sinh(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the double exponential rule on an interval."""
    step = 1 / 64
    t = step * np.arange(-240, 241)
    inner = 0.5 * np.pi * np.sinh(t)
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.tanh(inner)
    weights = 0.25 * np.pi * step * (high - low) * np.cosh(t) / np.cosh(inner) ** 2
    return nodes, weights


def slow_coefficients(activation: Activation, scale: float) -> np.ndarray:
    """E[φ(τξ) h_k(ξ)], k < TERMS, interval by interval of at most one unit."""
    kinks = [kink / scale for kink in activation.kinks]
    # Smooth activations have their features within a few units of x = τξ.
    inner = [k / scale for k in range(-8, 9)] if scale > 1.0 else []
    ends = sorted({*np.arange(-REACH, REACH + 1), *kinks, *inner})
    ends = [end for end in ends if abs(end) <= REACH]
    total = np.zeros(TERMS)
    for low, high in itertools.pairwise(ends):
        xi, weights = tanh_sinh(float(low), float(high))
        values = weights * activation(scale * xi) * np.exp(-0.5 * xi**2) / np.sqrt(2 * np.pi)
        before, current = np.zeros_like(xi), np.ones_like(xi)
        for k in range(TERMS):
            total[k] += values @ current
            following = (xi * current - np.sqrt(k) * before) / np.sqrt(k + 1)
            before, current = current, following
    return total


def main() -> None:
    """Measure every case and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    count = 200 if options.quick else 10_000
    rng = np.random.default_rng(0)
    scales = np.exp(rng.uniform(np.log(0.03), np.log(30.0), count))
    nodes = gaussian_rule(scales).nodes.shape[1]
    left, right = rng.normal(size=(count, nodes)), rng.normal(size=(nodes, TERMS))
    checked = [int(np.argmin(scales)), 0, int(np.argmax(scales))]
    results = Results("hermite_coefficients", options.results)
    for activation in CASES[:: 8 if options.quick else 1]:

        def work(activation: Activation = activation) -> np.ndarray:
            return activation.hermite_coefficients(scales, TERMS)

        seconds, product = best_times(work, lambda: left @ right, repeats=3)
        found = work()
        errors = []
        for place in checked:
            reference = slow_coefficients(activation, float(scales[place]))
            errors.append(np.abs(found[place] - reference).max() / np.abs(reference).max())
        results.add(
            case=str(activation),
            seconds=seconds,
            product=product,
            ratio=seconds / product,
            error=float(max(errors)),
            mebibytes=peak_growth(work),
        )
    results.write(scales=count, terms=TERMS, nodes=nodes)


if __name__ == "__main__":
    main()
