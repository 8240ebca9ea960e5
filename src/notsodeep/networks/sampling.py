"""Random finite networks in NumPy: features, kernels, and their means over many networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.models import DeepEquilibrium, Dense, ExplicitNetwork
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.threads import map_threads

Single = NDArray[np.float32]
Real = NDArray[Any]

_ROWS = 512  # in one pass: they stay in the cache
_MAX_STEPS = 2000
_SINGLE_RANGE = 1e15  # of row norms, and of their inverses, whose squares float32 can hold
_MANY = 1e8  # numbers in all networks together from which a progress bar is worth showing


class LayerWeights(NamedTuple):
    """Standard normal weights of a layer, (m, m), (m, p) and (m,); None where there are none."""

    weight: Single | None
    injection: Single | None
    shift: Single | None


@dataclass(frozen=True, eq=False)
class RandomNetwork:
    """A network of finite width with fixed random weights and no read-out.

    Layer l is h_l = √(w_l/m) A_l y_{l−1} + √u_l U_l x + √b_l β_l, y_l = φ_l(h_l); the features are
    y_L/√m.  The first layer of a DEQ reads the last, at equilibrium.

    Attributes
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    width : int
    layers : tuple of LayerWeights

    Examples
    --------
    >>> network = random_network(ExplicitNetwork(["relu"]), 4, 8, np.random.default_rng(0))
    >>> network.features(np.ones((3, 4))).shape
    (3, 8)
    """

    model: DeepEquilibrium | ExplicitNetwork
    width: int
    layers: tuple[LayerWeights, ...]

    def features(self, X: Real, tolerance: float = 1e-6, *, double: bool = False) -> Real:
        """Return y_L/√m of every row, shape (n, m), to a relative residual within the tolerance.

        In float32, or in float64 if asked for; the weights are rounded to float32 in any case.

        Raises
        ------
        NotConverged
            The fixed point of a row was not found.
        """
        dtype = np.float64 if double else np.float32
        batches = _batches(X, double=double)
        parts = [_settle(self, rows, tolerance)[0][-1].units for rows in batches]
        return np.asarray(np.concatenate(parts) / math.sqrt(self.width), dtype=dtype)

    def steps(self, X: Real, tolerance: float = 1e-6) -> int:
        """Return how many turns the slowest row takes; one for an explicit network."""
        return max(_settle(self, rows, tolerance)[1] for rows in _batches(X))

    def kernels(
        self, X: Real, rng: np.random.Generator, tolerance: float = 1e-6
    ) -> tuple[FloatArray, FloatArray]:
        """Return CK and NTK of this network, shape (n, n), in the convention "feature".

        The NTK is that of aᵀy_L/√m for a random read-out a, all weights trained.  With
        g_l = ∂f/∂h_l the gradient by A_l is √(w_l/m) g_l y_{l−1}ᵀ, so that Gram matrices do.
        """
        rows = np.asarray(X, dtype=np.float64)
        cell = _cell(self.model)
        passes, _ = _settle(self, _in_range(rows), tolerance)
        readout = rng.standard_normal(self.width) / math.sqrt(self.width)
        grams = [_gram(part.units) / self.width for part in passes]
        tangent, inputs = grams[-1].copy(), rows @ rows.T
        adjoints = _adjoints(self, passes, readout.astype(passes[0].units.dtype), tolerance)
        for index, (layer, adjoint) in enumerate(zip(cell, adjoints, strict=True)):
            read = layer.weight * grams[index - 1] + layer.inject * inputs + layer.bias
            tangent += read * _gram(adjoint)
        return grams[-1], tangent


def random_network(
    model: DeepEquilibrium | ExplicitNetwork,
    in_features: int,
    width: int,
    rng: np.random.Generator,
) -> RandomNetwork:
    """Draw a network of that width: weights, injection and shift of one layer after the other."""

    def drawn(wanted: bool, *shape: int) -> Single | None:
        return rng.standard_normal(shape).astype(np.float32) if wanted else None

    layers = [
        LayerWeights(
            drawn(layer.weight > 0.0, width, width),
            drawn(layer.inject > 0.0, width, in_features),
            drawn(layer.bias > 0.0, width),
        )
        for layer in _cell(model)
    ]
    return RandomNetwork(model, width, tuple(layers))


@dataclass(frozen=True, repr=False)
class MonteCarlo(Plotted):
    """Means of the kernels of random networks over independent draws.

    Examples
    --------
    >>> estimate = monte_carlo(ExplicitNetwork(["tanh"]), np.eye(2), width=200, draws=20, rng=0)
    >>> estimate.ck.shape, bool(estimate.ck_error.max() < 0.02)
    ((2, 2), True)
    """

    _drawing = "monte_carlo"

    ck: FloatArray  # (n, n), in the convention "feature"
    ntk: FloatArray
    ck_error: FloatArray  # standard errors of the means: s/√draws
    ntk_error: FloatArray
    width: int
    draws: int


def monte_carlo(
    model: DeepEquilibrium | ExplicitNetwork,
    X: ArrayLike,
    width: int = 1024,
    draws: int = 100,
    *,
    rng: int | np.random.Generator,
) -> MonteCarlo:
    """Average the kernels of random networks: an estimate that owes nothing to the theory.

    The means estimate the kernels at the *finite* width, which differ from those at infinite width
    by O(1/width); the standard errors, O(1/√(width·draws)), do not include that.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    X : array_like of shape (n, p)
    width : int
    draws : int
        At least 2.
    rng : int or numpy.random.Generator
        Each network has a generator of its own, seeded from it: the result does not depend on the
        number of threads.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> model = nsd.ExplicitNetwork(["relu"])
    >>> estimate = nsd.monte_carlo(model, np.eye(2), width=1000, draws=50, rng=0)
    >>> exact = nsd.kernel(model, np.eye(2), kind="ntk")
    >>> bool((abs(estimate.ntk - exact) < 5 * estimate.ntk_error).all())
    True
    """
    owner = "monte_carlo"
    if not isinstance(model, DeepEquilibrium | ExplicitNetwork):
        requirement = "be a DeepEquilibrium or an ExplicitNetwork"
        raise checks.invalid("model", owner, requirement, repr(model))
    rows = checks.samples(X, "X", owner)
    m = checks.positive_integer(width, "width", owner)
    count = checks.integer_at_least(draws, 2, "draws", owner, "A standard error needs two.")
    seeds = checks.random_generator(rng, owner).integers(2**63, size=(count, 2))

    def one(seed: NDArray[np.int64]) -> FloatArray:
        generator = np.random.default_rng(seed)
        network = random_network(model, rows.shape[1], m, generator)
        return np.stack(network.kernels(rows, generator))

    mean, scatter = np.zeros((2, 2, len(rows), len(rows)))
    with progress_bar("networks", enabled=float(count) * m * m > _MANY) as advance:
        for number, kernels in enumerate(map_threads(one, seeds), start=1):  # Welford's update
            gap = kernels - mean
            mean += gap / number
            scatter += gap * (kernels - mean)
            advance(number, count)
    error = np.sqrt(scatter / (count - 1) / count)
    return MonteCarlo(mean[0], mean[1], error[0], error[1], m, count)


class _Pass(NamedTuple):
    """One layer at the last iterate: h, y, and the spreads that normalisation divides by."""

    field: Real
    units: Real
    field_spread: Real
    unit_spread: Real


def _cell(model: DeepEquilibrium | ExplicitNetwork) -> tuple[Dense, ...]:
    """Layers of a model; an explicit network is a ring that is not closed."""
    if isinstance(model, DeepEquilibrium):
        return model.cell
    first, *others = model.activations
    return (Dense(first, 0.0, inject=1.0), *(Dense(phi, 1.0) for phi in others))


def _batches(X: Real, *, double: bool = False) -> Iterator[Real]:
    for start in range(0, len(X), _ROWS):
        rows = np.asarray(X[start : start + _ROWS])
        yield rows.astype(np.float64) if double else _in_range(rows)


def _in_range(rows: Real) -> Real:
    """Turn rows into float32, unless the squares of some would overflow or vanish there."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    moderate = (norms == 0.0) | ((norms > 1.0 / _SINGLE_RANGE) & (norms < _SINGLE_RANGE))
    return rows.astype(np.float32 if moderate.all() else np.float64)


