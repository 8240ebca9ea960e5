"""What every activation is: a scalar function, its facts, and its Gaussian moments and series."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotIntegrable
from notsodeep.numerics.chebyshev import at_many_scales
from notsodeep.numerics.quadrature import hermite_expansion, resolved_samples

Parity = Literal["odd", "even"]

LEAST_SQUARE = 1e-300
"""Stands in for E φ² = 0, so that nothing is divided by zero."""

_MISSING = object()


@dataclass(frozen=True)
class Moments:
    """Moments of φ at scale τ, ξ ~ N(0, 1); derivatives are weak (Gaussian integration by parts).

    Every attribute is a float, or an array of the shape of `scale`.
    """

    scale: Any  # τ
    mean: Any  # E φ(τξ)
    slope: Any  # E φ′(τξ) = E[ξ φ(τξ)]/τ
    curvature: Any  # E φ″(τξ) = E[(ξ² − 1) φ(τξ)]/τ²; for ReLU 1/(τ√(2π)), not zero
    square: Any  # E φ²(τξ)
    slope_square: Any  # E φ′(τξ)²
    square_curvature: Any  # E (φ²)″(τξ); half of it is the slope of q ↦ E φ²(√q ξ)

    @property
    def variance(self) -> Any:
        """Var φ(τξ)."""
        return self.square - self.mean**2


@dataclass(frozen=True, repr=False, kw_only=True)
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
        A symmetry of φ.
    lipschitz : float
        sup |φ′|; infinite for polynomials of degree two and more.  Of formulas and functions it is
        the largest slope seen.
    homogeneous : bool
        Whether φ(cx) = c φ(x) for every c > 0.

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
    parameters: tuple[tuple[str, Any], ...] = ()
    kinks: tuple[float, ...] = ()
    parity: Parity | None = None
    lipschitz: float
    homogeneous: bool = False

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
        correlation ρ; rest = 1 − |ρ| is an argument for the sake of precision.  All flat arrays.
        """
        return None

    def closed_form_moments(self, scales: FloatArray) -> FloatArray | None:
        """Return the moments in the order of `Moments`, shape (6, n_scales), if known exactly.

        A column of NaN is a scale at which the closed form loses digits, left to quadrature.
        """
        return None

    def panel_ends(self, largest_scale: float) -> tuple[float, ...]:
        """Points where panels of integrals up to that scale must end: at least the kinks.

        Between 0, ±1/2, ±1, ±2, … and these points, sixteen Gauss nodes must see what φ does.
        """
        return self.kinks

    @property
    def uncentred(self) -> Activation:
        """φ without the constant that centring takes off."""
        return self

    @property
    def shift(self) -> float:
        """The constant that centring takes off: φ = uncentred − shift."""
        return 0.0

    @property
    def hinge(self) -> tuple[float, float] | None:
        """Slopes (left, right) of a φ that is max(ax, bx) or the like, up to its shift."""
        return None

    def moments(self, scale: ArrayLike) -> Moments:
        """Gaussian moments at one scale τ or an array of them, in closed form or by quadrature.

        Examples
        --------
        >>> from notsodeep.activations import named
        >>> moments = named("relu").moments([0.5, 1.0])
        >>> moments.square, moments.variance.round(6)
        (array([0.125, 0.5  ]), array([0.085211, 0.340845]))
        """
        tau = checks.scales(scale, "scale", f"the moments of {self}")
        if tau.size == 1:
            # A model's equations are solved again for every question about it.
            out = self.cached("moments", float(tau.item()), lambda: self._moments(tau.reshape(1)))
            if tau.ndim == 0:
                return Moments(float(tau), *out[:, 0].tolist())
        else:
            out = self._moments(tau.reshape(-1))
        return Moments(tau, *out.reshape(6, *tau.shape).copy())

    def _moments(self, scales: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            out = self.closed_form_moments(scales)
        if out is None:
            out = np.full((6, scales.size), np.nan)
        missing = np.isnan(out).any(axis=0)
        if missing.any():
            out[:, missing] = moments_by_quadrature(self, scales[missing])
        self._require_finite(out.T, scales)
        if self.parity == "odd":
            out[[0, 2]] = 0.0
        elif self.parity == "even":
            out[1] = 0.0
        return out

    def hermite_coefficients(self, scales: ArrayLike, terms: int) -> FloatArray:
        """Coefficients a_k(τ) = E[φ(τξ) h_k(ξ)], k < terms; shape (n_scales, terms).

        h_k are the orthonormal Hermite polynomials.
        """
        owner = f"hermite_coefficients of {self}"
        tau = np.atleast_1d(checks.scales(scales, "scales", owner))
        count = checks.positive_integer(terms, "terms", owner)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            coefficients = self._hermite_coefficients(tau, count)
        self._require_finite(coefficients, tau)
        if self.parity is not None:
            coefficients[:, (0 if self.parity == "odd" else 1) :: 2] = 0.0
        return coefficients

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        table = at_many_scales(_HermiteColumns(self, terms), scales, self.keep_interpolant)
        roots = np.sqrt(self.from_log_growth(table[:, 0], scales))
        return np.asarray(table[:, 1:] * roots[:, None])

    def coefficients_and_squares(
        self, scales: FloatArray, terms: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return a_k(τ) and E φ²(τξ) at few scales, from which those at many are interpolated."""
        ends = self.panel_ends(float(scales.max()))
        return hermite_expansion(self.value, scales, terms, ends, name=str(self))

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

    def _require_finite(self, rows: FloatArray, scales: FloatArray) -> None:
        """Reject moments or coefficients (a row for each scale) that overflowed."""
        bad = ~np.isfinite(rows).all(axis=1)
        if bad.any():
            raise NotIntegrable(
                f"The Gaussian moments of {self} overflow at scale τ = "
                f"{float(scales[bad.argmax()]):.6g}. Scale the data down."
            )

    @cached_property
    def _cache(self) -> dict[str, dict[Any, Any]]:
        return {}

    def cached(self, kind: str, key: Any, compute: Callable[[], Any], limit: int = 1024) -> Any:
        """Return compute(), kept for as long as the activation lives: at most `limit` of a kind.

        Not in a cache of the module, which would keep users' functions alive.
        """
        entries = self._cache.setdefault(kind, {})
        value = entries.get(key, _MISSING)
        if value is _MISSING:
            value = compute()
            if len(entries) >= limit:
                entries.clear()
            entries[key] = value
        return value

    def keep_interpolant(self, key: Any, compute: Callable[[], Any]) -> Any:
        """Keep an interpolant over scales; see `notsodeep.numerics.chebyshev.at_many_scales`."""
        return self.cached("interpolants", key, compute, limit=32)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `notsodeep.activations.from_dict` turns it back."""
        return {"name": self.name, "parameters": {k: _plain(v) for k, v in self.parameters}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Activation:
        """Read the form made by `to_dict`; see `notsodeep.activations.from_dict`."""
        from notsodeep.activations.catalogue import from_dict

        return from_dict(data)

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Evaluate φ(x)."""
        return self.value(np.asarray(x, dtype=np.float64))

    def __str__(self) -> str:
        arguments = ", ".join(f"{key}={_short(value)}" for key, value in self.parameters)
        return f"{self.name}({arguments})" if arguments else self.name

    def __repr__(self) -> str:
        return f"<activation {self}>"


def moments_by_quadrature(activation: Activation, scales: FloatArray) -> FloatArray:
    """Return the six moments as rows, in the order of `Moments`.

    Second derivatives are reduced to first ones, E φ″ = E[ξ φ′]/τ, which loses the fewest digits at
    small scales.
    """
    out = np.empty((6, scales.size))

    def value_and_slope(x: FloatArray) -> FloatArray:
        return np.stack([activation.value(x), activation.derivative(x)])

    ends = activation.panel_ends(float(scales.max()))
    for part in resolved_samples(value_and_slope, scales, ends, name=str(activation)):
        value, slope = part.values
        weights = part.rule.weights
        odd_weights = weights * part.rule.nodes / scales[part.index, None]
        out[:, part.index] = [
            (weights * value).sum(axis=-1),
            (weights * slope).sum(axis=-1),
            (odd_weights * slope).sum(axis=-1),
            (weights * value**2).sum(axis=-1),
            (weights * slope**2).sum(axis=-1),
            2.0 * (odd_weights * value * slope).sum(axis=-1),
        ]
    return out


@dataclass(frozen=True)
class _HermiteColumns:
    """At scales (n,): `log_growth`, and Hermite coefficients in units of √(E φ²)."""

    activation: Activation
    terms: int

    def __call__(self, tau: FloatArray) -> FloatArray:
        phi = self.activation
        values, squares = phi.coefficients_and_squares(tau, self.terms)
        units = np.sqrt(np.maximum(squares, LEAST_SQUARE))[:, None]
        return np.column_stack([phi.log_growth(squares, tau), values / units])


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
