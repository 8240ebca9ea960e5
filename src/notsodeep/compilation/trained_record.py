"""What `compile` returns for a network with given weights: explicit layers, and the evidence."""

from __future__ import annotations

import contextlib
import html
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep import checks
from notsodeep.activations import from_dict as activation_from_dict
from notsodeep.compilation.pieces import TRAINED, Arrays, Pieces
from notsodeep.compilation.verdict import ReplacementVerdict, Word
from notsodeep.errors import MissingPackage
from notsodeep.files import sha256_of_array
from notsodeep.files.run_directory import RunDirectory, RunRecord
from notsodeep.models import Conditions
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell, EquilibriumCell, Readout
from notsodeep.trained.explicit_layers import Kinds, Layer
from notsodeep.trained.fidelity import Fidelity
from notsodeep.trained.front import Front
from notsodeep.trained.hybrid import HybridEquilibrium, HybridRecord, first_check
from notsodeep.trained.margin import Margin
from notsodeep.trained.network import ExplicitLayers
from notsodeep.trained.splittings import MethodChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONNX = "network.onnx"
PAGES = ("report.html",)
_ARRAYS = ("W", "U", "b", "shift", "scale", "C", "c")
_PARTS = {
    "solver": ("margin", "choice"),
    "layers": ("refitted", "distilled"),
    "fidelity": ("fidelities",),
    "baselines": ("baselines",),
    "front": ("front", "hybrid", "cold"),
}  # records in which the evidence is stored, each as soon as it is there


@dataclass(frozen=True, repr=False)
class CellSettings(Record):
    """What the compilation of a given network was asked for.

    Attributes
    ----------
    layers : int or None
        None leaves it to the rows set apart.
    kinds : str
        Of layers.
    fit : {"least_squares", "moments"}
    distil : bool
        Whether refinement by gradient descent was asked for.
    width : int or None
        Of layers before the last; None is the network's own.
    tolerance : float
        To which fixed points are solved.
    agreement_limit : float
        Least agreement of a network that may replace the DEQ.
    seed : int
    rows, apart, test_rows : int
        Rows that were fitted to, chosen by and judged on.
    """

    layers: int | None
    kinds: Kinds
    fit: str
    distil: bool
    width: int | None
    tolerance: float
    agreement_limit: float
    seed: int
    rows: int
    apart: int
    test_rows: int


@dataclass(frozen=True, repr=False)
class FidelityEvidence(Record):
    """How faithful explicit layers are to a given network, and at which cost.

    Attributes
    ----------
    fidelities : tuple of Fidelity
        With 1, 2, … layers.
    baselines : dict of str to Fidelity
    front : Front
    """

    fidelities: tuple[Fidelity, ...]
    baselines: dict[str, Fidelity]
    front: Front


@dataclass(frozen=True, repr=False)
class CellEvidence(FidelityEvidence):
    """What was found out about a network with given weights and its explicit layers.

    Attributes
    ----------
    margin : Margin
    choice : MethodChoice
        The solver, and why.
    refitted : tuple of bool
        Whether the read-out after 1, 2, … layers was refitted to the DEQ's logits.
    hybrid, cold : HybridRecord or None
        Of the held-out rows; `cold` is the solver with the same early exit and no layers.
    distilled : str
        What refinement by gradient descent did.
    """

    margin: Margin
    choice: MethodChoice
    refitted: tuple[bool, ...]
    hybrid: HybridRecord | None
    cold: HybridRecord | None
    distilled: str


