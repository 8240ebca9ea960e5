"""What `compile` returns for a given DEQ: explicit layers, and the evidence."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep import checks
from notsodeep._files import sha256_of_array
from notsodeep._runs import Run
from notsodeep.activations import from_dict as activation_from_dict
from notsodeep.arrays import FloatArray
from notsodeep.compilation.evidence import Fidelity, Front
from notsodeep.compilation.record import (
    NETWORK,
    ONNX,
    REPORT,
    Arrays,
    Compiled,
    Decision,
    ReplacementVerdict,
)
from notsodeep.errors import InvalidInput, MissingPackage, NoOnnxForm
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell, Method
from notsodeep.networks.function import FunctionDEQ
from notsodeep.records import Record
from notsodeep.trained.hybrid import HybridEquilibrium, HybridRecord, first_check
from notsodeep.trained.layers import ExplicitLayers, FunctionSteps, Layer
from notsodeep.trained.margin import Margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

KIND = "compile-trained"

_SEVERAL_SHARE = 0.01  # of the rows; below, a second fixed point is not in the headline
DROPPED = "recurrence dropped, read-out refitted"


@dataclass(frozen=True, repr=False)
class CellSettings(Record):
    """What the compilation of a given DEQ was asked for; see `compile`."""

    layers: int | None = None
    tolerance: float = 1e-10
    agreement_limit: float = 0.99
    accuracy_limit: float = 0.5
    unsettled_limit: float = 0.05
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.layers is not None:
            checks.positive_integer(self.layers, "layers", "compile")
        checks.integer_at_least(self.random_state, 0, "random_state", "compile")
        checks.positive_number(self.accuracy_limit, "accuracy_limit", "compile")
        if not 0.0 < checks.positive_number(self.tolerance, "tolerance", "compile") <= 1e-2:
            raise InvalidInput(f"tolerance must be at most 0.01, got {self.tolerance:g}.")
        checks.share(self.unsettled_limit, "unsettled_limit", "compile")
        if not checks.share(self.agreement_limit, "agreement_limit", "compile"):
            raise InvalidInput("agreement_limit must be above 0, got 0.")


@dataclass(frozen=True, repr=False)
class RowCounts(Record):
    """How many rows there were; those without a fixed point within the tolerance are set aside."""

    train: int
    validation: int
    test: int
    unsettled: int

    def __str__(self) -> str:
        aside = f"; {self.unsettled} without a fixed point were set aside" * (self.unsettled > 0)
        return (
            f"{self.train} to fit, {self.validation} to choose by, {self.test} to judge on{aside}"
        )


@dataclass(frozen=True, repr=False)
class Stability(Record):
    """Fixed points that plain iteration reaches from starts other than zero."""

    rows: int
    unique: bool  # proved for every input
    several: float  # share of rows with another fixed point
    other_class: float  # share of rows where one of them is of another class


@dataclass(frozen=True, repr=False)
class Solved(Record):
    """How the fixed points were found, and what is known of them."""

    margin: Margin | None  # None of a function
    method: Method
    counts: RowCounts
    stability: Stability


@dataclass(frozen=True, repr=False)
class Fidelities(Record):
    """Fidelity of the networks with 1, 2, … layers, and of what is simpler."""

    by_layers: tuple[Fidelity, ...]
    baselines: dict[str, Fidelity]


@dataclass(frozen=True, repr=False)
class TimedFront(Record):
    """The front, and what the hybrid and the solver with the same early exit did."""

    front: Front
    hybrid: HybridRecord | None = None
    cold: HybridRecord | None = None


@dataclass(frozen=True, eq=False, repr=False)
class TrainedCompilation(Compiled):
    """Explicit layers for a DEQ with given weights, and the evidence that they do as well.

    ``print``, ``plot()``, ``report(path)`` and ``save(directory)`` show and keep it.
    """

    settings: CellSettings
    cell: EquilibriumCell
    layers: tuple[Layer, ...]  # none of a function, whose network is a start and steps of f
    weights: Arrays  # of the layers and the read-outs after each; of the start
    solved: Solved
    fidelities: Fidelities
    timed: TimedFront
    inputs: Mapping[str, str]  # SHA-256 of the network and the rows
    directory: Path | None = None

    @property
    def fidelity(self) -> Fidelity:
        """Agreement with the DEQ on held-out rows, of the network with all layers."""
        return self.fidelities.by_layers[-1]

    @property
    def fidelity_by_layers(self) -> dict[int, Fidelity]:
        """The same for the networks of the first 1, 2, … layers, by their number."""
        return dict(enumerate(self.fidelities.by_layers, 1))

    @property
    def baselines(self) -> Mapping[str, Fidelity]:
        """Fidelity of what is simpler."""
        return self.fidelities.baselines

    @property
    def front(self) -> Front:
        """Cost against fidelity."""
        return self.timed.front

    @property
    def margin(self) -> Margin | None:
        """Why the DEQ has one fixed point, if it is proved; None of a function."""
        return self.solved.margin

    @cached_property
    def network(self) -> nn.Module:
        """The explicit network, a torch module in evaluation mode: rows to logits."""
        count = len(self.fidelities.by_layers)
        return network_of(self.cell, self.layers, self.weights, count)

    def hybrid(self, *, tolerance: float = 1e-10) -> HybridEquilibrium:
        """Return the module whose every answer is the DEQ's own class, proved or solved."""
        margin, method = self.margin, self.solved.method
        if not isinstance(self.cell, AffineDEQ) or margin is None:
            raise InvalidInput(
                "A function f(z, x) has no certificate, and so no certified hybrid. Give a network "
                "φ(Wz + Ux + b) by its weights, with EquilibriumCell.from_weights."
            )
        first = first_check([f.certified for f in self.fidelities.by_layers])
        return HybridEquilibrium(
            self.cell, margin, self.layers, method, tolerance=tolerance, first_check=first
        )

    @property
    def verdict(self) -> ReplacementVerdict:
        """Whether the network can replace the DEQ, and by which rule."""
        return judge(self)

    def facts(self) -> dict[str, str]:
        """Return what a report says of the DEQ itself."""
        hybrid, cold = self.timed.hybrid, self.timed.cold
        facts = {"network": repr(self.cell), "fixed points": _about_limits(self.solved)}
        facts |= {"solver": self.solved.method.reason, "rows": str(self.solved.counts)}
        if hybrid is not None and cold is not None:
            after = ", ".join(f"{share:.1%}" for share in hybrid.certified_after)
            facts["hybrid"] = (
                f"proved after each layer: {after}; then {hybrid.mean_steps:.2f} solver steps per "
                f"row, against {cold.mean_steps:.2f} of the solver with the same early exit and no "
                f"layers; {hybrid.uncertified} rows solved without a proof"
            )
        return facts

    def plot(self) -> Figure:
        """Draw the front, and agreement and certified share by the number of layers."""
        fronts = importlib.import_module("notsodeep.plotting.trained")
        figure: Figure = fronts.trained_figure(self.front, self.fidelity_by_layers, self.baselines)
        return figure

    def _run(self, directory: str | Path) -> Run:
        return run_directory(directory, self.settings, self.cell, self.inputs)

    def _stored_only(self) -> tuple[dict[str, Record], dict[str, Arrays]]:
        return {}, {"cell": cell_arrays(self.cell), "layers": self.weights}

    def export(self, run: Run) -> None:
        """Write the network's own files to its directory, as far as it has such forms."""
        from notsodeep.networks.files import save
        from notsodeep.networks.onnx import export_onnx

        if not isinstance(self.cell, AffineDEQ):
            return  # f is code
        if not (run.path / NETWORK).exists():
            save(self.network, run.path / NETWORK)
        if not (run.path / ONNX).exists():
            with contextlib.suppress(MissingPackage, NoOnnxForm):
                export_onnx(self.network, run.path / ONNX)

    @classmethod
    def load(cls, directory: str | Path, cell: EquilibriumCell | None = None) -> TrainedCompilation:
        """Read what `save`, or `compile` with a directory, has written.

        A function f(z, x) is code, and not data: its `cell` has to be given again.
        """
        run = Run.stored(directory, KIND)
        if run.settings["activation"] is not None:
            activation = activation_from_dict(run.settings["activation"])
            cell = _read_cell(run.read_arrays("cell"), activation)
        elif cell is None or network_digest(cell) != run.inputs.get("network"):
            raise InvalidInput(
                f"{directory} holds the compilation of a function, which is no data: load(path, "
                "cell=cell) needs the same function again."
            )
        names = {field.name for field in fields(CellSettings)}
        form = {name: value for name, value in run.settings.items() if name in names}
        timed = TimedFront.from_dict(run.read("front"))  # the last; without it nothing is whole
        weights = run.read_arrays("layers")
        return cls(
            CellSettings.from_dict(form),
            cell,
            read_layers(Chain.from_dict(run.read("layers")), weights),
            weights,
            Solved.from_dict(run.read("solved")),
            Fidelities.from_dict(run.read("fidelity")),
            timed,
            run.inputs,
            run.path,
        )

    def _records(self) -> dict[str, Record]:
        return {
            "solved": self.solved,
            "layers": chain_of(self.layers, len(self.fidelities.by_layers)),
            "fidelity": self.fidelities,
            "front": self.timed,
        }

    def __repr__(self) -> str:
        own = self.fidelity
        proved = "nothing proved" if own.certified is None else f"{own.certified:.1%} proved"
        return (
            f"TrainedCompilation({self.verdict.word}: {len(self.fidelities.by_layers)} layers, "
            f"agreement {own.agreement:.2%} (at least {own.agreement_bound:.2%}), {proved})"
        )

    def __str__(self) -> str:
        named = {f"{k} layer{'s' * (k > 1)}": f for k, f in self.fidelity_by_layers.items()}
        lines = [f"  {name}: {_line(f)}" for name, f in {**named, **self.baselines}.items()]
        return "\n".join([str(self.verdict), *lines])


