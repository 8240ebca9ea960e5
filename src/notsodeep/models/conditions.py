"""The theorems' assumptions on a model, as verdicts with numbers.

The assumptions are sufficient, not necessary: a verdict that fails says that the guarantee is gone,
not that the computation is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.checks import invalid
from notsodeep.errors import NotConverged, NotIntegrable, QuadratureError
from notsodeep.models.cell import (
    Dense,
    Variances,
    another_variance,
    solve_variances,
    stability,
)
from notsodeep.models.convolutional import LEAST_PIXEL, ConvolutionalEquilibrium
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.models.monotone import MonotoneEquilibrium
from notsodeep.records import Plotted, Record


@dataclass(frozen=True, repr=False)
class Verdict(Record):
    """One condition on one model.

    Attributes
    ----------
    name : str
    holds : bool or None
        None if it could not be decided.
    statement : str
        The condition as a formula.
    value, bound : float
        What the model has, and what the condition compares it with.
    meaning : str
        What the condition is good for.

    Examples
    --------
    >>> verdict = conditions(DeepEquilibrium("relu", sigma_a2=0.2))["uniqueness of τ*"]
    >>> verdict.holds, round(verdict.value, 6), verdict.bound
    (True, 0.19941, 2.0)
    >>> verdict.meaning
    'the equation for τ has one solution only'
    """

    name: str
    holds: bool | None
    statement: str
    value: float
    bound: float
    meaning: str = ""

    def __str__(self) -> str:
        word = {True: "holds", False: "fails", None: "undecided"}[self.holds]
        return f"{self.name}: {word} ({self.statement}: {self.value:.4g} against {self.bound:.4g})"


@dataclass(frozen=True, repr=False)
class Conditions(Plotted):
    """All verdicts on a model.  Iterable; printing it gives one line for each.

    Examples
    --------
    >>> verdicts = conditions(DeepEquilibrium("tanh", sigma_a2=0.2), tau0=1.0)
    >>> verdicts.hold, len(list(verdicts)), verdicts["contraction"].bound
    (True, 5, 0.25)
    """

    _drawing = "conditions"

    verdicts: tuple[Verdict, ...]

    @property
    def hold(self) -> bool:
        """Whether every condition holds."""
        return all(verdict.holds is True for verdict in self.verdicts)

    def __iter__(self) -> Any:
        return iter(self.verdicts)

    def __getitem__(self, name: str) -> Verdict:
        return next(verdict for verdict in self.verdicts if verdict.name == name)

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return a JSON form: a mapping from the names of the verdicts to their other fields."""
        forms = [verdict.to_dict(arrays=arrays) for verdict in self.verdicts]
        return {form.pop("name"): form for form in forms}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a JSON form; see `Record.from_dict`."""
        if not isinstance(content, Mapping):
            got = type(content).__name__
            raise invalid("content", "Conditions.from_dict", "be a mapping from names", got)
        forms = [
            {"name": name, **form} if isinstance(form, Mapping) else form
            for name, form in content.items()
        ]
        return cls(tuple(map(Verdict.from_dict, forms)))


def conditions(
    deq: DeepEquilibrium | ConvolutionalEquilibrium | MonotoneEquilibrium, tau0: float = 1.0
) -> Conditions:
    """Judge whether the theory's assumptions hold for a DEQ on data of scale tau0.

    Parameters
    ----------
    deq : DeepEquilibrium, ConvolutionalEquilibrium or MonotoneEquilibrium
        Of a convolution the dense cell with its variances is judged, and the scale of pixels.
    tau0 : float, default 1
        √(tr C°/p), the scale of the data; of images, the root mean squared norm of a pixel.

    Raises
    ------
    ConstantActivation
        φ is constant, and no theory is about it.

    Examples
    --------
    >>> print(conditions(DeepEquilibrium("tanh", sigma_a2=0.3), tau0=1.0)["contraction"])
    contraction: fails (σa² < 1/(4L²): 0.3 against 0.25)
    """
    if isinstance(deq, ConvolutionalEquilibrium):
        return Conditions((*conditions(deq.dense, tau0), _pixel_scale(deq, tau0)))
    if isinstance(deq, MonotoneEquilibrium):
        scale = checks.data_scale(tau0, "tau0", "conditions")
        return Conditions(tuple(_monotone_verdicts(deq, scale)))
    if not deq.is_vanilla:
        return Conditions(tuple(_cell_verdicts(deq, checks.data_scale(tau0, "tau0", "conditions"))))
    solution = deq.solve_tau_star(tau0, raises=False)
    verdicts = [_contraction(deq), _existence(solution.converged, float(solution.value))]
    if solution.converged:
        centred = deq.centred(tau0)
        moments = centred.activation.moments(centred.tau_star)
        own_mean = abs(deq.activation.moments(centred.tau_star).mean)
        verdicts += [
            _uniqueness(centred.activation, deq.sigma_a2),
            Verdict(
                "finite tangent kernel",
                deq.sigma_a2 * moments.slope_square < 1.0,
                "σa² E φ′(τ*ξ)² < 1",
                deq.sigma_a2 * moments.slope_square,
                1.0,
                "G/(1 − Ġ) is finite and positive on the diagonal",
            ),
            Verdict(
                "centring",
                own_mean <= 1e-10 * math.sqrt(moments.square),
                "|E φ(τ*ξ)| = 0",
                own_mean,
                0.0,
                "the mixture theory is about centred activations; deq.centred(tau0) makes one",
            ),
        ]
    return Conditions(tuple(verdicts))


def _pixel_scale(deq: ConvolutionalEquilibrium, tau0: float) -> Verdict:
    """Judge whether pixels are large enough for activations to bend; ReLU has no scale."""
    linear = all(layer.activation.homogeneous for layer in deq.cell)
    return Verdict(
        "scale of the pixels",
        linear or tau0**2 >= LEAST_PIXEL,
        "mean ‖x_s‖² not small, or φ homogeneous",
        tau0**2,
        LEAST_PIXEL,
        "activations are used where they bend; preprocessing='pixels' brings it to 1",
    )


def _cell_verdicts(deq: DeepEquilibrium, tau0: float) -> Iterator[Verdict]:
    """Judge a general cell, for inputs with ‖x‖² = τ0²."""
    weights = math.prod(layer.weight for layer in deq.cell)
    bounded = all(layer.normalise == "none" for layer in deq.cell)
    yield Verdict(
        "contraction",
        weights < deq.contraction_bound if bounded else None,
        "Π w < Π 1/(4L²)",
        weights,
        deq.contraction_bound,
        "at large width a turn through the cell contracts, so that z* exists and is unique",
    )
    square = np.array([tau0**2])
    variances, solution = solve_variances(deq.cell, square, raises=False)
    q = float(variances.scales[-1, 0] ** 2)
    yield Verdict(
        "existence of q",
        solution.converged,
        "q_l = w_l E φ²(√q_{l−1} ξ) + u_l τ0² + b_l",
        q,
        q,
        "the features have a finite variance",
    )
    if not solution.converged:
        return
    other = another_variance(deq.cell, tau0**2)
    yield Verdict(
        "uniqueness of q",
        other is None,
        "no second solution up to a million times the first",
        math.nan if other is None else other,
        float(solution.value[0]),
        "the kernels do not depend on the start of the iteration",
    )
    radius = stability(deq.cell, variances)[0]
    yield Verdict(
        "stable equilibrium",
        bool(radius < 1.0),
        "Π w E φ′(√q ξ)² < 1",
        float(radius),
        1.0,
        "wide networks settle, and both kernels are those of what they settle at",
    )
    yield Verdict(
        "centring",
        deq.is_centred_for(tau0),
        "no bias, no normalisation, E φ_l(τ_l ξ) = 0",
        max(
            abs(float(layer.activation.moments(t).mean))
            for layer, t in _with_scales(deq, variances)
        ),
        0.0,
        "a centred cell has an equivalent with four coefficients, any other one with seven",
    )


def _monotone_verdicts(model: MonotoneEquilibrium, tau0: float) -> Iterator[Verdict]:
    """Judge a monotone network, for inputs with ‖x‖² = τ0²."""
    yield Verdict(
        "monotone weights",
        True,
        "I − W ⪰ μ > 0",
        model.monotonicity,
        0.0,
        "the fixed point exists and is unique at every width",
    )
    try:
        scale = float(model.scales(np.array([tau0**2]))[0])
    except NotConverged:
        scale = math.nan
    yield Verdict(
        "existence of q",
        not math.isnan(scale),
        "q = (2b² + r²) E y² + u τ0² + c",
        scale**2,
        scale**2,
        "the features have a finite variance",
    )
    if math.isnan(scale):
        return
    response = model.response
    slopes = float(response.activation.moments(scale).slope_square)
    radius = (2.0 * model.skew + response.coupling**2) * slopes
    yield Verdict(
        "finite tangent kernel",
        radius < 1.0,
        "(2b² + r²) E y′² < 1",
        radius,
        1.0,
        "the equations of pairs contract, and the tangent kernel is finite",
    )
    yield Verdict(
        "proof of the limit",
        None,
        "cavity method",
        math.nan,
        math.nan,
        "the limit is confirmed by simulation; no published theorem covers it",
    )


def _with_scales(deq: DeepEquilibrium, variances: Variances) -> Iterator[tuple[Dense, float]]:
    return zip(deq.cell, map(float, variances.scales[:, 0]), strict=True)


def _contraction(deq: DeepEquilibrium) -> Verdict:
    bound = deq.contraction_bound
    return Verdict(
        "contraction",
        deq.sigma_a2 < bound,
        "σa² < 1/(4L²)",
        deq.sigma_a2,
        bound,
        "at large width the layer contracts, so that z* exists and is unique",
    )


def _existence(found: bool, tau: float) -> Verdict:
    return Verdict(
        "existence of τ*",
        found,
        "τ² = σa² Var φ(τξ) + σb² τ0²",
        tau if found else math.nan,
        tau if found else math.nan,
        "the features have a finite variance",
    )


@lru_cache(maxsize=64)
def _largest_curvature(activation: Activation) -> float:
    scales = np.logspace(-2.0, 2.0, 81)
    return float(activation.moments(scales).square_curvature.max())


def _uniqueness(activation: Activation, sigma_a2: float) -> Verdict:
    """σa² E[(φ²)″(τξ)] < 2 for all τ, looked at over four decades of τ."""
    holds: bool | None
    if math.isinf(activation.lipschitz) and sigma_a2 > 0.0:
        largest, holds = math.inf, False
    else:
        try:
            largest = sigma_a2 * _largest_curvature(activation)
            holds = largest < 2.0
        except (QuadratureError, NotIntegrable):
            largest, holds = math.nan, None
    return Verdict(
        "uniqueness of τ*",
        holds,
        "σa² E[(φ²)″(τξ)] < 2 for 0.01 ≤ τ ≤ 100",
        largest,
        2.0,
        "the equation for τ has one solution only",
    )
