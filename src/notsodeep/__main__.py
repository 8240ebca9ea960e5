"""Run the command line: ``notsodeep`` or ``python -m notsodeep``."""

from __future__ import annotations

import sys

from notsodeep.errors import MissingPackage


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    try:
        from notsodeep.cli.main import main as run
    except MissingPackage as error:
        sys.exit(f"error: {error}")  # to standard error, with exit code 1
    run()


if __name__ == "__main__":
    main()
