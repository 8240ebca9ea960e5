"""Run every benchmark, one after the other, each in a process of its own.

    python benchmarks/run_all.py               # all of them; results go to benchmarks/results
    python benchmarks/run_all.py --quick       # does everything run?
    python benchmarks/run_all.py kernels peers # some

Then `python benchmarks/draw.py` and `python benchmarks/tables.py` bring the page up to date.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from measure import benchmark_parser, load_average

HERE = Path(__file__).parent


def main() -> None:
    """Run them; those that fail are named at the end."""
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = benchmark_parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    options = parser.parse_args()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    flags = ["--results", str(options.results), *(["--quick"] if options.quick else [])]
    # OpenBLAS keeps the threads of a product spinning for a tenth of a second, beside what comes
    # next: here they sleep after half a millisecond.
    surroundings = {"OPENBLAS_THREAD_TIMEOUT": "20", **os.environ}
    failed = []
    for name in options.names or known:
        print(f"== {name} (load {load_average()})", flush=True)
        start = time.perf_counter()
        command = [sys.executable, str(HERE / f"bench_{name}.py"), *flags]
        if subprocess.run(command, env=surroundings, check=False).returncode:
            failed.append(name)
        print(f"== {name} took {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
