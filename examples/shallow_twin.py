"""Find the shallow twin of a tanh DEQ on handwritten digits, and draw how close the two are.

Run ``python examples/shallow_twin.py [--out shallow_twin.png]``; some seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import notsodeep as nsd
from notsodeep.plotting import match_figure, save_figure


def main(out: str | Path = "shallow_twin.png") -> Path:
    """Match, certify on held-out rows, print and draw."""
    data = nsd.data.load("digits", samples=300, rng=0)
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)

    match = nsd.match(deq, data.X, family="hard_tanh", refine=True)
    print(match)

    certificate = match.certify(data.X_test, data.y_test)
    print(certificate)
    return save_figure(match_figure(match, certificate), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="shallow_twin.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
