"""What `compile` returns for a random DEQ: the shallow network, and the evidence."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks, extras
from notsodeep._runs import Run
from notsodeep.arrays import FloatArray
from notsodeep.compilation.evidence import ROLES, Accuracy, Front
from notsodeep.data import Preprocessing
from notsodeep.errors import InvalidInput, MissingPackage
from notsodeep.matching import FAMILIES, Certificate, Match
from notsodeep.models import (
    Conditions,
    Convention,
    ConvolutionalEquilibrium,
    DeepEquilibrium,
    KernelName,
    checked_choice,
    require_varying,
)
from notsodeep.prediction import Transfer
from notsodeep.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

Decision = Literal["replaceable", "not shown", "not replaceable"]
Arrays = dict[str, NDArray[Any]]
SomeRecord = TypeVar("SomeRecord", bound=Record)

SCALE = "scale of the data"
"""Name of a condition that matters to all activations but homogeneous ones."""

NETWORK, ONNX, REPORT = "network.safetensors", "network.onnx", "report.html"


@dataclass(frozen=True)
class Step:
    """What a compilation is doing, for ``progress``; `done` of `total` equal parts are finished."""

    message: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.message}: {self.done} of {self.total}" if self.total else self.message


class Store:
    """Results by name, each computed once: in a directory, or in memory only."""

    def __init__(self, run: Run | None, log: Callable[[Step], object]) -> None:
        self.run, self.log = run, log

    def has(self, name: str) -> bool:
        """Whether a record is stored."""
        return self.run is not None and self.run.has(name)

    def record(
        self,
        name: str,
        kind: type[SomeRecord],
        compute: Callable[[], SomeRecord],
        message: str = "",
    ) -> SomeRecord:
        """Return the record `name`, computing and storing it if it is not there."""
        if message and not self.has(name):
            self.log(Step(message))
        if self.run is None:
            return compute()
        return kind.from_dict(self.run.piece(name, lambda: compute().to_dict()))

    def arrays(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return the arrays `name`, computing and storing them if they are not there."""
        if self.run is not None:
            return self.run.arrays(name, compute)
        # The order that is read back: products round by the order of their factors.
        return {key: np.ascontiguousarray(array) for key, array in compute().items()}


@dataclass(frozen=True, repr=False)
class ReplacementVerdict(Record):
    """Whether a network can replace a DEQ, by a rule that comes with the answer."""

    word: Decision  # "not shown": too few draws or rows to tell
    headline: str
    reasons: tuple[str, ...]  # the evidence, with its numbers
    rule: str
    conditions: Conditions = field(default_factory=lambda: Conditions(()))  # no part of the rule

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {text}" for text in (*self.reasons, self.rule))])

    def table(self) -> str:
        """Return an HTML table of the reasons and the rule, for notebooks."""
        cells = "".join(
            f"<tr><td style='text-align:left'>{html.escape(text)}</td></tr>"
            for text in (*self.reasons, self.rule)
        )
        return f"<table><caption><b>{html.escape(self.headline)}</b></caption>{cells}</table>"


