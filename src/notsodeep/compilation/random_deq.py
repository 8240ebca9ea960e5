"""The main job: find the shallow network for a random DEQ, and gather the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from notsodeep import extras
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.compilation.accuracy import Accuracy, row_error, unpacked_rows
from notsodeep.compilation.labelled_rows import input_digests, selection
from notsodeep.compilation.pieces import MemoryPieces, Pieces
from notsodeep.compilation.record import (
    JUDGED_BY,
    NETWORK,
    ONNX,
    PAGES,
    Compilation,
    write_network,
)
from notsodeep.compilation.settings import ROLES, CompileSettings
from notsodeep.compilation.widths import width_record
from notsodeep.data import Dataset, MixtureStatistics, draw_rows
from notsodeep.equivalents import LimitingSpectrum, conditions, equivalent, limiting_spectrum
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.files.run_directory import RunDirectory
from notsodeep.matching import Match, match
from notsodeep.models import (
    Conditions,
    ConvolutionalEquilibrium,
    DeepEquilibrium,
    ExplicitNetwork,
    Verdict,
)
from notsodeep.prediction import transfer
from notsodeep.threads import map_threads

Say = Callable[[str], None]

CERTIFIED = 600
"""Held-out rows of the certificate, at most."""

_TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)  # at which people run DEQs, beside the one asked for
_TIMED = 256  # rows in a batch that is timed
_TUNED = (500, 1000)  # rows that hyper-parameters are tried on, and new ones, at most
_NAMES = {"deq": "the DEQ", "matched": "the matched network", "unmatched": "the unmatched network"}
_BINS = 40  # of the eigenvalues, by their logarithm
_SCALE = 4.0  # most that the scale of data differs from 1; beyond, activations saturate or are flat


def compile_random_deq(
    settings: CompileSettings,
    data: Dataset,
    out: str | Path | None = None,
    *,
    force: bool = False,
    say: Say = lambda message: None,
) -> Compilation:
    """Match, certify, train, time and, in a directory, export.

    Parameters
    ----------
    settings : CompileSettings
        What it says of the data is replaced by what `data` says of itself.
    data : Dataset
        With a test part.
    out : path, optional
        Directory of the results.  Every piece is stored there as soon as it is done; calling this
        again on the same directory resumes where it stopped.
    force : bool
        Replace results of other settings, or on other data.
    say : callable
        Called with what is being done.

    Raises
    ------
    InvalidInput
        `out` holds results of other settings, results on data that have changed since, or
        something else altogether.
    RunInUse
        Another process works in `out`.
    """
    origin = data.provenance
    settings = replace(
        settings,
        data=origin.name,
        samples=origin.options.get("samples"),
        test_samples=origin.options.get("test_samples"),
        selection=selection(data, settings.seed),
    )
    if out is None:
        pieces = MemoryPieces()
        found, network = _gather(settings, data, pieces, say)
        return Compilation.of_pieces(settings, found, pieces, first=network)
    inputs = input_digests(origin)
    run = RunDirectory(
        out, "compile", settings.to_dict(), inputs=inputs, pages=PAGES, judged_by=JUDGED_BY
    )
    with run.opened(force=force):
        found, network = _gather(settings, data, run, say)
        run.finish([name for name in (NETWORK, ONNX) if (run.path / name).exists()])
        return Compilation.of_pieces(settings, found, run, directory=run.path, first=network)


def _gather(
    settings: CompileSettings, data: Dataset, pieces: Pieces, say: Say
) -> tuple[Match, Any]:
    """Compute what is missing of the pieces; return the match, and the network if it was made."""
    say("matching" + (" and refining" if settings.refine else ""))
    # A stored match is rebuilt by solving again, which is deterministic.
    model = settings.deq
    if settings.centre and isinstance(model, DeepEquilibrium):
        model = model.centred(float(np.sqrt(np.square(data.X).sum(axis=1).mean())))
    found = match(
        model,
        data.X,
        family=settings.family,
        kind=settings.kind,
        convention=settings.convention,
        refine=settings.refine,
        rng=settings.seed,
    )
    _ = found.network  # an infeasible family ends here, with its reason, and leaves nothing behind
    if isinstance(pieces, RunDirectory):  # in memory the match itself is kept
        pieces.piece("match", found.to_dict)
    pieces.piece("data", lambda: _data_record(found, data))
    say("certifying on held-out rows")
    drawn = draw_rows(data.X_test, CERTIFIED, settings.seed)
    held_out = data.X_test[drawn], data.y_test[drawn]
    pieces.piece("certificate", lambda: _certificate(found, *held_out, pieces))
    pieces.piece("spectrum", lambda: _spectrum(found, *held_out, pieces))
    say("drawing read-outs of several widths")
    pieces.piece("widths", lambda: width_record(settings, found, data))
    say("tuning the DEQ, and using its hyper-parameters on the networks")
    pieces.piece("transfer", lambda: _transfer(settings, found, data))
    networks = _finite_networks(settings)
    accuracy, first = _accuracies(settings, found, data, pieces, say, networks)
    say("timing")
    models = found.model, found.network
    pieces.piece("timing", lambda: networks.time_models(*models, data, settings, _TIMED).to_dict())

    def first_network(role: str) -> Any:
        """Return a network of the first draw, trained again if only its record is there."""
        if role not in first:
            place = pieces.work_directory(f"network-{role}-0")
            first[role], _ = networks.train_network(_models(found)[role], data, settings, 0, place)
        return first[role]

    pieces.piece("front", lambda: _front(settings, data, networks, first_network))
    if not isinstance(pieces, RunDirectory):
        first_network("matched")
    elif not (pieces.has("export") and (pieces.path / NETWORK).exists()):
        write_network(_attached(first_network("matched"), data), pieces)
    pieces.piece("summary", lambda: _summary(settings, found, pieces, accuracy))
    return found, _attached(first["matched"], data) if "matched" in first else None


def _finite_networks(settings: CompileSettings) -> Any:
    """Return the module that draws, trains and times networks: in PyTorch, or else in NumPy."""
    if settings.train == "all" or extras.is_installed("torch"):
        from notsodeep.compilation import finite_networks

        return finite_networks
    from notsodeep.compilation import numpy_networks

    return numpy_networks


def _attached(network: Any, data: Dataset) -> Any:
    """Give a network the map from raw rows, and the names of its outputs."""
    network.preprocessing, network.classes = data.preprocessing, data.classes
    return network


def _data_record(found: Match, data: Dataset) -> dict[str, Any]:
    verdicts = conditions(found.model, data.X, _statistics(data.X, data.y), tau0=found.tau0)
    if not isinstance(found.model, ConvolutionalEquilibrium):  # pixels have a verdict of their own
        verdicts = Conditions((*verdicts, _scale(found.tau0)))
    return {
        "samples": len(data.X),
        "test_samples": len(data.X_test),
        "features": data.X.shape[1],
        "classes": list(data.classes),
        "provenance": data.provenance.to_dict(),
        "conditions": verdicts.to_dict(),
    }


def _scale(tau0: float) -> Verdict:
    """Judge the scale of the data, which matters to all activations but homogeneous ones."""
    return Verdict(
        "scale of the data",
        1.0 / _SCALE <= tau0 <= _SCALE,
        "τ0 near 1",
        tau0,
        _SCALE,
        "activations are used where they bend; preprocessing='theory' brings τ0 to 1",
    )


def _statistics(X: FloatArray, y: IntArray) -> MixtureStatistics | None:
    """Statistics of the classes, if each has enough samples."""
    if np.unique(y, return_counts=True)[1].min() < 4:
        return None
    return MixtureStatistics.estimate(X, y)


def _certificate(
    found: Match, rows: FloatArray, labels: IntArray, pieces: Pieces
) -> dict[str, Any]:
    certificate = found.certify(rows, labels)
    reach = 3.0 * found.tau0
    x = np.linspace(-reach, reach, 301)
    curves = {f"layer_{k}": a(x) for k, a in enumerate(found.network.activations)}
    pieces.arrays(
        "certificate",
        lambda: {
            "deq": certificate.matched.eigenvalues,
            "matched": certificate.matched.other_eigenvalues,
            "unmatched": certificate.unmatched.other_eigenvalues,
            "difference": certificate.difference,
            "x": x,
            "phi": found.model.cell[-1].activation(x),
            **curves,
        },
    )
    return certificate.to_dict(arrays=False)


def _spectrum(found: Match, rows: FloatArray, labels: IntArray, pieces: Pieces) -> dict[str, Any]:
    """Find the limiting law of the DEQ's kernel on the certified rows, or say why there is none.

    Stored are the shares of eigenvalues in bins of equal ratio, as the law predicts them.
    """
    eigenvalues = pieces.stored_arrays("certificate")["deq"]
    top = float(eigenvalues[-1])
    bottom = max(float(eigenvalues[eigenvalues > 0.0].min(initial=top)), 1e-6 * top)
    # Wide enough that the extreme eigenvalues do not fall on an edge.
    edges = np.geomspace(0.9 * bottom, 1.1 * top, _BINS + 1)
    try:
        law = _limiting_law(found, rows, labels)
        mass = law.point_mass[1]
        if mass > 0.0:  # it would dwarf the rest, or be missing from the picture
            raise InvalidInput(
                f"with more rows than features it puts {mass:.0%} of the eigenvalues at one point, "
                "where the exact kernel has them spread out"
            )
    except (InvalidInput, NotConverged) as error:
        pieces.arrays("spectrum", lambda: {"edges": edges, "shares": np.empty(0)})
        return {"law": None, "reason": str(error)}
    pieces.arrays("spectrum", lambda: {"edges": edges, "shares": np.diff(law.cdf(edges))})
    return {"law": law.to_dict(arrays=False), "reason": law.origin}


def _limiting_law(found: Match, rows: FloatArray, labels: IntArray) -> LimitingSpectrum:
    if isinstance(found.model, ConvolutionalEquilibrium):
        raise InvalidInput("the kernel of a convolution depends on all pairs of pixels")
    statistics = _statistics(rows, labels)
    if statistics is None:
        raise InvalidInput("a class has fewer than four held-out samples")
    choice: dict[str, Any] = {"kind": found.kind, "convention": found.convention}
    eq = equivalent(found.model, rows, statistics, **choice)
    return limiting_spectrum(eq, population="deconvolved")


def _transfer(settings: CompileSettings, found: Match, data: Dataset) -> dict[str, Any]:
    """Use the DEQ's tuned rate, epochs and ridge on both networks, or say why not."""
    if isinstance(found.model, ConvolutionalEquilibrium):
        return {"reason": "Left out for convolutions, whose exact kernels are expensive."}
    some = draw_rows(data.X, _TUNED[0], settings.seed)
    unseen = draw_rows(data.X_test, _TUNED[1], settings.seed)
    if len(unseen) < 2 or (data.y[some] == data.y[some[0]]).all():
        return {"reason": "There are too few rows, or classes, to tune hyper-parameters with."}
    seen = transfer(
        {_NAMES[role]: model for role, model in _models(found).items()},
        data.X[some],
        data.y[some],
        data.X_test[unseen],
        data.y_test[unseen],
        kind=settings.kind,
        convention=settings.convention,
    )
    return {"reason": "", **seen.to_dict()}


