"""Run the command line: ``notsodeep`` or ``python -m notsodeep``."""

from __future__ import annotations

import os
import sys

from notsodeep.errors import MissingPackage


def main() -> None:
    """Run the command line, or say in one line what it lacks."""
    # OpenBLAS, which reads this when NumPy is imported, keeps the threads of a product spinning for
    # a tenth of a second, where they take a core from the compiled loops that follow: kernels were
    # up to 1.5 times slower.  As a power of two, in ticks of the clock: half a millisecond.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
    try:
        from notsodeep.cli.main import main as run
    except MissingPackage as error:
        sys.exit(f"error: {error}")  # to standard error, with exit code 1
    run()


if __name__ == "__main__":
    main()
