"""Compile a random DEQ: match, certify, draw both networks, measure what they cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from threadpoolctl import threadpool_info

from notsodeep.arrays import FloatArray
from notsodeep.compilation.evidence import ROLES, Front, Way, timed_front
from notsodeep.compilation.record import (
    SCALE,
    Arrays,
    Compilation,
    DataSummary,
    Draw,
    RandomSettings,
    Spectrum,
    Step,
    Store,
    TransferRecord,
    run_directory,
)
from notsodeep.compilation.rows import input_digests
from notsodeep.data import Dataset, MixtureStatistics, draw_rows
from notsodeep.equivalents import LimitingSpectrum, equivalent, limiting_spectrum
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.matching import Certificate, Match, match
from notsodeep.models import (
    Conditions,
    ConvolutionalEquilibrium,
    ConvolutionalNetwork,
    DeepEquilibrium,
    Model,
    Verdict,
    conditions,
)
from notsodeep.networks.sampling import RandomNetwork, random_network
from notsodeep.numerics.ridge_fit import fit_ridge
from notsodeep.prediction import transfer
from notsodeep.threads import map_threads, thread_count

CERTIFIED = 600
"""Held-out rows of the certificate, at most."""

_TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)  # at which people run DEQs, besides the one asked for
_BATCH = 256  # rows that are timed at once
SCALE_ROWS = 256  # that give the size of features, to which the ridge is relative
_TUNED = (500, 1000)  # rows that hyper-parameters are tried on, and new ones, at most
_NAMES = {"deq": "the DEQ", "matched": "the matched network", "unmatched": "the unmatched network"}
_BINS = 40  # of the eigenvalues, by their logarithm
_MAX_SCALE = 4.0  # of data, or its inverse; beyond, activations saturate or are flat


class Trained(NamedTuple):
    """A network of one draw with a trained read-out."""

    weights: Arrays
    scores: Callable[[FloatArray, float], NDArray[Any]]  # of rows, the DEQ solved to a tolerance
    steps: Callable[[FloatArray, float], int]


class Networks(Protocol):
    """Finite networks of all roles: in NumPy for read-outs, in torch for all weights and images."""

    library: str
    side_by_side: bool  # whether several threads may train networks

    def train(self, role: str, index: int) -> Trained:
        """Draw network `index` of a role, and train it."""


def compile_random_deq(
    settings: RandomSettings,
    data: Dataset,
    out: str | Path | None,
    *,
    force: bool,
    log: Callable[[Step], object],
) -> Compilation:
    """Gather the evidence, in a directory if there is one; see `notsodeep.compile`."""
    inputs = input_digests(data.provenance)
    if out is None:
        return _compiled(settings, data, Store(None, log), inputs)
    run = run_directory(out, settings, data.provenance.to_dict(), inputs)
    with run.opened(force=force):
        compiled = _compiled(settings, data, Store(run, log), inputs)
        compiled.export(run)
        return compiled


def _compiled(
    settings: RandomSettings, data: Dataset, store: Store, inputs: dict[str, str]
) -> Compilation:
    images = isinstance(settings.model, ConvolutionalEquilibrium)
    found: Match = store.record(
        "match",
        Match,
        lambda: _matched(settings, data.X),
        "matching and refining" if settings.refine else "matching",
    )
    drawn = draw_rows(data.X_test, CERTIFIED, settings.random_state)
    rows, labels = data.X_test[drawn], data.y_test[drawn]
    certificate = store.record(
        "certificate",
        Certificate,
        lambda: found.certify(rows, labels),
        "certifying on held-out rows",
    )
    spectrum = store.record(
        "spectrum",
        Spectrum,
        lambda: _spectrum(found, rows, labels, certificate.matched.eigenvalues),
    )
    transferred = store.record(
        "transfer",
        TransferRecord,
        lambda: _transfer(settings, found, data),
        "tuning the DEQ, and using its hyper-parameters on the networks",
    )
    models: dict[str, Any] = dict(
        zip(ROLES, (found.model, found.network, found.unmatched), strict=True)
    )
    networks: Networks
    if images or settings.train == "all":
        from notsodeep.compilation.torch_networks import TorchNetworks

        networks = TorchNetworks(settings, models, data)
    else:
        networks = NumpyNetworks(settings, models, data)
    first: dict[str, Trained] = {}

    def of_first_draw(role: str) -> Trained:
        """Return a network of the first draw, trained again if only its record is there."""
        if role not in first:
            first[role] = networks.train(role, 0)
        return first[role]

    draws = _draws(settings, data, networks, store, first)
    front = store.record(
        "front", Front, lambda: _front(settings, data, models, networks, of_first_draw), "timing"
    )
    weights = store.arrays("network", lambda: of_first_draw("matched").weights)
    return Compilation(
        settings,
        store.record("data", DataSummary, lambda: _data_summary(found, data)),
        found,
        certificate,
        spectrum,
        transferred,
        draws,
        front,
        weights,
        inputs,
        None if store.run is None else store.run.path,
    )


def _matched(settings: RandomSettings, X: FloatArray) -> Match:
    found = match(
        settings.model,
        X,
        family=settings.family,
        kind=settings.kind,
        convention=settings.convention,
        refine=settings.refine,
        rng=settings.random_state,
    )
    _ = found.network  # an infeasible family ends here, with its reason, and leaves nothing behind
    return found


def _data_summary(found: Match, data: Dataset) -> DataSummary:
    verdicts = conditions(found.model, data.X, data.y, tau0=found.tau0)
    if not isinstance(found.model, ConvolutionalEquilibrium):  # pixels have a verdict of their own
        scale = Verdict(
            SCALE,
            1.0 / _MAX_SCALE <= found.tau0 <= _MAX_SCALE,
            "τ0 near 1",
            found.tau0,
            _MAX_SCALE,
            "activations are used where they bend; preprocessing='theory' brings τ0 to 1",
        )
        verdicts = Conditions((*verdicts, scale))
    return DataSummary(
        data.provenance.name,
        len(data.X),
        len(data.X_test),
        data.X.shape[1],
        data.classes,
        data.preprocessing,
        data.provenance.to_dict(),
        verdicts,
    )


def _statistics(X: FloatArray, y: NDArray[np.int64]) -> MixtureStatistics | None:
    """Statistics of the classes, if each has enough samples."""
    if np.unique(y, return_counts=True)[1].min() < 4:
        return None
    return MixtureStatistics.estimate(X, y)


def _spectrum(
    found: Match, rows: FloatArray, labels: NDArray[np.int64], eigenvalues: FloatArray
) -> Spectrum:
    """Take shares of eigenvalues from the limiting law of the DEQ's kernel, or say why not."""
    top = float(eigenvalues[-1])
    bottom = max(float(eigenvalues[eigenvalues > 0.0].min(initial=top)), 1e-6 * top)
    # Wide enough that the extreme eigenvalues do not fall on an edge.
    edges = np.geomspace(0.9 * bottom, 1.1 * top, _BINS + 1)
    try:
        law = _limiting_law(found, rows, labels)
    except (InvalidInput, NotConverged) as error:
        return Spectrum(edges, np.empty(0), (), str(error))
    spikes = tuple(float(spike.value) for spike in law.spikes)
    return Spectrum(edges, np.diff(law.cdf(edges)), spikes, law.origin)


