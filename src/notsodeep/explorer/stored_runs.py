"""Runs of `notsodeep compile` and `notsodeep reproduce` that are on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notsodeep import checks
from notsodeep.errors import DataCorrupted, InvalidInput, NotSoDeepError
from notsodeep.files.run_directory import RunDirectory
from notsodeep.papers.reproduction import NAMES, cell_name, experiment

_DEPTH = 3  # directories below the root that are looked into
_KINDS = ("compile", "reproduce")


@dataclass(frozen=True)
class StoredRun:
    """A directory of results.

    Attributes
    ----------
    name : str
        Its path below the root, with forward slashes; the name in a link.
    path : Path
    kind : str
        "compile" or "reproduce".
    settings : dict
    finished : bool
        Whether all of it is there.
    """

    name: str
    path: Path
    kind: str
    settings: dict[str, Any]
    finished: bool

    @property
    def title(self) -> str:
        """What it is about, in a few words."""
        if self.kind == "reproduce":
            what = f"{self.settings.get('name')}, {self.settings.get('profile')}"
        else:
            what = f"compile on {self.settings.get('data')}"
        return f"{self.name}: {what}{'' if self.finished else ' (not finished)'}"


def stored_runs(root: Path) -> list[StoredRun]:
    """List the runs below a directory, newest first; what is not a run is passed over."""
    places = [root, *(place for depth in range(1, _DEPTH + 1) for place in _below(root, depth))]
    found = [(run, run.path.stat().st_mtime) for place in places if (run := _run(root, place))]
    return [run for run, _ in sorted(found, key=lambda pair: -pair[1])]


def _below(root: Path, depth: int) -> list[Path]:
    pattern = "/".join("*" * depth)
    return [place for place in sorted(root.glob(pattern)) if place.is_dir()]


def _run(root: Path, place: Path) -> StoredRun | None:
    try:
        content = checks.strict_json((place / "settings.json").read_bytes())
        kind, settings = content["kind"], dict(content["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if kind not in _KINDS:
        return None
    name = place.relative_to(root).as_posix()
    finished = (place / "manifest.json").exists()
    return StoredRun("." if name == "." else name, place, kind, settings, finished)


def chosen_run(runs: list[StoredRun], name: str) -> StoredRun:
    """Return the run of that name; only what was listed can be opened.

    Raises
    ------
    InvalidInput
        There is none of that name.
    """
    for run in runs:
        if run.name == name:
            return run
    raise InvalidInput(f"There is no run {name!r} here. Choose one from the list.")


def compile_pieces(run: StoredRun) -> RunDirectory:
    """Open a compile run for reading.

    Raises
    ------
    InvalidInput
        It is not one.
    """
    return RunDirectory.stored(run.path, "compile")


def reproduced_records(run: StoredRun) -> tuple[list[dict[str, Any]], int]:
    """Return the records of a sweep that are on disk, in order, and how many are missing.

    Raises
    ------
    InvalidInput
        The experiment is not known to this version.
    """
    name, profile = run.settings.get("name"), run.settings.get("profile")
    if name not in NAMES:
        raise InvalidInput(f"The experiment {name!r} is not known to this version.")
    directory = RunDirectory(run.path, "reproduce", run.settings)
    records, missing = [], 0
    for cell in experiment(str(name)).cells(profile):  # type: ignore[arg-type]
        try:
            records.append(directory.read(cell_name(cell)))
        except DataCorrupted:
            missing += 1
    return records, missing


def findings_table(run: StoredRun, records: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Tabulate our numbers beside the paper's."""
    try:
        found = experiment(run.settings["name"]).findings(records)
    except (NotSoDeepError, KeyError, ValueError):  # of a sweep that is not complete
        return []
    return [
        {"quantity": f.quantity, "paper": f.paper or "–", "ours": f.ours, "why": f.why or "–"}
        for f in found
    ]
