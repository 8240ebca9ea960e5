"""Kernels of random finite networks, averaged: an estimate that owes nothing to the theory.

A draw is a callable that makes one random network and returns the kernels it has on the data.
`equilibrium_draw` and `explicit_draw` make such callables for the models of this package; any other
will do, for instance one that builds a torch module and computes its tangent kernel.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import scaled, with_skip
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.kernels.drawn_cells import DrawnCell, Entries, Real, normal_entries
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    MonotoneEquilibrium,
)
from notsodeep.models.cell import Dense
from notsodeep.numerics.fixed_point import FixedPoint
from notsodeep.progress import Advance, progress_bar
from notsodeep.records import Plotted
from notsodeep.threads import map_threads, thread_count

Draw = Callable[[np.random.Generator, FloatArray], Mapping[str, ArrayLike]]
"""Called with a generator and X of shape (n, p); returns named kernels of shape (n, n)."""

Law = Literal["normal", "rademacher"]

_LONG = 3.0  # seconds beyond which a progress bar is worth showing
_TILE = 512  # rows and columns that stay in the cache
_BATCH = 2**24  # bytes of features, for each thread, that are made before their products


@dataclass(frozen=True, repr=False)
class MonteCarloEstimate(Plotted):
    """Mean of a random kernel over independent draws.

    Attributes
    ----------
    mean, standard_error : ndarray of shape (n, n)
        The standard error is that of the mean: s/√draws, s² the unbiased variance of an entry.
    draws : int

    Examples
    --------
    >>> import notsodeep as nsd
    >>> draw = explicit_draw(nsd.ExplicitNetwork(["tanh"]), width=200)
    >>> estimate = monte_carlo(draw, np.eye(2), draws=20, rng=0)["conjugate"]
    >>> estimate.mean.shape, bool(estimate.standard_error.max() < 0.01)
    ((2, 2), True)
    """

    _drawing = "monte_carlo"

    mean: FloatArray
    standard_error: FloatArray
    draws: int


def monte_carlo(
    draw: Draw, X: ArrayLike, draws: int, *, rng: int | np.random.Generator
) -> dict[str, MonteCarloEstimate]:
    """Estimate the kernels of random networks by their means over independent draws.

    The mean estimates the kernel at the *finite* width of the draws, which differs from that at
    infinite width by O(1/width); the standard error, O(1/√(width·draws)), does not include that.

    Parameters
    ----------
    draw : callable
        ``draw(generator, X)`` makes one random network and returns a mapping from names, such as
        "conjugate" and "tangent", to (n, n) matrices.  See `equilibrium_draw`, `explicit_draw`.
    X : array_like of shape (n, p)
    draws : int
        At least 2.
    rng : int or numpy.random.Generator
        Seed, or generator.  Draws of your own take their random numbers from it one after the
        other.  Those of `equilibrium_draw` and `explicit_draw` are made several at a time, each
        from a generator that is seeded from it: the numbers do not depend on how many at a time.

    Returns
    -------
    dict of str to MonteCarloEstimate
        For each name that the draws return.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from notsodeep.kernels import explicit_draw, monte_carlo
    >>> draw = explicit_draw(nsd.ExplicitNetwork(["relu"]), width=1000)
    >>> estimate = monte_carlo(draw, np.eye(2), draws=50, rng=0)["conjugate"]
    >>> exact = nsd.conjugate_kernel(nsd.ExplicitNetwork(["relu"]), np.eye(2))
    >>> bool((abs(estimate.mean - exact) < 5 * estimate.standard_error).all())
    True
    """
    owner = "monte_carlo"
    if not callable(draw):
        requirement = "be a callable of a generator and X"
        remedy = "equilibrium_draw and explicit_draw make one from a model and a width."
        raise checks.invalid("draw", owner, requirement, repr(draw), remedy)
    samples = checks.samples(X, "X", owner)
    count = checks.integer_at_least(draws, 2, "draws", owner, "A standard error needs two.")
    generator = checks.random_generator(rng, owner)
    if isinstance(draw, _RandomFeatures):
        return {"conjugate": _mean_gram(draw, samples, count, generator)}
    begin = time.perf_counter()
    running = {
        name: _Running(kernel) for name, kernel in _kernels(draw, generator, samples, 0).items()
    }
    expected = (time.perf_counter() - begin) * count
    with progress_bar("draws", enabled=expected > _LONG) as advance:
        for number in range(1, count):
            kernels = _kernels(draw, generator, samples, number)
            if kernels.keys() != running.keys():
                requirement = f"return the same kernels every time ({', '.join(running)})"
                raise checks.invalid("draw", owner, requirement, ", ".join(kernels))
            for name, kernel in kernels.items():
                running[name].add(kernel)
            advance(number + 1, count)
    return {name: each.estimate() for name, each in running.items()}


def _kernels(
    draw: Draw, generator: np.random.Generator, X: FloatArray, number: int
) -> dict[str, FloatArray]:
    """Make one draw and check what it returns."""
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is rejected below
        result = draw(generator, X)
    if not isinstance(result, Mapping) or not result:
        requirement = "return a mapping from names to kernels, like {'conjugate': Z @ Z.T}"
        raise checks.invalid("draw", "monte_carlo", requirement, type(result).__name__)
    owner = f"draw {number}"
    shape = (len(X), len(X))
    return {k: checks.matrix_of_shape(v, shape, f"{k} kernel", owner) for k, v in result.items()}


def _mean_gram(
    draw: _RandomFeatures, X: FloatArray, count: int, generator: np.random.Generator
) -> MonteCarloEstimate:
    """Average over networks drawn side by side, tile by tile of the upper triangle."""
    # Each network has a generator of its own, so that it is the same for every number of threads.
    seeds = generator.integers(2**63, size=(count, 2))
    n, threads = len(X), thread_count()
    mean, scatter = np.zeros((n, n)), np.zeros((n, n))
    blocks = [slice(k, k + _TILE) for k in range(0, n, _TILE)]
    tiles = [(one, two) for k, one in enumerate(blocks) for two in blocks[k:]]
    done, at_once, expected = 0, threads, 0.0
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        advance: Advance | None = None
        while done < count:
            chosen = [np.random.default_rng(seed) for seed in seeds[done : done + at_once]]
            drawn = list(map_threads(partial(_checked_features, draw, X), enumerate(chosen, done)))

            list(map_threads(partial(_add_products, mean, scatter, drawn, done), tiles))
            if advance is None:  # the first ones show how much memory and time the others take
                at_once *= int(np.clip(_BATCH // drawn[0].nbytes, 1, 16))
                expected = (time.perf_counter() - begin) * count / len(drawn)
                advance = stack.enter_context(progress_bar("draws", enabled=expected > _LONG))
            done += len(drawn)
            advance(done, count)
    for one, two in tiles:
        mean[two, one], scatter[two, one] = mean[one, two].T, scatter[one, two].T
    weight = 1.0 if draw.reader is None else draw.reader.weight
    error = weight * np.sqrt(scatter / (count - 1) / count)
    return MonteCarloEstimate(draw.kernel(mean, X), error, count)


def _checked_features(
    draw: _RandomFeatures, X: FloatArray, numbered: tuple[int, np.random.Generator]
) -> Real:
    number, generator = numbered
    with np.errstate(over="ignore", invalid="ignore"):
        Z = draw.features(generator, X)
        squares = np.square(Z).sum(axis=1, dtype=np.float64)
    # An entry of Z Zᵀ is at most the largest of these.
    name = "squares of features, the diagonal of the conjugate kernel"
    checks.real_array(squares, name, f"draw {number}")
    moderate = Z.dtype == np.float64 or (squares.min() > 1e-30 and squares.max() < 1e30)
    return Z if moderate else Z.astype(np.float64)


def _add_products(
    mean: FloatArray, scatter: FloatArray, drawn: list[Real], done: int, tile: tuple[slice, slice]
) -> None:
    """Update mean and sum of squared deviations of one tile in place, as `_Running` does."""
    one, two = tile
    means, squares = mean[tile], scatter[tile]
    for number, Z in enumerate(drawn, done + 1):
        gap = np.subtract(Z[one] @ Z[two].T, means, dtype=np.float64)
        means += gap / number
        np.square(gap, out=gap)
        gap *= 1.0 - 1.0 / number
        squares += gap


class _Running:
    """Mean and sum of squared deviations of matrices, by Welford's update."""

    def __init__(self, first: FloatArray) -> None:
        self.count, self.mean, self.scatter = 1, first.copy(), np.zeros_like(first)

    def add(self, matrix: FloatArray) -> None:
        self.count += 1
        before = matrix - self.mean
        self.mean += before / self.count
        self.scatter += before * (matrix - self.mean)

    def estimate(self) -> MonteCarloEstimate:
        error = np.sqrt(self.scatter / (self.count - 1) / self.count)
        return MonteCarloEstimate(self.mean, error, self.count)


