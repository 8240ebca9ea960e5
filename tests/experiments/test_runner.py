"""Experiments run, resume, print and draw; what is stored still does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import runner
from experiments.figures import draw
from experiments.runner import MODULES, PROFILES, Record, cell_name, cell_seed, experiment, run
from experiments.tables import table

QUICK = {"sphere-spectra", "gap-versus-dimension", "collapse-phase", "collapse-balanced"}


def numbers(record: Record) -> Record:
    """Leave out what a clock gave."""
    kept = {key: v for key, v in record.items() if "seconds" not in key and "inference" not in key}
    return json.loads(json.dumps(kept))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in MODULES]
)
def test_smoke_profile(name: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    records = run(name, "smoke", path)
    assert len(records) == len(experiment(name).cells("smoke"))
    assert "|" in table(name, records)
    picture = draw(name, records, tmp_path / "figure.png")
    assert picture is None if name.startswith("convolution") else picture.stat().st_size > 10_000
    # A killed run leaves a line that was cut off: it is computed again, to the same numbers.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:40])
    again = run(name, "smoke", path)
    assert [numbers(r) for r in again] == [numbers(r) for r in records]
    assert path.read_text().splitlines(keepends=True)[:-1] == lines[:-1]


@pytest.mark.parametrize("name", [n for n in MODULES if runner.stored(n)])
def test_stored_records_are_those_of_cells_and_are_shown(name: str, tmp_path: Path) -> None:
    records = runner.stored(name)
    known = {cell_name(c) for profile in PROFILES for c in experiment(name).cells(profile)}
    mine = sum(cell_name(record["cell"]) in known for record in records)
    # Sets whose files are not on this machine are not among its cells; some cells were extra.
    others = ("accuracy-versus-width", "authors-protocol", "risk-predictions", "risk-on-images")
    assert mine == len(records) or name in others
    assert "|" in table(name, records)
    draw(name, records, tmp_path / "figure.png")


def test_seeds_come_from_the_content() -> None:
    left, right = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert cell_seed(left) == cell_seed(right) != cell_seed({"a": 1, "b": 3})
    for name in MODULES:
        for profile in PROFILES:
            cells = experiment(name).cells(profile)
            assert len({cell_name(cell) for cell in cells}) == len(cells)


def test_processes_and_chosen_cells_give_the_same_numbers(tmp_path: Path) -> None:
    name = "gap-versus-dimension"
    whole = run(name, "smoke", tmp_path / "a")
    wanted = {"activation": [whole[0]["cell"]["activation"]]}
    assert not run(name, "smoke", tmp_path / "b", seconds=-1.0)
    first = run(name, "smoke", tmp_path / "b", wanted=wanted)
    assert 0 < len(first) < len(whole)
    both = run(name, "smoke", tmp_path / "b", processes=2)
    assert [record["cell"] for record in both] == [record["cell"] for record in whole]
    for mine, other in zip(whole, both, strict=True):
        assert mine["conjugate"]["gap"] == pytest.approx(other["conjugate"]["gap"], rel=1e-10)


def test_records_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    record = {"cell": {"x": 0.1234567890123}, "value": 0.1234567890123}
    runner.keep("sphere-spectra", [record])
    runner.keep("sphere-spectra", [{**record, "value": 2.0}])
    assert runner.stored("sphere-spectra") == [{**record, "value": 0.1234568}]


def test_the_command_lists_experiments() -> None:
    root, command = Path(__file__).parents[2], [sys.executable, "-m", "experiments"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(MODULES)
