"""Draw where a DEQ's variance settles, and how two inputs' features correlate.

Run: python examples/gaussian_calculus.py [output.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd
from notsodeep.activations import named, pair_expectations

NAMES = ("relu", "tanh", "swish", "cos")
SIGMA_A2 = 0.6


def main(output: str = "gaussian_calculus.png") -> Path:
    """Write the figure and return its path."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    q = np.linspace(0.01, 1.25, 200)
    rho = np.linspace(-1.0, 1.0, 201)
    for name in NAMES:
        activation = named(name)
        deq = nsd.DeepEquilibrium(activation, sigma_a2=SIGMA_A2)
        tau = deq.centred(tau0=1.0).tau_star
        image = SIGMA_A2 * activation.moments(np.sqrt(q)).variance + deq.sigma_b2
        (line,) = left.plot(q, image, label=name)
        left.plot(tau**2, tau**2, "o", color=line.get_color())

        centred = deq.centred(tau0=1.0).activation
        pairs = pair_expectations(centred, tau**2, tau**2, rho * tau**2)
        right.plot(rho, pairs.value / centred.moments(tau).square, label=name)
        print(f"{name:6s} tau* = {tau:.6f}")
    left.plot(q, q, "k:", linewidth=1)
    left.set(
        xlabel=r"variance $\tau^2$ going in",
        ylabel=r"$\sigma_a^2\,\mathrm{Var}\,\varphi(\tau\xi) + \sigma_b^2$",
        title=rf"One layer of a DEQ, $\sigma_a^2 = {SIGMA_A2}$: dots are $\tau_*^2$",
    )
    right.plot(rho, rho, "k:", linewidth=1)
    right.set(
        xlabel="correlation of two pre-activations",
        ylabel="correlation of the features",
        title=r"Centred features at $\tau_*$",
    )
    right.legend(frameon=False)
    path = Path(output)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main(*sys.argv[1:2])
