"""Exact kernels by plain tensor operations: on any device, and differentiable.

The compiled loops of `notsodeep.kernels.loops` are faster on a processor, but they know neither
devices nor gradients.  Here a kernel is computed as they do it, in closed form for the ReLU family
and by Mehler's series for smooth activations, with Newton's method for the fixed point.  Gradients
go through the fixed points by the implicit function theorem: from a solution G₀ of G = f(G, θ), one
step of Newton's method, G = G₀ + (f(G₀, θ) − G₀)/(1 − ∂f/∂G), has the value and the first
derivatives of the solution.

Two things are less careful than in the loops: pairs are limited by the rounding of ρ near ±1 (√ε of
the tangent kernel of a kinked φ), and a slow series is rejected where they integrate single pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.activations.pairs import LEAST_SCALE
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork
from notsodeep.numerics.quadrature import hermite_polynomials

_STEPS = 60
_TERMS = (32, 64, 128, 256, 512)
_REACH = 13.0  # φ(τξ)h_k(ξ) times the density falls like exp(−ξ²/4)
_NODES = (512, 2048, 8192)  # of the trapezoidal rule; the fewest resolve h_k up to the last term
_TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5}  # of series and fixed points
_LEAST = {torch.float64: LEAST_SCALE, torch.float32: 1e-15}  # scales whose squares are numbers
_OWNER = "kernel of a tensor"
_REMEDY = "Or pass a NumPy array, or a tensor on the processor without gradients."


def tensor_kernel(
    model: object, X: Tensor, Y: Tensor | None, kind: int, convention: Convention
) -> Tensor:
    """Compute the CK (kind 0) or NTK (1) on the device of X, in its type, differentiable once.

    Raises
    ------
    InvalidInput
        A model or an activation that is not covered: vanilla DEQs and explicit networks are, with
        activations that are smooth or of the ReLU family.
    NotConverged
        A fixed point was not reached, or a series is too slow for some pair.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    >>> K = tensor_kernel(nsd.DeepEquilibrium("normalized_relu", 0.2), X, None, 1, "preactivation")
    >>> round(K[0, 1].item(), 6), torch.autograd.grad(K[0, 1], X)[0].shape
    (0.720711, torch.Size([2, 2]))
    """
    _require_samples(X, "X")
    if Y is not None:
        _require_samples(Y, "Y")
        if (Y.shape[1], Y.dtype, Y.device) != (X.shape[1], X.dtype, X.device):
            requirement = f"have {X.shape[1]} features, {X.dtype} and {X.device}, as X has"
            got = f"{Y.shape[1]} features, {Y.dtype} and {Y.device}"
            raise checks.invalid("Y", _OWNER, requirement, got)
    if isinstance(model, ExplicitNetwork):
        return _explicit(model, X, Y)[kind]
    if not isinstance(model, DeepEquilibrium) or not model.is_vanilla:
        raise InvalidInput(
            "The kernel of a tensor with gradients, or off the processor, covers explicit "
            f"networks and DEQs of one layer without bias. Got {model}. {_REMEDY}"
        )
    return _equilibrium(model, X, Y, kind, convention)


def _require_samples(X: Tensor, name: str) -> None:
    if not isinstance(X, Tensor) or X.ndim != 2 or 0 in X.shape:
        got = f"shape {tuple(X.shape)}" if isinstance(X, Tensor) else type(X).__name__
        requirement = "be a tensor of shape (n_samples, n_features)"
        raise checks.invalid(name, _OWNER, requirement, got)
    if X.dtype not in _TOLERANCE:
        raise checks.invalid(name, _OWNER, "be of float64 or float32", str(X.dtype))
    if not bool(torch.isfinite(X).all()):
        raise checks.invalid(name, _OWNER, "be finite", "NaN or infinite entries")


def _squares(X: Tensor) -> Tensor:
    return (X * X).sum(dim=1)


class _Hinge:
    """φ(x) = right·x for x > 0, left·x for x < 0, less a constant: the arc-cosine kernels.

    Source: Cho and Saul, Kernel methods for deep learning (2009).
    """

    def __init__(self, right: float, left: float, constant: float) -> None:
        self._right, self._left, self._constant = right, left, constant
        self._both, self._cross = right**2 + left**2, 2.0 * right * left

    def _mean(self, scale: Tensor) -> Tensor:
        return scale * ((self._right - self._left) / math.sqrt(2.0 * math.pi))

    def square(self, scale: Tensor) -> Tensor:
        centring = self._constant * (self._constant - 2.0 * self._mean(scale))
        return 0.5 * self._both * scale**2 + centring

    def slope_square(self, scale: Tensor) -> Tensor:
        return torch.full_like(scale, 0.5 * self._both)

    def pairs(self, scale1: Tensor, scale2: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        # Equal and opposite inputs are a rounding error away from ρ = ±1, where √ has no slope.
        rho = rho.clamp(-1.0 + torch.finfo(rho.dtype).eps, 1.0 - torch.finfo(rho.dtype).eps)
        root = torch.sqrt((1.0 - rho) * (1.0 + rho))
        toward, away = torch.atan2(root, -rho), torch.atan2(root, rho)
        value = self._both * (root + rho * toward) - self._cross * (root - rho * away)
        slope = self._both * toward + self._cross * away
        size = scale1[:, None] * scale2 / (2.0 * math.pi)
        means = self._mean(scale1)[:, None] + self._mean(scale2)
        return size * value - self._constant * (means - self._constant), slope / (2.0 * math.pi)

    def left_out(self, scale: Tensor) -> Tensor:
        return torch.zeros_like(scale)

    def falls(self, rho: Tensor) -> Tensor:
        return rho


class _Series:
    """A smooth φ by its Hermite coefficients a_k(τ) = E[φ(τξ)h_k(ξ)], from the trapezoidal rule."""

    def __init__(self, activation: Activation, like: Tensor, nodes: int, terms: int) -> None:
        self._function, self._terms = torch_twin(activation), terms
        xi, step = np.linspace(-_REACH, _REACH, nodes + 1, retstep=True)
        weights = np.exp(-0.5 * xi**2) * (step / math.sqrt(2.0 * math.pi))
        # The parts of a coefficient cancel: in float32 they would leave no digits of a long series.
        self._xi, self._weights, self._hermite = (
            torch.from_numpy(part).to(like.device)
            for part in (xi, weights, weights[:, None] * hermite_polynomials(xi, terms + 1).T)
        )

    def _values(self, scale: Tensor) -> Tensor:
        return self._function(scale.double()[:, None] * self._xi)

    def square(self, scale: Tensor) -> Tensor:
        return (self._values(scale) ** 2 @ self._weights).to(scale.dtype)

    def slope_square(self, scale: Tensor) -> Tensor:
        wanted = torch.is_grad_enabled() and scale.requires_grad
        with torch.enable_grad():
            u = scale.double()[:, None] * self._xi
            u = u if wanted else u.detach().requires_grad_()
            (slopes,) = torch.autograd.grad(self._function(u).sum(), u, create_graph=wanted)
        return (slopes**2 @ self._weights).to(scale.dtype)

    def _coefficients(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return a_k of φ, and of φ′ by E[φ′(τξ)h_k] = √(k+1) a_{k+1}/τ; shape (n, terms)."""
        a = self._values(scale) @ self._hermite
        roots = torch.arange(1, self._terms + 1, device=a.device, dtype=a.dtype).sqrt()
        slopes = a[:, 1:] * roots / scale.double()[:, None]
        return a[:, :-1].to(scale.dtype), slopes.to(scale.dtype)

    def pairs(self, scale1: Tensor, scale2: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        mehler: Any = _Mehler.apply
        one, two = self._coefficients(scale1), self._coefficients(scale2)
        value, slope = (mehler(a, b, rho) for a, b in zip(one, two, strict=True))
        return value, slope

    def left_out(self, scale: Tensor) -> Tensor:
        totals = self.square(scale), self.slope_square(scale)
        kept = ((part**2).sum(dim=1) for part in self._coefficients(scale))
        shares = (1.0 - k / t for k, t in zip(kept, totals, strict=True))
        return torch.sqrt(torch.stack([s.clamp_min(0.0) for s in shares]).amax(dim=0))

    def falls(self, rho: Tensor) -> Tensor:
        return rho.abs() ** self._terms


_Law = _Hinge | _Series


class _Mehler(torch.autograd.Function):
    """Σ_k a_ik b_jk ρ_ij^k, by Horner's rule; autograd would keep every one of its steps."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, rho)
        return _horner(a, b, rho)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b, rho = ctx.saved_tensors
        roots = torch.arange(1, a.shape[1], device=a.device, dtype=a.dtype).sqrt()
        # d/dρ brings a factor k, √k from either side.
        in_rho = outer * _horner(a[:, 1:] * roots, b[:, 1:] * roots, rho)
        in_a, in_b, power = torch.empty_like(a), torch.empty_like(b), outer.clone()
        for k in range(a.shape[1]):
            in_a[:, k], in_b[:, k] = power @ b[:, k], power.T @ a[:, k]
            power *= rho
        return in_a, in_b, in_rho


def _horner(a: Tensor, b: Tensor, rho: Tensor) -> Tensor:
    total = torch.zeros_like(rho)
    for k in reversed(range(a.shape[1])):
        total.mul_(rho).addr_(a[:, k], b[:, k])
    return total


def _laws(activation: Activation, like: Tensor, ends: list[float]) -> Iterator[_Law]:
    """Yield φ with ever more terms, for scales between the ends; the ReLU family is exact."""
    if activation.hinge is not None:
        left, right = activation.hinge
        yield _Hinge(right, left, activation.shift)
        return
    if activation.kinks:
        raise InvalidInput(
            "The kernel of a tensor with gradients, or off the processor, covers smooth "
            f"activations and the ReLU family. Got {activation}, which has kinks. {_REMEDY}"
        )
    expected = activation.moments(ends)
    at_ends = torch.tensor(ends, dtype=torch.float64, device=like.device)
    for nodes in _NODES:
        law = _Series(activation, like, nodes, 1)
        found = law.square(at_ends), law.slope_square(at_ends)
        if all(
            np.allclose(part.detach().cpu().numpy(), exact, rtol=1e-13, atol=0.0)
            for part, exact in zip(found, (expected.square, expected.slope_square), strict=True)
        ):
            break
    else:
        raise InvalidInput(
            f"{activation} varies too fast at scale {max(ends):.3g} for the kernel of a tensor. "
            f"Divide the data by their root mean squared norm. {_REMEDY}"
        )
    for terms in _TERMS:
        yield _Series(activation, like, nodes, terms)


def _too_slow(activation: Activation, left_out: float) -> NoReturn:
    raise NotConverged(
        f"The kernel of a tensor: a series of {_TERMS[-1]} terms leaves out {left_out:.1e} of "
        f"{activation}, as some samples are nearly parallel. {_REMEDY}"
    )


def _root(variance: Tensor) -> Tensor:
    """τ = √q; a zero sample gets a scale at which φ is constant to rounding."""
    return variance.clamp_min(_LEAST[variance.dtype] ** 2).sqrt()


def _correlations(covariance: Tensor, scales: list[Tensor], *, symmetric: bool) -> Tensor:
    rho = (covariance / scales[0][:, None] / scales[1]).clamp(-1.0, 1.0)
    # A sample with itself has formulas of its own, which need no ρ.
    return rho.masked_fill(_diagonal(rho), 0.0) if symmetric else rho


def _diagonal(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)


def _pairs(
    law: _Law, scales: list[Tensor], covariance: Tensor, *, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """E[φφ] and E[φ′φ′] of all pairs."""
    rho = _correlations(covariance, scales, symmetric=symmetric)
    value, slope = law.pairs(scales[0], scales[1], rho)
    if symmetric:
        own = _diagonal(value)
        value = torch.where(own, law.square(scales[0])[:, None], value)
        slope = torch.where(own, law.slope_square(scales[0])[:, None], slope)
    return value, slope


def _left_out(law: _Law, scales: list[Tensor], rho: Tensor) -> float:
    """Return what the series leaves out of the worst pair, as a share."""
    one, two = (law.left_out(scale) for scale in scales)
    return float((law.falls(rho) * one[:, None] * two).max())


def _explicit(network: ExplicitNetwork, X: Tensor, Y: Tensor | None) -> tuple[Tensor, Tensor]:
    """Carry all pairs through every layer; return Σ_L and Θ_L."""
    symmetric = Y is None
    covariance = X @ (X if Y is None else Y).T
    tangent, squares = covariance, [_squares(X), _squares(X if Y is None else Y)]
    for activation in network.activations:
        scales = [_root(square) for square in squares]
        ends = [float(f(s.detach())) for s in scales for f in (torch.min, torch.max)]
        with torch.no_grad():
            rho = _correlations(covariance, scales, symmetric=symmetric)
            for law in _laws(activation, X, ends):
                left_out = _left_out(law, scales, rho)
                if left_out <= _TOLERANCE[X.dtype]:
                    break
            else:
                _too_slow(activation, left_out)
        covariance, slope = _pairs(law, scales, covariance, symmetric=symmetric)
        tangent = covariance + tangent * slope
        squares = [law.square(scale) for scale in scales]
    return covariance, tangent


def _equilibrium(
    model: DeepEquilibrium, X: Tensor, Y: Tensor | None, kind: int, convention: Convention
) -> Tensor:
    """Solve for the variances and for G, and combine E[φφ] and E[φ′φ′] to the kernel."""
    activation, share = model.activation, model.sigma_a2
    symmetric = Y is None
    norms = [_squares(X), _squares(X if Y is None else Y)]
    drive = (1.0 - share) * (X @ (X if Y is None else Y).T)
    least = _LEAST[X.dtype]
    # The range of scales is found on the host, where failures have their words.
    ends = [
        math.sqrt(model.preactivation_variance(max(float(f(n.detach())), least**2)))
        for n in norms
        for f in (torch.min, torch.max)
    ]
    law = next(_laws(activation, X, ends))
    variances = [_variances(law, share, (1.0 - share) * squares) for squares in norms]
    scales = [_root(variance) for variance in variances]
    with torch.no_grad():
        _require_stable(model, law, share, scales)
        for law in _laws(activation, X, ends):
            solved = _solve(law, share, drive, scales, symmetric=symmetric)
            rho = _correlations(solved, scales, symmetric=symmetric)
            left_out = _left_out(law, scales, rho)
            if left_out <= _TOLERANCE[X.dtype]:
                break
        else:
            _too_slow(activation, left_out)
    value, slope = _pairs(law, scales, solved, symmetric=symmetric)
    # One Newton step with its denominator held fixed: the value stays, since the residual is zero
    # to rounding, and the derivative is that of the implicit function theorem.  Nothing of the
    # iteration itself is kept for the gradient.
    G = solved + (share * value + drive - solved) / (1.0 - share * slope).detach()
    if symmetric:
        G = torch.where(_diagonal(G), variances[0][:, None], G)
    if kind == 0 and convention == "preactivation":
        return G
    value, slope = _pairs(law, scales, G, symmetric=symmetric)
    if kind == 0:
        return value
    inverse = 1.0 / (1.0 - share * slope)
    return G * inverse if convention == "preactivation" else value + G * slope * inverse


def _variances(law: _Law, share: float, drive: Tensor) -> Tensor:
    """Solve q = σa² E φ²(√q ξ) + σb² ‖x‖², with its gradient."""
    q = drive.detach()
    for _ in range(_STEPS):
        with torch.enable_grad():
            here = q.detach().requires_grad_()
            square = law.square(_root(here))
            (growth,) = torch.autograd.grad(square.sum(), here)
        gap = share * square.detach() + drive.detach() - q
        # Where the growth is near its limit, or beyond it on the way, steps are those of iteration.
        slope = (1.0 - share * growth).clamp_min(0.05)
        q = q + gap / slope
        if bool((gap.abs() <= 0.1 * _TOLERANCE[q.dtype] * q).all()):
            break
    else:
        _not_reached("a variance", float((gap.abs() / q).max()))
    # As for G in `_equilibrium`: the gradient of the solution, not of the way to it.
    return q + (share * law.square(_root(q)) + drive - q) / slope


def _require_stable(model: DeepEquilibrium, law: _Law, share: float, scales: list[Tensor]) -> None:
    """Require σa² E φ′² < 1 for every sample; beyond, no wide network settles."""
    worst = max(float((share * law.slope_square(scale)).max()) for scale in scales)
    if worst >= 1.0:
        raise NotConverged(
            f"The {model} has no stable equilibrium for some of the samples, and so no kernel: "
            f"σa² E φ′² = {worst:.6g} must be below 1. Use a smaller sigma_a2."
        )


def _solve(
    law: _Law, share: float, drive: Tensor, scales: list[Tensor], *, symmetric: bool
) -> Tensor:
    """Solve G = σa² E[φφ] + σb² x·y by Newton's method; the diagonal is not meant."""
    size = scales[0][:, None] * scales[1]
    G = drive.clone()
    for _ in range(_STEPS):
        value, slope = _pairs(law, scales, G, symmetric=symmetric)
        gap = share * value + drive - G
        G = torch.minimum(torch.maximum(G + gap / (1.0 - share * slope), -size), size)
        gap = (gap / size).abs()
        if symmetric:
            gap.fill_diagonal_(0.0)  # variances are known
        if bool((gap <= _TOLERANCE[G.dtype]).all()):
            return G
    return _not_reached("a covariance", float(gap.max()))


def _not_reached(what: str, residual: float) -> NoReturn:
    raise NotConverged(
        f"The kernel of a tensor: {what} was not reached in {_STEPS} steps; its relative residual "
        f"is {residual:.1e}. Use float64, or a smaller sigma_a2. {_REMEDY}"
    )