def _settle(network: RandomNetwork, X: Real, tolerance: float) -> tuple[list[_Pass], int]:
    """Iterate turns from y = 0 until no row moves by more than the tolerance."""
    cell, kind = _cell(network.model), X.dtype.type
    drives = [
        _drive(layer, own, X, network.width)
        for layer, own in zip(cell, network.layers, strict=True)
    ]
    weights = [
        None if own.weight is None else own.weight.astype(kind, copy=False)
        for own in network.layers
    ]
    units = np.zeros((len(X), network.width), kind)
    residual, steps = math.inf, 0
    passes: list[_Pass] = []
    while steps < _MAX_STEPS and residual > tolerance and not np.isnan(residual):
        before, steps = units, steps + 1
        passes = []
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for layer, weight, drive in zip(cell, weights, drives, strict=True):
                unread = steps == 1 and not passes  # the first units are zero
                passes.append(_layer_pass(layer, None if unread else weight, units, drive))
                units = passes[-1].units
            change, size = (
                np.sqrt(np.einsum("ij,ij->i", y, y, dtype=np.float64))
                for y in (units - before, units)
            )
            residual = float((change / np.where(change > 0.0, size, 1.0)).max())
        if weights[0] is None:  # explicit: one turn is all there is
            residual = 0.0 if np.isfinite(size).all() else math.nan
    if not residual <= tolerance:
        raise NotConverged(
            f"The fixed point of {network.model} of width {network.width} was not found: relative "
            f"residual {residual:.2g} after {steps} steps. Use smaller weights or a larger width."
        )
    return passes, steps


