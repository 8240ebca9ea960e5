"""Eigenvalues of a cell of two layers with biases: exact, by its equivalent, by the sharper one.

Run ``python examples/cell_spectrum.py [--out cell_spectrum.png]``; some seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import notsodeep as nsd
from notsodeep.plotting import house_style, new_figure, save_figure

P = 600
CELL = [
    nsd.Dense("erf", weight=0.5, inject=0.6, bias=0.1),
    nsd.Dense("relu", weight=0.8, inject=0.3, bias=0.05),
]


def main(out: str | Path = "cell_spectrum.png") -> Path:
    """Print the gaps of both equivalents; draw the bulk, and how far every eigenvalue is off."""
    deq = nsd.DeepEquilibrium(cell=CELL)
    mixture = nsd.data.paper_mixture(dimension=P)
    X, y = mixture.sample(int(0.8 * P), rng=0)
    K = nsd.kernel(deq, X, convention="preactivation")
    exact = np.linalg.eigvalsh(K)
    with house_style():
        figure, (left, right) = new_figure(2, width=4.6, height=3.8)
        inside = exact < np.quantile(exact, 0.985)
        left.hist(exact[inside], bins=40, density=True, color="#c3c8d1", label="exact")
        forms = ((1, "equivalent", "C1"), (2, "sharper equivalent", "C0"))
        for order, name, colour in forms:
            other = nsd.equivalent(deq, X, y, mixture, order=order, convention="preactivation")
            gap = np.linalg.norm(K - other.to_dense(), 2)
            print(f"{name}: operator-norm gap {gap:.3f} beside a norm of {exact[-1]:.0f}")
            values = np.linalg.eigvalsh(other.to_dense())
            bins = np.histogram_bin_edges(exact[inside], 40)
            left.hist(values, bins=bins, density=True, histtype="step", color=colour, label=name)
            right.loglog(exact, abs(values - exact) / exact, ".", color=colour, label=name)
        left.set_xlabel("eigenvalue")
        left.set_ylabel("density")
        left.set_title("bulk of the pre-activation CK")
        left.legend(frameon=False)
        right.set_xlabel("exact eigenvalue")
        right.set_ylabel("relative error, in order")
        right.set_title("spikes included")
        right.legend(frameon=False)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="cell_spectrum.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