def _limiting_law(found: Match, rows: FloatArray, labels: NDArray[np.int64]) -> LimitingSpectrum:
    if isinstance(found.model, ConvolutionalEquilibrium):
        raise InvalidInput("The kernel of a convolution depends on all pairs of pixels.")
    statistics = _statistics(rows, labels)
    if statistics is None:
        raise InvalidInput("A class has fewer than four held-out samples.")
    choice: Any = {"kind": found.kind, "convention": found.convention}
    eq = equivalent(found.model, rows, labels, **choice)
    law = limiting_spectrum(eq, population="deconvolved")
    if law.point_mass[1] > 0.0:  # it would dwarf the rest, or be missing from the picture
        raise InvalidInput(
            f"With more rows than features it puts {law.point_mass[1]:.0%} of the eigenvalues at "
            "one point, where the exact kernel has them spread out."
        )
    return law


def _transfer(settings: RandomSettings, found: Match, data: Dataset) -> TransferRecord:
    """Use the DEQ's tuned rate, epochs and ridge on both networks, or say why not."""
    if isinstance(found.model, ConvolutionalEquilibrium):
        return TransferRecord(None, "Left out for convolutions, whose exact kernels take long.")
    some = draw_rows(data.X, _TUNED[0], settings.random_state)
    unseen = draw_rows(data.X_test, _TUNED[1], settings.random_state)
    if len(unseen) < 2 or (data.y[some] == data.y[some[0]]).all():
        return TransferRecord(None, "Too few rows, or classes, to tune hyper-parameters with.")
    models: list[Model] = [found.model, found.network, found.unmatched]
    seen = transfer(
        dict(zip(_NAMES.values(), models, strict=True)),
        data.X[some],
        data.y[some],
        data.X_test[unseen],
        data.y_test[unseen],
        kind=settings.kind,
        convention=settings.convention,
    )
    return TransferRecord(seen)


def _draws(
    settings: RandomSettings,
    data: Dataset,
    networks: Networks,
    store: Store,
    first: dict[str, Trained],
) -> tuple[Draw, ...]:
    """Train the networks of every draw; keep those of the first that are new."""

    def trained(index: int) -> Draw:
        right = {}
        for role in ROLES:
            network = networks.train(role, index)
            scores = network.scores(data.X_test, settings.tolerance)
            right[role] = scores.argmax(axis=1) == data.y_test
            if index == 0:
                first[role] = network
        return Draw.of_rows(right)

    missing = [k for k in range(settings.seeds) if not store.has(f"draw-{k}")]
    # A draw for each thread, stored before the next ones begin; PyTorch has threads of its own.
    count = thread_count() if networks.side_by_side else 1
    draws: dict[int, Draw] = {}
    for begin in range(0, len(missing), count):
        done = settings.seeds - len(missing) + begin
        store.log(Step("training networks", done, settings.seeds))
        some = missing[begin : begin + count]
        for index, draw in zip(some, map_threads(trained, some, threads=count), strict=True):
            draws[index] = store.record(f"draw-{index}", Draw, lambda value=draw: value)  # type: ignore[misc]
    for index in set(range(settings.seeds)) - {*missing}:
        draws[index] = store.record(f"draw-{index}", Draw, lambda k=index: trained(k))  # type: ignore[misc]
    return tuple(draws[index] for index in range(settings.seeds))


