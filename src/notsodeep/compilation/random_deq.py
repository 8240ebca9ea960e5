"""The main job: find the shallow network for a random DEQ, and gather the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep.checks import FloatArray, IntArray
from notsodeep.compilation.accuracy import Accuracy
from notsodeep.compilation.labelled_rows import input_digests, selection
from notsodeep.compilation.pieces import MemoryPieces, Pieces
from notsodeep.compilation.record import (
    NETWORK,
    ONNX,
    PAGES,
    Compilation,
    read_network,
    write_network,
)
from notsodeep.compilation.settings import ROLES, CompileSettings
from notsodeep.data import Dataset, MixtureStatistics, draw_rows
from notsodeep.equivalents import LimitingSpectrum, conditions, equivalent, limiting_spectrum
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.files.run_directory import RunDirectory
from notsodeep.matching import Match, match
from notsodeep.models import Conditions, DeepEquilibrium, ExplicitNetwork, Verdict

if TYPE_CHECKING:
    from notsodeep.networks.modules import ExplicitModule

Say = Callable[[str], None]

_CERTIFIED = 600  # held-out rows of the certificate, at most
_TIMED = 256  # rows in a batch that is timed
_FIRST = "network-matched-0"  # the piece whose network is the product
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
        Is told what is being done.

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
        found, module = _gather(settings, data, pieces, say)
        return Compilation.of_pieces(settings, found, pieces, module=module)
    inputs = input_digests(origin)
    run = RunDirectory(out, "compile", settings.to_dict(), inputs=inputs, pages=PAGES)
    with run.opened(force=force):
        found, module = _gather(settings, data, run, say)
        run.finish([name for name in (NETWORK, ONNX) if (run.path / name).exists()])
        return Compilation.of_pieces(settings, found, run, directory=run.path, module=module)


def _gather(
    settings: CompileSettings, data: Dataset, pieces: Pieces, say: Say
) -> tuple[Match, ExplicitModule]:
    """Compute what is missing of the pieces; return the match and a network."""
    say("matching" + (" and refining" if settings.refine else ""))
    # A stored match is rebuilt by solving again, which is deterministic.
    found = match(
        settings.deq,
        data.X,
        family=settings.family,
        kernel=settings.kernel,
        convention=settings.convention,
        refine=settings.refine,
        rng=settings.seed,
    )
    if isinstance(pieces, RunDirectory):  # in memory the match itself is kept
        pieces.piece("match", found.to_dict)
    _ = found.network  # an infeasible family ends here, with its reason
    pieces.piece("data", lambda: _data_record(found, data))
    say("certifying on held-out rows")
    drawn = draw_rows(data.X_test, _CERTIFIED, settings.seed)
    held_out = data.X_test[drawn], data.y_test[drawn]
    pieces.piece("certificate", lambda: _certificate(found, *held_out, pieces))
    pieces.piece("spectrum", lambda: _spectrum(settings, *held_out, pieces))
    accuracy, module = _accuracies(settings, found, data, pieces, say)
    say("timing")
    times = pieces.piece("timing", lambda: _timing(settings, found, data))
    say("exporting")
    module = _first_network(settings, found, data, pieces, module)
    pieces.piece("summary", lambda: _summary(settings, found, pieces, accuracy, times))
    return found, module


def _data_record(found: Match, data: Dataset) -> dict[str, Any]:
    verdicts = conditions(found.deq, found.tau0, X=data.X, stats=_statistics(data.X, data.y))
    return {
        "samples": len(data.X),
        "test_samples": len(data.X_test),
        "features": data.X.shape[1],
        "classes": list(data.classes),
        "provenance": data.provenance.to_dict(),
        "conditions": Conditions((*verdicts, _scale(found.tau0))).to_dict(),
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
            "phi": found.deq.activation(x),
            **curves,
        },
    )
    return certificate.to_dict(arrays=False)


def _spectrum(
    settings: CompileSettings, rows: FloatArray, labels: IntArray, pieces: Pieces
) -> dict[str, Any]:
    """Find the limiting law of the DEQ's kernel on the certified rows, or say why there is none.

    Stored are the shares of eigenvalues in bins of equal ratio, as the law predicts them.
    """
    eigenvalues = pieces.stored_arrays("certificate")["deq"]
    top = float(eigenvalues[-1])
    bottom = max(float(eigenvalues[eigenvalues > 0.0].min(initial=top)), 1e-6 * top)
    edges = np.geomspace(0.9 * bottom, 1.1 * top, _BINS + 1)
    try:
        law = _limiting_law(settings, rows, labels)
    except (InvalidInput, NotConverged) as error:
        pieces.arrays("spectrum", lambda: {"edges": edges, "shares": np.empty(0)})
        return {"law": None, "reason": str(error)}
    pieces.arrays("spectrum", lambda: {"edges": edges, "shares": np.diff(law.cdf(edges))})
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
    return {"deq": found.deq, "matched": found.network, "unmatched": found.unmatched}


def _accuracies(
    settings: CompileSettings, found: Match, data: Dataset, pieces: Pieces, say: Say
) -> tuple[Accuracy, ExplicitModule | None]:
    """Train all networks, once for each seed; return the first matched one if it is new."""
    from notsodeep.compilation.finite_networks import train_network

    accuracies: dict[str, list[float]] = {role: [] for role in ROLES}
    total = settings.seeds * len(ROLES)
    first: list[ExplicitModule] = []
    for index in range(settings.seeds):
        for role, model in _models(found).items():
            name = f"network-{role}-{index}"
            done = sum(map(len, accuracies.values())) + 1
            if not pieces.has(name):
                say(f"training network {done} of {total}: {role}, draw {index + 1}")

            def work(model: Any = model, index: int = index, name: str = name) -> dict[str, Any]:
                place = pieces.work_directory(name)
                module, record = train_network(model, data, settings, index, place)
                if name == _FIRST:
                    first.append(module)  # type: ignore[arg-type]
                return record

            accuracies[role].append(pieces.piece(name, work)["accuracy"])
    draws = {role: tuple(values) for role, values in accuracies.items()}
    return Accuracy(draws), first[0] if first else None


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


def _first_network(
    settings: CompileSettings,
    found: Match,
    data: Dataset,
    pieces: Pieces,
    module: ExplicitModule | None,
) -> ExplicitModule:
    """Return the first draw of the matched network, trained again if only its record is there."""
    from notsodeep.compilation.finite_networks import train_network

    stored = pieces if isinstance(pieces, RunDirectory) else None
    if stored is not None and stored.has("export") and (stored.path / NETWORK).exists():
        return read_network(stored.path)
    if module is None:
        place = pieces.work_directory(_FIRST)
        module, _ = train_network(found.network, data, settings, 0, place)  # type: ignore[assignment]
    assert module is not None
    module.preprocessing, module.classes = data.preprocessing, data.classes  # type: ignore[assignment]
    if stored is not None:
        write_network(module, stored)
    return module.eval()


def _summary(
    settings: CompileSettings,
    found: Match,
    pieces: Pieces,
    accuracy: Accuracy,
    times: Mapping[str, Any],
) -> dict[str, Any]:
    certificate = pieces.read("certificate")
    gap = certificate["matched"]["relative_gap"]
    interval = accuracy.difference
    close = gap <= settings.gap_limit
    as_accurate = max(abs(interval[0]), abs(interval[1])) <= settings.accuracy_limit
    return {
        "replaceable": close and as_accurate,
        "kernel_close": close,
        "accuracy_close": as_accurate,
        "relative_gap": gap,
        "unmatched_relative_gap": certificate["baseline"]["relative_gap"],
        "certified_rows": len(pieces.stored_arrays("certificate")["deq"]),
        "accuracy": accuracy.mean,
        "accuracy_deviation": accuracy.deviation,
        "accuracies": {role: list(values) for role, values in accuracy.draws.items()},
        "accuracy_difference": list(interval),
        "inference_ratio": times["inference"]["ratio"],
        "training_ratio": times["training_step"]["ratio"],
        "family": found.family,
        "layers": found.network.depth,
        "network": str(found.network),
        "deq": str(found.deq),
    }
