"""The third page: results of `notsodeep compile` and `notsodeep reproduce` on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from notsodeep import checks, extras
from notsodeep.compilation.pieces import TRAINED
from notsodeep.compilation.verdict import headline, reasons, rule, verdict_word
from notsodeep.errors import DataCorrupted, InvalidInput, NotSoDeepError
from notsodeep.explorer.drawings import stored_figures, svg_of
from notsodeep.explorer.page_state import plain, show_figure, show_table
from notsodeep.files.run_directory import RunDirectory
from notsodeep.papers.reproduction import NAMES, cell_name, experiment
from notsodeep.report.reproduction_figures import reproduction_figure

_DEPTH = 3  # directories below the root that are looked into
_KINDS = ("compile", TRAINED, "reproduce")


@dataclass(frozen=True)
class StoredRun:
    """A directory of results.

    Attributes
    ----------
    name : str
        Its path below the root, with forward slashes; the name in a link.
    path : Path
    kind : str
        "compile", "compile-trained" or "reproduce".
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
        elif self.kind == TRAINED:
            what = f"compile of a trained network, {self.settings.get('test_rows')} test rows"
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


_SHOW = {"replaceable": st.success, "not shown": st.warning, "not replaceable": st.error}


def runs_page(root: Path) -> None:
    """Show the list of runs below `root`, and the one that was chosen."""
    st.header("Stored runs", anchor=False)
    runs = stored_runs(root)
    if not runs:
        st.info(
            f"There are no runs in `{root}`. Make one with `notsodeep compile --out "
            f"{root}/relu` or `notsodeep reproduce sphere-spectra`, or name another directory: "
            "`notsodeep explore --runs DIRECTORY`."
        )
        return
    names = [run.name for run in runs]
    asked = st.query_params.get("run")
    if asked is not None and asked not in names:
        st.warning(plain(f"There is no run {asked!r} here."), icon=":material/link_off:")
    if asked in names and st.session_state.get("runs.asked") != asked:
        st.session_state["runs.name"] = asked
    titles = {run.name: run.title for run in runs}
    name = st.selectbox("run", names, key="runs.name", format_func=titles.__getitem__)
    st.session_state["runs.asked"] = name
    st.query_params.from_dict({"run": name})
    run = chosen_run(runs, name)
    try:
        _PAGES[run.kind](run)
    except (NotSoDeepError, KeyError, ValueError) as error:
        st.error(plain(f"This run cannot be shown: {error}"), icon=":material/error:")
    with st.expander("Settings of the run"):
        st.json(run.settings)


def _compiled(run: StoredRun) -> None:
    pieces = compile_pieces(run)
    summary = pieces.read("summary")
    _SHOW[verdict_word(summary)](plain(headline(summary)))
    for sentence in (*reasons(summary, pieces.settings), rule(pieces.settings)):
        st.markdown(f"- {plain(sentence)}")
    accuracy = summary["accuracy"]
    cells = st.columns(4)
    cells[0].metric("kernel gap, held out", f"{summary['relative_gap']:.2%}")
    cells[1].metric("accuracy of the network", f"{accuracy['matched']:.2%}")
    cells[2].metric("accuracy of the DEQ", f"{accuracy['deq']:.2%}")
    cells[3].metric("faster in inference", f"{summary['inference_ratio']:.1f} ×")
    figures = stored_figures(pieces.stored_arrays("certificate"), pieces.stored_arrays("spectrum"))
    for start in range(0, len(figures), 2):
        for place, (alt, figure) in zip(st.columns(2), figures[start : start + 2], strict=False):
            with place:
                show_figure(figure, alt)
    _files(run)


def _files(run: StoredRun) -> None:
    for name in ("report.html", "network.safetensors", "network.onnx"):
        path = run.path / name
        if path.is_file():
            st.download_button(name, path.read_bytes(), name, on_click="ignore", key=f"take {name}")


def _trained(run: StoredRun) -> None:
    extras.require("A run of a trained network", "torch")
    from notsodeep.compilation.trained_record import TrainedCompilation
    from notsodeep.explorer.trained_page import show_compilation

    compiled = TrainedCompilation.load(run.path)
    show_compilation(compiled)
    verdict = compiled.verdict
    for sentence in (*verdict.reasons, verdict.rule):
        st.markdown(f"- {plain(sentence)}")
    _files(run)


def _reproduced(run: StoredRun) -> None:
    work = experiment(run.settings["name"])
    st.subheader(work.title, anchor=False)
    st.caption(work.source)
    records, missing = reproduced_records(run)
    if missing:
        st.warning(
            f"{missing} of {missing + len(records)} cells are not computed yet; run "
            f"`notsodeep reproduce {work.name}` again to resume."
        )
        return
    figure = _figure(run.name, run.path.stat().st_mtime, work.name, records)
    show_figure(figure, f"Figure of the experiment {work.name}.")
    st.download_button("Figure (SVG)", figure, f"{work.name}.svg", "image/svg+xml")
    show_table(findings_table(run, records))


@st.cache_resource(max_entries=8, show_spinner="Drawing …")
def _figure(
    name: str,  # noqa: ARG001  # of the cache, as is the time of the last change
    changed: float,  # noqa: ARG001
    work: str,
    _records: list[dict[str, Any]],
) -> str:
    return svg_of(lambda: reproduction_figure(work, _records))


_PAGES = {"compile": _compiled, TRAINED: _trained, "reproduce": _reproduced}
