"""Experiments as cells: each is computed once, stored as a line of JSON, and never again.

Records of the paper profiles are in ``experiments/results``; new ones of any profile are appended
to a file of ``runs/experiments``.  A run that was stopped goes on where it stopped, and cells do
not depend on one another or on their order.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

Profile = Literal["smoke", "quick", "paper"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
Cell = dict[str, Any]
Record = dict[str, Any]
RESULTS = Path(__file__).parent / "results"


class Finding(NamedTuple):
    """One of our numbers beside the paper's."""

    quantity: str
    paper: str  # what the paper says; empty if it says nothing
    ours: str
    why: str = ""  # where a difference comes from


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper."""

    name: str
    title: str
    source: str
    cells: Callable[[Profile], list[Cell]]  # each says everything about its work
    compute: Callable[[Cell, int], Record]  # (cell, seed); clock times are under "seconds"
    findings: Callable[[list[Record]], list[Finding]] = lambda records: []
    cost: Callable[[Cell], int] = lambda cell: 1  # relative work, for the time left
    kept: Callable[[Record], Record] = lambda record: record  # what of a record is worth storing
    results: str = ""  # file of stored records, if it is shared


MODULES = {
    "sphere-spectra": "kernels.sphere_spectra",
    "mixture-equivalent": "kernels.mixture_equivalent",
    "mixture-matched": "kernels.mixture_matched",
    "gap-versus-dimension": "kernels.gap_versus_dimension",
    "accuracy-versus-width": "accuracy.accuracy_versus_width",
    "image-scalings": "kernels.image_scalings",
    "authors-protocol": "accuracy.authors_protocol",
    "gaussian-process-limit": "kernels.gaussian_process_limit",
    "kernel-variability": "kernels.kernel_variability",
    "risk-predictions": "prediction.risk_predictions",
    "risk-on-images": "prediction.risk_on_images",
    "hyper-parameters": "prediction.hyper_parameters",
    "convolution-accuracy": "convolutions.accuracy",
    "convolution-siblings": "convolutions.siblings",
    "convolution-twins": "convolutions.twins",
    "collapse-phase": "collapse.phase",
    "collapse-kernels": "collapse.kernels",
    **{f"collapse-{name}": "collapse.settings"
       for name in ("balanced", "imbalanced", "causes", "features")},
}  # fmt: skip


def experiment(name: str) -> Experiment:
    """Return an experiment by name."""
    if name not in MODULES:
        raise SystemExit(f"{name} is not an experiment. They are: {', '.join(MODULES)}.")
    module = importlib.import_module(f"experiments.{MODULES[name]}")
    several: dict[str, Experiment] = getattr(module, "EXPERIMENTS", {})
    return several[name] if several else module.EXPERIMENT


def cell_seed(cell: Mapping[str, Any]) -> int:
    """Return a seed that is a function of the cell's content alone."""
    return int.from_bytes(_digest(cell).digest()[:4], "little")


def cell_name(cell: Mapping[str, Any]) -> str:
    """Return a name for a cell that is a function of its content alone."""
    return _digest(cell).hexdigest()[:16]


def _digest(cell: Mapping[str, Any]) -> Any:
    return hashlib.sha256(json.dumps(cell, sort_keys=True, allow_nan=False).encode())


def stored(name: str) -> list[Record]:
    """Return the records of the paper profile that are kept in ``experiments/results``."""
    path = _results(name)
    if not path.exists():
        return []
    records = list(_lines(gzip.decompress(path.read_bytes()).decode()))
    if not experiment(name).results:
        return records
    mine = {cell_name(cell) for p in PROFILES for cell in experiment(name).cells(p)}
    return [record for record in records if cell_name(record["cell"]) in mine]


def _results(name: str) -> Path:
    return RESULTS / f"{experiment(name).results or name}.jsonl.gz"


def keep(name: str, records: Iterable[Record]) -> None:
    """Add records to those of ``experiments/results``; those that are there already stay."""
    path = _results(name)
    before = list(_lines(gzip.decompress(path.read_bytes()).decode())) if path.exists() else []
    kept = [experiment(name).kept(record) for record in records]
    known = {cell_name(record["cell"]): record for record in [*kept, *before]}
    lines = (
        json.dumps(_rounded(known[key]), sort_keys=True, ensure_ascii=False)
        for key in sorted(known)
    )
    content = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content, mtime=0))


def _rounded(value: Any) -> Any:
    """Round numbers to seven digits, but those of cells, whose seeds depend on every digit."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: v if key == "cell" else _rounded(v) for key, v in value.items()}
    return value


def _lines(text: str) -> Iterator[Record]:
    """Parse lines of JSON; the last one may have been cut off by a kill."""
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def compute(cell: Cell, name: str) -> Record:
    """Compute one cell of an experiment."""
    begin = time.process_time()
    record = experiment(name).compute(cell, cell_seed(cell))
    seconds = round(time.process_time() - begin, 1)
    return {"cell": cell, "process_seconds": seconds, "versions": versions(), **record}


def versions() -> dict[str, str]:
    """Return the versions that numbers depend on."""
    packages = ("notsodeep", "numpy", "scipy", "numba", "torch")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def run(
    name: str,
    profile: Profile = "quick",
    path: str | Path | None = None,
    *,
    processes: int = 0,
    seconds: float = math.inf,
    wanted: Mapping[str, list[Any]] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Compute what is missing of an experiment; return the records of its cells in order.

    New records go to `path`, ``runs/experiments/NAME-PROFILE.jsonl`` by default.  With `processes`
    each has one thread of linear algebra.  No cell is begun after so many `seconds`; `wanted` names
    keys of cells and the values that are computed; `say` takes a line about the progress.
    """
    work = experiment(name)
    cells = work.cells(profile)
    path = Path(path) if path else Path("runs") / "experiments" / f"{name}-{profile}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    before = list(_lines(path.read_text())) if path.exists() else []
    # Written again, because a line that was cut off would spoil the next one.
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in before))
    known = {cell_name(record["cell"]): record for record in [*stored(name), *before]}
    missing = [
        cell
        for cell in cells
        if cell_name(cell) not in known
        and all(cell.get(key) in values for key, values in (wanted or {}).items())
    ]
    total, done = sum(map(work.cost, missing)), 0
    with path.open("a") as file:
        for record in _computed(missing, name, processes, time.monotonic() + seconds):
            known[cell_name(record["cell"])] = record
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            done += work.cost(record["cell"])
            say(f"{done / total:4.0%}  {json.dumps(record['cell'], ensure_ascii=False)[:100]}")
    return [known[cell_name(cell)] for cell in cells if cell_name(cell) in known]


def _computed(cells: list[Cell], name: str, processes: int, end: float) -> Iterator[Record]:
    if not processes:
        for cell in cells:
            if time.monotonic() > end:
                return
            yield compute(cell, name)
        return
    # Spawned: a forked process may inherit locks of threads that it does not have.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = [pool.submit(functools.partial(compute, name=name), cell) for cell in cells]
        for future in as_completed(futures):
            yield future.result()
            if time.monotonic() > end:
                pool.shutdown(cancel_futures=True)
                return
