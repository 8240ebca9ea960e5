"""Explicit layers for a given network, in closed form: no labels, no gradients.

Layer k is an ordinary dense layer, z_k = R(P_k [h, z_{k−1}, …, z_1, 1]), of the network's own
width.  P_k is the ridge regression onto the pre-images s* = (1 − α/β)z* + α(Wz* + h) of the fixed
points, of which z* = R_α(s*); or it is a step of a solver from the layer before, whose weights come
from W alone.  Which of these, and α and the ridge, is decided on rows set apart, by the certificate
itself: the median of bound over margin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from notsodeep.activations import Activation, PiecewiseLinear
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.margin import Margin
from notsodeep.trained.resolvent import Resolvent

LayerKind = Literal["least squares", "Peaceman–Rachford", "forward–backward", "moments"]
Kinds = Literal["auto", "least_squares", "solver_step"]

RELATIVE_STEPS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""Steps α of the pre-images that are tried, times 1/‖G‖."""
RIDGES = (1e-9, 1e-7, 1e-5, 1e-3, 1e-1)
"""Ridges that are tried, relative to features of variance one."""


@dataclass(frozen=True, eq=False, repr=False)
class Layer(Record):
    """One dense layer: s = weight·[h, z_{k−1}, …, z_1] + bias, z = R_α(s).

    Attributes
    ----------
    weight : ndarray of shape (m_k, m + m_{k−1} + … + m_1)
    bias : ndarray of shape (m_k,)
    step : float
        α.
    kind : str
        Where the weights come from.
    ridge : float or None
        Of a least-squares layer.
    score : float
        Median of bound over margin on the rows set apart (without a margin, the relative error of
        the logits, or of the states).
    """

    weight: FloatArray
    bias: FloatArray
    step: float
    kind: LayerKind
    ridge: float | None
    score: float


@dataclass(frozen=True, eq=False)
class LayerProblem:
    """What layers are fitted to: rows, their fixed points, and rows set apart to choose by.

    Attributes
    ----------
    cell : AffineCell
    margin : Margin
    drive, states : ndarray of shape (n, m)
        h and z* of the rows to fit.
    drive_apart, states_apart : ndarray of shape (k, m)
        Of the rows set apart.
    sizes_apart : ndarray of shape (k,)
        ‖(x − shift)/scale‖ of these.
    certifier : Certifier or None
        None where nothing can be proved.
    """

    cell: AffineCell
    margin: Margin
    drive: FloatArray
    states: FloatArray
    drive_apart: FloatArray
    states_apart: FloatArray
    sizes_apart: FloatArray
    certifier: Certifier | None

    def resolvent(self, step: float) -> Resolvent:
        """Return R_α."""
        return Resolvent(self.cell.activation, step, self.margin.beta)

    def steps(self) -> list[float]:
        """Return the α to try: others than β only where R_α is an activation of its own."""
        if not (isinstance(self.cell.activation, PiecewiseLinear) and self.margin.slopes.monotone):
            return [self.margin.beta]
        grid = [factor / self.margin.lipschitz for factor in RELATIVE_STEPS]
        return [*grid, self.margin.beta]

    def score(self, s: FloatArray, step: float) -> float:
        """Judge pre-images of the rows set apart; the smaller the better."""
        t = self.resolvent(step).preimage(torch.as_tensor(s))
        if self.certifier is not None and self.cell.readout is not None:
            rows = torch.as_tensor(self.drive_apart), torch.as_tensor(self.sizes_apart)
            score = float(self.certifier.classes(t, *rows).ratios.median())
            if np.isfinite(score):
                return score
        z = self.cell.activation(t.numpy())
        if self.cell.readout is None:
            return _relative(z, self.states_apart)
        # Without a lead on half of the rows the median ratio is infinite: such layers are still
        # ranked, but behind every one that has a ratio.
        return 1e6 * _relative(self.cell.logits(z), self.cell.logits(self.states_apart))


def _relative(values: FloatArray, targets: FloatArray) -> float:
    return float(np.linalg.norm(values - targets) / max(float(np.linalg.norm(targets)), 1e-300))


