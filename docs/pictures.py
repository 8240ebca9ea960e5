"""Draw the pictures of the tour and of the gallery, in the house style: images/tour-*.png and more.

A block of docs/tour.md is followed by the picture that it draws; blocks are run as they stand.
Without names all are drawn: ``python docs/pictures.py [tour] [first_deq ...]``.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

from notsodeep.plotting import house_style

DOCS = Path(__file__).resolve().parents[1]
IMAGES = DOCS / "images"
BLOCK, PICTURE = r"^```python\n(.*?)^```", r"(?:\n\n!\[.*?\]\((images/.*?)\))?"
PART = re.compile(BLOCK + PICTURE, re.DOTALL | re.MULTILINE)


def tour() -> None:
    """Run the blocks of the tour, and keep what each has drawn."""
    names: dict[str, object] = {}
    for block, picture in PART.findall((DOCS / "tour.md").read_text()):
        exec(block, names)
        if picture:
            plt.gcf().savefig(DOCS / picture, dpi=110)
            plt.close("all")


def example(name: str) -> None:
    """Run an example in the directory of the pictures."""
    ran = runpy.run_path(str(DOCS.parent / "examples" / f"{name}.py"))
    if "main" in ran:
        ran["main"](f"{name}.png")
    plt.close("all")


if __name__ == "__main__":
    every = ["tour", *(path.stem for path in sorted((DOCS.parent / "examples").glob("*.py")))]
    os.chdir(IMAGES)
    with house_style(), mpl.rc_context({"figure.figsize": (5.2, 3.6)}):
        for name in sys.argv[1:] or every:
            tour() if name == "tour" else example(name)
    (IMAGES / "spectrum.pdf").unlink(missing_ok=True)