class CellCompilation(ABC):
    """What `compile` returns for a given network: fidelity first, and a verdict by a printed rule.

    It has the face of `Compilation`: ``network``, ``verdict``, ``front``, ``plot()`` and
    ``report(path)``.
    """

    cell: EquilibriumCell
    evidence: FidelityEvidence

    @property
    def fidelity(self) -> Fidelity:
        """Agreement with the DEQ on held-out rows, of the network with all layers."""
        return self.evidence.fidelities[-1]

    @property
    def fidelity_by_layers(self) -> dict[int, Fidelity]:
        """The same for the networks of the first 1, 2, … layers, by their number."""
        return dict(enumerate(self.evidence.fidelities, 1))

    @property
    def baselines(self) -> Mapping[str, Fidelity]:
        """Fidelity of what is simpler."""
        return self.evidence.baselines

    @property
    def front(self) -> Front:
        """Cost against fidelity."""
        return self.evidence.front

    @property
    @abstractmethod
    def _limit(self) -> float:
        """Least agreement of a network that may replace the DEQ."""

    @abstractmethod
    def _headline(self, word: Word) -> str:
        """Say the verdict in a sentence."""

    @abstractmethod
    def _reasons(self) -> list[str]:
        """Return the evidence in words."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of the DEQ itself, as names and values."""

    @property
    def verdict(self) -> ReplacementVerdict:
        """Whether the network may replace the DEQ, and by which rule."""
        limit, own = self._limit, self.fidelity
        word: Word = "not shown"
        if own.agreement_bound >= limit:
            word = "replaceable"
        elif own.agreement_upper < limit:
            word = "not replaceable"
        reasons = [*self._reasons(), self.front.headline]
        if own.accuracy is not None and own.deq_accuracy is not None:
            reasons.append(
                f"Accuracy {own.accuracy:.2%} against {own.deq_accuracy:.2%} of the DEQ."
            )
        headline = self._headline(word)
        return ReplacementVerdict(word, headline, _rule(limit), tuple(reasons), Conditions(()))

    def plot(self) -> Figure:
        """Draw the front, and agreement and certified share by the number of layers."""
        fronts = importlib.import_module("notsodeep.plotting.trained")
        figure: Figure = fronts.trained_figure(self.front, self.fidelity_by_layers, self.baselines)
        return figure

    def report(self, path: str | Path) -> Path:
        """Write the report: one HTML file without any link to the outside."""
        page = importlib.import_module("notsodeep.report.trained_page")
        written: Path = page.write_trained_page(self, path)
        return written

    def __repr__(self) -> str:
        own = self.fidelity
        proved = "nothing proved" if own.certified is None else f"{own.certified:.1%} proved"
        return (
            f"{type(self).__name__}({self.verdict.word}: {len(self.evidence.fidelities)} layers, "
            f"agreement {own.agreement:.2%} (at least {own.agreement_bound:.2%}), {proved})"
        )

    def __str__(self) -> str:
        lines = [
            f"  {count} layer{'s' * (count > 1)}: {_line(f)}"
            for count, f in self.fidelity_by_layers.items()
        ]
        lines += [f"  {name}: {_line(f)}" for name, f in self.baselines.items()]
        return "\n".join([str(self.verdict), *lines])

    def _repr_html_(self) -> str:
        """Return the verdict and its evidence, for notebooks."""
        verdict = self.verdict
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(reason)}</td></tr>"
            for reason in (*verdict.reasons, verdict.rule)
        )
        title = html.escape(verdict.headline)
        return f"<table><caption><b>{title}</b></caption><tbody>{rows}</tbody></table>"


