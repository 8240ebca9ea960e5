"""The reports: one file, everything escaped, the verdict first."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from browser import fits_any_screen
from notsodeep.errors import DataCorrupted, InvalidInput


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    X = rng.standard_normal((160, 12)) + 2.0 * y[:, None]
    path = folder / "<script>alert(1)<'script>.npz"
    np.savez(path, X=X, y=y)
    out = folder / "run"
    data = nsd.data.load(path, test_samples=40)
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    nsd.compile(deq, data, family="hard_tanh", refine=False, width=32, seeds=2, out=out)
    return out


def written(run: Path) -> Path:
    return nsd.Compilation.load(run).report(run / "report.html")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return written(run).read_text()


def test_page_is_one_safe_file(page: str) -> None:
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href"))
    assert page.count("<svg") == page.count('role="img" aria-label="') == 7
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    # The verdict and its rule come before any table.
    assert page.index("Rule: replaceable if") < page.index("<table")


def test_page_says_what_the_record_says(run: Path, page: str) -> None:
    compiled = nsd.Compilation.load(run)
    seen = compiled.transfer
    assert seen is not None
    word = "yes" if seen.holds("the matched network") else "no"
    assert f"To the matched network: <b>{word}</b>" in page
    assert seen.rule in page
    assert f"{compiled.certificate.unmatched.readout_gap:.3%}" in page
    assert all(point.name in page for point in compiled.front.points)
    assert f"Written by notsodeep {nsd.__version__} on {datetime.now(UTC).date()}" in page


@pytest.mark.slow
def test_tables_fit_and_the_dark_reaches_the_figures(run: Path, tmp_path: Path) -> None:
    fits_any_screen(written(run), tmp_path)


def test_page_is_the_same_every_time(run: Path, page: str) -> None:
    assert written(run).read_text() == page


def test_an_unfinished_run_has_no_page(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "pieces" / "front.json").unlink()
    with pytest.raises(DataCorrupted, match="not finished"):
        written(copy)
    with pytest.raises(InvalidInput, match="directory of a compile run"):
        written(tmp_path)


def test_the_page_of_a_given_network(tmp_path: Path) -> None:
    cell, data = (
        nsd.zoo.load("tanh-digits-64"),
        nsd.data.load("digits", preprocessing="unit_range", samples=300),
    )
    compiled = nsd.compile(cell, data, layers=2)
    page = compiled.report(tmp_path / "report.html").read_text()
    assert "same class" in page
    assert "recurrence dropped" in page
    assert "src=" not in page
    assert compiled.verdict.headline in page
    assert page.count("<svg") == 2
