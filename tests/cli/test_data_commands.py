"""The commands `notsodeep data get`, `list` and `verify`."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from notsodeep.cli.data import app
from notsodeep.errors import DataNotFound, SourceUnavailable, UnknownName

runner = CliRunner()


def run(*arguments: str, data_dir: Path | None = None):
    options = [] if data_dir is None else ["--data-dir", str(data_dir)]
    return runner.invoke(app, [*arguments, *options])


@pytest.mark.parametrize("command", ["get", "list", "verify"])
def test_every_help_shows_one_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert result.output.count("Example: notsodeep data") == 1


def test_the_list_fits_eighty_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = run("list", data_dir=tmp_path)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    table = lines[: lines.index("")]
    assert max(map(len, table)) <= 80
    rows = {line.split()[0]: line.split() for line in table}
    assert rows["digits"][1:5] == ["1437+360", "8×8", "10", "yes"]
    assert rows["cifar100"][1:5] == ["50000+10000", "3×32×32", "100", "no"]
    assert rows["sphere"][4] == "yes"
    assert str(tmp_path) in result.output


def test_the_environment_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path / "from-variable"))
    assert "from-variable" in run("list").output


def test_sets_without_files_need_no_download(tmp_path: Path) -> None:
    result = run("get", "digits", "sphere", data_dir=tmp_path)
    assert result.exit_code == 0
    assert result.output.splitlines() == ["digits: needs no download", "sphere: needs no download"]
    assert not list(tmp_path.iterdir())


def test_an_unknown_name_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    result = run("get", "mnist", "cifar11", data_dir=tmp_path)
    assert isinstance(result.exception, UnknownName)
    assert not list(tmp_path.iterdir())


def test_a_set_that_no_source_delivers_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a proxy that nobody listens on, no host can be reached."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    result = run("get", "cifar100", data_dir=tmp_path)
    assert isinstance(result.exception, SourceUnavailable)
    message = str(result.exception)
    assert "no package that carries it is known" in message
    assert f"put cifar-100-binary.tar.gz into {tmp_path}" in message
    assert "cifar100: trying official source" in result.output


def test_verify_without_names_checks_what_is_here(tmp_path: Path) -> None:
    result = run("verify", data_dir=tmp_path)
    assert result.exit_code == 0
    assert result.output == "digits: intact (scikit-learn)\n"


def test_verify_reports_every_missing_or_damaged_set_and_fails(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        shape = (2, 28, 28) if "images" in name else (2,)
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        content = header + bytes(int(np.prod(shape)))
        (raw / f"{name}-ubyte.gz").write_bytes(gzip.compress(content))
    result = run("verify", "digits", "mnist", "cifar10", data_dir=tmp_path)
    assert result.exit_code == 1
    digits, mnist, cifar10 = result.output.splitlines()
    assert digits == "digits: intact (scikit-learn)"
    assert "has shape (2, 28, 28); expected (60000, 28, 28)" in mnist
    assert "notsodeep data get mnist" in mnist
    assert "cifar10 is not on this machine" in cifar10
    listed = {
        line.split()[0]: line.split()
        for line in run("list", data_dir=tmp_path).output.split("\n\n")[0].splitlines()
    }
    assert listed["mnist"][4] == "yes"


def test_a_drawn_set_has_nothing_to_verify(tmp_path: Path) -> None:
    assert isinstance(run("verify", "sphere", data_dir=tmp_path).exception, UnknownName)


def test_errors_of_load_name_the_command(tmp_path: Path) -> None:
    from notsodeep.data import load

    with pytest.raises(DataNotFound, match="notsodeep data get mnist"):
        load("mnist", data_dir=tmp_path)
