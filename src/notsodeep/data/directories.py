"""Where data sets are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from notsodeep.errors import DataNotFound

VARIABLE = "NOTSODEEP_DATA"


def data_directory(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the data directory; it need not exist.

    The first of: `explicit`, the environment variable ``NOTSODEEP_DATA``, and the platform's place
    for a user's application data (``~/.local/share/notsodeep`` on Linux).

    Raises
    ------
    DataNotFound
        Nothing is chosen, and there is no home directory.

    Examples
    --------
    >>> data_directory("somewhere/else").name
    'else'
    """
    if explicit is not None:
        return with_home(explicit)
    if chosen := os.environ.get(VARIABLE):
        return with_home(chosen)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or with_home("~/AppData/Local"))
    elif sys.platform == "darwin":
        base = with_home("~/Library/Application Support")
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or with_home("~/.local/share"))
    return base / "notsodeep"


def with_home(path: str | os.PathLike[str]) -> Path:
    """Replace a leading ``~`` or ``~user`` by the home directory.

    Raises
    ------
    DataNotFound
        There is no such user, or the user has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataNotFound(
            f"There is no home directory to find {os.fspath(path)} in. Give a full path, or set "
            f"the environment variable {VARIABLE} to a directory for data sets."
        ) from error