def equilibrium_draw(
    deq: DeepEquilibrium | MonotoneEquilibrium,
    width: int,
    *,
    convention: Convention = "preactivation",
    law: Law = "normal",
    tolerance: float = 1e-10,
    max_steps: int = 2000,
) -> Draw:
    """Make random DEQs z* = φ(√σa² A z* + √σb² B x)/√m, by iteration from z = 0.

    Parameters
    ----------
    deq : DeepEquilibrium or MonotoneEquilibrium
        Every cell: the weights of a layer are the same at every turn.
    width : int
        m.
    convention : {"preactivation", "feature"}
        "feature" gives the Gram matrix Z Zᵀ of the features z*; "preactivation" gives
        σa² Z Zᵀ + σb² X Xᵀ, the covariance of the pre-activations under a fresh A and B.
    law : {"normal", "rademacher"}
        Of the entries of A and B.  With signs ±1 the pre-activations are Gaussian, and the kernels
        those of the theory, only if every input is spread out over many features.
    tolerance : float
        The iteration ends when ‖f(z) − z‖ ≤ tolerance·‖f(z)‖ for every sample.  From 1e-6 on all
        of it is in float32, and so are the products of features that `monte_carlo` averages:
        entries are then right to about 3·tolerance·√(K_ii K_jj), far within the error of a mean
        over networks.  A smaller tolerance is met in float64.  The weights are float32 numbers.
    max_steps : int
        The error falls by about √(σa² E φ′²) with every step.

    Returns
    -------
    callable
        For `monte_carlo`; gives one kernel, "conjugate", and of a monotone network "tangent" too
        (`notsodeep.networks.torch_draw` has it for the others).  It raises `NotConverged`, with the
        record of the iteration and its relative residual, for networks without a stable fixed
        point.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
    >>> draw = equilibrium_draw(deq, width=300, convention="feature")
    >>> estimate = monte_carlo(draw, np.eye(2), draws=20, rng=0)["conjugate"]
    >>> exact = nsd.conjugate_kernel(deq, np.eye(2), convention="feature")
    >>> bool((abs(estimate.mean - exact) < 5 * estimate.standard_error).all())
    True
    """
    owner = "equilibrium_draw"
    if not isinstance(deq, DeepEquilibrium | MonotoneEquilibrium):
        requirement = "be a DeepEquilibrium or a MonotoneEquilibrium"
        raise checks.invalid("deq", owner, requirement, repr(deq))
    checks.known_name(convention, get_args(Convention), f"convention of {owner}")
    entries = _entries(law, owner)
    m = checks.positive_integer(width, "width", owner)
    tolerance = checks.positive_number(tolerance, "tolerance", owner)
    max_steps = checks.positive_integer(max_steps, "max_steps", owner)

    if isinstance(deq, MonotoneEquilibrium):
        return partial(_draw_monotone, deq, m, convention, entries, tolerance, max_steps)
    last = deq.cell[-1]

    def features(generator: np.random.Generator, X: FloatArray) -> Real:
        cell = DrawnCell(deq, X.shape[1], m, entries, generator)
        units = cell.features(X, tolerance, max_steps)
        return units if convention == "feature" else cell.last_reads(units, X)

    if convention == "feature":
        return _RandomFeatures(features)
    draw = _RandomFeatures(features, last)
    if last.normalise != "preactivation":
        return draw

    def normalised(generator: np.random.Generator, X: FloatArray) -> dict[str, FloatArray]:
        gram = draw(generator, X)["conjugate"]
        spread = np.sqrt(np.diag(gram))
        return {"conjugate": gram / np.outer(spread, spread)}

    return normalised