def _models(found: Match) -> dict[str, DeepEquilibrium | ExplicitNetwork]:
    return {"deq": found.model, "matched": found.network, "unmatched": found.unmatched}


def _accuracies(
    settings: CompileSettings,
    found: Match,
    data: Dataset,
    pieces: Pieces,
    say: Say,
    networks: Any,
) -> tuple[Accuracy, dict[str, Any]]:
    """Train all networks, once for each seed; return also those of the first draw that are new."""
    accuracies: dict[str, list[float]] = {role: [] for role in ROLES}
    right: dict[str, list[Any]] = {role: [] for role in ROLES}
    total = settings.seeds * len(ROLES)
    first: dict[str, Any] = {}
    models = _models(found)
    jobs = [(role, index) for index in range(settings.seeds) for role in models]

    def train(job: tuple[str, int]) -> dict[str, Any]:
        role, index = job
        place = pieces.work_directory(f"network-{role}-{index}")
        record: dict[str, Any]
        network, record = networks.train_network(models[role], data, settings, index, place)
        if index == 0:
            first[role] = network
        return record

    missing = [job for job in jobs if not pieces.has(f"network-{job[0]}-{job[1]}")]
    # PyTorch has threads of its own; in NumPy a network for each thread wastes none.
    several = networks.AT_ONCE
    records = map_threads(train, missing) if several else map(train, missing)
    for number, (role, index) in enumerate(jobs, start=1):
        name = f"network-{role}-{index}"
        if not pieces.has(name):
            say(f"training network {number} of {total}: {role}, draw {index + 1}")
        measured = pieces.piece(name, lambda: next(records))
        accuracies[role].append(measured["accuracy"])
        right[role].append(unpacked_rows(measured["right"], len(data.y_test)))
    draws = {role: tuple(values) for role, values in accuracies.items()}
    return Accuracy(draws, row_error({role: np.array(rows) for role, rows in right.items()})), first


