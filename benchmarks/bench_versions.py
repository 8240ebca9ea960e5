"""An earlier version of this package beside the present one, in one run.

The earlier one is checked out from the repository into a temporary directory.  Each case is timed
by two worker processes, one for each version, that take turns, so that a busy moment hits both;
beside each time is that of the matrix product X @ X.T in the same process.  "new model" is the
first call with a model that was not seen before, after everything was imported and compiled.
Differences between the results of the two are relative to √(K_ii K_jj).

    python benchmarks/bench_versions.py --before c32d0c2 --threads 1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clocks import once
from earlier import BEFORE, HERE, checked_out
from measure import Results, benchmark_parser

DRAWS = 4  # random networks, timed together
_CASES: dict[int, dict[str, tuple[Any, np.ndarray]]] = {}


def prepared(name: str, n: int) -> tuple[Callable[[], Any], np.ndarray]:
    """Return the work of a case, and its inputs."""
    import notsodeep as nsd
    from bench_kernels import cases, near_orthogonal

    if name.startswith("random"):
        kind, width = name.split(", ")[1].split()[:2]
        deq, X = nsd.DeepEquilibrium(kind, 0.1), near_orthogonal(n, False)
        return lambda: nsd.monte_carlo(deq, X, int(width), DRAWS, rng=0), X
    if name.startswith("match"):
        deq = nsd.DeepEquilibrium("tanh", 0.2)
        mixture = nsd.data.paper_mixture(dimension=500)
        X, y = mixture.sample(n, rng=0)
        if name == "match, certify":
            match = nsd.match(deq, X, family="hard_tanh")
            return lambda: match.certify(X, y), X
        refine = name == "match, refine"
        family = "piecewise_linear" if refine else "auto"
        return lambda: nsd.match(deq, X, family=family, refine=refine), X
    single = name.startswith("float32, ")
    if single:
        name = name.removeprefix("float32, ")
    if name.startswith("small"):
        model, X = nsd.DeepEquilibrium(name.split()[1], 0.2), near_orthogonal(n, False)
    else:
        if n not in _CASES:
            _CASES[n] = {key: (model, X) for key, model, X in cases(n)}
        model, X = _CASES[n][name]
    if single:
        return lambda: nsd.kernel(
            model,
            X,
            dtype=np.float32,
            convention="preactivation",
            kind="both",
        ), X.astype(np.float32)
    return lambda: nsd.kernel(model, X, convention="preactivation", kind="both"), X


def worker() -> None:
    """Answer lines of JSON, each a case, with seconds; the version is that of the search path."""
    known: dict[tuple[str, int], tuple[Callable[[], Any], np.ndarray]] = {}
    for line in sys.stdin:
        ask = json.loads(line)
        key = ask["case"], ask["rows"]
        if key not in known:
            known[key] = prepared(*key)
        work, X = known[key]
        answer: dict[str, Any] = {"seconds": once(work), "gram": once(partial(np.matmul, X, X.T))}
        if ask.get("save"):
            pair = work()
            np.savez(ask["save"], conjugate=pair.ck, tangent=pair.ntk)
        print(json.dumps(answer), flush=True)


class Version:
    """A worker process with one version of the package."""

    def __init__(self, source: Path, threads: int) -> None:
        count = {"NOTSODEEP_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
        path = {"PYTHONPATH": os.pathsep.join([str(source), str(HERE)])}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "bench_versions.py"), "--worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **count, **path},
        )  # fmt: skip

    def ask(self, **case: Any) -> dict[str, Any]:
        """Have a case timed once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def difference(folder: Path) -> float:
    """Largest difference between the two versions' kernels."""
    worst = 0.0
    with np.load(folder / "before.npz") as before, np.load(folder / "after.npz") as after:
        for name in ("ck", "ntk"):
            root = np.sqrt(np.diag(before[name]))
            gap = np.abs(after[name] - before[name]) / np.outer(root, root)
            worst = max(worst, float(gap.max()))
    return worst


def main() -> None:
    """Time both versions and store the rows."""
    if "--worker" in sys.argv:
        worker()
        return
    parser = benchmark_parser(__doc__)
    parser.add_argument("--before", default=BEFORE, help="commit of the earlier version")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--skip", nargs="*", default=(), help="cases whose names begin with one")
    options = parser.parse_args()
    from bench_kernels import cases

    big, repeats = (300, 1) if options.quick else (2000, options.repeats)
    chosen = [(name, big) for name, _, _ in cases(10)][:: 9 if options.quick else 1]
    chosen += [(f"float32, {name}", n) for name, n in chosen]
    small = (50,) if options.quick else (50, 100, 300)
    chosen += [(f"small {name}", n) for name in ("tanh", "relu") for n in small]
    matches = ("refine", "certify", "auto")
    chosen += [(f"match, {what}", 60 if options.quick else 900) for what in matches]
    sizes = [(40, 64)] if options.quick else [(200, 1000), (200, 4000), (2000, 1024)]
    chosen += [
        (f"random networks, {kind} {width} {tolerance}", n)
        for n, width in sizes
        for kind, tolerance in (("tanh", "1e-6"), ("relu", "1e-6"), ("tanh", "1e-10"))
    ]
    chosen = [
        (name, n)
        for name, n in chosen
        if options.only in name and not name.startswith(tuple(options.skip))
    ]
    results = Results("versions", options.results)
    results.keep_others(("case", "rows", "threads"), before=options.before)
    with checked_out(options.before) as tree, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        after = Version(HERE.parent / "src", options.threads)
        before = Version(tree / "src", options.threads)
        # Both have everything imported and compiled, or loaded, before the first time counts.
        for version in (before, after):
            version.ask(case="small tanh", rows=40)
            version.ask(case="small relu", rows=40)
            version.ask(case="small elu", rows=300)
        for name, n in chosen:
            versions = {"before": before, "after": after}
            kernels = not name.startswith(("match", "random"))
            first = {key: v.ask(case=name, rows=n)["seconds"] for key, v in versions.items()}
            again = {
                key: v.ask(case=name, rows=n, save=str(folder / key) if kernels else None)
                for key, v in versions.items()
            }
            times: dict[str, list[tuple[float, float]]] = {key: [] for key in versions}
            for _ in range(repeats):
                for key, version in versions.items():
                    found = version.ask(case=name, rows=n)
                    times[key].append((found["seconds"], found["gram"]))
            row: dict[str, Any] = {"case": name, "rows": n, "threads": options.threads}
            for key, pairs in times.items():
                seconds, gram = np.median(np.array(pairs), axis=0)
                row |= {f"{key}_seconds": seconds, f"{key}_new_model_seconds": first[key]}
                row |= {f"{key}_gram": gram}
                row[f"{key}_ratio"] = float(seconds / gram) if kernels else None
            row["gain"] = row["before_seconds"] / row["after_seconds"]
            if kernels:
                row["difference"] = difference(folder)
                row["route"] = again["after"]["route"]
            results.add(**row)
        before.close()
        after.close()
    results.write(before=options.before, repeats=repeats)


if __name__ == "__main__":
    main()
