"""An activation of your own, typed as a formula: its DEQ, and the shallow network for it.

Run ``python examples/own_activation.py [--out own_activation.png]``; some seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import notsodeep as nsd
from notsodeep.plotting import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure

FORMULA = "x * tanh(softplus(x))"  # mish


def main(out: str | Path = "own_activation.png") -> Path:
    """Match the DEQ on digits, print match and certificate, draw activations and kernels."""
    mish = nsd.activations.from_formula(FORMULA)
    data = nsd.data.load("digits", samples=120, test_samples=100, rng=0)
    match = nsd.match(
        nsd.DeepEquilibrium(mish, sigma_a2=0.3),
        data.X,
        family="piecewise_linear",
        refine=True,
    )
    print(match)
    certificate = match.certify(data.X_test)
    print(certificate)

    angle = np.linspace(0.0, np.pi, 181)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    unmatched = nsd.ExplicitNetwork([mish]).centred(match.tau0)
    with house_style():
        figure, (left, right) = new_figure(2, width=4.4, height=3.4)
        x = np.linspace(-3.0, 3.0, 301)
        left.plot(x, match.model.activation(x), color=DEEP, label="mish, centred")
        left.plot(x, match.network.activations[0](x), color=SHALLOW, label="its shallow twin's")
        left.set_xlabel("x")
        left.set_title("activations")
        left.legend(frameon=False)
        for model, colour, style, label in (
            (match.model, DEEP, "-", "mish DEQ"),
            (match.network, SHALLOW, "--", "shallow twin"),
            (unmatched, MUTED, "-", "mish, one layer"),
        ):
            kernel = nsd.kernel(model, circle[:1], circle, convention="feature")[0]
            right.plot(np.degrees(angle), kernel, style, color=colour, label=label)
        right.set_xlabel("angle between two inputs of norm one (degrees)")
        right.set_title("feature kernel")
        right.legend(frameon=False)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="own_activation.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
