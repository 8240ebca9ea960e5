"""The kernel of a DEQ on the unit sphere, as a power series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.polynomial.polynomial import polyval

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.unit_sphere import SphereRing
from notsodeep.errors import NotConverged
from notsodeep.models import Convention, DeepEquilibrium, KernelName
from notsodeep.records import Plotted

# Inside the unit circle, where |ρ| < 1 and Hermite series converge: 0.9³²⁰ = 2e-15 is what 320
# terms leave out.  Aliasing of the FFT adds g_{k+512}·0.9⁵¹², below 1e-23; its rounding grows as
# 0.9⁻ᵏ, to 30 eps for the 32 coefficients that are used.
_RADIUS = 0.9
_NODES = 512
_TERMS = 320


@dataclass(frozen=True, eq=False, repr=False)
class KernelSeries(Plotted):
    """A kernel on the unit sphere as a power series Σ_k g_k tᵏ in t = x·y, g_k ≥ 0.

    Attributes
    ----------
    coefficients : ndarray of shape (degree + 1,)
        g_0 … g_degree.
    total : float
        g(1), the kernel's diagonal.
    """

    _derived = ("remainder",)
    _drawing = "kernel_series"

    coefficients: FloatArray
    total: float

    @property
    def remainder(self) -> float:
        """Σ_{k > degree} g_k: the share of the diagonal in higher powers."""
        return max(0.0, self.total - float(self.coefficients.sum()))

    @property
    def size(self) -> float:
        """The unit in which residuals are judged: the kernel's diagonal."""
        return self.total

    def cut(self, degree: int) -> KernelSeries:
        """Keep powers up to `degree`."""
        return KernelSeries(self.coefficients[: degree + 1], self.total)

    def error_bound(self, cosine: float) -> float:
        """Bound the error of an entry with |t| ≤ cosine, the rest being carried by the last term.

        |Σ_{k>K} g_k (t^K − t^k)| ≤ 2·remainder·|t|^K, and ≤ remainder·t^K for t ≥ 0.
        """
        return 2.0 * self.remainder * abs(cosine) ** (len(self.coefficients) - 1)

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the JSON form; the coefficients are "taylor"."""
        form = super().to_dict(arrays=arrays)
        return {"taylor" if name == "coefficients" else name: g for name, g in form.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a JSON form; see `Record.from_dict`."""
        if isinstance(content, Mapping):
            content = {
                "coefficients" if name == "taylor" else name: g for name, g in content.items()
            }
        return super().from_dict(content)

    def __str__(self) -> str:
        return (
            f"power series of degree {len(self.coefficients) - 1}, diagonal {self.total:.6g}, "
            f"remainder {self.remainder:.3g}"
        )


def kernel_series(
    deq: DeepEquilibrium, *, kind: KernelName, convention: Convention, degree: int
) -> KernelSeries:
    """Compute the power series of a DEQ's kernel on the unit sphere.

    g solves g = σa² f(g) + σb² t with f(G) = Σ a_k² (G/q)ᵏ; the NTK is g/(1 − σa² f′(g)).  The
    fixed point is found for complex t on a circle of radius 0.9 by Newton's method, and one FFT
    gives the coefficients.  In a cell of several layers the same is done for the covariance of the
    state, through the composition of its layers.

    Raises
    ------
    NotConverged
        There is no fixed point on the circle, or the tangent kernel is infinite.
    """
    if not deq.is_vanilla:
        return _series_of_cell(deq, kind, convention, degree)
    back, forth = deq.sigma_a2, deq.sigma_b2
    variance = deq.preactivation_variance(1.0)
    moments = deq.activation.moments(math.sqrt(variance))
    powers = deq.activation.hermite_coefficients(np.array([math.sqrt(variance)]), _TERMS)[0] ** 2
    slopes = powers[1:] * np.arange(1, _TERMS)

    def dual(G: Any) -> tuple[Any, Any]:
        rho = G / variance
        return polyval(rho, powers), polyval(rho, slopes) / variance

    t = _RADIUS * np.exp(2j * np.pi * np.arange(_NODES) / _NODES)
    # The fixed point at σa² = 0.  For |t| < 1 the right one has |G| ≤ g(|t|) < q, where the series
    # converge.
    G = forth * t
    for _ in range(60):
        value, slope = dual(G)
        step = (G - back * value - forth * t) / (1.0 - back * slope)
        G = G - step
        if np.abs(step).max() <= 1e-15 * variance:
            break
    value, slope = dual(G)
    if not np.abs(G - back * value - forth * t).max() <= 1e-12 * variance:
        raise NotConverged(
            f"The kernel of the {deq} has no power series: no fixed point on |t| = 0.9."
        )
    features, end = value, float(moments.square)
    if kind == "ntk":
        if not back * moments.slope_square < 1.0:
            raise NotConverged(
                f"The tangent kernel of the {deq} is infinite: σa² E φ′(√q ξ)² = "
                f"{back * moments.slope_square:.4g} must stay below 1. Use a smaller sigma_a2."
            )
        features = value + G * slope / (1.0 - back * slope)
        end += variance * float(moments.slope_square) / (1.0 - back * float(moments.slope_square))
    taylor = (np.fft.fft(features)[: degree + 1] / _NODES).real / _RADIUS ** np.arange(degree + 1)
    # Coefficients are at least zero; what the FFT puts below is rounding.
    taylor = np.maximum(taylor, 0.0)
    if convention == "preactivation":
        taylor, end = back * taylor, back * end + forth
        taylor[1] += forth
    return KernelSeries(taylor, end)


