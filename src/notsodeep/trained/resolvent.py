"""The resolvent of an activation: what a splitting with a step other than one applies instead.

For slopes of φ in [0, β] and a step α, let t solve (1 − α/β)φ(t) + αt = s; then R_α(s) = φ(t).
It is (I + αF)⁻¹ for the monotone map F = φ⁻¹ − β⁻¹I of each entry.  φ itself is right for α = β
only, and, up to the scale of t, for relu: with φ in place of R_α an iteration converges, to
another point.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from notsodeep.activations import Activation, PiecewiseLinear, piecewise_linear, scaled
from notsodeep.activations.torch_twins import TensorFunction, torch_twin
from notsodeep.networks.fixed_point_problems import pullback

_EPS = float(np.finfo(np.float64).eps)
_MOST_STEPS = 200  # of a bracketed Newton iteration; a dozen is usual


@dataclass(frozen=True)
class Resolvent:
    """R_α of an activation, on tensors, differentiable.

    Parameters
    ----------
    activation : Activation
        φ, without negative slopes.
    step : float
        α > 0.
    beta : float
        β, at least the largest slope of φ.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> R = Resolvent(named("tanh"), step=0.05, beta=1.0)
    >>> s = torch.tensor([-2.0, 0.3], dtype=torch.float64)
    >>> t = R.preimage(s)
    >>> float((0.95 * torch.tanh(t) + 0.05 * t - s).abs().max()) < 1e-14
    True
    >>> Resolvent(named("relu"), 0.5, 1.0).preimage(torch.tensor([-1.0, 2.0]))
    tensor([-2.,  2.])
    """

    activation: Activation
    step: float
    beta: float = 1.0

    @property
    def share(self) -> float:
        """1 − α/β, the weight of φ(t)."""
        return 1.0 - self.step / self.beta

    @cached_property
    def phi(self) -> TensorFunction:
        """φ on tensors."""
        return torch_twin(self.activation)

    @cached_property
    def as_activation(self) -> Activation | None:
        """R_α as an activation in its own right, where it has a closed form; None elsewhere."""
        if self.step == self.beta:
            return (
                self.activation
                if self.beta == 1.0
                else scaled(self.activation, 1.0, 1.0 / self.beta)
            )
        if not isinstance(self.activation, PiecewiseLinear):
            return None
        inverse = self._linear_preimage
        slopes = [
            outer * inner
            for outer, inner in zip(self.activation.slopes, inverse.slopes, strict=True)
        ]
        height = float(self.activation(float(inverse(0.0))))
        return _joined(inverse.knots, slopes, height)

    @cached_property
    def _linear_preimage(self) -> PiecewiseLinear:
        """S ↦ t for a piecewise-linear φ: linear between the images of its knots."""
        phi = self.activation
        assert isinstance(phi, PiecewiseLinear)
        knots = [self.share * float(phi(k)) + self.step * k for k in phi.knots]
        slopes = [1.0 / (self.share * slope + self.step) for slope in phi.slopes]
        # t(0): on the segment that contains s = 0, from one of its ends.
        place = sum(knot < 0.0 for knot in knots)
        if not knots:
            height = -slopes[0] * self.share * phi.value_at_zero
        else:
            end = min(place, len(knots) - 1)
            height = phi.knots[end] - slopes[place] * knots[end]
        return piecewise_linear(tuple(knots), tuple(slopes), height)

    @cached_property
    def _preimage_twin(self) -> TensorFunction:
        return torch_twin(self._linear_preimage)

    def preimage(self, s: Tensor) -> Tensor:
        """Return t, by which R_α(s) = φ(t)."""
        if self.step == self.beta:
            return s / self.step
        if isinstance(self.activation, PiecewiseLinear):
            return self._preimage_twin(s)
        t: Tensor = _Preimage.apply(s, self)  # type: ignore[no-untyped-call]
        return t

    def __call__(self, s: Tensor) -> Tensor:
        """Return R_α(s)."""
        return self.phi(self.preimage(s))

    def image(self, t: Tensor) -> Tensor:
        """Return s = (1 − α/β)φ(t) + αt."""
        return self.share * self.phi(t) + self.step * t

    def slope(self, t: Tensor) -> Tensor:
        """Return ds/dt = (1 − α/β)φ′(t) + α, differentiable."""
        value, pull = pullback(self.phi, t)
        return self.share * pull(torch.ones_like(value))[0] + self.step

    def root(self, s: Tensor) -> Tensor:
        """Newton's iteration within a bracket that shrinks, halved where a step leaves it.

        In NumPy, whose activations know their own slopes.
        """
        target = s.detach().cpu().double().numpy()
        phi, slope_of = self.activation.value, self.activation.derivative
        # The slope lies between α and β, so the root lies between these two.
        gap = target - self.share * float(self.activation(0.0))
        low, high = np.sort([gap / self.step, gap / self.beta], axis=0)
        t = np.clip(target, low, high)
        for _ in range(_MOST_STEPS):
            value = self.share * phi(t) + self.step * t
            excess = value - target
            low, high = np.where(excess <= 0.0, t, low), np.where(excess >= 0.0, t, high)
            proposed = t - excess / (self.share * slope_of(t) + self.step)
            inside = (proposed >= low) & (proposed <= high)
            following = np.where(inside, proposed, 0.5 * (low + high))
            # As far as rounding lets the equation, or the bracket, tell.
            size = np.abs(target) + np.abs(self.step * t)
            # The residual itself is a difference of numbers of this size.
            met = np.abs(excess) <= 4.0 * _EPS * size
            stays = np.abs(following - t) <= _EPS * np.abs(t)
            t = np.where(met, t, following)
            if (met | stays).all():
                break
        return torch.as_tensor(t, dtype=s.dtype, device=s.device)


class _Preimage(torch.autograd.Function):
    """s ↦ t; the derivative is that of the equation, 1/s′(t), so there are all orders of it."""

    @staticmethod
    def forward(s: Tensor, resolvent: Resolvent) -> Tensor:
        return resolvent.root(s)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.resolvent = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (t,) = ctx.saved_tensors
        return gradients[0] / ctx.resolvent.slope(t), None


def _joined(knots: tuple[float, ...], slopes: list[float], height: float) -> Activation:
    """Make a piecewise-linear function, without knots at which nothing bends."""
    kept = [k for k in range(len(knots)) if slopes[k] != slopes[k + 1]]
    return piecewise_linear(
        tuple(knots[k] for k in kept), tuple(slopes[i] for i in (*kept, len(knots))), height
    )
