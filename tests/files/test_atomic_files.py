"""Files are complete or absent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from notsodeep.errors import NotWritable
from notsodeep.files import atomic_write, make_directory, write_array, write_json


def test_a_finished_block_leaves_exactly_one_file(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "deep" / "file") as stream:
        stream.write(b"content")
        assert not (tmp_path / "deep" / "file").exists()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["file"]
    assert (tmp_path / "deep" / "file").read_bytes() == b"content"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as stream:
            stream.write(b"new")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from notsodeep.files import atomic_write
        with atomic_write(Path(sys.argv[1])) as stream:
            stream.write(b"x" * 100_000)
            stream.flush()
            print("writing", flush=True)
            time.sleep(60)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"writing"
        os.kill(child.pid, signal.SIGKILL)
    assert not path.exists()
    assert any(p.name.endswith(".tmp") for p in tmp_path.iterdir())


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_json(tmp_path / "file.json", {})
    finally:
        os.umask(old)
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o640


def test_json_is_readable_and_refuses_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": [1, 0.1], "a": "ψ"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": "ψ", "b": [1, 0.1]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "nan.json", {"x": float("nan")})
    assert not (tmp_path / "nan.json").exists()


def test_arrays_come_back_and_objects_are_refused(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), array)
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        write_array(tmp_path / "b.npy", np.array([object()]))
    assert not (tmp_path / "b.npy").exists()


@pytest.mark.parametrize("write", [lambda p: write_json(p, {}), make_directory])
def test_a_path_below_a_file_is_named_as_the_reason(tmp_path: Path, write) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotWritable, match="is a file, not a directory"):
        write(tmp_path / "file" / "below" / "name")


def test_concurrent_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = (
        "import sys; from pathlib import Path; from notsodeep.files import atomic_write\n"
        "for _ in range(50):\n"
        "    with atomic_write(Path(sys.argv[1])) as s: s.write(sys.argv[2].encode() * 5000)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(path), letter]) for letter in "ab"
    ]
    seen = set()
    while any(child.poll() is None for child in children):
        if path.exists():
            seen.add(path.read_bytes())
        time.sleep(0.002)
    assert [child.wait() for child in children] == [0, 0]
    assert seen <= {b"a" * 5000, b"b" * 5000}
    assert seen
