"""Time and memory of a kernel function at growing n: what the children of `bench_peers` share.

A child reads a request, JSON in its first argument, and writes its answer, JSON again, to the
path that the request names.  NumPy and the standard library only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from clocks import best_time, once, peak_growth

Kernels = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From X (n, p) to CK and NTK, (n, n) each."""

_QUICK = 2.0  # seconds below which a call is repeated


def read_request() -> dict[str, Any]:
    """Return the request."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    return request


def answer(request: dict[str, Any], kernels: Kernels, versions: dict[str, str]) -> None:
    """Measure `kernels` at every size of the request, and write rows and a few entries.

    Seconds are the processor's, of the fastest call; so are those of X @ X.T beside them.  A size
    is left out, with the reason, if the one before says that it would take too long.
    """
    X = np.load(request["data"])["X"]
    few = request["sample"]
    rows: list[dict[str, Any]] = []
    entries: list[Any] = []
    for n in request["sizes"]:
        part = np.ascontiguousarray(X[:n])
        if rows and "seconds" in rows[-1]:
            expected = rows[-1]["seconds"] * (n / rows[-1]["n"]) ** 2
            memory = (rows[-1]["mebibytes"] or 0.0) * (n / rows[-1]["n"]) ** 2
            if expected > request["most_seconds"] or memory > request["most_mebibytes"]:
                reason = f"would take about {expected:.0f} s and {memory / 1024:.1f} GiB"
                rows.append({"n": n, "not_measured": reason})
                break
        first = once(lambda part=part: kernels(part))  # compiles
        times: list[float] = []

        def work(part: np.ndarray = part, times: list[float] = times) -> Any:
            start = time.process_time()
            result = kernels(part)
            times.append(time.process_time() - start)
            return result

        grown = peak_growth(work)
        gram = best_time(lambda part=part: part @ part.T, repeats=3, clock=time.process_time)
        while min(times) < _QUICK and len(times) < request["repeats"]:
            work()
            again = once(lambda part=part: part @ part.T, time.process_time)
            gram = min(gram, again)
        if not entries:
            entries = [np.asarray(kernel)[:few, :few].tolist() for kernel in kernels(part)]
        rows.append(
            {"n": n, "seconds": min(times), "gram": gram, "ratio": min(times) / gram,
             "first_call": first, "mebibytes": grown}
        )  # fmt: skip
    text = json.dumps({"rows": rows, "entries": entries, "versions": versions})
    Path(request["answer"]).write_text(text)
