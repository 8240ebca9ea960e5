"""The theorems' assumptions on a model, and on data, as verdicts with numbers.

The assumptions are sufficient, not necessary: a verdict that fails says that the guarantee is gone,
not that the computation is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput, NotConverged, NotIntegrable, QuadratureError
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.models.images import MIN_PIXEL, ConvolutionalEquilibrium
from notsodeep.models.layers import another_variance, solve_variances, stability
from notsodeep.models.monotone import MonotoneEquilibrium
from notsodeep.records import Plotted, Record

if TYPE_CHECKING:
    from notsodeep.data import MixtureStatistics

# The theorems speak of orders of growth.  One sample shows sizes only, so each bound on data is a
# convention: the size beyond which finite-sample corrections are no longer small.
_MAX_ASPECT, _MAX_SHARE, _MAX_SPREAD, _MAX_FACTOR = 20.0, 0.25, 0.1, 2.0
_MIN_CLASS_SIZE = 4  # rows from which the traces of covariances are estimated

# name: (statement, meaning)
_TEXTS = {
    "contraction": (
        "Π w < Π 1/(4L²)",
        "at large width a turn through the cell contracts, so that z* exists and is unique",
    ),
    "existence of τ*": ("τ² = σa² Var φ(τξ) + σb² τ0²", "the features have a finite variance"),
    "uniqueness of τ*": (
        "σa² E[(φ²)″(τξ)] < 2 for 0.01 ≤ τ ≤ 100",
        "the equation for τ has one solution only",
    ),
    "existence of q": ("q = w E φ²(√q ξ) + u τ0² + b", "the features have a finite variance"),
    "uniqueness of q": (
        "no second solution up to a million times the first",
        "the kernels do not depend on the start of the iteration",
    ),
    "stable equilibrium": (
        "Π w E φ′(√q ξ)² < 1",
        "wide networks settle, and both kernels are those of what they settle at",
    ),
    "finite tangent kernel": (
        "w E φ′(τξ)² < 1",
        "the equations of pairs contract, and the tangent kernel is finite",
    ),
    "centring": (
        "no bias, no normalisation, E φ_l(τ_l ξ) = 0",
        "a centred model has an equivalent with four coefficients, any other one with seven",
    ),
    "monotone weights": (
        "I − W ⪰ μ > 0",
        "the fixed point exists and is unique at every width",
    ),
    "proof of the limit": (
        "cavity method",
        "the limit is confirmed by simulation; no published theorem covers it",
    ),
    "scale of the pixels": (
        "mean ‖x_s‖² not small, or φ homogeneous",
        "activations are used where they bend; preprocessing='pixels' brings it to 1",
    ),
    "comparable sizes": (
        "max(p/n, n/p) not large",
        "the theorems let p and n grow together",
    ),
    "small class means": (
        "max ‖μ_a − μ°‖²/(pτ0²) small",
        "class means are a perturbation of the noise, not the other way round",
    ),
    "centred data": (
        "‖μ°‖²/(pτ0²) small",
        "the global mean is subtracted; data.load does it",
    ),
    "small trace differences": (
        "max |tr(C_a − C°)|/(pτ0²) small",
        "all classes have about one norm, so that one scale τ0 serves them all",
    ),
    "spread covariance": (
        "‖C°‖/(pτ0²) small",
        "no direction carries a fixed share of the variance, so that x_i·x_j is small",
    ),
    "Gaussian norms": (
        "rms ψ/√(2T/p) near 1",
        "norms fluctuate as those of a Gaussian mixture with these covariances",
    ),
}


@dataclass(frozen=True, repr=False)
class Verdict(Record):
    """One condition on one model.

    Examples
    --------
    >>> verdict = conditions(DeepEquilibrium("relu", sigma_a2=0.2))["uniqueness of τ*"]
    >>> verdict.holds, round(verdict.value, 6), verdict.bound
    (True, 0.19941, 2.0)
    >>> verdict.meaning
    'the equation for τ has one solution only'
    """

    name: str
    holds: bool | None  # None if it could not be decided
    statement: str  # the condition as a formula
    value: float  # what the model has
    bound: float  # what the condition compares it with
    meaning: str = ""  # what the condition is good for

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

    def __iter__(self) -> Iterator[Verdict]:
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
        if not isinstance(content, Mapping) or not all(
            isinstance(form, Mapping) for form in content.values()
        ):
            raise InvalidInput(f"Conditions are stored as a mapping from names, got {content!r}.")
        forms = ({"name": name, **form} for name, form in content.items())
        return cls(tuple(map(Verdict.from_dict, forms)))


# (name, holds, value, bound)
_Numbers = tuple[str, bool | None, float, float]


def conditions(
    model: DeepEquilibrium | ConvolutionalEquilibrium | MonotoneEquilibrium,
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    tau0: float | None = None,
) -> Conditions:
    """Judge whether the theory's assumptions hold for a DEQ, and for data if they are given.

    About the model: contraction, existence and uniqueness of its variance, a finite NTK, centring.
    About the data (mixture paper, arXiv 2402.02697, assumption 1): sizes p and n are comparable,
    class means and differences of class traces are small beside the noise, no direction carries a
    fixed share of the variance, and norms fluctuate as those of Gaussian vectors do.

    Parameters
    ----------
    model : DeepEquilibrium, ConvolutionalEquilibrium or MonotoneEquilibrium
        Of a convolution the dense cell with its variances is judged, and the scale of pixels.
    X : array_like of shape (n, p), optional
        Adds the verdict on p/n.
    y : array_like of shape (n,), optional
        Labels of at least four rows each; adds the verdicts on means, traces, covariances, norms.
    tau0 : float, optional
        √(tr C°/p); that of the data, else 1.  Of images, the root mean squared norm of a pixel.

    Examples
    --------
    >>> print(conditions(DeepEquilibrium("tanh", sigma_a2=0.3), tau0=1.0)["contraction"])
    contraction: fails (Π w < Π 1/(4L²): 0.3 against 0.25)
    """
    owner = "conditions"
    if not isinstance(model, DeepEquilibrium | ConvolutionalEquilibrium | MonotoneEquilibrium):
        raise checks.invalid("model", owner, "be a DEQ", repr(model))
    if y is not None and X is None:
        raise checks.invalid("X", owner, "be given with the labels of its rows", None)
    if isinstance(model, ConvolutionalEquilibrium):
        if tau0 is None:
            tau0 = 1.0 if X is None else model.pixel_scale(model.rows(X, "X", owner))
        rows, stats = None, None
    else:
        rows = None if X is None else checks.samples(X, "X", owner)
        stats = None if rows is None or y is None else _statistics(rows, y)
        if tau0 is None:
            tau0 = stats.tau0 if stats else 1.0
            if rows is not None and not stats:
                tau0 = math.sqrt(np.einsum("ij,ij->", rows, rows) / len(rows))
    scale = checks.data_scale(tau0, "tau0", owner)
    judged = [*_of_model(model, scale), *_of_sizes(rows), *_of_mixture(stats)]
    return Conditions(
        tuple(
            Verdict(name, holds, _TEXTS[name][0], value, bound, _TEXTS[name][1])
            for name, holds, value, bound in judged
        )
    )


def _of_model(
    model: DeepEquilibrium | ConvolutionalEquilibrium | MonotoneEquilibrium, tau0: float
) -> Iterator[_Numbers]:
    if isinstance(model, MonotoneEquilibrium):
        yield from _of_monotone(model, tau0)
        return
    deq = model.dense if isinstance(model, ConvolutionalEquilibrium) else model
    weights = math.prod(layer.weight for layer in deq.cell)
    contracts = weights < deq.contraction_bound
    bounded = all(layer.normalise is None for layer in deq.cell)
    yield "contraction", contracts if bounded else None, weights, deq.contraction_bound
    yield from (_of_vanilla if deq.is_vanilla else _of_cell)(deq, tau0)
    if isinstance(model, ConvolutionalEquilibrium):
        # ReLU has no scale; other activations must bend at that of pixels.
        linear = all(layer.activation.homogeneous for layer in model.cell)
        yield "scale of the pixels", linear or tau0**2 >= MIN_PIXEL, tau0**2, MIN_PIXEL


def _of_vanilla(deq: DeepEquilibrium, tau0: float) -> Iterator[_Numbers]:
    try:
        centred = deq.centred(tau0)
    except NotConverged:
        yield "existence of τ*", False, math.nan, math.nan
        return
    tau = centred.tau_star
    yield "existence of τ*", True, tau, tau
    phi, share = centred.activation, deq.sigma_a2
    largest = math.inf
    if share == 0.0 or math.isfinite(phi.lipschitz):
        largest = share * _largest_curvature(phi)
    yield "uniqueness of τ*", None if math.isnan(largest) else largest < 2.0, largest, 2.0
    moments = phi.moments(tau)
    radius = share * moments.slope_square
    yield "finite tangent kernel", radius < 1.0, radius, 1.0
    mean = abs(deq.activation.moments(tau).mean)
    yield "centring", mean <= 1e-10 * math.sqrt(moments.square), mean, 0.0


def _largest_curvature(phi: Activation) -> float:
    """Largest E[(φ²)″(τξ)] over four decades of τ; NaN if it cannot be computed."""

    def compute() -> float:
        try:
            return float(phi.moments(np.logspace(-2.0, 2.0, 81)).square_curvature.max())
        except (QuadratureError, NotIntegrable):
            return math.nan

    return float(phi.cached("largest curvature", None, compute))


def _of_cell(deq: DeepEquilibrium, tau0: float) -> Iterator[_Numbers]:
    try:
        variances, solution = solve_variances(deq.cell, np.array([tau0**2]))
    except NotConverged:
        yield "existence of q", False, math.nan, math.nan
        return
    q = float(variances.scales[-1, 0] ** 2)
    yield "existence of q", True, q, q
    other = another_variance(deq.cell, tau0**2)
    first = float(solution.value[0])
    yield "uniqueness of q", other is None, math.nan if other is None else other, first
    radius = float(stability(deq.cell, variances)[0])
    yield "stable equilibrium", radius < 1.0, radius, 1.0
    scales = zip(deq.cell, variances.scales[:, 0], strict=True)
    mean = max(abs(float(layer.activation.moments(float(t)).mean)) for layer, t in scales)
    yield "centring", deq.is_centred_for(tau0), mean, 0.0


def _of_monotone(model: MonotoneEquilibrium, tau0: float) -> Iterator[_Numbers]:
    yield "monotone weights", True, model.monotonicity, 0.0
    try:
        scale = float(model.scales(np.array([tau0**2]))[0])
    except NotConverged:
        yield "existence of q", False, math.nan, math.nan
        return
    yield "existence of q", True, scale**2, scale**2
    unit = model.response
    weight = 2.0 * model.skew + unit.coupling**2
    radius = weight * float(unit.activation.moments(scale).slope_square)
    yield "finite tangent kernel", radius < 1.0, radius, 1.0
    yield "proof of the limit", None, math.nan, math.nan


def _statistics(rows: FloatArray, y: ArrayLike) -> MixtureStatistics | None:
    """Estimate the statistics of a mixture, if every class has enough rows."""
    from notsodeep.data import MixtureStatistics

    labels = checks.class_labels(y, len(rows), "conditions")
    if np.unique(labels, return_counts=True)[1].min() < _MIN_CLASS_SIZE:
        return None
    return MixtureStatistics.estimate(rows, labels)


def _of_sizes(rows: FloatArray | None) -> Iterator[_Numbers]:
    if rows is not None:
        n, p = rows.shape
        ratio = max(p / n, n / p)
        yield "comparable sizes", ratio <= _MAX_ASPECT, ratio, _MAX_ASPECT


def _of_mixture(stats: MixtureStatistics | None) -> Iterator[_Numbers]:
    if stats is None:
        return
    K, p = stats.means.shape
    noise = p * stats.tau0**2
    proportions = stats.counts / stats.counts.sum()
    mean = proportions @ stats.means
    sizes = {
        "small class means": float(np.square(stats.means - mean).sum(axis=1).max()) / noise,
        "centred data": float(mean @ mean) / noise,
        "small trace differences": math.sqrt(p) * float(np.abs(stats.t).max()) / noise,
    }
    for name, size in sizes.items():
        yield name, size <= _MAX_SHARE, size, _MAX_SHARE
    spread = float(stats.covariance_spectrum.eigenvalues.max()) / noise
    yield "spread covariance", spread <= _MAX_SPREAD, spread, _MAX_SPREAD
    fluctuation = np.bincount(stats.J.argmax(axis=1), stats.psi**2, minlength=K) / stats.counts
    gaussian = 2.0 * np.maximum(np.diag(stats.T), 1e-300) / p
    ratio = math.sqrt(float(fluctuation @ proportions / (gaussian @ proportions)))
    yield "Gaussian norms", 1.0 / _MAX_FACTOR <= ratio <= _MAX_FACTOR, ratio, _MAX_FACTOR
