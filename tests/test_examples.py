"""Every example runs and draws something, and the gallery shows it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    output = module.main(tmp_path / "figure.png")
    assert output == tmp_path / "figure.png"
    assert output.stat().st_size > 10_000


def test_the_gallery_shows_every_example() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    for path in EXAMPLES:
        assert f"examples/{path.name}" in page, path.name
        assert f"images/{path.stem}.png" in page, path.stem