def fit_layers(
    problem: LayerProblem,
    layers: int,
    *,
    kinds: Kinds = "auto",
    width: int | None = None,
    rng: int = 0,
    advance: Callable[[int, int | None], None] = lambda done, total: None,
) -> tuple[Layer, ...]:
    """Fit a chain of layers, with the α that scores best on the rows set apart.

    Parameters
    ----------
    problem : LayerProblem
    layers : int
    kinds : {"auto", "least_squares", "solver_step"}
        "auto" mixes: each layer is the kind that scores best.
    width : int, optional
        Of the layers before the last; the network's own if left out.  Narrower layers have some of
        its units, wider ones random features beside them.
    rng : int
        Of these.
    advance : callable
        Called with what is being done.
    """
    steps = problem.steps()
    best: tuple[Layer, ...] = ()
    for count, step in enumerate(steps):
        chain = _chain(problem, layers, step, kinds, width, rng)
        if not best or chain[-1].score < best[-1].score:
            best = chain
        advance(count + 1, len(steps))
    return best


def _chain(
    problem: LayerProblem, layers: int, step: float, kinds: Kinds, width: int | None, rng: int
) -> tuple[Layer, ...]:
    resolvent = problem.resolvent(step)
    m = problem.cell.width
    targets = resolvent.image(torch.as_tensor(_preactivations(problem))).numpy()
    inputs, inputs_apart = problem.drive, problem.drive_apart
    chain: list[Layer] = []
    for k in range(layers):
        other = width is not None and width != m and k < layers - 1
        if other:
            assert width is not None
            layer = _other_width(problem, inputs, targets, width, step, [rng, k])
        else:
            layer = _best_layer(problem, chain, inputs, inputs_apart, targets, step, kinds)
        chain.append(layer)
        if k < layers - 1:
            inputs, inputs_apart = (
                np.hstack([x[:, :m], _activated(problem, layer, x), x[:, m:]])
                for x in (inputs, inputs_apart)
            )
    return tuple(chain)


def _preactivations(problem: LayerProblem) -> FloatArray:
    """Return t* = Wz* + h of the rows to fit."""
    return np.asarray(problem.states @ problem.cell.recurrent.T + problem.drive)


def _activated(problem: LayerProblem, layer: Layer, inputs: FloatArray) -> FloatArray:
    s = torch.as_tensor(inputs @ layer.weight.T + layer.bias)
    return np.asarray(problem.resolvent(layer.step)(s).numpy())


def _best_layer(
    problem: LayerProblem,
    chain: Sequence[Layer],
    inputs: FloatArray,
    inputs_apart: FloatArray,
    targets: FloatArray,
    step: float,
    kinds: Kinds,
) -> Layer:
    candidates: list[Layer] = []
    if kinds != "solver_step":
        candidates += _regressions(inputs, targets, step)
    same_width = not chain or len(chain[-1].bias) == problem.cell.width
    if kinds != "least_squares" and problem.margin.slopes.monotone and same_width:
        candidates += _solver_steps(problem, chain, inputs.shape[1], step)
    judged = [
        dataclasses.replace(c, score=problem.score(inputs_apart @ c.weight.T + c.bias, step))
        for c in candidates
    ]
    return min(judged, key=lambda layer: layer.score)


def _regressions(inputs: FloatArray, targets: FloatArray, step: float) -> list[Layer]:
    """Return ridge regressions, one for each ridge, from one eigenvalue decomposition."""
    mean, target_mean = inputs.mean(axis=0), targets.mean(axis=0)
    centred = inputs - mean
    scale = np.sqrt(np.mean(centred**2, axis=0))
    scale[scale <= 1e-12 * max(float(scale.max()), 1e-300)] = np.inf  # constants: the bias has them
    centred /= scale
    values, vectors = np.linalg.eigh(centred.T @ centred / len(inputs))
    projected = vectors.T @ (centred.T @ (targets - target_mean)) / len(inputs)
    found = []
    # All ridges from one decomposition, O(features³); each costs one more product.
    for ridge in RIDGES:
        damped = projected / (np.maximum(values, 0.0) + ridge)[:, None]
        weight = np.ascontiguousarray(((vectors @ damped) / scale[:, None]).T)
        bias = target_mean - weight @ mean
        found.append(Layer(weight, bias, step, "least squares", ridge, np.inf))
    return found


