"""`notsodeep collapse` as a person meets it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from notsodeep.cli.main import app, main
from notsodeep.errors import InvalidInput
from printed import complaints

SMALL = (
    "--samples",
    "200",
    "--test-samples",
    "60",
    "--width",
    "12",
    "--epochs",
    "2",
    "--seeds",
    "2",
)


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, ["collapse", *arguments])


def example() -> list[str]:
    text = " ".join(run("--help").stdout.split())
    found = re.search(r"Example: notsodeep collapse (.*?) Options:", text)
    assert found is not None
    return found[1].split()


@pytest.mark.slow
def test_the_example_in_the_help_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*example())
    assert result.exit_code == 0, result.exception
    lines = result.stdout.splitlines()
    assert lines[0].startswith("digits, 10 classes of 40 or 4 samples")
    assert max(map(len, lines)) <= 80
    for head in ("explicit", "residual", "deq_truncated", "deq", "explicit_matched"):
        row = next(line for line in lines if line.startswith(f"{head} "))
        assert len(row.split()) == 10
        assert all(re.fullmatch(r"-?[\d.e-]+|–", cell) for cell in row.split()[1:])
    # A second time it is there already, and says the same.
    assert run(*example()).stdout == result.stdout


@pytest.mark.usefixtures("undrawn")
def test_json_holds_the_records(tmp_path: Path) -> None:
    arguments = (*SMALL, "--head", "deq", "--head", "explicit", "--out", str(tmp_path / "run"))
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    records = json.loads(result.stdout)["records"]
    trained = [(record["settings"]["head"], record["settings"]["seed"]) for record in records]
    assert trained == [("deq", 0), ("explicit", 0), ("deq", 1), ("explicit", 1)]
    table = run(*arguments)
    assert "cosine" not in table.stdout  # balanced classes have no minority
    nc1 = sum(record["epochs"][-1]["nc1"] for record in records[::2]) / 2
    assert f" {nc1:.2g} " in table.stdout
    assert (
        len(next(line for line in table.stdout.splitlines() if line.startswith("deq")).split()) == 7
    )
    changed = run(*arguments, "--spectral-budget", "0.4")
    assert isinstance(changed.exception, InvalidInput)
    assert "--force" in str(changed.exception)
    assert run(*arguments, "--spectral-budget", "0.4", "--force").exit_code == 0
    more = ("--first-width", "20", "--scale-free-decay", "1e-4", "--feature-scale", "fixed")
    result = run(*arguments, *more, "--force", "--json")
    settings = json.loads(result.stdout)["records"][0]["settings"]
    names = ("first_width", "scale_free_decay", "feature_scale")
    assert [settings[name] for name in names] == [20, 1e-4, "fixed"]


@pytest.mark.usefixtures("undrawn")
def test_a_failed_start_leaves_the_directory_free(tmp_path: Path) -> None:
    arguments = (*SMALL, "--head", "explicit", "--ratio", "10", "--out", str(tmp_path / "run"))
    failed = run(*arguments, "--majority", "10")
    assert isinstance(failed.exception, InvalidInput)
    assert run(*arguments, "--majority", "5").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--head", "explict"], "Did you mean 'explicit'"),
        (["--spectral-budget", "1.5"], "0 < spectral_budget < 1"),
        (["--ratio", "10"], "num_majority"),
        (["--majority", "10", "--ratio", "10"], "less than the 10 classes"),
        (["--backbone", "resnet"], "resnet18"),
        (["--scale-free-decay", "-1"], "scale_free_decay"),
        (["--backbone", "resnet18"], "backbone 'mlp'"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["notsodeep", "collapse", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert end.value.code in (1, 2)
    assert complaints(printed.err).startswith("error: ")
    assert complaints(printed.err).count("\n") == 1
    assert words in printed.err
