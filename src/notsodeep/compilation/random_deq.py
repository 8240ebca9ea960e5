"""The main job: find the shallow network for a DEQ, and gather the evidence that it will do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy import stats

from notsodeep import checks
from notsodeep.checks import FloatArray, IntArray
from notsodeep.data import Dataset, MixtureStatistics, draw_rows, load
from notsodeep.data.loading import file_digests
from notsodeep.equivalents import LimitingSpectrum, conditions, equivalent, limiting_spectrum
from notsodeep.errors import InvalidInput, MissingPackage, NotConverged
from notsodeep.files.run_directory import RunDirectory
from notsodeep.matching import FAMILIES, Match, match
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    checked_choice,
    require_varying,
)

Training = Literal["readout", "all"]
Say = Callable[[str], None]

ROLES = ("deq", "matched", "unmatched")
DESCENT: dict[str, Any] = {
    "optimiser": "momentum",
    "learning_rate": 10.0,
    "momentum": 0.9,
    "schedule": "cosine",
}
"""Gradient descent on all weights.

In the theory's scaling a rate serves all widths: kernels do not depend on the width, and a DEQ's
recurrent weights move so little that it stays a contraction.  (Adam moves every entry by its rate,
which the wider a DEQ is drives it the faster to where its solver needs many steps.)
"""
_CERTIFIED = 600  # held-out rows of the certificate, at most
_TIMED = 256  # rows in a batch that is timed
_BINS = 40  # of the eigenvalues, by their logarithm


@dataclass(frozen=True)
class CompileSettings:
    """What to compile, on which data, and how much evidence to gather.

    Parameters
    ----------
    deq : DeepEquilibrium
    data : str
        Name of a data set, or path of one's own.
    samples, test_samples : int, optional
        How many to use; all if left out.
    family : str
        See `match`.
    kernel, convention : str
        Which kernel to match.
    refine : bool
        Refine the match on data.
    width : int
        Of all finite networks.
    train : {"readout", "all"}
        Ridge regression of the read-out on fixed random features, or gradient descent on every
        weight.
    epochs : int
        Of the latter.
    seeds : int
        Draws of the networks, at least 2.
    seed : int
        Of everything random.
    ridge : float
        Relative to the mean squared norm of the features.
    tolerance : float
        Relative, of the DEQ's solver.
    gap_limit : float
        Largest relative kernel gap of a network that may replace the DEQ.
    accuracy_limit : float
        Largest difference of accuracy, in percentage points, of such a network.
    """

    deq: DeepEquilibrium
    data: str = "digits"
    samples: int | None = None
    test_samples: int | None = None
    family: str = "auto"
    kernel: KernelName = "conjugate"
    convention: Convention = "feature"
    refine: bool = True
    width: int = 1024
    train: Training = "readout"
    epochs: int = 10
    seeds: int = 30
    seed: int = 0
    ridge: float = 1e-2
    tolerance: float = 1e-5
    gap_limit: float = 0.05
    accuracy_limit: float = 0.5

    def __post_init__(self) -> None:
        owner = "compile"
        checked_choice(self.deq, self.kernel, self.convention, owner)
        checks.known_name(self.family, FAMILIES, "family")
        checks.known_name(self.train, get_args(Training), "train")
        for name in ("width", "epochs"):
            checks.positive_integer(getattr(self, name), name, owner)
        checks.integer_at_least(self.seeds, 2, "seeds", owner, "An interval needs two or more.")
        checks.integer_at_least(self.seed, 0, "seed", owner)
        for name in ("ridge", "tolerance", "gap_limit", "accuracy_limit"):
            checks.positive_number(getattr(self, name), name, owner)
        require_varying(self.deq.activation, 1.0, owner)  # the scale of preprocessed data

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {**asdict(self), "deq": self.deq.to_dict()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CompileSettings:
        """Turn the form made by `to_dict` back."""
        return cls(**{**content, "deq": DeepEquilibrium.from_dict(content["deq"])})


def compile_deq(
    settings: CompileSettings,
    out: str | Path,
    *,
    force: bool = False,
    say: Say = lambda message: None,
) -> dict[str, Any]:
    """Match, certify, train, time and export; return the summary.

    Every piece is stored in `out` as soon as it is done; calling this again on the same directory
    resumes where it stopped.

    Parameters
    ----------
    settings : CompileSettings
    out : path
        Directory of the results.
    force : bool
        Replace results of other settings, or on other data.
    say : callable
        Told what is being done.

    Raises
    ------
    InvalidInput
        `out` holds results of other settings, results on a data file that has changed since, or
        something else altogether.
    RunInUse
        Another process works in `out`.
    """
    inputs = file_digests(settings.data)
    pages = ("report.html",)
    run = RunDirectory(out, "compile", settings.to_dict(), inputs=inputs, pages=pages)
    with run.opened(force=force):
        say(f"loading {settings.data}")
        data = _load(settings)
        run.require_same_inputs(data.provenance.sha256 if inputs else {})
        found, record = _matched(settings, data, run, say)
        say("certifying on held-out rows")
        drawn = draw_rows(data.X_test, _CERTIFIED, settings.seed)
        held_out = data.X_test[drawn], data.y_test[drawn]
        run.piece("certificate", lambda: _certificate(found, *held_out, run))
        run.piece("spectrum", lambda: _spectrum(settings, *held_out, run))
        accuracies = _accuracies(settings, found, data, run, say)
        say("timing")
        times = run.piece("timing", lambda: _timing(settings, found, data))
        say("exporting")
        files = _export(settings, found, data, run)
        summary = _summary(settings, found, record, run, accuracies, times)
        run.piece("summary", lambda: summary)
        run.finish(files)
    return summary


def _load(settings: CompileSettings) -> Dataset:
    data = load(
        settings.data,
        samples=settings.samples,
        test_samples=settings.test_samples,
        rng=settings.seed,
    )
    if len(data.X_test) < 20:
        raise InvalidInput(
            f"data of compile must have at least 20 test samples. Got {len(data.X_test)} in "
            f"{settings.data}. Use --test-samples to set some training samples apart."
        )
    return data


def _matched(
    settings: CompileSettings, data: Dataset, run: RunDirectory, say: Say
) -> tuple[Match, dict[str, Any]]:
    """Return the match; a stored one is rebuilt by solving again, which is deterministic."""
    say("matching" + (" and refining" if settings.refine else ""))
    found = match(
        settings.deq,
        data.X,
        family=settings.family,
        kernel=settings.kernel,
        convention=settings.convention,
        refine=settings.refine,
        rng=settings.seed,
    )
    record = run.piece("match", found.to_dict)
    _ = found.network  # an infeasible family ends here, with its reason
    verdicts = conditions(found.deq, found.tau0, X=data.X, stats=_statistics(data.X, data.y))
    run.piece(
        "data",
        lambda: {
            "samples": len(data.X),
            "test_samples": len(data.X_test),
            "features": data.X.shape[1],
            "classes": list(data.classes),
            "provenance": data.provenance.to_dict(),
            "conditions": verdicts.to_dict(),
        },
    )
    return found, record


def _statistics(X: FloatArray, y: IntArray) -> MixtureStatistics | None:
    """Statistics of the classes, if each has enough samples."""
    if np.unique(y, return_counts=True)[1].min() < 4:
        return None
    return MixtureStatistics.estimate(X, y)


def _certificate(
    found: Match, rows: FloatArray, labels: IntArray, run: RunDirectory
) -> dict[str, Any]:
    certificate = found.certify(rows, labels)
    reach = 3.0 * found.tau0
    x = np.linspace(-reach, reach, 301)
    curves = {f"layer_{k}": a(x) for k, a in enumerate(found.network.activations)}
    run.arrays(
        "certificate",
        lambda: {
            "deq": certificate.matched.eigenvalues,
            "matched": certificate.matched.other_eigenvalues,
            "unmatched": certificate.baseline.other_eigenvalues,
            "difference": certificate.difference,
            "x": x,
            "phi": found.deq.activation(x),
            **curves,
        },
    )
    return certificate.to_dict()


def _spectrum(
    settings: CompileSettings, rows: FloatArray, labels: IntArray, run: RunDirectory
) -> dict[str, Any]:
    """Find the limiting law of the DEQ's kernel on the certified rows, or say why there is none.

    Stored are the shares of eigenvalues in bins of equal ratio, as the law predicts them.
    """
    eigenvalues = run.stored_arrays("certificate")["deq"]
    top = float(eigenvalues[-1])
    bottom = max(float(eigenvalues[eigenvalues > 0.0].min(initial=top)), 1e-6 * top)
    edges = np.geomspace(0.9 * bottom, 1.1 * top, _BINS + 1)
    try:
        law = _limiting_law(settings, rows, labels)
    except (InvalidInput, NotConverged) as error:
        run.arrays("spectrum", lambda: {"edges": edges, "shares": np.empty(0)})
        return {"law": None, "reason": str(error)}
    run.arrays("spectrum", lambda: {"edges": edges, "shares": np.diff(law.cdf(edges))})
    return {"law": law.to_dict(arrays=False), "reason": law.origin}


def _limiting_law(
    settings: CompileSettings, rows: FloatArray, labels: IntArray
) -> LimitingSpectrum:
    statistics = _statistics(rows, labels)
    if statistics is None:
        raise InvalidInput("a class has fewer than four held-out samples")
    eq = equivalent(
        settings.deq.centred(statistics.tau0),
        rows,
        statistics,
        kernel=settings.kernel,
        convention=settings.convention,
    )
    return limiting_spectrum(eq, population="deconvolved")


def _models(found: Match) -> dict[str, DeepEquilibrium | ExplicitNetwork]:
    return {"deq": found.deq, "matched": found.network, "unmatched": found.baseline}


def _accuracies(
    settings: CompileSettings, found: Match, data: Dataset, run: RunDirectory, say: Say
) -> dict[str, list[float]]:
    """Test accuracies of all networks, one for each seed."""
    from notsodeep.compilation.finite_networks import train_network

    accuracies: dict[str, list[float]] = {role: [] for role in ROLES}
    total = settings.seeds * len(ROLES)
    for index in range(settings.seeds):
        for role, model in _models(found).items():
            name = f"network-{role}-{index}"
            done = sum(map(len, accuracies.values())) + 1
            if not run.has(name):
                say(f"training network {done} of {total}: {role}, draw {index + 1}")

            def work(model: Any = model, index: int = index, name: str = name) -> dict[str, Any]:
                return train_network(model, data, settings, index, run.work_directory(name))[1]

            accuracies[role].append(run.piece(name, work)["accuracy"])
    return accuracies


def _timing(settings: CompileSettings, found: Match, data: Dataset) -> dict[str, Any]:
    from notsodeep.networks.build import build
    from notsodeep.networks.timing import time_against

    sizes = (data.X.shape[1], settings.width, len(data.classes), settings.seed)
    options: Any = {"trainable": settings.train}
    deq = build(found.deq, *sizes, **options)
    explicit = build(found.network, *sizes, **options)
    rows = data.X[draw_rows(data.X, _TIMED, settings.seed)]
    table = time_against(deq, explicit, rows, tolerance=settings.tolerance)  # type: ignore[arg-type]
    return table.to_dict()


def _export(settings: CompileSettings, found: Match, data: Dataset, run: RunDirectory) -> list[str]:
    """Write the first draw of the matched network; train it again if only its record is there."""
    from notsodeep.compilation.finite_networks import train_network
    from notsodeep.networks.onnx_export import export_onnx
    from notsodeep.networks.persistence import save

    target, onnx = run.file("network.safetensors"), run.file("network.onnx")
    if not (target.exists() and run.has("export")):
        work = run.work_directory("network-matched-0")
        module, _ = train_network(found.network, data, settings, 0, work)
        save(module, target, preprocessing=data.preprocessing, classes=data.classes)
        note = "written"
        try:
            export_onnx(module, onnx, preprocessing=data.preprocessing, classes=data.classes)
        except MissingPackage as error:
            note = str(error)
        run.piece("export", lambda: {"safetensors": target.name, "onnx": note})
    return [name for name in (target.name, onnx.name) if (run.path / name).exists()]


def difference_interval(
    left: list[float], right: list[float], level: float = 0.95
) -> tuple[float, float]:
    """Return a t-interval for the mean difference of paired accuracies, in percentage points."""
    differences = 100.0 * (np.array(left) - np.array(right))
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.5 + level / 2.0, len(differences) - 1)) * error
    return mean - half, mean + half


def _summary(
    settings: CompileSettings,
    found: Match,
    record: Mapping[str, Any],
    run: RunDirectory,
    accuracies: Mapping[str, list[float]],
    times: Mapping[str, Any],
) -> dict[str, Any]:
    certificate = run.read("certificate")
    gap = certificate["matched"]["relative_gap"]
    interval = difference_interval(accuracies["matched"], accuracies["deq"])
    close = gap <= settings.gap_limit
    as_accurate = max(abs(interval[0]), abs(interval[1])) <= settings.accuracy_limit
    return {
        "replaceable": close and as_accurate,
        "kernel_close": close,
        "accuracy_close": as_accurate,
        "relative_gap": gap,
        "unmatched_relative_gap": certificate["baseline"]["relative_gap"],
        "certified_rows": len(run.stored_arrays("certificate")["deq"]),
        "accuracy": {role: float(np.mean(values)) for role, values in accuracies.items()},
        "accuracy_deviation": {
            role: float(np.std(values, ddof=1)) for role, values in accuracies.items()
        },
        "accuracies": dict(accuracies),
        "accuracy_difference": list(interval),
        "inference_ratio": times["inference"]["ratio"],
        "training_ratio": times["training_step"]["ratio"],
        "family": record["family"],
        "layers": found.network.depth,
        "network": str(found.network),
        "deq": str(found.deq),
    }
