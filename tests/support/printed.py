"""What a command wrote to the standard error, apart from its log."""

from __future__ import annotations

import re

_STAMPED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")


def complaints(stderr: str) -> str:
    """Return the lines without a time stamp: off a terminal, progress is logged with one."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not _STAMPED.match(line))
