"""Monotone equilibrium networks at random initialisation.

A monDEQ (Winston and Kolter) is z = φ(W z + U x) with W = (1 − μ)I − AᵀA + B − Bᵀ, which makes its
fixed point unique whatever A and B are.  W is not a matrix of independent entries: A and Aᵀ, B and
−Bᵀ react on themselves.  The limit below is that of the cavity method, confirmed by simulation; no
published theorem covers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, from_dict, with_skip
from notsodeep.activations.closed_forms import root_of
from notsodeep.activations.gaussian_pairs import LEAST_SCALE
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.numerics.chebyshev import at_many_scales
from notsodeep.numerics.fixed_point import solve_fixed_point
from notsodeep.numerics.hermite import unit_rows
from notsodeep.numerics.pair_quadrature import pair_distances
from notsodeep.numerics.quadrature import REACH


@dataclass(frozen=True)
class MonotoneEquilibrium:
    """A monotone equilibrium network z = φ(W z + √inject·U x + √bias·β), W monotone.

    W = (1 − μ)I − AᵀA + B − Bᵀ, the entries of A and B independent with variances symmetric/m and
    skew/m, m the width.  A unit reacts on itself through A and B, so that in the limit of large
    width y = φ(ωy + g) with g Gaussian, ω = 1 − μ − 2b²χ − a²/(1 + a²χ) and χ = E ∂y/∂g.

    Parameters
    ----------
    activation : str or Activation
        φ, increasing with slopes of at most one (ReLU, tanh, …).
    monotonicity : float, default 1
        μ > 0.
    symmetric, skew : float
        a² and b², m times the variances of the entries of A and B.  The default initialisation of
        torch.nn.Linear makes both 1/3.
    inject, bias : float
        Variances of the entries of U and β.

    Examples
    --------
    >>> model = MonotoneEquilibrium("relu", monotonicity=1.0)
    >>> print(model)
    monotone DEQ(relu, μ = 1, a² = 0.333333, b² = 0.333333)
    >>> round(model.response(1.0).feedback, 4)
    -0.5197
    """

    activation: Activation
    monotonicity: float = 1.0
    symmetric: float = 1.0 / 3.0
    skew: float = 1.0 / 3.0
    inject: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        owner = "MonotoneEquilibrium"
        phi = as_activation(self.activation)
        object.__setattr__(self, "activation", phi)
        checks.positive_number(self.monotonicity, "monotonicity", owner)
        for name in ("symmetric", "skew", "inject", "bias"):
            number = checks.finite_number(getattr(self, name), name, owner)
            if number < 0.0:
                raise checks.invalid(name, owner, "be a variance, at least 0", number)
        if self.inject == 0.0:
            raise checks.invalid("inject", owner, "be positive", 0.0, "Nothing of x would enter.")
        slopes = phi.derivative(np.linspace(-30.0, 30.0, 6001))
        if phi.lipschitz > 1.0 + 1e-12 or slopes.min() < 0.0:
            remedy = "ReLU and tanh are; the fixed point of others need not be unique."
            got = f"{phi} with slopes from {slopes.min():.4g} to {phi.lipschitz:.4g}"
            raise checks.invalid(
                "activation", owner, "increase with slopes of at most 1", got, remedy
            )

    def response(self, scale: float) -> Response:
        """Return how a unit responds to a Gaussian field of that standard deviation."""
        return _response(self, float(scale))

    @cached_property
    def unit(self) -> Activation:
        """What a unit does to its field: the same for all of them if φ is homogeneous."""
        if self.activation.homogeneous:
            return self.response(1.0).activation
        return unit_of(self)

    def scales(self, squared_norms: FloatArray) -> FloatArray:
        """Solve q = s E y² + u‖x‖² + c for every sample; return √q."""
        drive = self.inject * squared_norms + self.bias

        def image(q: FloatArray) -> FloatArray:
            tau = np.maximum(np.sqrt(q), LEAST_SCALE)
            return np.asarray(
                (2.0 * self.skew + self.couplings(tau) ** 2) * self.unit.moments(tau).square + drive
            )

        name = f"the variance of the {self}"
        remedy = "Use a larger monotonicity or smaller variances."
        solution = solve_fixed_point(image, drive, name=name, remedy=remedy)
        return np.maximum(np.sqrt(solution.value), LEAST_SCALE)

    def couplings(self, scales: FloatArray) -> FloatArray:
        """R = a²/(1 + a²χ) at every scale: r_i r_j is what AᵀA adds to the weight of a pair."""
        if self.activation.homogeneous:
            return np.full_like(scales, self.response(1.0).coupling)
        different, place = np.unique(scales, return_inverse=True)
        return np.array([self.response(tau).coupling for tau in different])[place]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` turns it back."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {
            "kind": "monotone_equilibrium",
            "activation": self.activation.to_dict(),
            **numbers,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MonotoneEquilibrium:
        """Turn the form made by `to_dict` back into a model."""
        checks.stored_form(data, "monotone_equilibrium", {"activation", *_NUMBERS})
        return cls(from_dict(data["activation"]), *(data[name] for name in _NUMBERS))

    def __str__(self) -> str:
        return (
            f"monotone DEQ({self.activation}, μ = {self.monotonicity:g}, a² = {self.symmetric:g}, "
            f"b² = {self.skew:g})"
        )


_NUMBERS = ("monotonicity", "symmetric", "skew", "inject", "bias")


class Response(NamedTuple):
    """A unit of a monotone network in a Gaussian field.

    Attributes
    ----------
    activation : Activation
        g ↦ y, the solution of y = φ(ωy + g).
    feedback : float
        ω.
    susceptibility : float
        χ = E ∂y/∂g.
    coupling : float
        r = a²/(1 + a²χ).
    """

    activation: Activation
    feedback: float
    susceptibility: float
    coupling: float


@lru_cache(maxsize=4096)
def _response(model: MonotoneEquilibrium, scale: float) -> Response:
    a2, b2 = model.symmetric, model.skew

    def at(chi: float) -> tuple[Activation, float]:
        # The diagonal of W, and Onsager's reaction of a unit to itself through B and A:
        # docs/theory/cells.md, "Monotone networks".
        omega = 1.0 - model.monotonicity - 2.0 * b2 * chi - a2 / (1.0 + a2 * chi)
        return with_skip(model.activation, omega), omega

    def gap(chi: float) -> float:
        return float(at(chi)[0].moments(scale).slope) - chi

    # y′ = φ′/(1 − ωφ′) ≤ 1/μ for slopes of at most one, since ω ≤ 1 − μ.
    high = 1.0 / model.monotonicity + 1e-9
    # Slopes are positive at χ = 0 and at most 1/μ, so that there is a change of sign.
    chi = float(brentq(gap, 0.0, high, xtol=1e-16, rtol=4.0 * np.finfo(float).eps))
    activation, omega = at(chi)
    return Response(activation, omega, chi, a2 / (1.0 + a2 * chi))


@dataclass(frozen=True, repr=False)
class MonotoneUnit(Activation):
    """What a unit does to its field, where that depends on the field's own scale.

    ω depends on χ and so on the scale τ of the sample: as a function of a standard normal variable,
    y_τ(τξ) is as good as any activation, and moments and series are what the kernels ask for.
    """

    model: MonotoneEquilibrium

    def value(self, x: FloatArray) -> FloatArray:
        """Not defined: the response depends on the scale of the sample."""
        raise InvalidInput("The response of a monotone unit depends on the scale of its field.")

    derivative = value

    def closed_form_moments(self, scales: FloatArray) -> FloatArray:
        """Return the moments of y_τ(τξ), scale by scale."""
        rows = []
        for tau in scales:
            m = self.model.response(tau).activation.moments(tau)
            rows.append(
                (m.mean, m.slope, m.curvature, m.square, m.slope_square, m.square_curvature)
            )
        return np.array(rows).T

    def _hermite_coefficients(self, scales: FloatArray, terms: int) -> FloatArray:
        def columns(tau: FloatArray) -> FloatArray:
            values = np.stack(
                [self.model.response(t).activation.hermite_coefficients(t, terms)[0] for t in tau]
            )
            squares = np.asarray(self.moments(tau).square)
            return np.column_stack([self.log_growth(squares, tau), unit_rows(values, squares)])

        table = at_many_scales(columns, scales)
        roots = np.sqrt(self.from_log_growth(table[:, 0], scales))
        return np.asarray(table[:, 1:] * roots[:, None])

    def _size(self, scales: FloatArray) -> FloatArray:
        return np.asarray(abs(float(self.model.activation(0.0))) + scales)

    def closed_form_pairs(
        self, scale1: FloatArray, scale2: FloatArray, rho: FloatArray, rest: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """E[y_i y_j] and E[y_i′ y_j′] of two different functions, from their distances."""
        value, slope = np.empty((2, rho.size))
        for k in range(rho.size):
            pair = (scale1[k : k + 1], scale2[k : k + 1], rho[k : k + 1], root_of(rest[k : k + 1]))
            one, two = (self.model.response(float(s[0])).activation for s in pair[:2])
            splits = (*one.kinks, *two.kinks)
            reach = REACH * float(max(scale1[k], scale2[k]))
            ends = (*one.panel_ends(reach), *two.panel_ends(reach))
            first, second = one.moments(scale1[k]), two.moments(scale2[k])
            for out, f, g, squares in (
                (value, one.value, two.value, (first.square, second.square)),
                (
                    slope,
                    one.derivative,
                    two.derivative,
                    (first.slope_square, second.slope_square),
                ),
            ):
                unit = max(float(np.sqrt(squares[0] * squares[1])), 1e-200) ** 0.5
                functions = [
                    (lambda x, f=f, u=unit: f(x)[None] / u, lambda x, g=g, u=unit: g(x)[None] / u)
                ]
                distance = pair_distances(functions, *pair, splits, ends, name=str(self.model))
                # The quadrature of distances takes two different functions, that of products only
                # one.
                out[k] = 0.5 * (squares[0] + squares[1] - unit**2 * float(distance[0]))
        return value, slope


def unit_of(model: MonotoneEquilibrium) -> MonotoneUnit:
    """Return the unit of a monotone network as an activation."""
    return MonotoneUnit(
        name="monotone_unit",
        parameters=(),
        kinks=(),
        parity="odd" if model.activation.parity == "odd" else None,
        lipschitz=1.0 / model.monotonicity,
        homogeneous=False,
        detected=model.activation.detected,
        model=model,
    )
