"""An earlier version of this package, checked out beside the present one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PRESENT = HERE.parent
BEFORE = "c32d0c2"
"""The version before kernels became polynomials in the cosine and the norms."""


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit of this repository out into a temporary directory."""
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "before"
        git = ["git", "-C", str(PRESENT), "worktree"]
        subprocess.run([*git, "add", "--detach", "-q", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
