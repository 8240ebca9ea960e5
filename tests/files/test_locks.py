"""At most one holder, and no stale locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from notsodeep.errors import LockTimeout, NotWritable
from notsodeep.files import exclusive_lock

_HOLD = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from notsodeep.files import exclusive_lock
    with exclusive_lock(Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(60)
    """
)


@pytest.fixture
def holder(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path / "lock")], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"held"
        yield child
        child.kill()


def test_another_process_waits_in_vain_and_learns_who_holds_it(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    waited: list[str] = []
    with (
        pytest.raises(LockTimeout, match=f"process {holder.pid}"),
        exclusive_lock(tmp_path / "lock", timeout=0.2, on_wait=waited.append),
    ):
        pytest.fail("two holders at once")
    assert len(waited) == 1
    assert str(holder.pid) in waited[0]


def test_the_lock_of_a_killed_process_is_free(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with exclusive_lock(tmp_path / "lock", timeout=5.0):
        pass


def test_an_error_inside_releases_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), exclusive_lock(tmp_path / "lock"):
        raise RuntimeError
    with exclusive_lock(tmp_path / "lock", timeout=0.0):
        pass


def test_threads_take_turns(tmp_path: Path) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        with exclusive_lock(tmp_path / "lock", timeout=30.0):
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable, match="file"), exclusive_lock(tmp_path / "file" / "lock"):
        pass
