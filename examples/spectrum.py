"""Eigenvalues of a DEQ's exact kernel on a Gaussian mixture, with the law that predicts them.

Run ``python examples/spectrum.py [--out spectrum.png]``; a few seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import notsodeep as nsd
from notsodeep.plotting import save_figure, spectrum_figure


def main(out: str | Path = "spectrum.png") -> Path:
    """Compute kernel, equivalent and law, print how far apart they are, and draw."""
    mixture = nsd.data.paper_mixture(dimension=1000)
    X, y = mixture.sample(800, rng=0)
    stats = mixture.statistics(X, y)
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(stats.tau0)

    equivalent = nsd.equivalent(deq, X, stats)
    law = nsd.limiting_spectrum(equivalent)  # knows the population, not the kernel
    comparison = nsd.compare(nsd.conjugate_kernel(deq, X), equivalent, law)
    print(comparison)
    return save_figure(spectrum_figure(comparison, "conjugate kernel of a ReLU DEQ"), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="spectrum.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
