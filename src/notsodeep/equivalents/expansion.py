"""The kernel of a dense model, expanded around inputs of one norm at right angles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.ring import (
    Jet,
    Unit,
    around,
    equilibrium,
    layers_at,
    read,
    unit_of,
    with_enough_terms,
    with_itself,
)
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    Dense,
    ExplicitNetwork,
    KernelName,
    MonotoneEquilibrium,
    checked_choice,
)
from notsodeep.models.layers import require_one_variance
from notsodeep.records import Record

Expandable = DeepEquilibrium | ExplicitNetwork | MonotoneEquilibrium

_RIGHT_ANGLE_TAIL = 1e-9  # of series: what norms are fitted with is less exact
# On a circle inside the unit circle, where |ρ| < 1 and Hermite series converge: 0.9³²⁰ = 2e-15 is
# what 320 terms leave out.  Aliasing of the FFT adds g_{k+512}·0.9⁵¹², below 1e-23; its rounding
# grows as 0.9⁻ᵏ, to 30 eps for the 32 coefficients that are used.
_RADIUS = 0.9
_NODES = 512
_SERIES_TERMS = 320


class SphereNumbers(NamedTuple):
    """α 11ᵀ + β XXᵀ + μ I, the equivalent on the unit sphere."""

    constant: float  # α
    linear: float  # β
    diagonal: float  # μ


@dataclass(frozen=True, repr=False)
class Expansion(Record):
    """Taylor coefficients of a kernel κ(‖x‖², ‖y‖², x·y) at (τ0², τ0², 0).

    With χ = ‖x‖² − τ0², ω = ‖y‖² − τ0² and s = x·y, κ is about

    constant + linear·s + norm_shift·(χ + ω) + norm_curvature·(χ² + ω²) + norm_fluctuation·χω
    + covariance_overlap·s² + rescaling·s(χ + ω).

    The papers' α1, α2, α3 and γ are linear, norm_fluctuation, covariance_overlap and `diagonal`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> e = nsd.equivalents.expansion(nsd.DeepEquilibrium("relu", sigma_a2=0.2), 1.0)
    >>> round(e.constant, 6), round(e.linear, 6), round(e.diagonal, 6)
    (0.149001, 0.215262, 0.080182)
    """

    _derived = ("diagonal",)

    constant: float  # constant, norm_shift and norm_curvature are 0 for a centred cell, no biases
    linear: float
    norm_shift: float
    norm_curvature: float
    norm_fluctuation: float
    covariance_overlap: float
    rescaling: float
    scale2: float  # the kernel of an input with ‖x‖² = τ0² with itself
    tau0: float

    @property
    def diagonal(self) -> float:
        """γ = scale2 − constant − τ0²·linear, the factor of the identity; never negative."""
        return max(0.0, self.scale2 - self.constant - self.tau0**2 * self.linear)

    @property
    def four(self) -> tuple[float, float, float, float]:
        """(linear, norm_fluctuation, covariance_overlap, scale2 − constant): all of a centred one.

        A mean of √constant in the last layer adds `constant` to a kernel, and nothing to these.
        """
        rest = self.scale2 - self.constant
        return self.linear, self.norm_fluctuation, self.covariance_overlap, rest

    @property
    def shape(self) -> dict[str, float]:
        """γ/α1, α2/α1 and α3/α1: networks that share them behave the same.

        Up to the unit of the ridge or of time; those that are not centred with a bias in the
        read-out, to which constants and terms in one norm alone are nothing.
        """
        names = ("diagonal", "norm_fluctuation", "covariance_overlap")
        unit = self.linear if self.linear else float("nan")
        return {name: getattr(self, name) / unit for name in names}

    def on_sphere(self, dimension: int) -> SphereNumbers:
        """Return α = constant + covariance_overlap/d, β and μ, for tau0 = 1."""
        constant = self.constant + self.covariance_overlap / dimension
        return SphereNumbers(constant, self.linear, self.diagonal)


# Densities far out, powers of small correlations, and of large scales.
@np.errstate(under="ignore", over="ignore")
def expansion(
    model: Expandable,
    tau0: float,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
) -> Expansion:
    """Expand the kernel of any dense model, centred or not, around data of scale tau0.

    Parameters
    ----------
    model : DeepEquilibrium, ExplicitNetwork or MonotoneEquilibrium
    tau0 : float
        √(tr C°/p).
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
        Concerns DEQs only.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = [nsd.Dense("erf", 0.5, inject=0.6, bias=0.1), nsd.Dense("relu", 0.8, inject=0.3)]
    >>> e = nsd.equivalents.expansion(nsd.DeepEquilibrium(cell=cell), 1.0)
    >>> bool(e.constant > 0.0), bool(e.rescaling < 0.0)
    (True, True)
    """
    kind = checked_choice(model, kind, convention, "expansion")
    scale = checks.data_scale(tau0, "tau0", "expansion")
    if isinstance(model, ExplicitNetwork):
        convention = "feature"
    elif isinstance(model, DeepEquilibrium) and not model.is_vanilla:
        require_one_variance(model.cell, scale**2, str(model))
    squared_norm = np.array([scale**2])

    def make(terms: int) -> tuple[Any, ...]:
        # Solved, and found stable, for this norm; then with its dependence on norms.
        layers = layers_at(model, squared_norm, terms)
        cell = tuple(layer.dense for layer in layers)
        units = [unit_of(layer.dense.activation, float(layer.scales[0]), terms) for layer in layers]
        again = layers[0].again
        return expanded(cell, units, scale, kind, convention, again)

    names = [f.name for f in fields(Expansion)]
    numbers = (*with_enough_terms(make), scale)
    return Expansion(**dict(zip(names, map(float, numbers), strict=True)))


def expanded(
    cell: Sequence[Dense],
    units: Sequence[Unit],
    tau0: float,
    kind: KernelName,
    convention: Convention,
    again: float = 0.0,
) -> tuple[Any, ...]:
    """Return the eight numbers of `Expansion`, of a ring whose activations have these moments.

    Arrays if the moments are arrays; `again` is that of the layer of a monotone network.
    """
    layers = around(cell, units, tau0**2, again)
    jet = read(layers, equilibrium(layers, Jet(0.0, s=1.0)), kind, convention)
    one, s, q, qq, qr, ss, sq = jet.terms
    return one, s, q, qq, qr, ss, sq, with_itself(layers, kind, convention)


def at_right_angles(
    model: DeepEquilibrium | ExplicitNetwork,
    squared_norms: FloatArray,
    kind: KernelName,
    convention: Convention,
) -> tuple[FloatArray, FloatArray]:
    """Compute κ(q_i, q_j, 0) and ∂κ/∂s(q_i, q_j, 0), s = x·y, for m squared norms: (m, m) each.

    Norms of a few hundred coordinates scatter by a tenth, too much for a Taylor polynomial.
    Biases make small inputs at right angles nearly parallel: `SlowSeries` is raised.
    """
    if isinstance(model, ExplicitNetwork):
        convention = "feature"
    size = len(squared_norms)

    def make(terms: int) -> tuple[FloatArray, FloatArray]:
        layers = layers_at(model, squared_norms, terms, _RIGHT_ANGLE_TAIL)
        s = Jet(np.zeros((size, size)), s=1.0)
        jet = read(layers, equilibrium(layers, s), kind, convention)
        shape = (size, size)
        return np.broadcast_to(jet.one, shape), np.broadcast_to(jet.s, shape)

    return with_enough_terms(make)


@np.errstate(under="ignore")
def power_series(
    model: DeepEquilibrium, degree: int, kind: KernelName, convention: Convention
) -> tuple[FloatArray, float]:
    """Return g_0 … g_degree and g(1) of the kernel Σ g_k tᵏ on the unit sphere, t = x·y.

    The ring is solved for complex t on a circle, and one FFT gives the coefficients, which are
    non-negative: every layer has non-negative ones, and so has their composition.
    """
    layers = layers_at(model, np.ones(1), _SERIES_TERMS - 6, tail=np.inf)
    t = _RADIUS * np.exp(2j * np.pi * np.arange(_NODES) / _NODES)
    values = read(layers, equilibrium(layers, t), kind, convention)
    series = (np.fft.fft(values)[: degree + 1] / _NODES).real / _RADIUS ** np.arange(degree + 1)
    return np.maximum(series, 0.0), float(with_itself(layers, kind, convention))
