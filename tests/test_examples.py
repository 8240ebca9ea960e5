"""Every example runs, draws something, and is in the gallery."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SLOW = {"collapse_in_a_loop", "first_deq", "kernel_classifier"}
SLOW |= {"learning_curves", "trained_deq"}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in EXAMPLES
    ],
)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert (tmp_path / f"{path.stem}.png").stat().st_size > 10_000


def test_the_gallery_shows_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    for path in EXAMPLES:
        assert f"examples/{path.name}" in page, path.name
        assert f"images/{path.stem}.png" in page, path.stem
