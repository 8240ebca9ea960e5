"""Timing and storing of benchmark results: numbers only, as JSON; plots are made elsewhere."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def best_time(function: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def store(name: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows with the environment they were measured in, and print them."""
    packages = ("numpy", "scipy", "notsodeep")
    record = {
        "environment": {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            **{package: version(package) for package in packages},
        },
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(
            *(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
            sep=", ",
        )
