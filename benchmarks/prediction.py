"""What predictions cost: seconds for curves of two and of ten classes, on one thread.

Run ``python benchmarks/prediction.py``; a quarter of a minute.  Compiled loops are warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

import notsodeep as nsd
from notsodeep.prediction import learning_curve

RIDGES = np.logspace(-3, 1, 30)
TIMES = np.logspace(-1, 2, 10)


def seconds(work: Callable[[], object]) -> float:
    """Return the best of three runs after a first one."""
    work()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Print a table."""
    two = nsd.data.GaussianMixture(2.0 * np.eye(2, 512), [1.0, 1.09])
    ten = nsd.data.GaussianMixture(3.0 * np.eye(10, 300), np.linspace(0.9, 1.1, 10))
    deq = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    four = (0.21, 0.036, 0.069, 0.29)
    pair, tens = (256, 256), [60] * 10
    sizes = np.unique((np.geomspace(0.1, 8.0, 30) * 512).astype(int))
    rows = {
        "2 classes, limit, 30 ridges": lambda: nsd.predict_risk(
            None, two, pair, ridge=RIDGES, coefficients=four
        ),
        "2 classes, resolved, 1 ridge": lambda: nsd.predict_risk(deq, two, pair, ridge=0.1),
        "2 classes, resolved, 30 ridges": lambda: nsd.predict_risk(deq, two, pair, ridge=RIDGES),
        "2 classes, resolved, 10 times": lambda: nsd.predict_risk(deq, two, pair, time=TIMES),
        "2 classes, resolved, width 1024": lambda: nsd.predict_risk(
            deq, two, pair, ridge=0.1, width=1024
        ),
        "learning curve of 30 sizes": lambda: learning_curve(deq, two, sizes, ridge=0.1),
        "10 classes, resolved, 1 ridge": lambda: nsd.predict_risk(deq, ten, tens, ridge=0.1),
        "10 classes, resolved, 30 ridges": lambda: nsd.predict_risk(deq, ten, tens, ridge=RIDGES),
        "10 classes, resolved, 1 time": lambda: nsd.predict_risk(deq, ten, tens, time=1.0),
    }
    with threadpool_limits(1):
        for name, work in rows.items():
            print(f"{name:35s} {seconds(work):8.3f} s")


if __name__ == "__main__":
    main()
