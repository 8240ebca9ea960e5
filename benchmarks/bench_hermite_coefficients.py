"""Hermite coefficients of every activation: 10,000 scales over three decades, 64 terms.

The ratio is to the matrix product that the coefficients amount to: (scales × nodes) @
(nodes × terms).
"""

from __future__ import annotations

import numpy as np
from measure import best_time, store

from notsodeep import activations
from notsodeep.numerics.quadrature import gaussian_rule

SCALES, TERMS = 10_000, 64
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


def main() -> None:
    """Measure every case and store the rows."""
    rng = np.random.default_rng(0)
    scales = np.exp(rng.uniform(np.log(0.03), np.log(30.0), SCALES))
    nodes = gaussian_rule(scales).nodes.shape[1]
    left, right = rng.normal(size=(SCALES, nodes)), rng.normal(size=(nodes, TERMS))
    product = best_time(lambda: left @ right)
    rows = []
    for activation in CASES:
        seconds = best_time(lambda a=activation: a.hermite_coefficients(scales, TERMS), repeats=3)
        rows.append({"activation": str(activation), "seconds": seconds, "ratio": seconds / product})
    store("hermite_coefficients", rows)


if __name__ == "__main__":
    main()
