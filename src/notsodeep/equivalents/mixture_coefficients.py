"""The four numbers that a centred network's kernel depends on, for Gaussian mixtures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, Moments
from notsodeep.equivalents.expansion import expansion
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    Model,
    checked_choice,
    require_varying,
)
from notsodeep.records import Record

CENTRED = 1e-8
"""Largest |E φ|, relative to the root mean square, of a centred activation."""


@dataclass(frozen=True, repr=False)
class Coefficients(Record):
    """Coefficients of the equivalent kernel linear·XXᵀ + V C Vᵀ + diagonal·I.

    C = norm_fluctuation·[t; 1][t; 1]ᵀ + covariance_overlap·[T 0; 0 0].  Mixture paper
    (arXiv 2402.02697), theorems 1 and 2, without the term −τ0⁴·covariance_overlap that they have in
    the diagonal.

    Attributes
    ----------
    linear : float
        α1 (CK) or β1 (NTK).
    norm_fluctuation : float
        α2 or β2.
    covariance_overlap : float
        α3 or β3.
    scale2 : float
        τ² or κ²: the kernel's diagonal where ‖x‖² = τ0².
    tau0 : float
        √(tr C°/p), the scale of the data.
    """

    _derived = ("diagonal",)

    linear: float
    norm_fluctuation: float
    covariance_overlap: float
    scale2: float
    tau0: float

    @property
    def diagonal(self) -> float:
        """γ = scale2 − τ0²·linear, the factor of the identity; never negative."""
        # Parseval makes it at least zero; for a linear φ rounding can leave it just below.
        return max(0.0, self.scale2 - self.tau0**2 * self.linear)

    @property
    def four(self) -> tuple[float, float, float, float]:
        """(linear, norm_fluctuation, covariance_overlap, scale2): what a match must meet."""
        return self.linear, self.norm_fluctuation, self.covariance_overlap, self.scale2

    @property
    def size(self) -> float:
        """The unit in which residuals are judged: the kernel's diagonal."""
        return self.scale2

    def __str__(self) -> str:
        names = ("linear", "norm_fluctuation", "covariance_overlap", "scale2", "diagonal", "tau0")
        return ", ".join(f"{name} {getattr(self, name):.6g}" for name in names)


def coefficients(
    model: Model,
    tau0: float,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
) -> Coefficients:
    """Compute the coefficients of a centred model's kernel on data of scale tau0.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
        Centred for tau0.
    tau0 : float
        √(tr C°/p).
    kind : {"ck", "ntk"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.

    Raises
    ------
    InvalidInput
        The model is not centred for this tau0.
    ConstantActivation
        An activation is constant at its scale.

    Examples
    --------
    >>> deq = DeepEquilibrium("relu", sigma_a2=0.2).centred(tau0=1.0)
    >>> print(coefficients(deq, 1.0, kind="ck"))
    linear 0.842105, norm_fluctuation 0.0071915, ... scale2 0.858525, diagonal 0.0164195, tau0 1
    """
    checked_choice(model, kind, convention, "an equivalent")
    scale = checks.data_scale(tau0, "tau0", "an equivalent")
    if isinstance(model, ExplicitNetwork):
        return coefficients_of_layers(_layers(model, scale), scale, kind)
    if not isinstance(model, DeepEquilibrium):
        raise checks.invalid("model", "an equivalent", "be a DEQ or a network", str(model))
    if not model.is_vanilla:
        found = expansion(model, scale, kind=kind, convention=convention)
        others = (found.constant, found.norm_shift, found.norm_curvature)
        if max(map(abs, others)) > CENTRED * found.scale2:
            raise InvalidInput(
                f"model of four coefficients must be centred. Got the {model}. Use "
                f"deq.centred({scale:.6g}) if it has no bias and no normalisation; "
                "notsodeep.equivalents.expansion has the seven coefficients of any other cell."
            )
        return Coefficients(
            found.linear, found.norm_fluctuation, found.covariance_overlap, found.scale2, scale
        )
    feature = _equilibrium_features(model, scale, kind)
    if convention == "feature":
        return feature
    # G = σa² Φ + σb² S, and the NTKs are related in the same way.
    share = model.sigma_a2
    return Coefficients(
        share * feature.linear + model.sigma_b2,
        share * feature.norm_fluctuation,
        share * feature.covariance_overlap,
        share * feature.scale2 + model.sigma_b2 * scale**2,
        scale,
    )


