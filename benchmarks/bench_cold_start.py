"""How long a user waits before anything happens: fresh processes, median of nine.

Ratios are to an interpreter that does nothing, which takes turns with the others.  "First kernels"
are timed inside their process, from the end of the imports on: 300 rows of 100 features, with
compiled loops on disk.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from measure import Results, benchmark_parser

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import notsodeep": ["-c", "import notsodeep"],
    "notsodeep --version": ["-m", "notsodeep", "--version"],
    "notsodeep --help": ["-m", "notsodeep", "--help"],
    "notsodeep compile --help": ["-m", "notsodeep", "compile", "--help"],
}


FIRST = """
import time
import numpy
import notsodeep
notsodeep.kernel  # names are imported when they are first used
X = numpy.random.default_rng(0).normal(size=(300, 100)) / 10
start = time.perf_counter()
notsodeep.kernel(notsodeep.DeepEquilibrium({name!r}, 0.2), X, kind="both")
print(time.perf_counter() - start)
"""
COMMANDS |= {f"first kernels, {name}": ["-c", FIRST.format(name=name)] for name in ("relu", "tanh")}


def seconds(arguments: list[str]) -> float:
    """Seconds from the start of a process to its end, or those that it prints."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, check=True, text=True)
    whole = time.perf_counter() - start
    return float(done.stdout) if "perf_counter" in arguments[-1] else whole


def main() -> None:
    """Measure in turns and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    repeats = 1 if options.quick else 9
    for arguments in COMMANDS.values():
        seconds(arguments)  # files come from the disk once
    rounds = [
        {name: seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(repeats)
    ]
    empty = statistics.median(each["python -c pass"] for each in rounds)
    results = Results("cold_start", options.results)
    for name in COMMANDS:
        times = [each[name] for each in rounds]
        median = statistics.median(times)
        results.add(
            case=name,
            seconds=median,
            fastest=min(times),
            slowest=max(times),
            ratio=median / empty,
        )
    results.write(processes=repeats)


if __name__ == "__main__":
    main()
