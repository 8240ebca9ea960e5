"""The papers' figures: every smoke profile runs, resumes and draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from notsodeep.data.image_store import data_directory
from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.papers.gap_versus_dimension import slopes
from notsodeep.papers.reproduction import (
    NAMES,
    Record,
    cell_name,
    cell_seed,
    experiment,
    reproduce,
)
from notsodeep.plotting.canvas import svg_text
from notsodeep.report.reproduction_figures import reproduction_figure


def _numbers(record: Record) -> Record:
    """Drop what a clock gave, which no seed repeats."""
    return {key: value for key, value in record.items() if key != "seconds"}


# One experiment of each kind every time: spectra, gaps over dimensions, optima, trained heads.
QUICK = {"sphere-spectra", "gap-versus-dimension", "collapse-phase", "collapse-balanced"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in NAMES],
)
def test_smoke_profile(name: str, tmp_path: Path) -> None:
    records = reproduce(name, tmp_path / "run", profile="smoke")
    findings = experiment(name).findings(records)
    assert findings
    assert all(finding.quantity and finding.ours for finding in findings)
    assert svg_text(reproduction_figure(name, records)).count("<path") > 5
    # A cell that is lost is computed again, to the same numbers; the others are kept.
    pieces = sorted((tmp_path / "run" / "pieces").iterdir())
    assert len(pieces) == len(records)
    kept = {piece: piece.stat().st_mtime_ns for piece in pieces[1:]}
    pieces[0].unlink()
    again = reproduce(name, tmp_path / "run", profile="smoke")
    assert [_numbers(record) for record in again] == [_numbers(record) for record in records]
    assert all(piece.stat().st_mtime_ns == when for piece, when in kept.items())


def test_seeds_come_from_the_content() -> None:
    left, right = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert cell_seed(left) == cell_seed(right) != cell_seed({"a": 1, "b": 3})
    assert cell_name(left) == cell_name(right)
    for name in NAMES:
        for profile in ("smoke", "quick", "paper"):
            cells = experiment(name).cells(profile)
            assert len({cell_name(cell) for cell in cells}) == len(cells)


def test_slopes_are_those_of_the_gaps() -> None:
    records = [
        {"cell": {"activation": "relu", "dimension": p}, "conjugate": {"gap": 3.0 * p**-0.5}}
        for p in (100, 200, 400)
    ]
    assert slopes(records, "conjugate")["relu"] == pytest.approx(-0.5)


def test_other_profiles_do_not_mix(tmp_path: Path) -> None:
    reproduce("gap-versus-dimension", tmp_path, profile="smoke")
    with pytest.raises(InvalidInput, match="profile is 'smoke' there"):
        reproduce("gap-versus-dimension", tmp_path, profile="quick")
    with pytest.raises(UnknownName):
        reproduce("gap-vs-dimension", tmp_path / "x")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_quick_profile(name: str, tmp_path: Path) -> None:
    files = {str(cell.get("data")) for cell in experiment(name).cells("quick")}
    missing = [f for f in files if f.endswith(".npz") and not (data_directory() / f).exists()]
    if missing:
        pytest.skip(f"needs features of VGG-19 in {missing}")
    records = reproduce(name, tmp_path / "run", profile="quick")
    assert experiment(name).findings(records)
