"""Draw the pictures of the gallery: ``python docs/pictures.py [first_deq ...]``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

from notsodeep.plotting import house_style

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"


def example(name: str) -> None:
    """Run an example in the directory of the pictures."""
    ran = runpy.run_path(str(DOCS.parent / "examples" / f"{name}.py"))
    if "main" in ran:
        ran["main"](f"{name}.png")
    plt.close("all")


if __name__ == "__main__":
    every = [path.stem for path in sorted((DOCS.parent / "examples").glob("*.py"))]
    os.chdir(IMAGES)
    with house_style(), mpl.rc_context({"figure.figsize": (5.2, 3.6)}):
        for name in sys.argv[1:] or every:
            example(name)
    (IMAGES / "spectrum.pdf").unlink(missing_ok=True)