def _front(
    settings: CompileSettings, data: Dataset, networks: Any, first_network: Callable[[str], Any]
) -> dict[str, Any]:
    """Accuracy and cost of the first DEQ at several tolerances, beside the first network.

    "chosen" is the loosest, and so the cheapest, whose accuracy lies in the 95 % interval (Clopper
    and Pearson) of the one at the tolerance asked for.
    """
    tolerances = [t for t in _TOLERANCES if t > settings.tolerance] + [settings.tolerance]
    order = draw_rows(data.X_test, len(data.X_test), settings.seed)  # the first are timed
    points = networks.tolerance_front(
        first_network("deq"),
        first_network("matched"),
        data.X_test[order],
        data.y_test[order],
        tolerances,
        batch=_TIMED,
    )
    rows = len(data.y_test)
    low, high = binomtest(round(points[-1].accuracy * rows), rows).proportion_ci()
    # Never empty: the last one is the middle of its own interval.  Loosest first.
    good = [k for k, point in enumerate(points) if low <= point.accuracy <= high]
    return {
        "rows": rows,
        "interval": [float(low), float(high)],
        "points": [asdict(point) for point in points],
        "chosen": min(good),
    }


def _summary(
    settings: CompileSettings,
    found: Match,
    pieces: Pieces,
    accuracy: Accuracy,
) -> dict[str, Any]:
    certificate, times, front = (pieces.read(name) for name in ("certificate", "timing", "front"))
    chosen, strict = front["points"][front["chosen"]], front["points"][-1]
    step = times["training_step"]
    gap = certificate["matched"]["relative_gap"]
    interval = accuracy.difference
    # A kernel with a large constant part makes any gap look small: both have to be small.
    with_bias = certificate["matched"]["centred_gap"]
    close = max(gap, with_bias) <= settings.gap_limit
    # Equivalence, not "no significant difference": the whole interval has to be inside the limits,
    # so that too few draws or rows never make a network replaceable.
    as_accurate = max(abs(interval[0]), abs(interval[1])) <= settings.accuracy_limit
    return {
        "replaceable": close and as_accurate,
        "kernel_close": close,
        "accuracy_close": as_accurate,
        "accuracy_limit": settings.accuracy_limit,
        "relative_gap": gap,
        "gap_with_bias": with_bias,
        "unmatched_relative_gap": certificate["unmatched"]["relative_gap"],
        "scaled_gap": certificate["matched"]["scaled_gap"],
        "unmatched_scaled_gap": certificate["unmatched"]["scaled_gap"],
        "readout_gap": certificate["matched"]["readout_gap"],
        "unmatched_readout_gap": certificate["unmatched"]["readout_gap"],
        "plain_suffices": certificate["plain_suffices"],
        "certified_rows": len(pieces.stored_arrays("certificate")["deq"]),
        "accuracy": accuracy.mean,
        "accuracy_deviation": accuracy.deviation,
        "accuracies": {role: list(values) for role, values in accuracy.draws.items()},
        "accuracy_difference": list(interval),
        "accuracy_row_error": accuracy.row_error,
        "tolerance": chosen["tolerance"],
        "steps": chosen["inference"]["steps"],
        "inference_ratio": chosen["inference"]["ratio"],
        "inference_quartiles": list(chosen["inference"]["quartiles"]),
        "strict_inference_ratio": strict["inference"]["ratio"],
        "library": times["library"],
        "training_ratio": None if step is None else step["ratio"],
        "family": found.family,
        "layers": found.network.depth,
        "network": str(found.network),
        "deq": str(found.model),
    }
