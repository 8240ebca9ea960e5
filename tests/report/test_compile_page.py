"""The report: one file, everything escaped, the verdict first."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from browser import fits_any_screen
from notsodeep.compilation.record import Compilation
from notsodeep.compilation.verdict import headline, verdict_word
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
    return Compilation.load(run).report(run / "report.html")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return written(run).read_text()


def test_page_is_one_safe_file(page: str) -> None:
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href"))
    assert page.count("<svg") == 8  # widths and hyper-parameters among them
    assert page.count('aria-label="') >= 4
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    # The verdict and its rule come before any table.
    assert page.index("Rule: replaceable if") < page.index("<table")


def test_hyper_parameters_are_carried_over(run: Path, page: str) -> None:
    compiled = Compilation.load(run)
    assert "widths" in compiled.records
    seen = compiled.transfer
    assert seen is not None
    assert seen.names == ("the DEQ", "the matched network", "the unmatched network")
    sentences = [seen.verdict(name) for name in seen.names[1:]]
    assert set(sentences) < set(compiled.verdict.reasons)
    assert seen.rule in page
    word = "yes" if seen.holds("the matched network") else "no"
    assert f"To the matched network: <b>{word}</b>" in page


def test_page_says_by_what_and_when_it_was_written(page: str) -> None:
    assert f"Written by notsodeep {nsd.__version__} on {datetime.now(UTC).date()}" in page


@pytest.mark.slow
def test_tables_fit_and_the_dark_reaches_the_figures(run: Path, tmp_path: Path) -> None:
    fits_any_screen(written(run), tmp_path)


def test_page_is_the_same_every_time(run: Path, page: str) -> None:
    assert written(run).read_text() == page


def test_an_unfinished_run_has_no_page(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "pieces" / "timing.json").unlink()
    with pytest.raises(DataCorrupted, match="not finished"):
        written(copy)
    with pytest.raises(InvalidInput, match="holds no compile run"):
        written(tmp_path)


@pytest.mark.parametrize(
    ("gap", "interval", "word", "words"),
    [
        (
            True,
            (-0.2, 0.3),
            "replaceable",
            "replaced by a one-hidden-layer hard tanh network",
        ),
        (True, (-0.9, 0.9), "not shown", "too few draws"),
        (True, (0.07, 0.59), "not shown", "too few draws"),
        (True, (-3.0, -1.0), "not replaceable", "should not be replaced"),
        (False, (-0.1, 0.1), "not replaceable", "kernels differ too much"),
    ],
)
def test_the_verdict_follows_the_evidence(
    gap: bool, interval: tuple[float, float], word: str, words: str
) -> None:
    summary: dict[str, Any] = {
        "kernel_close": gap,
        "replaceable": gap and max(map(abs, interval)) <= 0.5,
        "accuracy_difference": interval,
        "accuracy_limit": 0.5,
        "layers": 1,
        "family": "hard_tanh",
        "network": "network(hard_tanh)",
    }
    assert verdict_word(summary) == word
    assert words in headline(summary)
