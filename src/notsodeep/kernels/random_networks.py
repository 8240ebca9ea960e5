"""Kernels of random finite networks, averaged: an estimate that owes nothing to the theory.

A draw is a callable that makes one random network and returns the kernels it has on the data.
`equilibrium_draw` and `explicit_draw` make such callables for the models of this package; any other
will do, for instance one that builds a torch module and computes its tangent kernel.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation, scaled, with_skip
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    MonotoneEquilibrium,
)
from notsodeep.numerics.fixed_point import FixedPoint
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted

Draw = Callable[[np.random.Generator, FloatArray], Mapping[str, ArrayLike]]
"""Called with a generator and X of shape (n, p); returns named kernels of shape (n, n)."""

Law = Literal["normal", "rademacher"]
Entries = Callable[[np.random.Generator, tuple[int, int]], FloatArray]

_LONG = 3.0  # seconds beyond which a progress bar is worth showing


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
        Seed, or generator; the draws take their random numbers from it one after the other.

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
        The iteration ends when ‖f(z) − z‖ ≤ tolerance·‖f(z)‖ for every sample.
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
    if not deq.is_vanilla:
        return partial(_draw_cell, deq, m, convention, entries, tolerance, max_steps)

    def draw(generator: np.random.Generator, X: FloatArray) -> dict[str, FloatArray]:
        drive = math.sqrt(deq.sigma_b2) * (X @ entries(generator, (X.shape[1], m)))
        if deq.sigma_a2 == 0.0:
            features = _layer(deq.activation, drive)
        else:
            # Samples are rows, so this is the transpose of A.
            recurrent = entries(generator, (m, m))
            recurrent *= math.sqrt(deq.sigma_a2)
            features = _fixed_point(deq, drive, recurrent, tolerance, max_steps)
        gram = features @ features.T
        if convention == "preactivation":
            gram = deq.sigma_a2 * gram + deq.sigma_b2 * (X @ X.T)
        return {"conjugate": gram}

    return draw


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

    def draw(generator: np.random.Generator, X: FloatArray) -> dict[str, FloatArray]:
        features = X
        for activation in network.activations:
            features = _layer(activation, features @ entries(generator, (features.shape[1], m)))
        return {"conjugate": features @ features.T}

    return draw


def _entries(law: str, owner: str) -> Entries:
    """Return what makes matrices with entries of mean 0 and variance 1."""
    if checks.known_name(law, get_args(Law), f"law of {owner}") == "normal":
        return lambda generator, shape: generator.standard_normal(shape)
    return lambda generator, shape: generator.choice(np.array([-1.0, 1.0]), shape)


def _layer(activation: Activation, preactivation: FloatArray) -> FloatArray:
    return np.asarray(activation(preactivation) / math.sqrt(preactivation.shape[1]))


def _draw_cell(
    deq: DeepEquilibrium,
    m: int,
    convention: Convention,
    entries: Entries,
    tolerance: float,
    max_steps: int,
    generator: np.random.Generator,
    X: FloatArray,
) -> dict[str, FloatArray]:
    """Draw one network with the cell of the model, and let it settle."""
    weights, drives = [], []
    for layer in deq.cell:
        drive = math.sqrt(layer.inject) * (X @ entries(generator, (X.shape[1], m)))
        drives.append(drive + math.sqrt(layer.bias) * entries(generator, (1, m)))
        weights.append(math.sqrt(layer.weight) * entries(generator, (m, m)))

    def turn(state: FloatArray) -> FloatArray:
        for layer, weight, drive in zip(deq.cell, weights, drives, strict=True):
            field = state @ weight + drive
            if layer.normalise == "preactivation":
                field = _normalised(field)
            units = layer.activation(field)
            if layer.normalise == "feature":
                units = _normalised(units)
            state = units / math.sqrt(m)
        return state

    state = _settle(turn, np.zeros((len(X), m)), tolerance, max_steps, str(deq))
    if convention == "feature":
        return {"conjugate": state @ state.T}
    # What the last layer reads is what the layers before make of the state.
    reads = state
    for layer, weight, drive in list(zip(deq.cell, weights, drives, strict=True))[:-1]:
        field = reads @ weight + drive
        field = _normalised(field) if layer.normalise == "preactivation" else field
        units = layer.activation(field)
        reads = (_normalised(units) if layer.normalise == "feature" else units) / math.sqrt(m)
    last = deq.cell[-1]
    gram = last.weight * (reads @ reads.T) + last.inject * (X @ X.T) + last.bias
    if last.normalise == "preactivation":
        spread = np.sqrt(np.diag(gram))
        gram = gram / np.outer(spread, spread)
    return {"conjugate": gram}


def _normalised(units: FloatArray) -> FloatArray:
    """Layer normalisation over the units."""
    centred = units - units.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=1, keepdims=True)))


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
    A, B = (math.sqrt(v / m) * entries(generator, (m, m)) for v in (model.symmetric, model.skew))
    W = (1.0 - model.monotonicity) * np.eye(m) - A.T @ A + B - B.T
    drive = math.sqrt(model.inject) * (X @ entries(generator, (X.shape[1], m)))
    drive = drive + math.sqrt(model.bias) * entries(generator, (1, m))
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


def _fixed_point(
    deq: DeepEquilibrium,
    drive: FloatArray,
    recurrent: FloatArray,
    tolerance: float,
    max_steps: int,
) -> FloatArray:
    """Iterate z ← φ(z·recurrent + drive)/√m from z = 0; shape (n, m)."""
    features = _layer(deq.activation, drive)
    residual, steps, reason = math.inf, 0, f"no convergence in {max_steps} steps"
    while steps < max_steps:
        steps += 1
        with np.errstate(over="ignore", invalid="ignore"):
            image = _layer(deq.activation, features @ recurrent + drive)
            size = np.linalg.norm(image, axis=1)
            change = np.linalg.norm(image - features, axis=1)
        if not np.isfinite(size).all():
            reason = "the iterates grow without bound"
            break
        features = image
        residual = float((change / np.maximum(size, np.finfo(np.float64).tiny)).max())
        if residual <= tolerance:
            return features
    raise NotConverged(
        f"The features z* of a {deq} of width {drive.shape[1]} were not found: {reason} (relative "
        f"residual {residual:.3g} after {steps} steps). At finite width they are sure to exist "
        f"for σa² < 1/(4L²) = {deq.contraction_bound:.4g} only. Use a smaller sigma_a2, a larger "
        "width or more steps.",
        FixedPoint(features, False, residual, steps, reason),
    )