def _solver_steps(
    problem: LayerProblem, chain: Sequence[Layer], features: int, step: float
) -> list[Layer]:
    """Return the steps of solvers from the layer before, as dense layers.

    A step of Peaceman and Rachford starts from s and z = R(s); s is linear in what the layer before
    has read, which this layer reads too.
    """
    cell, beta = problem.cell, problem.margin.beta
    m = cell.width
    identity = np.eye(m)
    G = identity / beta - cell.recurrent
    of_s = np.zeros((m, features))  # s of the layer before, in terms of [h, z_{k−1}, …]
    of_z = np.zeros((m, features))
    if chain:
        before = chain[-1]
        # t = (s − (1 − α/β)z)/α, of the layer's own α; then s of this α.
        own = before.step
        of_z[:, m : 2 * m] = identity
        earlier = np.hstack([before.weight[:, :m], np.zeros((m, m)), before.weight[:, m:]])
        # Layers may have different α: t is what two pre-images of the same state have in common.
        of_t = (earlier - (1.0 - own / beta) * of_z) / own
        bias_t = before.bias / own
        of_s, bias_s = (1.0 - step / beta) * of_z + step * of_t, step * bias_t
        bias_z = np.zeros(m)
    else:
        bias_z = cell.activation(np.zeros(m))
        bias_s = (1.0 - step / beta) * bias_z
    of_h = np.zeros((m, features))
    of_h[:, :m] = identity
    forward = of_z - step * (G @ of_z - of_h), bias_z - step * G @ bias_z
    inverse = np.linalg.inv(identity + step * G)
    reflected, bias_reflected = 2.0 * of_z - of_s, 2.0 * bias_z - bias_s
    through = 2.0 * inverse @ (reflected + step * of_h) - reflected
    bias_through = 2.0 * inverse @ bias_reflected - bias_reflected
    return [
        Layer(*forward, step, "forward–backward", None, np.inf),
        Layer(through, bias_through, step, "Peaceman–Rachford", None, np.inf),
    ]


def _other_width(
    problem: LayerProblem,
    inputs: FloatArray,
    targets: FloatArray,
    width: int,
    step: float,
    seed: list[int],
) -> Layer:
    """Return a layer of some of the units, or of all of them and random features of h."""
    generator = np.random.default_rng(seed)
    m = problem.cell.width
    full = _regressions(inputs, targets, step)[0]  # of the smallest ridge
    if width < m:
        kept = np.sort(generator.permutation(m)[:width])
        return dataclasses.replace(full, weight=full.weight[kept], bias=full.bias[kept])
    spread = problem.drive.std(axis=0)
    spread[spread == 0.0] = np.inf
    extra = np.zeros((width - m, inputs.shape[1]))
    extra[:, :m] = generator.standard_normal((width - m, m)) / spread / np.sqrt(m)
    extra *= float(targets.std())
    bias = -extra[:, :m] @ problem.drive.mean(axis=0)
    weight = np.vstack([full.weight, extra])
    return dataclasses.replace(full, weight=weight, bias=np.concatenate([full.bias, bias]))


def moment_layers(problem: LayerProblem, layers: int, *, steps: int = 500) -> tuple[Layer, ...]:
    """Make layers from the mean and covariance of h alone: no fixed point is solved.

    The pre-image s = Mz + αh, M = I − αG, of z = R_α(s) counts as Gaussian:
    z ≈ E z + D(s − E s) + noise with D = diag E R′(s), hence
    s − E s = (I − MD)⁻¹(α(h − E h) + M·noise).  Iterated to self-consistency this gives a linear
    start, the first layer; the others are solver steps.  With α = β it is u = Wz + h itself, of
    which the iteration has no limit on stiff networks; a small α tames M.  The α that scores best
    on the rows set apart is taken.

    Raises
    ------
    NotConverged
        The iteration has no limit for any α.
    """
    mean, covariance = problem.drive.mean(axis=0), np.cov(problem.drive, rowvar=False)
    chains = [
        _steps_after(problem, first, layers)
        for step in problem.steps()
        if (first := _moment_layer(problem, step, mean, covariance, steps)) is not None
    ]
    if not chains:
        raise NotConverged(
            f"The moments of the network found no self-consistent values within {steps} steps, for "
            f"any of {len(problem.steps())} step sizes. Use fit='least_squares', which solves some "
            "fixed points instead."
        )
    return min(chains, key=lambda chain: chain[-1].score)


