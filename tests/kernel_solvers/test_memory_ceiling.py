"""A solve in a process whose memory could not hold the matrix."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource
from pathlib import Path
import numpy as np
import notsodeep as nsd
from notsodeep.kernel_solvers import preconditioner, solve

n = 6000
X = nsd.data.sphere(n, 30, rng=0)
deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
_ = nsd.KernelOperator(deq, X[:100]) @ np.ones(100)  # compiled code is loaded
status = Path("/proc/self/status").read_text().split()
used = 1024 * int(status[status.index("VmSize:") + 1])
resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20,) * 2)
try:
    np.empty((n, n))
except MemoryError:
    print("no room for the matrix")
K = nsd.KernelOperator(deq, X, kind="ntk", convention="preactivation")
near = preconditioner(deq, X, 100, 1.0, kind="ntk", convention="preactivation")
print(solve(K, X[:, :2], 1.0, preconditioner=near, tolerance=1e-3).reason)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS and /proc")
def test_solve_below_the_size_of_the_matrix() -> None:
    # One thread: each further one reserves a hundred megabytes of addresses that it does not use.
    environment = {**os.environ, "NOTSODEEP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["no room for the matrix", "converged"]
