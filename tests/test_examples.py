"""Every example runs and draws something, and the gallery shows it.

Examples are scripts with a `main`, or notebooks in cells, which run in a kernel as a reader has it.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = runpy.run_path(str(ROOT / "docs" / "tables" / "notebooks.py"))
SLOW = {"before_training", "collapse_in_a_loop", "first_deq", "kernel_classifier"}
SLOW |= {"learning_curves", "trained_deq"}


def marked(paths: list[Path]) -> list[Any]:
    return [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in paths
    ]


@pytest.mark.parametrize("path", marked([p for p in EXAMPLES if p not in NOTEBOOKS["SOURCES"]]))
def test_script_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = runpy.run_path(str(path))["main"](tmp_path / "figure.png")
    assert output == tmp_path / "figure.png"
    assert output.stat().st_size > 10_000


@pytest.mark.parametrize("path", marked(NOTEBOOKS["SOURCES"]))
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Streamlit, imported by another test, sets it, and the notebook's kernel would inherit it.
    monkeypatch.delenv("MPLBACKEND", raising=False)
    place = {"metadata": {"path": str(tmp_path)}}
    ran = NotebookClient(NOTEBOOKS["notebook"](path), timeout=300, resources=place).execute()
    assert (tmp_path / f"{path.stem}.png").stat().st_size > 10_000
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    shown = [kind for output in outputs for kind in output.get("data", {})]
    assert "image/png" in shown, "figures show themselves, without magic"


def test_there_are_six_notebooks_and_they_are_up_to_date() -> None:
    kept = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert kept == [NOTEBOOKS["target"](source) for source in NOTEBOOKS["SOURCES"]]
    assert len(kept) == 6
    for source, target in zip(NOTEBOOKS["SOURCES"], kept, strict=True):
        made = nbformat.writes(NOTEBOOKS["notebook"](source))
        assert target.read_text().rstrip() == made.rstrip(), "run docs/tables/notebooks.py"


def test_the_gallery_shows_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    for path in EXAMPLES:
        assert f"examples/{path.name}" in page, path.name
        assert f"images/{path.stem}.png" in page, path.stem