class NumpyNetworks:
    """Read-outs on fixed random features, in NumPy whether or not PyTorch is installed."""

    library, side_by_side = "numpy", True

    def __init__(self, settings: RandomSettings, models: dict[str, Any], data: Dataset) -> None:
        self.settings, self.models, self.data = settings, models, data
        self.targets = np.eye(len(data.classes))[data.y]
        self.some = draw_rows(data.X, SCALE_ROWS, settings.random_state)

    def train(self, role: str, index: int) -> Trained:
        """Draw a network and fit its read-out, a ridge regression on one-hot labels.

        All roles of a draw share their seed, so that networks of one shape share their weights.
        """
        settings, data = self.settings, self.data
        rng = np.random.default_rng([settings.random_state, index])
        network = random_network(self.models[role], data.X.shape[1], settings.width, rng)
        features = network.features(data.X, settings.tolerance)
        ridge = settings.ridge * float(np.square(features[self.some]).sum(axis=1).mean())
        fit = fit_ridge(features, self.targets, ridge, intercept=False, owner="compile")
        readout = fit.weights.astype(np.float32)

        def scores(X: FloatArray, tolerance: float) -> NDArray[Any]:
            return network.features(X, tolerance) @ readout.T

        return Trained(_state(network, readout), scores, network.steps)


def _state(network: RandomNetwork, readout: NDArray[np.float32]) -> Arrays:
    """Return weights by the names of the torch module."""
    named = {
        f"{kind}_{k}": array
        for k, layer in enumerate(network.layers, 1)
        for kind, array in zip(("weight", "injection", "bias"), layer, strict=True)
        if array is not None
    }
    return {**named, "readout": readout}


def _front(
    settings: RandomSettings,
    data: Dataset,
    models: dict[str, Any],
    networks: Networks,
    of_first_draw: Callable[[str], Trained],
) -> Front:
    """Accuracy and cost of the first DEQ at several tolerances, beside the first network.

    Chosen is the loosest tolerance whose accuracy lies in the 95 % interval (Clopper and Pearson)
    of the strictest.
    """
    deq, network = of_first_draw("deq"), of_first_draw("matched")
    order = draw_rows(data.X_test, len(data.X_test), settings.random_state)
    X, y = data.X_test[order], data.y_test[order]
    rows = X[:_BATCH]

    def share(scores: NDArray[Any]) -> float:
        return float((scores.argmax(axis=1) == y).mean())

    ways = [
        Way(
            f"DEQ to {tolerance:g}",
            "tolerance",
            tolerance,
            lambda t=tolerance: deq.scores(rows, t),  # type: ignore[misc]
            _products(deq.weights, models["deq"], steps := deq.steps(rows, tolerance)),
            steps,
            accuracy=share(deq.scores(X, tolerance)),
        )
        for tolerance in [*(t for t in _TOLERANCES if t > settings.tolerance), settings.tolerance]
    ]
    right = round((ways[-1].accuracy or 0.0) * len(y))
    low, high = binomtest(right, len(y)).proportion_ci()
    chosen = next(k for k, way in enumerate(ways) if low <= (way.accuracy or 0.0) <= high)
    ways.append(
        Way(
            "the network",
            "explicit",
            1.0,
            lambda: network.scores(rows, settings.tolerance),
            _products(network.weights, models["matched"], 1),
            accuracy=share(network.scores(X, settings.tolerance)),
        )
    )
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return timed_front(
        ways,
        solver="the DEQ by plain iteration",
        batch=len(rows),
        threads=max(pools, default=1),
        library=networks.library,
        chosen=chosen,
    )


def _products(weights: Arrays, model: Any, steps: int) -> float:
    """Multiplications per row: injections and the read-out once, recurrent weights every step.

    A filter is applied at every pixel.  The first step of a DEQ starts from zero, so that its
    first weights have nothing to multiply.
    """
    images = isinstance(model, ConvolutionalEquilibrium | ConvolutionalNetwork)
    pixels = model.image_shape[0] * model.image_shape[1] if images else 1
    total = 0.0
    for name, array in weights.items():
        if name.startswith("weight"):
            skipped = isinstance(model, DeepEquilibrium) and name == "weight_1"
            total += pixels * (steps - skipped) * array.size
        elif name.startswith("injection"):
            total += pixels * array.size
        elif name == "readout":
            total += array.size
    return total