def _moment_layer(
    problem: LayerProblem, step: float, mean: FloatArray, covariance: FloatArray, steps: int
) -> Layer | None:
    """Return the linear start for one α, or None if the moments find no limit."""
    cell, m = problem.cell, problem.cell.width
    identity = np.eye(m)
    M = identity - step * (identity / problem.margin.beta - cell.recurrent)
    image = problem.resolvent(step).as_activation
    assert image is not None  # `steps` has no other α
    centre, spread = step * mean, step * np.sqrt(np.diag(covariance) + 1e-300)
    for _ in range(steps):
        level, slope, noise = _gaussian_moments(image, centre, spread)
        solver = np.linalg.inv(identity - M * slope)
        total = solver @ (step**2 * covariance + (M * noise) @ M.T) @ solver.T
        width = np.sqrt(np.maximum(np.diag(total), 1e-300))
        # Newton's step for the mean, E s = M E z + α E h: the plain one diverges more often.
        move = solver @ (step * mean + M @ level - centre)
        if not max(np.abs(move).max(), width.max()) < 1e100:
            return None
        change = np.abs(move).max() + np.abs(width - spread).max()
        # Half a step for the spread, in its logarithm: a safeguard.  In 390 trials (‖W‖ up to 100)
        # the same 375 converged without it, in half as many steps.
        centre, spread = centre + move, np.sqrt(spread * width)
        if change <= 1e-9 * max(float(width.max()), 1e-300):
            weight = np.asarray(step * solver)
            return Layer(weight, centre - weight @ mean, step, "moments", None, 0.0)
    return None


def _gaussian_moments(
    phi: Activation, centre: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return E φ(s), E φ′(s) and the variance of φ(s) that no linear map of s explains.

    s ~ N(centre, spread²), entry by entry.  In closed form between the knots of a piecewise-linear
    φ, where quadrature would make steps of what has to be smooth in the centre.
    """
    if isinstance(phi, PiecewiseLinear):
        ends = np.array([-np.inf, *phi.knots, np.inf])
        x = (ends[:, None] - centre) / spread  # (knots + 2, m)
        # Cut off where exp underflows, so that the infinite ends give 0 and not NaN.
        density = np.exp(-0.5 * np.minimum(x**2, 1e4)) / np.sqrt(2.0 * np.pi)
        # E 1, E ξ and E ξ² of ξ ~ N(0, 1) in each segment.
        mass = np.diff(ndtr(x), axis=0)
        first = -np.diff(density, axis=0)
        second = mass - np.diff(np.where(np.isfinite(x), x, 0.0) * density, axis=0)
        slopes = np.array(phi.slopes)[:, None]
        inside = np.array([*phi.knots[:1], *phi.knots]) if phi.knots else np.zeros(1)
        height = np.asarray(phi(inside))[:, None] + slopes * (centre - inside[:, None])
        tilt = slopes * spread  # φ = height + tilt·ξ
        level = (height * mass + tilt * first).sum(axis=0)
        along = (height * first + tilt * second).sum(axis=0)
        square = (height**2 * mass + 2.0 * height * tilt * first + tilt**2 * second).sum(axis=0)
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        weights = weights / weights.sum()
        values = phi(centre[:, None] + spread[:, None] * nodes)
        level, along, square = (values * f @ weights for f in (1.0, nodes, values))
    return level, along / spread, np.maximum(square - level**2 - along**2, 0.0)


def _steps_after(problem: LayerProblem, first: Layer, layers: int) -> tuple[Layer, ...]:
    """Let the best solver steps follow a first layer."""
    m = problem.cell.width
    score = problem.score(problem.drive_apart @ first.weight.T + first.bias, first.step)
    best: tuple[Layer, ...] = (dataclasses.replace(first, score=score),)
    if layers == 1:
        return best
    chains = []
    for step in problem.steps():
        chain = list(best)
        apart = problem.drive_apart
        for _ in range(layers - 1):
            apart = np.hstack([apart[:, :m], _activated(problem, chain[-1], apart), apart[:, m:]])
            made = _solver_steps(problem, chain, apart.shape[1], step)
            judged = [
                dataclasses.replace(c, score=problem.score(apart @ c.weight.T + c.bias, step))
                for c in made
            ]
            chain.append(min(judged, key=lambda layer: layer.score))
        chains.append(tuple(chain))
    return min(chains, key=lambda chain: chain[-1].score)


def layer_activation(cell: AffineCell, layer: Layer, beta: float) -> Activation:
    """Return R_α of a layer as an activation."""
    activation = Resolvent(cell.activation, layer.step, beta).as_activation
    assert activation is not None  # layers have no other α
    return activation


def preimages_of(
    layers: Sequence[Layer], activations: Sequence[Callable[[Tensor], Tensor]], drive: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return s_k and z_k of all layers, for rows h."""
    found: list[Tensor] = []
    states: list[Tensor] = []
    for layer, activation in zip(layers, activations, strict=True):
        inputs = torch.cat([drive, *reversed(states)], dim=1)
        weight = torch.as_tensor(layer.weight, dtype=drive.dtype, device=drive.device)
        bias = torch.as_tensor(layer.bias, dtype=drive.dtype, device=drive.device)
        found.append(torch.addmm(bias, inputs, weight.mT))
        states.append(activation(found[-1]))
    return found, states