@dataclass(frozen=True)
class _RandomFeatures:
    """A draw whose kernel is Z Zᵀ, or weight·Z Zᵀ + inject·X Xᵀ + bias for a layer that reads Z."""

    features: Callable[[np.random.Generator, FloatArray], Real]
    reader: Dense | None = None

    def __call__(self, generator: np.random.Generator, X: FloatArray) -> dict[str, FloatArray]:
        Z = np.asarray(self.features(generator, X), dtype=np.float64)
        return {"conjugate": self.kernel(Z @ Z.T, X)}

    def kernel(self, gram: FloatArray, X: FloatArray) -> FloatArray:
        if self.reader is None:
            return gram
        layer = self.reader
        return np.asarray(layer.weight * gram + layer.inject * (X @ X.T) + layer.bias)


def explicit_draw(network: ExplicitNetwork, width: int, *, law: Law = "normal") -> Draw:
    """Make random networks x_l = σ_l(W_l x_{l−1})/√m, every layer of the same width m.

    Parameters
    ----------
    network : ExplicitNetwork
    width : int
        m.
    law : {"normal", "rademacher"}
        Of the entries of the W_l; see `equilibrium_draw`.

    Returns
    -------
    callable
        For `monte_carlo`; gives one kernel, "conjugate", the Gram matrix of x_L.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> draw = explicit_draw(nsd.ExplicitNetwork(["relu", "relu"]), width=100)
    >>> draw(np.random.default_rng(0), np.eye(3))["conjugate"].shape
    (3, 3)
    """
    owner = "explicit_draw"
    if not isinstance(network, ExplicitNetwork):
        raise checks.invalid("network", owner, "be an ExplicitNetwork", repr(network))
    entries = _entries(law, owner)
    m = checks.positive_integer(width, "width", owner)

    def features(generator: np.random.Generator, X: FloatArray) -> FloatArray:
        units = X
        for activation in network.activations:
            weights = entries(generator, (units.shape[1], m)).astype(np.float64)
            units = activation(units @ weights) / math.sqrt(m)
        return units

    return _RandomFeatures(features)


