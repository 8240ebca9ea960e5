"""Where a DEQ's variance settles, and how the features of two inputs correlate.

Run ``python examples/gaussian_calculus.py [--out gaussian_calculus.png]``; a second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import notsodeep as nsd
from notsodeep.activations import named, pair_expectations
from notsodeep.plotting import house_style, new_figure, save_figure

NAMES = ("relu", "tanh", "swish", "cos")
SIGMA_A2 = 0.6


def main(out: str | Path = "gaussian_calculus.png") -> Path:
    """Print τ* of four activations; draw the map it is the fixed point of, and correlations."""
    q = np.linspace(0.01, 1.25, 200)
    rho = np.linspace(-1.0, 1.0, 201)
    with house_style():
        figure, (left, right) = new_figure(2, width=4.6, height=3.8)
        for name in NAMES:
            activation = named(name)
            deq = nsd.DeepEquilibrium(activation, sigma_a2=SIGMA_A2)
            centred = deq.centred(tau0=1.0)
            tau = centred.tau_star
            image = SIGMA_A2 * activation.moments(np.sqrt(q)).variance + deq.sigma_b2
            (line,) = left.plot(q, image, label=name)
            left.plot(tau**2, tau**2, "o", color=line.get_color())
            pairs = pair_expectations(centred.activation, tau**2, tau**2, rho * tau**2)
            right.plot(rho, pairs.value / centred.activation.moments(tau).square, label=name)
            print(f"{name:6s} tau* = {tau:.6f}")
        left.plot(q, q, "k:", linewidth=1)
        left.set_xlabel(r"variance $\tau^2$ going in")
        left.set_ylabel(r"$\sigma_a^2\,\mathrm{Var}\,\varphi(\tau\xi) + \sigma_b^2$")
        left.set_title(rf"one layer of a DEQ, $\sigma_a^2 = {SIGMA_A2}$: dots are $\tau_*^2$")
        right.plot(rho, rho, "k:", linewidth=1)
        right.set_xticks([-1.0, -0.5, 0.0, 0.5, 1.0])
        right.set_xlabel("correlation of two pre-activations")
        right.set_ylabel("correlation of the features")
        right.set_title(r"centred features at $\tau_*$")
        right.legend(frameon=False)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="gaussian_calculus.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
