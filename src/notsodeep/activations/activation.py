"""What every activation is: a scalar function with the facts that the theory asks about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations.moments import Moments, gaussian_moments, require_finite
from notsodeep.arrays import FloatArray
from notsodeep.numerics.chebyshev import at_many_scales
from notsodeep.numerics.hermite import LEAST_SQUARE, hermite_expansion, unit_rows
from notsodeep.numerics.quadrature import REACH

Parity = Literal["odd", "even"]


@dataclass(frozen=True, repr=False)
class Activation(ABC):
    """A scalar activation function φ.  Frozen, comparable, hashable.

    Attributes
    ----------
    name : str
    parameters : tuple of (str, value)
        With the name, all that is needed to make the activation again.
    kinks : tuple of float
        Points where φ or one of its derivatives jumps.  φ is smooth between them.
    parity : {"odd", "even"} or None
        A symmetry that is certain: proven, or declared by the user.
    lipschitz : float
        sup |φ′|; infinite for polynomials of degree two and more.
    homogeneous : bool
        Whether φ(cx) = c φ(x) for every c > 0.
    detected : bool
        Whether the Lipschitz constant was found numerically, and so is evidence rather than
        proof.  False for the named activations.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> tanh = named("tanh")
    >>> tanh.parity, tanh.kinks, tanh.lipschitz
    ('odd', (), 1.0)
    >>> tanh([0.0, 0.5]).round(6), tanh.derivative(np.array([0.0, 0.5])).round(6)
    (array([0.      , 0.462117]), array([1.      , 0.786448]))
    >>> round(tanh.moments(2.0).slope, 6)  # E φ′(2ξ)
    0.364739
    >>> tanh.to_dict()
    {'name': 'tanh', 'parameters': {}}
    """

    name: str
    parameters: tuple[tuple[str, Any], ...]
    kinks: tuple[float, ...]
    parity: Parity | None
    lipschitz: float
    homogeneous: bool
    detected: bool

    @abstractmethod
    def value(self, x: FloatArray) -> FloatArray:
        """Evaluate φ(x), elementwise, in float64."""

    @abstractmethod
    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate φ′(x), elementwise; at a kink, the slope on one of its sides."""

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return E[φ(u)φ(v)] and E[φ′(u)φ′(v)] in closed form, or None where there is none.

        (u, v) is centred Gaussian with positive standard deviations scale1 and scale2 and
        correlation ρ; rest = 1 − |ρ|, given apart for the sake of precision.  All flat arrays.
        """
        return None

    def closed_form_moments(self, scales: FloatArray) -> FloatArray | None:
        """Return the moments in the order of `Moments`, shape (6, n_scales), if known exactly.

        A column of NaN is a scale at which the closed form loses digits, left to quadrature.
        """
        return None

    def panel_ends(self, reach: float) -> tuple[float, ...]:
        """Points in [−reach, reach], besides the kinks, where panels of quadratures must end.

        Between 0, ±1/2, ±1, ±2, …, the kinks and these points, sixteen Gauss nodes must see what
        φ does.  None for the named activations, which vary on a length of about one.
        """
        return ()

    def quadrature_splits(self, largest_scale: float) -> tuple[float, ...]:
        """Return kinks and panel ends together, for Gaussian integrals up to that scale."""
        return (*self.kinks, *self.panel_ends(REACH * largest_scale))

    def hermite_coefficients(self, scales: ArrayLike, terms: int) -> FloatArray:
        """Coefficients a_k(τ) = E[φ(τξ) h_k(ξ)], k < terms; shape (n_scales, terms).

        h_k are the orthonormal Hermite polynomials.  See `notsodeep.numerics.hermite`.
        """
        owner = f"hermite_coefficients of {self}"
        tau = np.atleast_1d(checks.scales(scales, "scales", owner))
        count = checks.positive_integer(terms, "terms", owner)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            coefficients = self._hermite_coefficients(tau, count)
        require_finite(coefficients, tau, self)
        if self.parity is not None:
            coefficients[:, (0 if self.parity == "odd" else 1) :: 2] = 0.0
        return coefficients

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        table = at_many_scales(_HermiteColumns(self, terms), scales, keep=True)
        roots = np.sqrt(self.from_log_growth(table[:, 0], scales))
        return np.asarray(table[:, 1:] * roots[:, None])

    def coefficients_and_squares(
        self, scales: FloatArray, terms: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return a_k(τ) and E φ²(τξ) at few scales, from which those at many are interpolated."""
        splits = self.quadrature_splits(float(scales.max()))
        return hermite_expansion(self.value, scales, terms, splits, name=str(self))

    def log_growth(self, squares: FloatArray, scales: FloatArray) -> FloatArray:
        """Return log(E φ²(τξ)/(|φ(0)| + τ)²): of moderate size at every scale.

        What is tabulated over scales is relative to φ at each scale: second moments as logarithms,
        everything else in units of their roots.  The divisor only keeps the logarithm small, and
        with it the digits that it costs.
        """
        return np.asarray(np.log(np.maximum(squares, LEAST_SQUARE) / self._size(scales) ** 2))

    def from_log_growth(self, logarithms: FloatArray, scales: FloatArray) -> FloatArray:
        """Turn `log_growth` back into E φ²(τξ)."""
        return np.asarray(np.exp(logarithms) * self._size(scales) ** 2)

    def _size(self, scales: FloatArray) -> FloatArray:
        return np.asarray(abs(float(self(0.0))) + scales)

    def moments(self, scale: ArrayLike) -> Moments:
        """Gaussian moments at scale τ; see `Moments`.  One scale, or an array of them."""
        return gaussian_moments(self, scale)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `notsodeep.activations.from_dict` turns it back."""
        return {"name": self.name, "parameters": {k: _plain(v) for k, v in self.parameters}}

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Evaluate φ(x)."""
        return self.value(np.asarray(x, dtype=np.float64))

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={_short(value)}" for key, value in self.parameters)
        return f"{self.name}({arguments})" if arguments else self.name

    def __repr__(self) -> str:
        return f"<activation {self}>"


@dataclass(frozen=True)
class _HermiteColumns:
    """At scales (n,): `log_growth`, and Hermite coefficients in units of √(E φ²)."""

    activation: Activation
    terms: int

    def __call__(self, tau: FloatArray) -> FloatArray:
        phi = self.activation
        values, squares = phi.coefficients_and_squares(tau, self.terms)
        return np.column_stack([phi.log_growth(squares, tau), unit_rows(values, squares)])


def _plain(value: Any) -> Any:
    """Turn a parameter into JSON."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value.to_dict() if isinstance(value, Activation) else value


def _short(value: Any) -> str:
    if isinstance(value, tuple) and len(value) > 8:
        first = ", ".join(_short(v) for v in value[:3])
        return f"({first}, … {len(value)} numbers)"
    if isinstance(value, tuple):
        return "(" + ", ".join(_short(v) for v in value) + ("," if len(value) == 1 else "") + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def frozen_parameters(parameters: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Turn keyword parameters into the hashable form that `Activation` keeps."""
    return tuple(parameters.items())
