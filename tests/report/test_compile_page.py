"""The report: one file, everything escaped, the verdict first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.compilation.random_deq import CompileSettings, compile_deq
from notsodeep.errors import DataCorrupted, InvalidInput
from notsodeep.report.compile_page import headline, verdict_colour, write_compile_page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    X = rng.standard_normal((160, 12)) + 2.0 * y[:, None]
    path = folder / "<script>alert(1)<'script>.npz"
    np.savez(path, X=X, y=y)
    settings = CompileSettings(
        nsd.DeepEquilibrium("tanh", 0.2), data=str(path), test_samples=40,
        family="hard_tanh", refine=False, width=32, seeds=2,
    )  # fmt: skip
    out = folder / "run"
    compile_deq(settings, out)
    return out


def test_page_is_one_safe_file(run: Path) -> None:
    page = write_compile_page(run).read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page.replace("xlink:href", "href"))
    assert page.count("<svg") == 4
    assert page.count('aria-label="') >= 4
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    # The verdict and its rule come before any table.
    assert page.index("Rule: replaceable if") < page.index("<table")


def test_page_is_the_same_every_time(run: Path) -> None:
    assert write_compile_page(run).read_bytes() == write_compile_page(run).read_bytes()


def test_an_unfinished_run_has_no_page(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "pieces" / "timing.json").unlink()
    with pytest.raises(DataCorrupted, match="not finished"):
        write_compile_page(copy)
    with pytest.raises(InvalidInput, match="holds no compile run"):
        write_compile_page(tmp_path)


@pytest.mark.parametrize(
    ("gap", "interval", "colour", "words"),
    [
        (True, (-0.2, 0.3), "yes", "can be replaced by a one-hidden-layer hard tanh network"),
        (True, (-0.9, 0.9), "open", "too few draws"),
        (True, (-3.0, -1.0), "no", "should not be replaced"),
        (False, (-0.1, 0.1), "no", "kernels differ too much"),
    ],
)
def test_the_verdict_follows_the_evidence(
    gap: bool, interval: tuple[float, float], colour: str, words: str
) -> None:
    summary: dict[str, Any] = {
        "kernel_close": gap,
        "replaceable": gap and max(map(abs, interval)) <= 0.5,
        "accuracy_difference": interval,
        "layers": 1,
        "family": "hard_tanh",
    }
    assert verdict_colour(summary) == colour
    assert words in headline(summary)