@dataclass(frozen=True, repr=False)
class RandomSettings(Record):
    """What the compilation of a random DEQ was asked for; see `compile`."""

    model: DeepEquilibrium | ConvolutionalEquilibrium
    family: str = "auto"
    kind: KernelName = "ck"
    convention: Convention = "feature"
    refine: bool = True
    width: int = 0  # 0: 1024, or 32 channels
    train: Literal["readout", "all"] = "readout"
    epochs: int = 10
    seeds: int = 30
    ridge: float = 1e-2
    tolerance: float = 1e-5
    gap_limit: float = 0.05
    accuracy_limit: float = 0.5
    random_state: int = 0

    def __post_init__(self) -> None:
        model = self.model
        images = isinstance(model, ConvolutionalEquilibrium)
        dense = model.dense if isinstance(model, ConvolutionalEquilibrium) else model
        kind = checked_choice(dense, self.kind, self.convention, "compile")
        object.__setattr__(self, "kind", kind)
        checks.known_name(self.family, FAMILIES, "family")
        checks.known_name(self.train, ("readout", "all"), "train")
        if not isinstance(self.refine, bool) or (images and not self.refine):
            raise InvalidInput(f"refine must be a bool, True for images, got {self.refine!r}.")
        if self.width == 0:
            object.__setattr__(self, "width", 32 if images else 1024)
        for name in ("width", "epochs"):
            checks.positive_integer(getattr(self, name), name, "compile")
        checks.integer_at_least(self.seeds, 2, "seeds", "compile", "An interval needs two or more.")
        checks.integer_at_least(self.random_state, 0, "random_state", "compile")
        for name in ("ridge", "tolerance", "gap_limit", "accuracy_limit"):
            checks.positive_number(getattr(self, name), name, "compile")
        for layer in dense.cell:
            require_varying(layer.activation, 1.0, "compile")  # at the scale of preprocessed data


@dataclass(frozen=True, repr=False)
class DataSummary(Record):
    """Which rows were used, and the theory's conditions on them."""

    name: str
    samples: int
    test_samples: int
    features: int
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    provenance: dict[str, Any]  # source, digests, options
    conditions: Conditions

    def __str__(self) -> str:
        count = self.provenance["options"].get("held_out")
        note = f" ({count} rows were held out to test with)" if count else ""
        return (
            f"{self.name}: {self.samples} training and {self.test_samples} test samples, "
            f"{self.features} features, {len(self.classes)} classes{note}"
        )


@dataclass(frozen=True, repr=False)
class Spectrum(Record):
    """Shares of eigenvalues of the DEQ's kernel that the limiting law predicts."""

    edges: FloatArray  # (bins + 1,), of equal ratio
    shares: FloatArray  # (bins,), or none
    spikes: tuple[float, ...]
    reason: str  # what the law was made of, or why there is none


@dataclass(frozen=True, repr=False)
class TransferRecord(Record):
    """The transfer of hyper-parameters, or why it was not tried."""

    transfer: Transfer | None
    reason: str = ""


@dataclass(frozen=True, repr=False)
class Draw(Record):
    """Which test rows the networks of one draw get right, by role, packed into hexadecimal bits."""

    right: dict[str, str]

    @classmethod
    def of_rows(cls, right: Mapping[str, NDArray[np.bool_]]) -> Draw:
        """Pack one truth value for each test row."""
        return cls({role: np.packbits(rows).tobytes().hex() for role, rows in right.items()})

    def rows(self, role: str, count: int) -> NDArray[np.bool_]:
        """Return one truth value for each test row."""
        packed = np.frombuffer(bytes.fromhex(self.right[role]), np.uint8)
        return np.unpackbits(packed, count=count).astype(bool)


