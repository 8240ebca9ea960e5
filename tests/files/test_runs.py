"""Runs resume to the same numbers, and believe only what they have written themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from notsodeep._runs import Run, kind_of
from notsodeep.errors import DataCorrupted, InvalidInput, RunInUse

SETTINGS = {"seeds": 3, "widths": (8, 16), "name": "relu"}


def work(run: Run, pieces: int = 3) -> dict[str, Any]:
    """Compute some pieces; the numbers are those of the piece, whatever was done before."""
    found: dict[str, Any] = {}
    for k in range(pieces):
        rng = np.random.default_rng(k)
        found[f"p{k}"] = run.piece(f"p{k}", lambda g=rng: {"value": g.normal(), "k": (1, 2)})
        rng = np.random.default_rng([k, 1])
        found[f"a{k}"] = run.arrays(f"a{k}", lambda g=rng: {"x": g.normal(size=4)})["x"].tolist()
    return found


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (path / "pieces").iterdir()}


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
import notsodeep._files as files
from test_runs import SETTINGS, work
from notsodeep._runs import Run
replace, left = os.replace, [int(sys.argv[3])]
from pathlib import Path
inner = Path.replace
def dying(self, target):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), 9)
    return inner(self, target)
Path.replace = dying
run = Run(sys.argv[1], "job", SETTINGS)
with run.opened():
    work(run)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("writes", [0, 1, 2, 4])
def test_a_killed_run_ends_with_the_same_bytes(tmp_path: Path, writes: int) -> None:
    whole, broken = Run(tmp_path / "a", "job", SETTINGS), Run(tmp_path / "b", "job", SETTINGS)
    with whole.opened():
        expected = work(whole)
    arguments = [str(broken.path), str(Path(__file__).parent), str(writes)]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL
    with broken.opened():
        assert work(broken) == expected
    assert contents(broken.path) == contents(whole.path)


def test_what_is_there_is_not_computed_again(tmp_path: Path) -> None:
    run = Run(tmp_path, "job", SETTINGS)
    with run.opened():
        first = work(run)
        assert run.has("p0")
        assert not run.has("p9")
    again = Run(tmp_path, "job", SETTINGS)
    with again.opened():
        for k in range(3):
            assert again.piece(f"p{k}", lambda: pytest.fail("computed")) == first[f"p{k}"]
    stored = Run.stored(tmp_path, "job")
    assert stored.settings == json.loads(json.dumps(SETTINGS))
    assert stored.read("p1") == first["p1"]
    assert stored.read_arrays("a1")["x"].tolist() == first["a1"]
    with pytest.raises(DataCorrupted, match="not finished"):
        stored.read("p9")


def test_edited_exchanged_and_foreign_pieces_are_not_believed(tmp_path: Path) -> None:
    run = Run(tmp_path / "a", "job", SETTINGS)
    other = Run(tmp_path / "b", "job", {**SETTINGS, "seeds": 4})
    for each in (run, other):
        with each.opened():
            work(each)
    pieces = run.path / "pieces"
    text = (pieces / "p0.json").read_text()
    damages = {
        "edited": text.replace('"value": ', '"value": 1'),
        "renamed key": text.replace('"value"', '"valuf"'),
        "exchanged": (pieces / "p1.json").read_text(),
        "of another run": (other.path / "pieces" / "p0.json").read_text(),
        "cut off": text[:-5],
        "something else": "[1]",
    }
    for content in damages.values():
        (pieces / "p0.json").write_text(content)
        with pytest.raises(DataCorrupted, match=r"p0\.json"):
            run.piece("p0", dict)
    (pieces / "p0.json").unlink()
    with run.opened():
        work(run)
    assert (pieces / "p0.json").read_text() == text
    for source in (pieces / "a1.safetensors", other.path / "pieces" / "a0.safetensors"):
        shutil.copy(source, pieces / "a0.safetensors")
        with pytest.raises(DataCorrupted, match="a0"):
            run.read_arrays("a0")


def test_other_settings_and_data_are_rejected_or_replaced(tmp_path: Path) -> None:
    run = Run(tmp_path, "job", SETTINGS, inputs={"d.npz": "aa"}, outputs=("report.html",))
    with run.opened():
        work(run, 1)
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    for changed, message in (
        (Run(tmp_path, "job", {**SETTINGS, "seeds": 9}), "seeds is 3 there and 9 here"),
        (Run(tmp_path, "job", SETTINGS, inputs={"d.npz": "bb"}), "other data"),
        (Run(tmp_path, "other", SETTINGS), "a job run"),
    ):
        with pytest.raises(InvalidInput, match=message), changed.opened():
            pass
    with pytest.raises(DataCorrupted, match="must not change"):
        run.require_same_inputs({"d.npz": "cc"})
    new = Run(tmp_path, "job", {**SETTINGS, "seeds": 9}, outputs=("report.html",))
    with new.opened(force=True):
        assert not new.has("p0")
    assert not (tmp_path / "report.html").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with run.opened():  # nothing was computed with the other settings
        pass


def test_free_settings_may_change(tmp_path: Path) -> None:
    for limit in (0.1, 0.2):
        run = Run(tmp_path, "job", {**SETTINGS, "limit": limit}, free=("limit",))
        with run.opened():
            run.piece("p", lambda value=limit: {"value": value})
    stored = Run.stored(tmp_path, "job")
    assert stored.settings["limit"] == 0.2
    assert stored.read("p") == {"value": 0.1}


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"kind": "job", "settings": {}}')
    assert kind_of(tmp_path) is None
    with pytest.raises(InvalidInput, match="must be the directory of a job run"):
        Run.stored(tmp_path, "job")
    for force in (False, True):
        with (
            pytest.raises(InvalidInput, match=r"got settings\.json"),
            Run(tmp_path, "job", SETTINGS).opened(force=force),
        ):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["settings.json"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Run(tmp_path, "job", SETTINGS).opened():
        assert kind_of(tmp_path) == "job"
        with pytest.raises(RunInUse), Run(tmp_path, "job", SETTINGS).opened():
            pass