@dataclass(frozen=True, eq=False, repr=False)
class TrainedCompilation(CellCompilation):
    """Explicit layers for a DEQ with given weights, and the evidence that they will do.

    Attributes
    ----------
    settings : CellSettings
    cell : AffineCell
    layers : tuple of Layer
    readouts : tuple of (C, c)
        After 1, 2, … layers.
    evidence : CellEvidence
    inputs : Mapping of str to str
        SHA-256 of the weights and the rows.
    directory : Path or None
    """

    settings: CellSettings
    cell: AffineCell
    layers: tuple[Layer, ...]
    readouts: tuple[Readout, ...]
    evidence: CellEvidence
    inputs: Mapping[str, str]
    directory: Path | None = None

    @property
    def margin(self) -> Margin:
        """Why the DEQ has one fixed point, if it is proved."""
        return self.evidence.margin

    @property
    def method(self) -> MethodChoice:
        """The solver, and why it was chosen."""
        return self.evidence.choice

    @cached_property
    def network(self) -> ExplicitLayers:
        """The explicit network, a torch module in evaluation mode: (n, p) to logits."""
        return self.network_of(len(self.layers))

    def network_of(self, layers: int) -> ExplicitLayers:
        """Return the network of the first so many layers."""
        checks.positive_integer(layers, "layers", "network_of")
        chain, readout = self.layers[:layers], self.readouts[min(layers, len(self.layers)) - 1]
        module = ExplicitLayers(self.cell, chain, self.margin.beta, readout)
        return module.eval().requires_grad_(False)

    def hybrid(self, *, tolerance: float = 1e-10, max_steps: int = 3000) -> HybridEquilibrium:
        """Return the module whose every answer is the DEQ's own class.

        Raises
        ------
        InvalidInput
            The DEQ has no margin, by which classes could be proved.
        """
        return HybridEquilibrium(
            self.cell,
            self.margin,
            self.layers,
            self.method,
            tolerance=tolerance,
            max_steps=max_steps,
            first_check=first_check(self.evidence.fidelities),
        )

    @property
    def _limit(self) -> float:
        return self.settings.agreement_limit

    def _headline(self, word: Word) -> str:
        single = len(self.layers) == 1
        network = "One explicit layer" if single else f"{len(self.layers)} explicit layers"
        return {
            "replaceable": f"This DEQ can be replaced by {network.lower()}.",
            "not shown": f"{network} may follow this DEQ closely enough: the rows are too few to "
            "tell.",
            "not replaceable": f"{network} {'does' if single else 'do'} not follow this DEQ "
            "closely enough.",
        }[word]

    def _reasons(self) -> list[str]:
        own = self.fidelity
        unmatched = self.baselines["recurrence dropped, read-out refitted"]
        found = [
            f"Same class as the DEQ on {own.agreement:.2%} of {own.rows} held-out rows, at least "
            f"{own.agreement_bound:.2%} with 95 % confidence; without the recurrence "
            f"{unmatched.agreement:.2%}."
        ]
        if own.certified is not None:
            found.append(
                f"On {own.certified:.1%} of the rows that is proved, row by row; the certified "
                "hybrid gives the DEQ's class on all of them."
            )
        else:
            found.append(f"No row can be proved: {self.margin.reason}")
        return found

    def facts(self) -> list[tuple[str, str]]:
        """Return what a report says of the DEQ itself, as names and values."""
        asked, hybrid, cold = self.settings, self.evidence.hybrid, self.evidence.cold
        rows = f"{asked.rows} to fit, {asked.apart} to choose by, {asked.test_rows} to judge on"
        found = [
            ("network", repr(self.cell)),
            ("size of W", f"‖W‖ = {self.margin.norm:.4g}"),
            ("fixed point", self.margin.reason),
            ("solver", self.method.reason),
            ("rows", rows),
        ]
        if hybrid is not None and cold is not None:
            after = ", ".join(f"{share:.1%}" for share in hybrid.certified_after)
            words = (
                f"proved after each layer: {after}; then {hybrid.mean_steps:.2f} solver steps per "
                f"row, against {cold.mean_steps:.2f} of the solver with the same early exit and no "
                f"layers; {hybrid.uncertified} rows solved without a proof"
            )
            found.append(("hybrid", words))
        return found

    def save(self, directory: str | Path, *, force: bool = False) -> Path:
        """Write everything; `notsodeep.load` reads it.

        Parameters
        ----------
        directory : path
            A new one, or one that holds this compilation already.
        force : bool
            Replace other results.

        Raises
        ------
        NotSerialisable
            The activation is a Python function, which is not data.
        InvalidInput
            The directory holds something else.
        """
        form = self.evidence.to_dict()
        run = trained_run(directory, self.settings, self.cell, self.inputs)
        with run.opened(force=force):
            run.arrays("cell", lambda: cell_arrays(self.cell))
            run.arrays("layers", lambda: layer_arrays(self.layers, self.readouts))
            for name, keys in _PARTS.items():
                content = {key: form[key] for key in keys}
                if name == "layers":
                    content["layers"] = [layer.to_dict(arrays=False) for layer in self.layers]
                run.piece(name, lambda value=content: value)  # type: ignore[misc]
            self.finish(run)
        return run.path

    def finish(self, run: RunDirectory) -> None:
        """Export the network to the directory of a run whose pieces are all there."""
        from notsodeep.networks.onnx_export import export_onnx

        with contextlib.suppress(MissingPackage):
            export_onnx(self.network, run.file(ONNX))
        run.finish([ONNX] if (run.path / ONNX).exists() else [])

    @classmethod
    def of_pieces(
        cls,
        settings: CellSettings,
        cell: AffineCell,
        pieces: Pieces,
        inputs: Mapping[str, str],
        directory: Path | None = None,
    ) -> TrainedCompilation:
        """Take everything over from the place where it was computed."""
        records = {name: pieces.read(name) for name in _PARTS}
        found = {key: records[name][key] for name, keys in _PARTS.items() for key in keys}
        layers, readouts = read_layers(records["layers"]["layers"], pieces.stored_arrays("layers"))
        evidence = CellEvidence.from_dict(found)
        return cls(settings, cell, layers, readouts, evidence, inputs, directory)

    @classmethod
    def load(cls, directory: str | Path) -> TrainedCompilation:
        """Read what `save`, or `compile` with a directory, has written.

        Raises
        ------
        InvalidInput, DataCorrupted
            The directory holds something else, or not all of it.
        """
        run = RunDirectory.stored(directory, TRAINED)
        form = dict(run.settings)
        activation = activation_from_dict(form.pop("activation"))
        cell = _read_cell(run.stored_arrays("cell"), activation)
        stored = RunRecord.read(run.path)
        inputs = {} if stored is None else stored.inputs
        return cls.of_pieces(CellSettings.from_dict(form), cell, run, inputs, run.path)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form: settings, verdict and what was measured, without arrays."""
        return {
            "settings": self.settings.to_dict(),
            "verdict": self.verdict.to_dict(),
            "layers": [layer.to_dict(arrays=False) for layer in self.layers],
            **self.evidence.to_dict(arrays=False),
        }


def _line(fidelity: Fidelity) -> str:
    proved = "" if fidelity.certified is None else f", {fidelity.certified:.1%} proved"
    return f"agreement {fidelity.agreement:.2%}, logit error {fidelity.logit_error:.3g}{proved}"


def _rule(limit: float) -> str:
    return (
        f"Rule: replaceable if the lower 95 % bound of the agreement on held-out rows is at least "
        f"{limit:.1%}, not if the upper one is below. It is about rows drawn like these; a proof "
        "is about its row alone."
    )


def trained_run(
    directory: str | Path, settings: CellSettings, cell: AffineCell, inputs: Mapping[str, str]
) -> RunDirectory:
    """Return the directory of a compilation; one of other settings, weights or rows is rejected."""
    form = {**settings.to_dict(), "activation": cell.activation.to_dict()}
    return RunDirectory(directory, TRAINED, form, inputs=inputs, pages=PAGES)


def cell_arrays(cell: AffineCell) -> Arrays:
    """Return the arrays of a network, by their names."""
    values = [cell.recurrent, cell.injection, cell.bias, cell.shift, cell.scale]
    values += list(cell.readout or ())
    return {name: np.array(value) for name, value in zip(_ARRAYS, values, strict=False)}


def network_digest(cell: AffineCell) -> str:
    """Return the SHA-256 of the arrays of a network, one after the other."""
    return sha256_of_array(np.concatenate([v.ravel() for v in cell_arrays(cell).values()]))


def layer_arrays(layers: Sequence[Layer], readouts: Sequence[Readout]) -> Arrays:
    """Return the weights of layers, and of the read-out after each."""
    found: Arrays = {}
    for k, (layer, readout) in enumerate(zip(layers, readouts, strict=True), 1):
        found |= {f"weight_{k}": layer.weight, f"bias_{k}": layer.bias}
        found |= {f"readout_{k}": readout[0], f"readout_bias_{k}": readout[1]}
    return found


def read_layers(
    heads: Sequence[Mapping[str, Any]], arrays: Arrays
) -> tuple[tuple[Layer, ...], tuple[Readout, ...]]:
    """Put layers and read-outs together from `layer_arrays` and all that is no array."""
    layers = tuple(
        replace(
            Layer.from_dict({**head, "weight": [], "bias": []}),
            weight=arrays[f"weight_{k}"],
            bias=arrays[f"bias_{k}"],
        )
        for k, head in enumerate(heads, 1)
    )
    readouts = tuple(
        (arrays[f"readout_{k}"], arrays[f"readout_bias_{k}"]) for k in range(1, len(layers) + 1)
    )
    return layers, readouts


def _read_cell(arrays: Mapping[str, Any], activation: Any) -> AffineCell:
    return EquilibriumCell.from_weights(
        arrays["W"],
        arrays["U"],
        arrays["b"],
        activation,
        (arrays["C"], arrays["c"]) if "C" in arrays else None,
        shift=arrays["shift"],
        scale=arrays["scale"],
    )