class Compiled(ABC):
    """What all compilations share: ``print``, ``report(path)`` and ``save(directory)``."""

    settings: Record
    directory: Path | None

    @property
    @abstractmethod
    def verdict(self) -> ReplacementVerdict:
        """Whether the network can replace the DEQ, and by which rule."""

    @abstractmethod
    def _run(self, directory: str | Path) -> Run:
        """Return the directory of these settings and data."""

    @abstractmethod
    def _records(self) -> dict[str, Record]:
        """Return what was measured, by the names under which it is stored."""

    @abstractmethod
    def _stored_only(self) -> tuple[dict[str, Record], dict[str, Arrays]]:
        """Return the records and arrays that are stored and not shown."""

    @abstractmethod
    def export(self, run: Run) -> None:
        """Write the network's own files to a directory, as far as its packages are there."""

    def report(self, path: str | Path) -> Path:
        """Write the report: one HTML file without any link to the outside."""
        # Pictures and pages know the records, and not the other way round.
        page = importlib.import_module("notsodeep.report.report")
        written: Path = page.write_report(self, path)
        return written

    def save(self, directory: str | Path, *, force: bool = False) -> Path:
        """Write everything, as `compile` with ``out=directory`` does; `notsodeep.load` reads it.

        `force` replaces results of other settings, or on other data.
        """
        run = self._run(directory)
        others, arrays = self._stored_only()
        with run.opened(force=force):
            store = Store(run, lambda step: None)
            for name, record in {**self._records(), **others}.items():
                store.record(name, type(record), lambda value=record: value)  # type: ignore[misc]
            for name, values in arrays.items():
                store.arrays(name, lambda values=values: values)  # type: ignore[misc]
            self.export(run)
        return run.path

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form of settings, verdict and what was measured, without arrays."""
        named = {"settings": self.settings, "verdict": self.verdict, **self._records()}
        return {name: record.to_dict(arrays=False) for name, record in named.items()}

    def _repr_html_(self) -> str:
        return self.verdict.table()


@dataclass(frozen=True, eq=False, repr=False)
class Compilation(Compiled):
    """A shallow network for a random DEQ, and the evidence that it does as well.

    ``print``, ``plot()``, ``report(path)`` and ``save(directory)`` show and keep it.
    """

    settings: RandomSettings
    data: DataSummary
    match: Match
    certificate: Certificate  # exact kernels on held-out rows, next to an unmatched network's
    spectrum: Spectrum
    transferred: TransferRecord
    draws: tuple[Draw, ...]
    front: Front  # what the DEQ costs at several tolerances of its solver
    weights: Arrays  # of the first draw of the network
    inputs: Mapping[str, str]  # SHA-256 of the user's data
    directory: Path | None = None

    @property
    def transfer(self) -> Transfer | None:
        """The DEQ's tuned rate, epochs and ridge on both networks; None for convolutions."""
        return self.transferred.transfer

    @cached_property
    def accuracy(self) -> Accuracy:
        """Test accuracies of the finite networks."""
        count = self.data.test_samples
        return Accuracy.of_rows(
            {role: np.array([draw.rows(role, count) for draw in self.draws]) for role in ROLES}
        )

    @cached_property
    def network(self) -> nn.Module:
        """The first draw of the network, trained, a torch module in evaluation mode.

        Its ``preprocessing`` maps raw rows to the rows that it takes; ``classes`` names outputs.
        """
        extras.require("The network as a torch module", "torch")
        from notsodeep.compilation.torch_networks import module_of

        return module_of(self.match.network, self.settings.width, self.weights, self.data)

    @property
    def verdict(self) -> ReplacementVerdict:
        """Whether the network can replace the DEQ, and by which rule."""
        return judge(self)

    def plot(self) -> Figure:
        """Draw both activations, the eigenvalues and the difference of the kernels."""
        matches = importlib.import_module("notsodeep.plotting.matches")
        figure: Figure = matches.match_figure(self.match, self.certificate)
        return figure

    def _run(self, directory: str | Path) -> Run:
        return run_directory(directory, self.settings, self.data.provenance, self.inputs)

    def export(self, run: Run) -> None:
        """Write the network's own files to its directory; ONNX only if its packages are there."""
        if extras.is_installed("torch"):
            from notsodeep.networks.files import save
            from notsodeep.networks.onnx import export_onnx

            if not (run.path / NETWORK).exists():
                save(self.network, run.path / NETWORK)
            if not (run.path / ONNX).exists():
                with contextlib.suppress(MissingPackage):
                    export_onnx(self.network, run.path / ONNX)

    @classmethod
    def load(cls, directory: str | Path) -> Compilation:
        """Read what `save`, or `compile` with a directory, has written."""
        run = Run.stored(directory, "compile")
        fields = {field.name for field in dataclasses.fields(RandomSettings)}
        form = {name: value for name, value in run.settings.items() if name in fields}
        settings = RandomSettings.from_dict(form)
        return cls(
            settings,
            DataSummary.from_dict(run.read("data")),
            Match.from_dict(run.read("match")),
            Certificate.from_dict(run.read("certificate")),
            Spectrum.from_dict(run.read("spectrum")),
            TransferRecord.from_dict(run.read("transfer")),
            tuple(Draw.from_dict(run.read(f"draw-{k}")) for k in range(settings.seeds)),
            Front.from_dict(run.read("front")),
            run.read_arrays("network"),
            run.inputs,
            run.path,
        )

    def _records(self) -> dict[str, Record]:
        return {
            "match": self.match,
            "data": self.data,
            "certificate": self.certificate,
            "spectrum": self.spectrum,
            "transfer": self.transferred,
            "front": self.front,
        }

    def _stored_only(self) -> tuple[dict[str, Record], dict[str, Arrays]]:
        draws = {f"draw-{k}": draw for k, draw in enumerate(self.draws)}
        return dict(draws), {"network": self.weights}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form of settings, verdict and what was measured, without arrays."""
        return {**super().to_dict(), "accuracy": self.accuracy.to_dict()}

    def __repr__(self) -> str:
        accuracy, point = self.accuracy.mean, self.front.chosen_point
        return (
            f"Compilation({self.verdict.word}: {self.settings.model} → {self.match.network}; "
            f"kernel gap {self.certificate.matched.relative_gap:.2%}, accuracy "
            f"{accuracy['matched']:.1%} against {accuracy['deq']:.1%}, {point.products:.1f} × "
            "fewer multiplications)"
        )

    def __str__(self) -> str:
        first, *others = str(self.verdict).splitlines()
        networks = f"  {self.match.model}\n  → {self.match.network}"
        table = [
            f"  {row[0]:<32}" + "".join(f"{cell:>18}" for cell in row[1:]) for row in _table(self)
        ]
        return "\n".join([first, networks, *table, *others])


def _table(compiled: Compilation) -> list[tuple[str, ...]]:
    """Return what a verdict is made of, as rows of a table."""
    matched, plain = compiled.certificate.matched, compiled.certificate.unmatched
    mean, deviation = compiled.accuracy.mean, compiled.accuracy.deviation
    cheap = compiled.front.chosen_point
    gaps = {
        "kernel gap": (matched.relative_gap, plain.relative_gap),
        "  without the constant part": (matched.centred_gap, plain.centred_gap),
        "  scale and constant free": (matched.readout_gap, plain.readout_gap),
    }
    return [
        ("", "DEQ", "matched", "unmatched"),
        *((name, "–", *(f"{gap:.2%}" for gap in pair)) for name, pair in gaps.items()),
        (
            "test accuracy",
            *(f"{100 * mean[role]:.2f} ± {100 * deviation[role]:.2f} %" for role in ROLES),
        ),
        (f"multiplications at {cheap.parameter:g}", f"{cheap.products:.1f} ×", "1", ""),
        (
            "time" + " (unreliable: busy machine)" * cheap.unreliable,
            f"{cheap.ratio:.1f} × ({cheap.quartiles[0]:.1f}–{cheap.quartiles[1]:.1f})",
            "1",
            "",
        ),
    ]


def run_directory(
    directory: str | Path,
    settings: RandomSettings,
    provenance: Mapping[str, Any],
    inputs: Mapping[str, str],
) -> Run:
    """Return the directory of a compilation; one of other settings or rows is rejected.

    More seeds extend a run, and limits may change: the verdict is found anew.
    """
    return Run(
        directory,
        "compile",
        {**settings.to_dict(), "data": provenance["name"], "selection": provenance["options"]},
        inputs=inputs,
        outputs=(REPORT, NETWORK, ONNX),
        free=("seeds", "gap_limit", "accuracy_limit"),
    )


def judge(compiled: Compilation) -> ReplacementVerdict:
    """Judge by kernels on held-out rows and accuracies of finite networks."""
    asked, kernels = compiled.settings, compiled.certificate
    gap = max(kernels.matched.relative_gap, kernels.matched.centred_gap)
    low, high = compiled.accuracy.difference
    limit = asked.accuracy_limit
    word: Decision = "not replaceable"
    # Equivalence, not "no significant difference": an interval that overlaps a limit shows nothing,
    # so that too few draws or rows never make a network replaceable, or not replaceable.
    if gap <= asked.gap_limit and low <= limit and high >= -limit:
        word = "replaceable" if -limit <= low and high <= limit else "not shown"
    return ReplacementVerdict(
        word,
        _headline(compiled, word, close=gap <= asked.gap_limit),
        _reasons(compiled),
        f"Rule: replaceable if the relative kernel gap on held-out rows, with and without the "
        f"constant part of the kernels, is at most {asked.gap_limit:.1%} and the 95 % interval of "
        f"the accuracy difference lies within ± {limit:g} points; not shown if that interval "
        "overlaps the limits.",
        compiled.data.conditions,
    )


def _headline(compiled: Compilation, word: Decision, *, close: bool) -> str:
    depth = {1: "one-hidden-layer", 2: "two-hidden-layer"}.get(compiled.match.network.depth, "deep")
    images = isinstance(compiled.settings.model, ConvolutionalEquilibrium)
    kind = f"{'convolutional ' * images}{compiled.match.family.replace('_', ' ')}"
    network = f"a {depth} {kind} network"
    if word == "replaceable":
        plain = "; a plain layer does as well" if compiled.certificate.plain_suffices else ""
        return f"This DEQ can be replaced by {network}{plain}."
    if not close:
        return f"This DEQ should not be replaced by {network}: their kernels differ too much."
    if word == "not shown":
        return (
            f"The kernels agree, but too few draws or test rows show {network} to be as accurate."
        )
    return f"This DEQ should not be replaced by {network}: their accuracies differ."


def _reasons(compiled: Compilation) -> tuple[str, ...]:
    asked, kernels = compiled.settings, compiled.certificate
    matched, plain = kernels.matched, kernels.unmatched
    mean, deviation = compiled.accuracy.mean, compiled.accuracy.deviation
    low, high = compiled.accuracy.difference
    cheap, strict = compiled.front.chosen_point, compiled.front.of_kind("tolerance")[-1]
    reasons = [
        f"Kernel gap on {len(kernels.difference)} held-out rows {matched.relative_gap:.2%}, "
        f"without the constant part {matched.centred_gap:.2%}; of an unmatched network "
        f"{plain.relative_gap:.2%} and {plain.centred_gap:.2%}. With scale and constant free, as a "
        f"tuned read-out with a bias sees them, {matched.readout_gap:.2%} against "
        f"{plain.readout_gap:.2%}"
        + ("; a plain layer does as well." if kernels.plain_suffices else "."),
        f"Test accuracy {100 * mean['matched']:.1f} % against {100 * mean['deq']:.1f} "
        f"± {100 * deviation['deq']:.1f} % of the DEQ over {asked.seeds} draws; the difference "
        f"lies between {low:+.2f} and {high:+.2f} points (95 % interval, for other draws and other "
        "test rows).",
        f"The DEQ at tolerance {cheap.parameter:g}, the loosest that keeps its accuracy, takes "
        f"{cheap.steps:.0f} steps: {cheap.products:.1f} × the multiplications of the network, "
        f"{cheap.time} the time; at {strict.parameter:g} {strict.steps:.0f} steps, "
        f"{strict.products:.1f} × and {strict.time}, all in {compiled.front.library}.",
    ]
    if (seen := compiled.transfer) is not None:
        reasons += [seen.verdict(name) for name in seen.names[1:]]
    reasons += [
        f"The scale of the data is τ0 = {verdict.value:.3g}, far from 1: unless the DEQ takes "
        "these rows as they are, use preprocessing='theory'."
        for verdict in compiled.data.conditions
        if verdict.name == SCALE and not verdict.holds
    ]
    return tuple(reasons)
