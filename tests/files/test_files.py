"""Files are whole or absent, and what is read is what was written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep import _files as files
from notsodeep.errors import DataCorrupted, NotSoDeepError, RunInUse

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], dtype=np.int32)}
CONTENT = {"x": [1.5, None, "√"], "kind": "network"}


def test_a_write_replaces_at_the_end_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "numbers.txt"
    with files.atomic_write(path) as stream:
        stream.write(b"one")
        assert not path.exists()
    with contextlib.suppress(ZeroDivisionError), files.atomic_write(path) as stream:
        stream.write(b"two")
        _ = 1 / 0
    assert path.read_bytes() == b"one"
    assert [p.name for p in path.parent.iterdir()] == ["numbers.txt"]


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    files.write_array(path, np.zeros(3))
    code = (
        "import sys, time; from pathlib import Path; from notsodeep._files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1])) as f:\n"
        "    f.write(b'half'); f.flush(); print('writing', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert np.array_equal(np.load(path), np.zeros(3))


def test_a_lock_has_one_holder_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    code = (
        "import sys, time; from pathlib import Path; from notsodeep._files import lock\n"
        "with lock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(RunInUse, match="in use"), files.lock(path):
        pass
    process.kill()
    process.communicate()
    with files.lock(path, timeout=10.0):
        pass
    start = time.monotonic()
    with files.lock(path), pytest.raises(RunInUse), files.lock(path, timeout=0.2):
        pass
    assert time.monotonic() - start < 5.0


def test_digests_are_those_of_standard_tools(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    wanted = hashlib.sha256(array.tobytes()).hexdigest()
    assert files.sha256_of_array(array) == files.sha256_of_bytes(array.tobytes()) == wanted
    (tmp_path / "a").write_bytes(array.tobytes())
    assert files.sha256_of_file(tmp_path / "a") == wanted


def test_tensors_come_back(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    files.write_tensors(path, ARRAYS, CONTENT)
    arrays, content = files.read_tensors(path)
    assert content == CONTENT
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name].dtype
        assert np.array_equal(array, ARRAYS[name])
    first = path.read_bytes()
    files.write_tensors(path, dict(reversed(ARRAYS.items())), CONTENT)
    assert path.read_bytes() == first


@given(data=st.data())
def test_damaged_tensors_are_named_or_unchanged(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damage") / "net.safetensors"
    files.write_tensors(path, ARRAYS, CONTENT)
    whole = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[position] ^= data.draw(st.integers(1, 255))
    else:
        del whole[position:]
    path.write_bytes(whole)
    with pytest.raises(DataCorrupted):
        files.read_tensors(path)


@given(content=st.binary(max_size=60))
def test_any_bytes_are_json_or_a_named_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_bytes(content)
    with contextlib.suppress(NotSoDeepError):
        files.read_json(path)


def test_json_has_no_numbers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(tmp_path / "a.json", {"x": float("nan")})
    (tmp_path / "a.json").write_text('{"x": NaN}')
    with pytest.raises(DataCorrupted, match="NaN"):
        files.read_json(tmp_path / "a.json")
