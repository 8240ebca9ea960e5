"""Sweeps that reproduce figures of the papers, cell by cell."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from notsodeep import checks
from notsodeep.cluster.executors import Executor, InProcess
from notsodeep.files.run_directory import RunDirectory
from notsodeep.progress import progress_bar

Profile = Literal["smoke", "quick", "paper"]
Cell = dict[str, Any]
Record = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """One of our numbers beside the paper's.

    Attributes
    ----------
    quantity : str
    paper : str
        What the paper says; empty if it says nothing.
    ours : str
    why : str
        Where a difference comes from.
    """

    quantity: str
    paper: str
    ours: str
    why: str = ""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of a paper.

    Attributes
    ----------
    name, title, source : str
    cells : callable
        Profile ↦ the cells, each a JSON object that says everything about its work.
    compute : callable
        (cell, seed) ↦ a JSON object; the seed is a function of the cell's content.
        Numbers that a clock gives, which no seed repeats, are under ``"seconds"``.
    findings : callable
        Records of all cells ↦ our numbers beside the paper's.
    cost : callable
        Cell ↦ its work relative to that of other cells, for the estimate of the time left.
    inputs : callable
        Profile ↦ the SHA-256 of files of the user's that its cells depend on, by name.
    """

    name: str
    title: str
    source: str
    cells: Callable[[Profile], list[Cell]]
    compute: Callable[[Cell, int], Record]
    findings: Callable[[list[Record]], list[Finding]]
    cost: Callable[[Cell], int] = lambda cell: 1
    inputs: Callable[[Profile], Mapping[str, str]] = lambda profile: {}


_MODULES = {
    "sphere-spectra": "sphere_spectra",
    "mixture-equivalent": "mixture_equivalent",
    "mixture-matched": "mixture_matched",
    "gap-versus-dimension": "gap_versus_dimension",
    "accuracy-versus-width": "accuracy_versus_width",
    "image-scalings": "image_scalings",
    "authors-protocol": "authors_protocol",
    "gaussian-process-limit": "gaussian_process_limit",
    "kernel-variability": "kernel_variability",
    "risk-predictions": "risk_predictions",
    "risk-on-images": "risk_on_images",
    "hyper-parameters": "hyper_parameters",
    "collapse-phase": "collapse_phase",
    "collapse-kernels": "collapse_kernels",
    "collapse-balanced": "collapse_balanced",
    "collapse-imbalanced": "collapse_imbalanced",
    "collapse-causes": "collapse_causes",
    "collapse-features": "collapse_features",
}
NAMES = tuple(_MODULES)


def experiment(name: str) -> Experiment:
    """Return an experiment by name."""
    checks.known_name(name, NAMES, "experiment")
    module = importlib.import_module(f"notsodeep.papers.{_MODULES[name]}")
    found: Experiment = module.EXPERIMENT
    return found


def cell_seed(cell: Mapping[str, Any]) -> int:
    """Return a seed that is a function of the cell's content alone."""
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def cell_name(cell: Mapping[str, Any]) -> str:
    """Return the name of a cell's file."""
    text = json.dumps(cell, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _record(cell: Cell, *, name: str) -> Record:
    return {"cell": cell, **experiment(name).compute(cell, cell_seed(cell))}


def reproduce(
    name: str,
    out: str | Path,
    *,
    profile: Profile = "quick",
    force: bool = False,
    executor: Executor | None = None,
) -> list[Record]:
    """Run an experiment, or what is missing of it; return the records of all cells in order.

    Each record holds its cell under ``"cell"``.  Cells are stored one by one in `out`, and do not
    depend on one another, so that a stopped sweep resumes where it stopped with the same numbers.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    out : path
        Directory of the results.
    profile : {"smoke", "quick", "paper"}
        Seconds, minutes, or the sizes of the paper.
    force : bool
        Start over.
    executor : Executor, optional
        Where cells are computed; in this process, one after the other, by default.  They are
        stored by this process.
    """
    checks.known_name(profile, get_args(Profile), "profile")
    work = experiment(name)
    cells = work.cells(profile)
    run = RunDirectory(
        out,
        "reproduce",
        {"name": name, "profile": profile},
        inputs=work.inputs(profile),
        pages=("figure.svg", "report.html"),
    )
    with run.opened(force=force), progress_bar(name, unit="work") as advance:
        missing = [cell for cell in cells if not run.has(cell_name(cell))]
        done, total = 0, sum(map(work.cost, missing))
        advance(done, total)
        compute = functools.partial(_record, name=name)
        for position, record in (executor or InProcess()).completed(compute, missing):
            run.piece(cell_name(missing[position]), functools.partial(dict, record))
            done += work.cost(missing[position])
            advance(done, total)
        records = [run.read(cell_name(cell)) for cell in cells]
        run.finish([])
    return records