def judge(compiled: TrainedCompilation) -> ReplacementVerdict:
    """Judge by the agreement with the DEQ on held-out rows, or by accuracy with labels."""
    own, asked = compiled.fidelity, compiled.settings
    low, high = own.accuracy_difference or (-np.inf, -np.inf)
    follows = own.agreement_bound >= asked.agreement_limit
    as_accurate = low >= -asked.accuracy_limit
    word: Decision = "not shown"
    if follows or as_accurate:
        word = "replaceable"
    elif own.agreement_upper < asked.agreement_limit and high < -asked.accuracy_limit:
        word = "not replaceable"
    rule = (
        f"Rule: replaceable if the lower 95 % bound of the agreement on held-out rows is at least "
        f"{asked.agreement_limit:.1%}, not if the upper one is below"
    )
    if own.accuracy_difference is not None:
        rule += (
            f"; with labels also if the network is at most {asked.accuracy_limit:g} points less "
            "accurate by the whole 95 % interval, and only not if it is less accurate"
        )
    return ReplacementVerdict(
        word,
        _headline(compiled, word, follows=follows),
        _reasons(compiled),
        f"{rule}. It is about rows drawn like these; a proof is about its row alone.",
    )


def _headline(compiled: TrainedCompilation, word: Decision, *, follows: bool) -> str:
    own, count = compiled.fidelity, len(compiled.fidelities.by_layers)
    plural = "s" * (count > 1)
    what = (
        f"explicit layer{plural}" if compiled.layers else f"step{plural} of f from a fitted start"
    )
    network = f"{count} {what}"
    one = count == 1
    text = {
        "replaceable": f"This DEQ can be replaced by {network}.",
        "not shown": f"The rows are too few to tell whether {network} can replace this DEQ.",
        "not replaceable": f"{network} {'does' if one else 'do'} not follow this DEQ closely "
        "enough.",
    }[word]
    if word == "replaceable" and not follows:
        text = (
            f"{network} {'is' if one else 'are'} as accurate as this DEQ, but "
            f"{'decides' if one else 'decide'} otherwise on {1.0 - own.agreement:.1%} of the rows."
        )
    stability = compiled.solved.stability
    if stability.several > _SEVERAL_SHARE:
        text += (
            f" This DEQ has several fixed points on {stability.several:.0%} of the rows: this is "
            "about the one that its solver finds from zero."
        )
    return text