def _drive(layer: Dense, own: LayerWeights, X: Real, width: int) -> Real:
    """√u U x + √b β of every row."""
    field = np.zeros((len(X), width), X.dtype)
    if own.injection is not None:
        field += X @ (math.sqrt(layer.inject) * own.injection.astype(X.dtype, copy=False)).T
    if own.shift is not None:
        field += math.sqrt(layer.bias) * own.shift.astype(X.dtype, copy=False)
    return field


def _layer_pass(layer: Dense, weight: Real | None, units: Real, drive: Real) -> _Pass:
    kind = units.dtype.type
    field, one = drive, np.ones((len(units), 1), kind)
    field_spread = unit_spread = one
    if weight is not None:
        field = units @ weight.T
        field *= kind(math.sqrt(layer.weight / len(weight)))
        field += drive
    if layer.normalise == "preactivation":
        field, field_spread = _normalised(field)
    units = np.asarray(layer.activation.value(field), dtype=kind)
    if layer.normalise == "feature":
        units, unit_spread = _normalised(units)
    return _Pass(field, units, field_spread, unit_spread)


def _normalised(units: Real) -> tuple[Real, Real]:
    """Layer normalisation over the units; a row without spread becomes zero."""
    centred = units - units.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
    return centred / np.where(spread > 0.0, spread, spread.dtype.type(1.0)), spread


def _adjoints(
    network: RandomNetwork, passes: list[_Pass], readout: Real, tolerance: float
) -> list[Real]:
    """∂f/∂h_l of every row for f = readout·y_L, by turns backwards around the ring."""
    cell = _cell(network.model)
    incoming = np.broadcast_to(readout, passes[-1].units.shape)
    for _ in range(_MAX_STEPS):
        adjoint, found = incoming, []
        for layer, own, at in reversed(list(zip(cell, network.layers, passes, strict=True))):
            found.append(_through(layer, at, adjoint))
            adjoint = np.zeros_like(found[-1])
            if own.weight is not None:
                gain = math.sqrt(layer.weight / network.width)
                adjoint = found[-1] @ (gain * own.weight.astype(adjoint.dtype, copy=False))
        change = readout + adjoint - incoming
        incoming = readout + adjoint
        sizes = np.sqrt(np.einsum("ij,ij->i", incoming, incoming, dtype=np.float64))
        if not (
            np.sqrt(np.einsum("ij,ij->i", change, change, dtype=np.float64)) > tolerance * sizes
        ).any():
            return found[::-1]
    raise NotConverged(
        f"The gradients of {network.model} of width {network.width} did not converge in "
        f"{_MAX_STEPS} steps. Use smaller weights or a larger width."
    )


def _through(layer: Dense, at: _Pass, adjoint: Real) -> Real:
    """Pull a gradient by the units back to the pre-activations."""
    if layer.normalise == "feature":
        adjoint = _normalisation_adjoint(adjoint, at.units, at.unit_spread)
    slopes = np.asarray(layer.activation.derivative(at.field), dtype=adjoint.dtype)
    adjoint = slopes * adjoint
    if layer.normalise == "preactivation":
        adjoint = _normalisation_adjoint(adjoint, at.field, at.field_spread)
    return np.asarray(adjoint)


def _normalisation_adjoint(adjoint: Real, normalised: Real, spread: Real) -> Real:
    """(v − mean v − y mean(y v))/spread: the Jacobian of the normalisation is symmetric."""
    along = (adjoint * normalised).mean(axis=1, keepdims=True)
    safe = np.where(spread > 0.0, spread, spread.dtype.type(np.inf))
    return np.asarray((adjoint - adjoint.mean(axis=1, keepdims=True) - normalised * along) / safe)


def _gram(rows: Real) -> FloatArray:
    return np.asarray(rows @ rows.T, dtype=np.float64)