def _equilibrium_features(deq: DeepEquilibrium, tau0: float, kind: KernelName) -> Coefficients:
    """Coefficients of Φ* and of its NTK, divided by σa² on paper so that σa² = 0 is no exception.

    q = σa² E[φ′]², α1 = σb²/(1 − q), α4 = σb²/(1 − σa² E[(φ²)″]/2), all moments at τ*.
    """
    tau = float(deq.solve_tau_star(tau0).value)
    m = deq.activation.moments(tau)
    _require_centred(deq, deq.activation, m, tau0)
    back, forth = deq.sigma_a2, deq.sigma_b2
    q = back * m.slope**2
    bend = m.curvature**2
    # Fixed points of the recursion of `_through_layer`, with σb² added at every turn.
    alpha1, alpha4 = forth / (1.0 - q), forth / (1.0 - 0.5 * back * m.square_curvature)
    # (α1 − σb²)/σa² and so on of docs/theory/mixture.md, "Feature convention", where α1(1 − q) =
    # σb² does away with difference and division.
    linear = m.slope**2 * alpha1
    norm_fluctuation = 0.25 * bend * alpha4**2 / (1.0 - q)
    covariance_overlap = 0.5 * bend * alpha1**2 / (1.0 - q)
    scale2 = m.square
    if kind == "ntk":
        if not back * m.slope_square < 1.0:
            raise NotConverged(
                f"The tangent kernel of the {deq} is infinite: σa² E φ′(τ*ξ)² = "
                f"{back * m.slope_square:.4g} must stay below 1. Use a smaller sigma_a2."
            )
        beta1 = alpha1 / (1.0 - q)
        # β1 of the features: E[φ′]²(α1 + β1), where 1 + 1/(1 − q) = (2 − q)/(1 − q).
        linear *= (2.0 - q) / (1.0 - q)
        norm_fluctuation /= 1.0 - q
        covariance_overlap = (covariance_overlap + bend * alpha1 * beta1) / (1.0 - q)
        scale2 = (scale2 + forth * tau0**2 * m.slope_square) / (1.0 - back * m.slope_square)
    return Coefficients(
        float(linear), float(norm_fluctuation), float(covariance_overlap), float(scale2), tau0
    )


@dataclass(frozen=True)
class _Propagated:
    """What the recursion carries from layer to layer."""

    alpha: tuple[float, float, float, float]
    beta: tuple[float, float, float]
    tau2: float
    kappa2: float


def coefficients_of_layers(
    layers: Iterable[Moments], tau0: float, kind: KernelName
) -> Coefficients:
    """Compute the coefficients of an explicit network from its layers' moments, first to last.

    Parameters
    ----------
    layers : iterable of Moments
        Of σ_l at τ_{l−1}, where τ_l² = E σ_l²(τ_{l−1} ξ); every σ_l centred.
    tau0 : float
        √(tr C°/p).
    kind : {"ck", "ntk"}
    """
    state = _Propagated((1.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0), tau0**2, tau0**2)
    for moments in layers:
        state = _through_layer(moments, state)
    if kind == "ntk":
        return Coefficients(*state.beta, state.kappa2, tau0)
    return Coefficients(*state.alpha[:3], state.tau2, tau0)


def _layers(network: ExplicitNetwork, tau0: float) -> Iterator[Moments]:
    scale = tau0
    for activation in network.activations:
        require_varying(activation, scale, "an equivalent")
        moments = activation.moments(scale)
        _require_centred(network, activation, moments, tau0)
        yield moments
        scale = math.sqrt(moments.square)


def _through_layer(m: Moments, old: _Propagated) -> _Propagated:
    """One layer of the recursion (mixture paper, and Gu et al., arXiv 2403.00258)."""
    # docs/theory/mixture.md, "Explicit networks": old are the plain letters, new the hats.
    gain, bend = float(m.slope) ** 2, float(m.curvature) ** 2
    a1, a2, a3, a4 = old.alpha
    b1, b2, b3 = old.beta
    # a4 = ∂τ_l²/∂‖x‖² is how fast the scale itself follows the norm.
    alpha = (
        gain * a1,
        gain * a2 + 0.25 * bend * a4**2,
        gain * a3 + 0.5 * bend * a1**2,
        0.5 * float(m.square_curvature) * a4,
    )
    beta = (
        alpha[0] + gain * b1,
        alpha[1] + gain * b2,
        alpha[2] + gain * b3 + bend * b1 * a1,
    )
    square = float(m.square)
    return _Propagated(alpha, beta, square, square + float(m.slope_square) * old.kappa2)


def _require_centred(model: Model, activation: Activation, moments: Moments, tau0: float) -> None:
    if abs(moments.mean) > CENTRED * np.sqrt(moments.square):
        kind = "deq" if isinstance(model, DeepEquilibrium) else "network"
        raise InvalidInput(
            f"model of an equivalent must be centred, E φ(τξ) = 0 at τ = {moments.scale:.6g}. "
            f"Got the {model}, where the mean of {activation} is {moments.mean:.4g}. Use "
            f"{kind}.centred({tau0:.6g}), that is {kind}.centred(stats.tau0)."
        )
