"""Notebooks from the examples that are written in cells: run it to write notebooks/*.ipynb.

The scripts are the source; the notebooks hold no outputs, and a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [p for p in sorted((ROOT / "examples").glob("*.py")) if "\n# %%\n" in p.read_text()]


def notebook(source: Path) -> nbformat.NotebookNode:
    """Return the notebook of a script in the percent format."""
    made = jupytext.read(source, fmt="py:percent")
    made.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    for index, cell in enumerate(made.cells):
        cell.id = f"cell-{index}"  # random by default
        cell.metadata = {}
    return made


def target(source: Path) -> Path:
    """Return where the notebook of a script is kept."""
    return ROOT / "notebooks" / f"{source.stem}.ipynb"


if __name__ == "__main__":
    for source in SOURCES:
        target(source).parent.mkdir(exist_ok=True)
        nbformat.write(notebook(source), target(source))
