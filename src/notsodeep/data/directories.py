"""Where data sets are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "NOTSODEEP_DATA"


def data_directory(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory; it need not exist.

    The first of: `explicit`, the environment variable ``NOTSODEEP_DATA``, and the platform's place
    for a user's application data (``~/.local/share/notsodeep`` on Linux).
    """
    if explicit is not None:
        return Path(explicit).expanduser()
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "notsodeep"