def _series_of_cell(
    deq: DeepEquilibrium, kind: KernelName, convention: Convention, degree: int
) -> KernelSeries:
    """Do the same for a general cell: Newton's method on the covariance V of the state."""
    ring = SphereRing(deq)
    end = ring.kernel(kind, convention).end
    t = _RADIUS * np.exp(2j * np.pi * np.arange(_NODES) / _NODES)
    powers = [
        layer.activation.hermite_coefficients(math.sqrt(layer.variance), _TERMS)[0] ** 2
        for layer in ring.layers
    ]

    def turn(state: Any) -> tuple[list[Any], list[Any], list[Any]]:
        fulls, features, slopes = [], [], []
        for layer, squares in zip(ring.layers, powers, strict=True):
            full = layer.squash * (layer.weight * state + layer.inject * t + layer.bias)
            rho = full / layer.variance
            state = layer.gain * (polyval(rho, squares) - layer.taken)
            slope = polyval(rho, squares[1:] * np.arange(1, _TERMS)) / layer.variance
            fulls.append(full)
            features.append(state)
            slopes.append(layer.gain * slope)
        return fulls, features, slopes

    def gain(slopes: list[Any]) -> Any:
        product = np.ones_like(t)
        for layer, slope in zip(ring.layers, slopes, strict=True):
            product = product * layer.weight * layer.squash * slope
        return product

    state = np.full_like(t, ring.state.value)
    for _ in range(60):
        fulls, features, slopes = turn(state)
        step = (features[-1] - state) / (1.0 - gain(slopes))
        state = state + step
        if np.abs(step).max() <= 1e-15 * abs(ring.state.end):
            break
    fulls, features, slopes = turn(state)
    if not np.abs(features[-1] - state).max() <= 1e-12 * abs(ring.state.end):
        raise NotConverged(
            f"The kernel of the {deq} has no power series: no fixed point on |t| = {_RADIUS}."
        )
    result = features[-1] if convention == "feature" else fulls[-1]
    if kind == "ntk":
        theta, before = np.zeros_like(t), slopes[-1]
        for layer, full, slope in zip(ring.layers, fulls, slopes, strict=True):
            theta = full + layer.weight * layer.squash * before * theta
            before = slope
        theta = theta / (1.0 - gain(slopes))
        result = features[-1] + slopes[-1] * theta if convention == "feature" else theta
    taylor = (np.fft.fft(result)[: degree + 1] / _NODES).real / _RADIUS ** np.arange(degree + 1)
    # Every layer has non-negative coefficients, and so has their composition: beyond rounding, this
    # is not the solution that belongs to the kernel.
    if taylor.min() < -1e-9 * end:
        raise NotConverged(
            f"The kernel of the {deq} has a negative Taylor coefficient, {taylor.min():.3g}: no "
            "network of one layer has it."
        )
    return KernelSeries(np.maximum(taylor, 0.0), end)
