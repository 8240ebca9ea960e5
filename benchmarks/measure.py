"""What every benchmark shares: its arguments, its rows, and the environment they belong to.

Results are numbers as JSON; `tables.py` and `draw.py` read nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from notsodeep.files.atomic_files import write_json

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("notsodeep", "numpy", "scipy", "numba", "torch")


def benchmark_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the JSON")
    return parser


def load_average() -> float | None:
    """Return how many processes wanted to run over the last minute; None where not known."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Describe machine, packages and linear algebra of this process."""
    libraries = {
        f"{pool['internal_api']} {pool['version']}": pool["num_threads"]
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    }
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in PACKAGES},
        "linear_algebra_threads": libraries,
    }


class Results:
    """Rows of one benchmark: printed as they come, written together at the end.

    Each row has the load average of its moment as well.  Above the number of cores other work was
    going on: ratios still hold, seconds may not.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.json"
        self.rows: list[dict[str, Any]] = []
        self._stored: list[dict[str, Any]] = []
        self._keys: tuple[str, ...] = ()

    def keep_others(self, keys: tuple[str, ...], **about: Any) -> None:
        """Keep stored rows whose `keys` are not measured now, if `about` holds for them."""
        if self.path.exists():
            record = json.loads(self.path.read_text())
            if about.items() <= record["about"].items():
                self._stored, self._keys = record["rows"], keys

    def add(self, **row: Any) -> None:
        """Add a row; what is None was not measured and is left out."""
        known = {key: value for key, value in row.items() if value is not None}
        words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in known.items())
        print(*words, sep=", ", flush=True)
        self.rows.append({**known, "load": load_average()})

    def write(self, **about: Any) -> None:
        """Write the rows with the environment, and `about`, what holds for all of them."""

        def key(row: dict[str, Any]) -> list[Any]:
            return [row.get(name) for name in self._keys]

        new = [key(row) for row in self.rows]
        rows = [row for row in self._stored if key(row) not in new] + self.rows
        write_json(self.path, {"environment": environment(), "about": about, "rows": rows})