def _reasons(compiled: TrainedCompilation) -> tuple[str, ...]:
    own, solved = compiled.fidelity, compiled.solved
    dropped = compiled.baselines.get(DROPPED)
    reasons = [
        f"Same class as the DEQ on {own.agreement:.2%} of {own.rows} held-out rows, between "
        f"{own.agreement_bound:.2%} and {own.agreement_upper:.2%} with 95 % confidence for each"
        + (f"; without the recurrence {dropped.agreement:.2%}." if dropped else ".")
    ]
    if own.accuracy_difference is not None:
        low, high = own.accuracy_difference
        reasons.append(
            f"Accuracy {own.accuracy:.2%} against {own.deq_accuracy:.2%} of the DEQ; the "
            f"difference lies between {low:+.2f} and {high:+.2f} points (95 % interval)."
        )
    if own.certified is not None:
        reasons.append(
            f"On {own.certified:.1%} of the rows that is proved, row by row; the certified hybrid "
            "gives the DEQ's class on all of them."
        )
    else:
        reasons.append("No row can be proved.")
    reasons.append(f"{_about_limits(solved).rstrip('.')}.")
    if solved.counts.unsettled:
        reasons.append(f"Rows: {solved.counts}.")
    return (*reasons, _cost(compiled.front))


def _about_limits(solved: Solved) -> str:
    if solved.margin is not None and solved.margin.unique:
        return solved.margin.reason
    seen = solved.stability
    words = f"One fixed point is not proved; other starts on {seen.rows} rows found "
    if not seen.several:
        return words + "no other"
    return words + f"another on {seen.several:.1%}, of another class on {seen.other_class:.1%}"


