"""Files of others in a directory that we write to: they are neither removed nor overwritten."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.cli.main import main
from notsodeep.errors import DataCorrupted, InvalidInput, NotSoDeepError
from notsodeep.files.run_directory import RunDirectory
from notsodeep.files.stored_states import read_state, write_state
from notsodeep.networks import TrainingSettings, train
from printed import complaints

FOREIGN = {
    "state-dict.safetensors": b"two weeks of training",
    "state-best.safetensors": b"more of it",
    "state-0123456789abcdef.safetensors": b"named like one of ours, with other content",
    "state-0123456789ABCDEF.safetensors": b"nearly named like one of ours",
    ".notes.tmp": b"the swap file of an editor",
    ".state-1.safetensors.99.tmp": b"not named as our temporary files are",
    "lock.txt": b"a list of doors",
    "pieces/chess.txt": b"not those",
}


def place_foreign(directory: Path) -> None:
    for name, content in FOREIGN.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def assert_foreign_intact(directory: Path) -> None:
    assert {name: (directory / name).read_bytes() for name in FOREIGN} == FOREIGN


def train_there(directory: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    net = nsd.build(nsd.ExplicitNetwork(["relu"]), 3, 8, 2, rng=0)
    options: Any = {"checkpoint": directory, "progress": False}
    train(net, X, np.arange(40) % 2, TrainingSettings(2), **options)


def test_checkpoints_remove_only_their_own_states(tmp_path: Path) -> None:
    place_foreign(tmp_path)
    train_there(tmp_path)
    assert_foreign_intact(tmp_path)
    states = {path.name for path in tmp_path.glob("state-*")} - set(FOREIGN)
    assert len(states) == 1  # the older ones are gone


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    """A whole state without a manifest, and the temporary files of both."""
    write_state(tmp_path, "numbers", b"first", {"step": 1})
    (first,) = tmp_path.glob("state-*")
    write_state(tmp_path, "numbers", b"second", {"step": 2})
    first.write_bytes(b"first")  # as if killed before the manifest was replaced
    (tmp_path / f".{first.name}.999999.0badcafe.tmp").write_bytes(b"fir")
    (tmp_path / ".manifest.json.999999.0badcafe.tmp").write_bytes(b"{")
    place_foreign(tmp_path)
    write_state(tmp_path, "numbers", b"third", {"step": 3})
    assert_foreign_intact(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(FOREIGN) + 2  # a state and its manifest


def test_a_manifest_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "my web app"}')
    with pytest.raises(DataCorrupted, match="choose another directory"):
        train_there(tmp_path)
    assert (tmp_path / "manifest.json").read_text() == '{"name": "my web app"}'


SETTINGS_OF_OTHERS = {
    "an editor": '{"editor.tabSize": 2}',
    "an editor, with comments": '{\n  // tabs\n  "editor.tabSize": 2\n}',
    "nothing": "{}",
    "a kind": '{"kind": "job", "settings": {"a": 1}}',
    "a list": "[1, 2]",
    "files outside": json.dumps(
        {"program": "notsodeep", "kind": "job", "settings": {}, "inputs": {}, "files": ["../x"]}
    ),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("owner", SETTINGS_OF_OTHERS)
def test_a_directory_with_other_settings_is_left_alone(
    tmp_path: Path, owner: str, force: bool
) -> None:
    (tmp_path / "x").write_text("beside it")
    project = tmp_path / "project"
    place_foreign(project)
    (project / "thesis.tex").write_text("100 pages")
    (project / "settings.json").write_text(SETTINGS_OF_OTHERS[owner])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with (
        pytest.raises(InvalidInput, match=r"holds no results of notsodeep.*another --out"),
        RunDirectory(project, "job", {"a": 1}).opened(force=force),
    ):
        pass
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "command",
    [["compile"]],
    ids=lambda command: command[0],
)
def test_commands_reject_it_in_one_line(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "settings.json").write_text('{"editor.tabSize": 2}')
    monkeypatch.setattr(sys, "argv", ["notsodeep", *command, "--out", str(tmp_path), "--force"])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert complaints(printed.err).count("\n") == 1
    assert "Choose another --out" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def job(out: Path, a: int, *, force: bool = False, finish: bool = True) -> None:
    run = RunDirectory(out, "job", {"a": a}, pages=("report.html",))
    with run.opened(force=force):
        run.piece("first", lambda: {"a": a})
        run.arrays("numbers", lambda: {"x": np.full(3, a)})
        write_state(run.work_directory("training"), "training", bytes([a]), {"a": a})
        run.file("network.bin").write_bytes(bytes([a]))
        if finish:
            run.finish(["network.bin"])
    (out / "report.html").write_text(f"{a}")


@pytest.mark.parametrize("finish", [True, False])
def test_force_removes_what_the_run_has_written(tmp_path: Path, finish: bool) -> None:
    out = tmp_path / "run"
    job(out, 1, finish=finish)
    ours = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    place_foreign(out)
    for name in ("thesis.tex", "pieces/mine.json", "checkpoints/training/notes.txt"):
        (out / name).write_text("mine")
    with RunDirectory(out, "job", {"a": 2}).opened(force=True):
        left = {path.relative_to(out) for path in out.rglob("*") if path.is_file()} & ours
        assert {path.name for path in left} <= {"settings.json", ".lock", ".lock.holder"}
    assert_foreign_intact(out)
    for name in ("thesis.tex", "pieces/mine.json", "checkpoints/training/notes.txt"):
        assert (out / name).read_text() == "mine"
    job(out, 2)
    assert RunDirectory.stored(out, "job").read("first") == {"a": 2}
    stored = read_state(out / "checkpoints" / "training", "training", "a test")
    assert stored is not None
    assert stored.facts == {"a": 2}
    job(out, 3, force=True)
    assert_foreign_intact(out)


def test_a_piece_of_someone_else_is_no_result(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job(out, 1, finish=False)
    (out / "pieces" / "second.json").write_text('{"a": "forged"}')
    run = RunDirectory(out, "job", {"a": 1})
    with run.opened():
        assert not run.has("second")
        with pytest.raises(NotSoDeepError, match=r"second\.json is there, but .* not written it"):
            run.piece("second", lambda: {"a": 1})
        run.finish([])
    assert (out / "pieces" / "second.json").read_text() == '{"a": "forged"}'
    assert "second" not in (out / "manifest.json").read_text()
