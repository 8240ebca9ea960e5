"""Count the files that a call runs through: ``python docs/tables/traces.py [ROOT]``.

Three calls, each on small data after everything is imported and compiled; a profiler hook notes
every function of the package that runs.  Depth is the greatest number of the package's functions
on the stack at once; compiled loops are not seen.  ROOT is a source tree to count in, for comparing
two versions; that of this checkout if left out.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).parents[2] / "src"
sys.path.insert(0, str(ROOT))

import notsodeep as nsd  # noqa: E402  # after the path is set

PACKAGE = str(Path(nsd.__file__).parent)


def trace(call: Callable[[], object]) -> tuple[int, int, int]:
    """Return files, packages and depth of a call."""
    files: set[str] = set()
    depth = deepest = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, deepest
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return
        if event == "call":
            files.add(name)
            depth += 1
            deepest = max(deepest, depth)
        elif event == "return":
            depth -= 1

    # Threads of the tile loop do what the main one would; they are counted with it.
    import threading

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    parts = {Path(name).relative_to(PACKAGE).parts[0] for name in files}
    return len(files), len({part for part in parts if not part.endswith(".py")}), deepest


def calls() -> dict[str, Callable[[], object]]:
    """Return the calls by name, in the form that the version at hand understands."""
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    data = nsd.data.load("digits", samples=200, test_samples=60, rng=0)

    def match() -> object:
        try:
            return nsd.match(deq, data.X, refine=True)
        except nsd.errors.NotSoDeepError:
            return nsd.match(deq, data=data.X, refine=True)

    def compiled() -> object:
        if hasattr(nsd, "compile"):
            return nsd.compile(deq, data.X, data.y, data.X_test, data.y_test, width=32, seeds=2)
        from notsodeep.experiments.compilation import (  # type: ignore[import-not-found]
            CompileSettings,
            compile_deq,
        )

        settings = CompileSettings(deq, samples=200, test_samples=60, width=32, seeds=2)
        return compile_deq(settings, Path(tempfile.mkdtemp()) / "run")

    def pair() -> object:
        return nsd.kernel_pair(deq, data.X)

    return {"kernel_pair": pair, "match": match, "compile": compiled}


def main() -> None:
    """Print a table in Markdown."""
    warnings.simplefilter("ignore")
    lines = ["| call | files | packages | depth |", "|---|---|---|---|"]
    for name, call in calls().items():
        call()  # imports and compilation
        lines.append("| `{}` | {} | {} | {} |".format(name, *trace(call)))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