def _entries(law: str, owner: str) -> Entries:
    """Return what makes matrices with entries of mean 0 and variance 1."""
    if checks.known_name(law, get_args(Law), f"law of {owner}") == "normal":
        return normal_entries
    return lambda generator, shape: np.where(
        generator.integers(2, size=shape, dtype=np.uint8), np.float32(1.0), np.float32(-1.0)
    )


def _draw_monotone(
    model: MonotoneEquilibrium,
    m: int,
    convention: Convention,
    entries: Entries,
    tolerance: float,
    max_steps: int,
    generator: np.random.Generator,
    X: FloatArray,
) -> dict[str, FloatArray]:
    """Draw one monotone network: Peaceman–Rachford splitting finds its only fixed point.

    With F = φ⁻¹ − I and G = I − W the fixed point is 0 ∈ F(y) + Gy − h.  Both resolvents are
    cheap, that of F entry by entry, and the iteration converges for every step α; 1/√(μ‖G‖) is
    the best for a symmetric G.
    """
    if convention == "preactivation":
        requirement = "be 'feature' for draws of a monotone network"
        raise checks.invalid("convention", "equilibrium_draw", requirement, convention)

    def drawn(variance: float, *shape: int) -> FloatArray:
        return math.sqrt(variance) * entries(generator, shape).astype(np.float64)

    A, B = drawn(model.symmetric / m, m, m), drawn(model.skew / m, m, m)
    W = (1.0 - model.monotonicity) * np.eye(m) - A.T @ A + B - B.T
    drive = X @ drawn(model.inject, X.shape[1], m) + drawn(model.bias, 1, m)
    G = np.eye(m) - W
    step = 1.0 / math.sqrt(model.monotonicity * float(np.linalg.norm(G, 2)))
    inverse = np.linalg.inv(np.eye(m) + step * G).T
    # R(s) = y with y = φ((s − (1 − α)y)/α).
    resolvent = with_skip(scaled(model.activation, 1.0, 1.0 / step), step - 1.0)

    def turn(s: FloatArray) -> FloatArray:
        reflected = 2.0 * resolvent(s) - s
        return np.asarray(2.0 * (reflected + step * drive) @ inverse - reflected)

    start = np.zeros((len(X), m))
    units = np.asarray(resolvent(_settle(turn, start, tolerance, max_steps, str(model))))
    tangent = _monotone_tangent(model, A, W, units, drive, X, generator.standard_normal(m))
    return {"conjugate": units @ units.T / m, "tangent": tangent}