def _cost(front: Front) -> str:
    """Say what the explicit network saves, against the DEQ and against its solver cut off."""
    own = front.of_kind("explicit")[-1]
    shown = ", ".join(
        f"{p.products:.1f} × at {p.parameter:g} (time {p.time})"
        for p in front.of_kind("tolerance")
        if p.parameter in (1e-2, 1e-3) or p is front.of_kind("tolerance")[-1]
    )
    cut = [p for p in front.of_kind("truncated") if (p.agreement or 0) >= (own.agreement or 0)]
    cheapest = min(cut, key=lambda p: p.products, default=None)
    other = "no solver cut off agrees as often"
    if cheapest is not None:
        other = f"the {cheapest.name} agrees as often at {cheapest.products:.1f} ×"
    return (
        f"In multiplications of the network {front.solver} takes {shown}; {other}. Time counts in "
        "units of the network's own."
    )


def _line(fidelity: Fidelity) -> str:
    proved = "" if fidelity.certified is None else f", {fidelity.certified:.1%} proved"
    accuracy = "" if fidelity.accuracy is None else f", accuracy {fidelity.accuracy:.2%}"
    return (
        f"agreement {fidelity.agreement:.2%}, logit error {fidelity.logit_error:.3g}"
        f"{accuracy}{proved}"
    )


def run_directory(
    directory: str | Path,
    settings: CellSettings,
    cell: EquilibriumCell,
    inputs: Mapping[str, str],
) -> Run:
    """Return the directory of a compilation; one of other settings, weights or rows is rejected."""
    activation = cell.activation.to_dict() if isinstance(cell, AffineDEQ) else None
    form = {**settings.to_dict(), "activation": activation}
    limits = ("agreement_limit", "accuracy_limit")
    outputs = (REPORT, NETWORK, ONNX)
    return Run(directory, KIND, form, inputs=inputs, outputs=outputs, free=limits)


Readout = tuple[FloatArray, FloatArray]
"""C and c: logits are C z + c."""

_CELL_ARRAYS = ("W", "U", "b", "shift", "scale", "C", "c")


def cell_arrays(cell: EquilibriumCell) -> Arrays:
    """Return the arrays of a network by their names; none of a function."""
    arrays = cell.arrays() if isinstance(cell, AffineDEQ) else {}
    return {name: np.array(arrays[name]) for name in _CELL_ARRAYS if name in arrays}


def _read_cell(arrays: Mapping[str, Any], activation: Any) -> AffineDEQ:
    readout = (arrays["C"], arrays["c"]) if "C" in arrays else None
    weights = arrays["W"], arrays["U"], arrays["b"]
    scaling = {"shift": arrays["shift"], "scale": arrays["scale"]}
    return EquilibriumCell.from_weights(*weights, activation, readout, **scaling)


def network_digest(cell: EquilibriumCell) -> str:
    """Return the SHA-256 of a network's arrays; of a function, of the shape of its states."""
    arrays = cell_arrays(cell).values()
    values = [np.array(cell.state_shape, float), *(array.ravel() for array in arrays)]
    return sha256_of_array(np.concatenate(values))


@dataclass(frozen=True, repr=False)
class Chain(Record):
    """Layers without their weights, which are arrays."""

    heads: tuple[Layer, ...]  # none of a function
    count: int  # of layers, or of steps of f


def chain_of(layers: Sequence[Layer], count: int) -> Chain:
    """Return layers without their weights."""
    empty = np.empty(0)
    return Chain(tuple(replace(layer, weight=empty, bias=empty) for layer in layers), count)


def layer_arrays(layers: Sequence[Layer], readouts: Sequence[Readout]) -> Arrays:
    """Return the weights of layers, and of the read-out after each."""
    arrays: Arrays = {}
    for k, (layer, readout) in enumerate(zip(layers, readouts, strict=True), 1):
        arrays |= {f"weight_{k}": layer.weight, f"bias_{k}": layer.bias}
        arrays |= {f"readout_{k}": readout[0], f"readout_bias_{k}": readout[1]}
    return arrays


def read_layers(chain: Chain, arrays: Arrays) -> tuple[Layer, ...]:
    """Put layers together from `Chain` and `layer_arrays`."""
    return tuple(
        replace(head, weight=arrays[f"weight_{k}"], bias=arrays[f"bias_{k}"])
        for k, head in enumerate(chain.heads, 1)
    )


def network_of(
    cell: EquilibriumCell, layers: Sequence[Layer], weights: Arrays, count: int
) -> nn.Module:
    """Return the network of the first `count` layers, or of as many steps of a function."""
    if isinstance(cell, AffineDEQ):
        readout = weights[f"readout_{count}"], weights[f"readout_bias_{count}"]
        module: nn.Module = ExplicitLayers(cell, layers[:count], readout)
    else:
        import torch

        dtype = torch.float32 if weights["start"].dtype == np.float32 else torch.float64
        start = weights["start"], weights["start_bias"]
        assert isinstance(cell, FunctionDEQ)
        module = FunctionSteps(cell, *start, count, dtype)
    return module.eval().requires_grad_(False)
