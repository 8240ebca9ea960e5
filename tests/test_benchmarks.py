"""The benchmarks run, measure what they say, and the page shows what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import clocks
import draw
import measure
import tables
from peers import make_environment

FOLDER = Path(__file__).parents[1] / "benchmarks"
QUICK = ["hermite_coefficients"]
NAMES = sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))
OPTIONS = {"explorer": ["--no-browser"]}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=slow) for name in NAMES]
)
def test_quick_run_writes_rows_and_environment(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / f"bench_{name}.py"), "--quick"]
    command += ["--results", str(tmp_path), *OPTIONS.get(name, [])]
    subprocess.run(command, check=True, capture_output=True)
    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert record["rows"]
    assert record["environment"]["packages"]["numpy"] == np.__version__
    errors = [row["error"] for row in record["rows"] if "error" in row]
    assert all(np.isfinite(errors))
    key = name.replace("_", "-")
    assert "|" in tables.table(key, tmp_path)
    if name in draw.FIGURES:
        figure = draw.FIGURES[name](record)
        assert figure.get_axes()


def test_every_benchmark_has_a_table_and_every_table_a_place_on_the_page() -> None:
    assert {name.replace("_", "-") for name in NAMES} <= set(tables.TABLES)
    page = tables.PAGE.read_text()
    assert {place[2] for place in tables.PLACE.finditer(page)} == {*tables.TABLES, *tables.WHOLE}


def test_the_page_shows_the_stored_results() -> None:
    """Those of the repository: who has measured for himself has results of his own."""
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--", str(measure.RESULTS)],
        cwd=measure.RESULTS,
        capture_output=True,
        text=True,
        check=False,
    )
    if changed.stdout:
        pytest.skip("benchmarks/results differs from what is stored in the repository")
    for place in tables.PLACE.finditer(tables.PAGE.read_text()):
        shown = tables.table(place[2], measure.RESULTS)
        assert shown in place[0], f"{place[2]}: run benchmarks/tables.py and benchmarks/draw.py"


def test_peak_growth_sees_memory_that_is_freed_again() -> None:
    def work() -> int:
        return int(np.ones(50 << 17).sum())  # 50 MiB

    grown = clocks.peak_growth(work)
    if grown is None:
        pytest.skip("this system does not set the high-water mark back")
    assert 45.0 < grown < 70.0
    assert (clocks.peak_growth(lambda: None) or 0.0) < 5.0


def test_times_take_turns() -> None:
    order: list[str] = []
    first, second = clocks.best_times(
        lambda: (order.append("a"), time.sleep(0.02)), lambda: order.append("b"), repeats=2
    )
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert first >= 0.02 > second


def test_results_leave_out_what_was_not_measured(tmp_path: Path) -> None:
    results = measure.Results("some", tmp_path)
    results.add(case="one", seconds=0.5, mebibytes=None)
    results.write(rows=3)
    record = json.loads((tmp_path / "some.json").read_text())
    assert record["about"] == {"rows": 3}
    (row,) = record["rows"]
    assert row.keys() == {"case", "seconds", "load"}
    assert [path.name for path in tmp_path.iterdir()] == ["some.json"]


def test_tables_replace_only_what_stands_between_the_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = measure.Results("cold_start", tmp_path)
    results.add(case="nothing", seconds=0.0123, fastest=0.01, slowest=1.5, ratio=123.4)
    results.write()
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n\n<!-- table: cold-start -->\noutdated\n<!-- end of table -->\n\nAfter.\n"
    )
    command = ["tables.py", "--results", str(tmp_path), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", command)
    for _ in range(2):  # a second time changes nothing
        tables.main()
        text = page.read_text()
        assert "| nothing | 12.3 ms | 123 | 10 ms | 1.5 s |" in text
        assert text.startswith("Before.\n\n<!-- table")
        assert text.endswith("<!-- end of table -->\n\nAfter.\n")
        assert "outdated" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.5e-7, "0.25 µs"),
        (0.0005, "500 µs"),
        (0.9996, "1 s"),
        (3.14159, "3.14 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_seconds_are_written_with_a_unit(value: float, text: str) -> None:
    assert tables.seconds(value) == text


def test_a_missing_peer_is_said_and_not_fatal(tmp_path: Path) -> None:
    from bench_implicit_layer import peer_rows

    assert not make_environment.interpreter(tmp_path / "nowhere").exists()
    (row,) = peer_rows(tmp_path / "nowhere", {"width": 8}, 1)
    assert "make_environment" in row["not_measured"]
