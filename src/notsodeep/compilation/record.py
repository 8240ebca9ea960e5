"""What `compile` returns: the shallow network, and the evidence that it will do."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from notsodeep import extras
from notsodeep.compilation.accuracy import Accuracy
from notsodeep.compilation.labelled_rows import input_digests
from notsodeep.compilation.numpy_networks import ArrayNetwork
from notsodeep.compilation.pieces import Arrays, Pieces
from notsodeep.compilation.settings import ROLES, CompileSettings
from notsodeep.compilation.stored_match import stored_conditions, stored_match
from notsodeep.compilation.verdict import (
    ReplacementVerdict,
    headline,
    reasons,
    rule,
    verdict_word,
)
from notsodeep.data import Provenance
from notsodeep.equivalents.distances import KernelDistance
from notsodeep.errors import MissingPackage
from notsodeep.files.run_directory import RunDirectory
from notsodeep.matching import Certificate, Match
from notsodeep.numerics.paired_times import Timing, TimingTable
from notsodeep.prediction import Transfer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from notsodeep.networks.modules import ExplicitModule

NETWORK, ONNX = "network.safetensors", "network.onnx"
PAGES = ("report.html",)
JUDGED_BY = dict.fromkeys(("seeds", "gap_limit", "accuracy_limit"), ("summary",))
"""Settings that may change in a directory: the draws stay, and the verdict is found anew."""

_RECORDS = ("data", "certificate", "spectrum", "timing", "front", "summary")
_LATER = ("widths", "transfer")  # that runs of version 0.1 do not have
_ARRAYS = ("certificate", "spectrum")


@dataclass(frozen=True, eq=False, repr=False)
class Compilation:
    """A shallow network for a DEQ, and the evidence that it will do.

    Attributes
    ----------
    settings : CompileSettings
        What was asked for.
    match : Match
        The network's description, and how it was found.
    records, arrays : Mapping
        All that was measured, as it is stored, by the names of the pieces.
    directory : Path or None
        Where it is stored, if it is.
    first : torch.nn.Module, ArrayNetwork or None
        The network, unless it is still to be read from the directory; see `network`.
    """

    settings: CompileSettings
    match: Match
    records: Mapping[str, dict[str, Any]]
    arrays: Mapping[str, Arrays]
    directory: Path | None = None
    first: ExplicitModule | ArrayNetwork | None = None

    @classmethod
    def of_pieces(
        cls,
        settings: CompileSettings,
        found: Match,
        pieces: Pieces,
        *,
        directory: Path | None = None,
        first: ExplicitModule | ArrayNetwork | None = None,
    ) -> Compilation:
        """Take everything over from the place where it was computed."""
        networks = [f"network-{role}-{k}" for k in range(settings.seeds) for role in ROLES]
        written = ("match", "export") if directory else ()
        later = [name for name in _LATER if pieces.has(name)]
        records = {name: pieces.read(name) for name in (*_RECORDS, *later, *networks, *written)}
        arrays = {name: pieces.stored_arrays(name) for name in _ARRAYS}
        return cls(settings, found, records, arrays, directory, first)

    @classmethod
    def load(cls, directory: str | Path) -> Compilation:
        """Read what `save`, or `compile` with a directory, has written.

        Raises
        ------
        InvalidInput
            The directory holds no compile run.
        DataCorrupted
            A piece is missing, since the run is not finished, or unreadable.
        """
        run = RunDirectory.stored(directory, "compile")
        settings = CompileSettings.from_dict(run.settings)
        found = stored_match(run.read("match"))
        return cls.of_pieces(settings, found, run, directory=run.path)

    def save(self, directory: str | Path, *, force: bool = False) -> Path:
        """Write everything, as `compile` with ``out=directory`` does; `notsodeep.load` reads it.

        Parameters
        ----------
        directory : path
            A new one, or one that holds this compilation already.
        force : bool
            Replace results of other settings, or on other data.

        Raises
        ------
        NotSerialisable
            The activation is a Python function, which is not data.
        InvalidInput
            The directory holds something else.
        """
        inputs = input_digests(Provenance(**self.records["data"]["provenance"]))
        form = self.settings.to_dict()
        run = RunDirectory(directory, "compile", form, inputs=inputs, pages=PAGES)
        with run.opened(force=force):
            run.piece("match", lambda: self.records.get("match") or self.match.to_dict())
            for name, arrays in self.arrays.items():
                run.arrays(name, lambda values=arrays: values)  # type: ignore[misc]
            for name, record in self.records.items():
                if name != "export":  # that is about the files of another directory
                    run.piece(name, lambda value=record: value)  # type: ignore[misc]
            write_network(self.first or self.network, run)
            run.finish([name for name in (NETWORK, ONNX) if (run.path / name).exists()])
        return run.path

    @cached_property
    def network(self) -> ExplicitModule:
        """The first draw of the network, trained, a torch module in evaluation mode.

        It has the attributes ``preprocessing``, from raw rows to the rows that it takes, and
        ``classes``, the names of its outputs.

        Raises
        ------
        MissingPackage
            PyTorch, the extra ``torch``, is not installed.
        """
        if isinstance(self.first, ArrayNetwork):
            return self.first.module()
        if self.first is not None:
            return self.first.eval()
        assert self.directory is not None  # one of the two is always there
        extras.require("The network as a torch module", "torch")
        from notsodeep.networks.persistence import load

        return cast("ExplicitModule", load(self.directory / NETWORK))

    @property
    def certificate(self) -> Certificate:
        """Exact kernels of DEQ and network on held-out rows, beside an unmatched network."""
        record, arrays = self.records["certificate"], self.arrays["certificate"]
        means = record["class_means"]

        def distance(role: str, name: str) -> KernelDistance:
            return KernelDistance(
                **record[role], eigenvalues=arrays["deq"], other_eigenvalues=arrays[name]
            )

        return Certificate(
            matched=distance("matched", "matched"),
            unmatched=distance("unmatched", "unmatched"),
            accuracy=record["accuracy"],
            class_means=means and {name: np.array(rows) for name, rows in means.items()},
            conditions=stored_conditions(record["conditions"]),
            kind=record["kind"],
            convention=record["convention"],
            names=record["names"],
            difference=arrays["difference"],
        )

    @property
    def accuracy(self) -> Accuracy:
        """Test accuracies of the finite networks."""
        summary = self.records["summary"]
        draws = {role: tuple(summary["accuracies"][role]) for role in ROLES}
        return Accuracy(draws, summary["accuracy_row_error"])

    @property
    def timing(self) -> TimingTable:
        """Times of DEQ and network, side by side."""
        record = self.records["timing"]
        work = {
            name: Timing(**{**record[name], "quartiles": tuple(record[name]["quartiles"])})
            for name in ("inference", "training_step")
            if record[name] is not None
        }
        return TimingTable(**{**record, **work})

    @property
    def transfer(self) -> Transfer | None:
        """The DEQ's tuned rate, epochs and ridge on both networks; None for convolutions."""
        record = dict(self.records.get("transfer", {"reason": "This run is older."}))
        return None if record.pop("reason") else Transfer.from_dict(record)

    @property
    def verdict(self) -> ReplacementVerdict:
        """Whether the network may replace the DEQ, and by which rule."""
        summary, options = self.records["summary"], self.settings.options
        verdicts = stored_conditions(self.records["data"]["conditions"])
        evidence = reasons(summary, options)
        off = [v for v in verdicts if v.name == "scale of the data" and not v.holds]
        if self.transfer is not None:
            evidence += [self.transfer.verdict(name) for name in self.transfer.names[1:]]
        evidence += [
            f"The scale of the data is τ0 = {v.value:.3g}, far from 1: unless the DEQ takes these "
            "rows as they are, use preprocessing='theory'."
            for v in off
        ]
        return ReplacementVerdict(
            verdict_word(summary), headline(summary), rule(options), tuple(evidence), verdicts
        )

    def plot(self) -> Figure:
        """Draw both activations, the eigenvalues and the difference of the kernels."""
        # Pictures and pages know the records, and not the other way round.
        matches = importlib.import_module("notsodeep.plotting.matches")
        figure: Figure = matches.match_figure(self.match, self.certificate)
        return figure

    def report(self, path: str | Path) -> Path:
        """Write the report: one HTML file without any link to the outside."""
        page = importlib.import_module("notsodeep.report.compile_page")
        written: Path = page.write_compile_page(self, path)
        return written

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form: settings, match, verdict and what was measured, without arrays."""
        return {
            "settings": self.settings.to_dict(),
            "match": self.records.get("match") or self.match.to_dict(),
            "verdict": self.verdict.to_dict(),
            **{name: self.records[name] for name in _RECORDS},
        }

    def __repr__(self) -> str:
        summary, accuracy = self.records["summary"], self.accuracy.mean
        return (
            f"Compilation({self.verdict.word}: {summary['deq']} → {summary['network']}; kernel gap "
            f"{summary['relative_gap']:.2%}, accuracy {accuracy['matched']:.1%} against "
            f"{accuracy['deq']:.1%}, inference {summary['inference_ratio']:.1f} × faster than at "
            f"tolerance {summary['tolerance']:g})"
        )

    def __str__(self) -> str:
        summary = self.records["summary"]
        networks = f"  {summary['deq']}\n  → {summary['network']}"
        first, *rest = str(self.verdict).splitlines()
        return "\n".join([first, networks, *rest])

    def _repr_html_(self) -> str:
        """Return the verdict and its evidence, for notebooks."""
        verdict, summary = self.verdict, self.records["summary"]
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in (
                ("DEQ", summary["deq"]),
                ("network", summary["network"]),
                *(("", reason) for reason in verdict.reasons),
                ("rule", verdict.rule.removeprefix("Rule: ")),
            )
        )
        title = html.escape(verdict.headline)
        return f"<table><caption><b>{title}</b></caption><tbody>{rows}</tbody></table>"


def write_network(network: ExplicitModule | ArrayNetwork, run: RunDirectory) -> None:
    """Write a network to the directory of a run, and to ONNX if that can be done."""
    target, onnx = run.file(NETWORK), run.file(ONNX)
    note = "written"
    if isinstance(network, ArrayNetwork):
        network.write(target)
        note = str(extras.missing("The ONNX file", "torch"))
    else:
        from notsodeep.networks.onnx_export import export_onnx
        from notsodeep.networks.persistence import save

        save(network, target)
        try:
            export_onnx(network, onnx)
        except MissingPackage as error:
            note = str(error)
    run.piece("export", lambda: {"safetensors": target.name, "onnx": note})