def _monotone_tangent(
    model: MonotoneEquilibrium,
    A: FloatArray,
    W: FloatArray,
    units: FloatArray,
    drive: FloatArray,
    X: FloatArray,
    readout: FloatArray,
) -> FloatArray:
    """Gram matrix of the gradients of f = aᵀy/√m by all parameters, drawn with variance one.

    With g = φ′(I − Wᵀφ′)⁻¹a/√m, df = gᵀ(dW y + dh), and dW = −dAᵀA − AᵀdA + dB − dBᵀ.
    """
    m = len(W)
    slopes = model.activation.derivative(units @ W.T + drive)
    adjoint = np.stack([d * np.linalg.solve(np.eye(m) - W.T * d, readout) for d in slopes])
    adjoint /= math.sqrt(m)
    # Gradients are of rank one or two in each matrix, so that their inner products are entrywise
    # products of Gram matrices: no gradient of m² numbers is formed.
    gg, yy, gy = adjoint @ adjoint.T, units @ units.T, adjoint @ units.T
    Ag, Ay = adjoint @ A.T, units @ A.T
    cross = (Ag @ Ay.T) * gy.T
    of_A = (Ay @ Ay.T) * gg + (Ag @ Ag.T) * yy + cross + cross.T
    of_B = 2.0 * (gg * yy - gy * gy.T)
    of_input = (model.inject * (X @ X.T) + model.bias) * gg
    return np.asarray(yy / m + (model.symmetric * of_A + model.skew * of_B) / m + of_input)


def _settle(
    turn: Callable[[FloatArray], FloatArray],
    state: FloatArray,
    tolerance: float,
    max_steps: int,
    name: str,
) -> FloatArray:
    """Iterate to a fixed point, or say how far from one the iteration still is."""
    residual, steps = math.inf, 0
    while steps < max_steps:
        steps += 1
        with np.errstate(over="ignore", invalid="ignore"):
            image = turn(state)
            change = np.linalg.norm(image - state, axis=1)
            residual = float((change / np.maximum(np.linalg.norm(image, axis=1), 1e-300)).max())
        if not np.isfinite(residual):
            break
        state = image
        if residual <= tolerance:
            return state
    raise NotConverged(
        f"The features of a {name} of width {state.shape[1]} were not found in {steps} steps "
        f"(relative residual {residual:.3g}). Use smaller weights, a larger width or more steps.",
        FixedPoint(state, False, residual, steps, f"no convergence in {steps} steps"),
    )
