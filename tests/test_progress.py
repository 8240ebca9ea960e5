"""A bar on a terminal, silence elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from notsodeep.progress import progress_bar

_SHOW = """
from notsodeep.progress import progress_bar
with progress_bar("fetching", unit="bytes") as advance:
    for done in range(0, 1001, 100):
        advance(done, 1000)
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_shown_without_a_terminal(
    enabled: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("work", enabled=enabled) as advance:
        advance(1, 2)
        advance(2, None)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_the_bar() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen([sys.executable, "-c", _SHOW], stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert child.wait() == 0
    assert b"fetching" in shown


def test_a_notebook_shows_the_bar_and_takes_it_away() -> None:
    """In a real kernel; the output is what a browser would be given last."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    begin = (
        "import time\n"
        "from notsodeep.progress import progress_bar\n"
        "bar = progress_bar('a < b')\n"
        "advance = bar.__enter__()\n"
        "time.sleep(0.3)\n"
        "advance(1, 4)"
    )
    cells = [
        nbformat.v4.new_code_cell(source) for source in (begin, "bar.__exit__(None, None, None)")
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
    with client.setup_kernel():
        client.execute_cell(cells[0], 0)
        (shown,) = cells[0]["outputs"]
        assert "a &lt; b" in shown["data"]["text/html"]
        assert "25%, 0:01 left" in shown["data"]["text/html"]
        client.execute_cell(cells[1], 1)
        assert cells[0]["outputs"][0]["data"]["text/html"] == ""
