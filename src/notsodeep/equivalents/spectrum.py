"""The limiting spectrum of an equivalent kernel: a bulk, perhaps a point mass, and spikes.

The bulk is that of linear·WWᵀ + diagonal·I, W = X − E X.  With z = (λ − γ)/a and (WWᵀ − z)⁻¹ known
in the limit, λ is an eigenvalue of a·XXᵀ + V C Vᵀ + γI outside the bulk iff I + M R(z) is singular,
where a·XXᵀ + V C Vᵀ = a(WWᵀ + U M Uᵀ), U = [J, W Bᵀ, ψ], B = means/√p (on the sphere U is the ones
alone), and R = lim Uᵀ(WWᵀ − z)⁻¹U is block diagonal: W is odd, the others even.
(Benaych-Georges and Nadakuditi, arXiv 1103.2221, in the form for classes.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.polynomial.chebyshev import chebval
from numpy.typing import ArrayLike, NDArray
from scipy import linalg
from scipy.optimize import brentq, nnls

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data import MixtureStatistics
from notsodeep.equivalents.bulk_law import BulkLaw, Interval
from notsodeep.equivalents.equivalent import Equivalent
from notsodeep.equivalents.silverstein import SilversteinEquation
from notsodeep.equivalents.structured_matrix import StructuredMatrix
from notsodeep.errors import InvalidInput
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series
from notsodeep.records import NOT_STORED, Plotted, Record

ComplexArray = NDArray[np.complex128]
PopulationSource = Literal["exact", "deconvolved"]

_ATOMS = 120  # candidate eigenvalues of the deconvolution
_POINTS = 80  # points z at which it compares Stieltjes transforms
# u = 1, the edge, is 1.22 in the variable of the series: its terms fall as 1.92⁻ᵏ, 64 of them to
# 1e-18.
_NEAREST = 0.9  # u up to which there is a series
_TERMS = 64
_RESOLVED = 1e-13


@dataclass(frozen=True, repr=False)
class Spike(Record):
    """A direction in which the kernel has more than noise."""

    value: float  # the isolated eigenvalue
    strength: float  # over the threshold of detection at the edge; NaN in a gap, with two edges
    rank: int  # how many eigenvalues of the kernel lie above it


@dataclass(frozen=True, eq=False, repr=False)
class LimitingSpectrum(Plotted):
    """The law of the eigenvalues of a kernel, and those that leave it."""

    _drawing = "limiting_spectrum"
    _derived = ("support", "point_mass", "mass_error")

    scale: float  # an eigenvalue λ of the noise's Gram matrix becomes scale·λ + shift
    shift: float
    bulk: BulkLaw | None  # of the noise's Gram matrix; None without a linear part
    spikes: tuple[Spike, ...]  # isolated eigenvalues, largest first
    undetected: tuple[float, ...]  # strengths of the directions that stay inside the bulk
    size: int  # number of eigenvalues n
    origin: str  # how the population was obtained
    exterior: BulkExterior | None = field(default=None, metadata=NOT_STORED, repr=False)

    @property
    def support(self) -> tuple[Interval, ...]:
        """Intervals of the bulk, ascending, without the point mass."""
        if self.bulk is None:
            return ()
        return tuple(
            (self.scale * low + self.shift, self.scale * high + self.shift)
            for low, high in self.bulk.support
        )

    @property
    def point_mass(self) -> tuple[float, float]:
        """(place, mass) of the atom: eigenvalues that are exactly `shift`, as when p < n."""
        return self.shift, 1.0 if self.bulk is None else self.bulk.zero_mass

    @property
    def mass_error(self) -> float:
        """|mass of the bulk and its atom − 1|, as integrated."""
        return 0.0 if self.bulk is None else self.bulk.mass_error

    def density(self, x: ArrayLike) -> FloatArray:
        """Return the density of the bulk at x, without point mass and spikes."""
        points = checks.real_array(x, "x", "LimitingSpectrum.density")
        if self.bulk is None:
            return np.zeros(points.shape)
        return self.bulk.density((points - self.shift) / self.scale) / self.scale

    def cdf(self, x: ArrayLike) -> FloatArray:
        """Return the share of eigenvalues ≤ x in the limit, spikes counted as 1/n each."""
        points = checks.real_array(x, "x", "LimitingSpectrum.cdf")
        if self.bulk is None:
            smooth = (points >= self.shift).astype(np.float64)
        else:
            # Rounding may put eigenvalues just below the point mass; just above it there may be
            # others, of a spectrum over many decades.
            level = (points - self.shift) / self.scale
            below = (level < 0.0) & (level > -1e-9 * self.bulk.equation.reach)
            smooth = self.bulk.cdf(np.where(below, 0.0, level))
        places = np.array([spike.value for spike in self.spikes])
        # A spike is taken from the bulk: n − (spikes) eigenvalues follow its law.
        beyond = (points[..., None] >= places).sum(axis=-1)
        return np.asarray(((self.size - len(places)) * smooth + beyond) / self.size)

    def effective_dimension(self, ridges: ArrayLike) -> FloatArray:
        """Return tr K(K + λI)⁻¹ for ridges λ > 0 of shape (m,), as the law predicts it.

        Nothing is integrated: with the bulk at a·t + γ and s = (γ + λ)/a, the average over it
        follows from the equation at z = −s, where ∫ t/(t + s) dμ(t) = Σ_a (n_a/n) δ_a/(1 + δ_a).

        Examples
        --------
        >>> import notsodeep as nsd
        >>> X = nsd.data.sphere(100, 400, rng=0)
        >>> eq = nsd.sphere_equivalent(nsd.ExplicitNetwork(["relu"]), X)
        >>> nsd.limiting_spectrum(eq).effective_dimension([0.01, 1.0]).round(1)
        array([96.8, 25.5])
        """
        levels = checks.real_array(ridges, "ridges", "LimitingSpectrum.effective_dimension")
        linear = np.zeros(levels.shape)
        if self.bulk is not None:
            equation = self.bulk.equation
            delta = equation.solve(-(self.shift + levels) / self.scale).real
            linear = (delta / (1.0 + delta)) @ (equation.ratios / equation.ratios.sum())
        bulk = (self.shift + levels * linear) / (self.shift + levels)
        spikes = np.array([spike.value for spike in self.spikes])
        beyond = (spikes / (spikes + levels[:, None])).sum(axis=1)
        return np.asarray((self.size - len(spikes)) * bulk + beyond)

    def __str__(self) -> str:
        bulk = ", ".join(f"[{low:.4g}, {high:.4g}]" for low, high in self.support) or "none"
        spikes = ", ".join(f"{spike.value:.4g}" for spike in self.spikes) or "none"
        place, mass = self.point_mass
        return f"bulk {bulk}; mass {mass:.4g} at {place:.4g}; spikes {spikes}; from {self.origin}"


def limiting_spectrum(
    eq: Equivalent,
    *,
    population: PopulationSource | None = None,
    like: LimitingSpectrum | None = None,
) -> LimitingSpectrum:
    """Compute the limiting spectrum of an equivalent kernel.

    A generalised Marchenko–Pastur law, for classes with covariances of their own; isolated
    eigenvalues come from the finite-rank rest, which holds the class means and V C Vᵀ.  No n × n
    matrix is made.

    Parameters
    ----------
    eq : Equivalent
        From `equivalent` or `sphere_equivalent`.
    population : {None, "exact", "deconvolved"}
        Where the covariances and means come from.  None takes those of a known mixture (or of the
        uniform law on the sphere) and rejects estimated statistics; "deconvolved" estimates the
        spectrum of C° from the samples (El Karoui, 2008), one for all classes.
    like : LimitingSpectrum, optional
        Of another kernel on the same samples, whose bulk is taken over: it is most of the work.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(100, 400, rng=0)
    >>> law = limiting_spectrum(nsd.sphere_equivalent(nsd.ExplicitNetwork(["relu"]), X))
    >>> [round(float(edge), 4) for edge in law.support[0]]
    [0.1533, 0.6533]
    """
    if not isinstance(eq, Equivalent):
        remedy = "Make one with equivalent(model, X, y) or sphere_equivalent(model, X)."
        raise checks.invalid(
            "eq", "limiting_spectrum", "be an Equivalent", type(eq).__name__, remedy
        )
    if population is not None:
        checks.known_name(population, get_args(PopulationSource), "population")
    scale, shift, n = eq.expansion.linear, eq.expansion.diagonal, eq.shape[0]
    # Nothing but low rank and identity is left of an even activation's features.
    if scale <= 1e-12 * eq.trace() / n:
        spikes = _point_mass_spikes(eq)
        origin = "the equivalent itself, which has no linear part"
        return LimitingSpectrum(scale, shift, None, tuple(spikes), (), n, origin)
    known = _population_of(eq, population)
    if like is not None and like.bulk is not None and like.bulk.equation.is_same(known.equation):
        bulk, exterior = like.bulk, like.exterior
    else:
        bulk, exterior = BulkLaw.of(known.equation), None
    exterior = exterior or BulkExterior(bulk)
    spikes, undetected = _isolated_eigenvalues(eq, known, bulk, exterior)
    return LimitingSpectrum(
        scale, shift, bulk, tuple(spikes), undetected, n, known.origin, exterior
    )


@dataclass(frozen=True, eq=False)
class Population:
    """Covariances of the noise W = X − E X, and the class means as they meet it."""

    equation: SilversteinEquation  # its columns are the distinct class covariances
    column: NDArray[np.intp]  # of the equation, for each class
    means: FloatArray  # coordinates (p, K) of the means of x, in a basis of the covariances
    group: NDArray[np.intp]  # directions of the equation, for each coordinate; empty if estimated
    scatter: FloatArray  # eigenvalues (p,) of WᵀW, if estimated; else empty
    origin: str  # how it was obtained, as a phrase

    @property
    def is_exact(self) -> bool:
        """Whether covariances and means are known, not estimated."""
        return not self.scatter.size

    def beyond(self, edge: float) -> float:
        """Return where the search for eigenvalues right of the bulk begins.

        Forms made from a sample are those of the limit only clear of its eigenvalues, the largest
        of which is off the edge by a share of the order of p^{-2/3}.
        """
        if self.is_exact:
            # At the edge itself δ need not be real.
            return edge * (1.0 + 1e-9)
        clear: float = 1.0 + len(self.scatter) ** (-2.0 / 3.0)
        return max(edge, float(self.scatter[-1])) * clear

    def class_form(self, z: NDArray[Any], delta: ComplexArray) -> ComplexArray:
        """Return J_aᵀ(WWᵀ − z)⁻¹J_a/n_a, J_a the members of class a: shape (points, K)."""
        if not self.is_exact:  # the sample's own class means leave J_aᵀW = 0
            return np.repeat(-1.0 / z[:, None], len(self.column), axis=1)
        return self.equation.resolvent(z, delta)[:, self.column]

    def mean_form(self, z: NDArray[Any], delta: ComplexArray) -> ComplexArray:
        """Return B(I + z(WᵀW − z)⁻¹)Bᵀ, B the class means: shape (points, K, K)."""
        if not self.is_exact:
            shares = self.scatter / (self.scatter - z[:, None])
        else:
            directions = self.equation.directions(delta)
            shares = (directions / (directions - z[:, None]))[:, self.group]
        return np.stack([self.means.T @ (share[:, None] * self.means) for share in shares])


def _population_of(eq: Equivalent, source: PopulationSource | None) -> Population:
    """Gather what is known, or estimate it if `source` says so."""
    n, p = eq.X.shape
    stats = eq.statistics
    if stats is None:
        return _sphere(n, p)
    classes = stats.covariance_spectrum.classes
    if source == "exact" and classes is None:
        raise InvalidInput(
            "population='exact' needs the statistics of a known mixture: pass mixture= to "
            "equivalent, or use population='deconvolved'."
        )
    if classes is None or source == "deconvolved":
        if source is None:
            raise InvalidInput(
                "population must be named for estimated statistics: the "
                "eigenvalues of a sample covariance are not those of the population. Use "
                "population='deconvolved' to estimate them, or eq.eigvalsh() for the spectrum of "
                "the equivalent itself."
            )
        return _deconvolved(eq.samples, stats)
    columns, column = np.unique(classes.eigenvalues, axis=1, return_inverse=True)
    ratios = np.bincount(column.reshape(-1), stats.counts, minlength=columns.shape[1]) / p
    origin = "the exact covariances and means of the mixture"
    if not classes.shared_basis:
        origin += (
            "; the class covariances do not commute, so that their mean stands for each of them"
        )
    return Population(
        SilversteinEquation(columns, classes.weights, ratios),
        column.reshape(-1),
        classes.means / np.sqrt(p),
        classes.group,
        np.empty(0),
        origin,
    )


def _sphere(n: int, d: int) -> Population:
    equation = SilversteinEquation(np.ones((1, 1)), np.ones(1), np.array([n / d]))

    one, none = np.zeros(1, np.intp), np.zeros(d, np.intp)
    return Population(
        equation, one, np.zeros((d, 1)), none, np.empty(0), "points uniform on the sphere"
    )


def _deconvolved(X: FloatArray, stats: MixtureStatistics) -> Population:
    """Estimate the spectrum of C° from the class-centred sample, one for all classes.

    The quadratic forms of the means are those of the sample itself, which needs the p × p scatter
    matrix.
    """
    n, p = X.shape
    K = len(stats.counts)
    checks.enough_memory(
        3 * 8 * p * p,
        "The scatter matrix of the features",
        "Reduce the number of features, by a random projection for instance.",
    )
    # The sample's own means, also where those of the mixture are known: J is then orthogonal to W.
    means = (stats.J / stats.counts).T @ X
    centred = X - means[stats.J.argmax(axis=1)]
    eigenvalues, basis = np.linalg.eigh(centred.T @ centred)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    atoms, weights = _spectrum_behind(eigenvalues, n - K)
    return Population(
        SilversteinEquation(atoms[:, None], weights, np.array([n / p])),
        np.zeros(K, np.intp),
        basis.T @ means.T,
        np.empty(0, np.intp),
        eigenvalues,
        f"eigenvalues of C° deconvolved from {n} samples ({len(atoms)} atoms), one covariance for "
        "all classes, and the means of the sample",
    )


def _spectrum_behind(eigenvalues: FloatArray, rows: int) -> tuple[FloatArray, FloatArray]:
    """Estimate atoms and weights of C° from the p eigenvalues of WᵀW (El Karoui, 2008).

    With m(z) of the sample known, Silverstein's equation Σ_k w_k t_k/(1 + c t_k m) = z + 1/m is
    linear in the weights w_k of candidate eigenvalues t_k: non-negative least squares over
    complex z.
    """
    p = len(eigenvalues)
    ratio = rows / p
    top = float(eigenvalues[-1])
    x = np.concatenate([np.quantile(eigenvalues, np.linspace(0.0, 1.0, _POINTS // 2)),
                        np.linspace(0.0, 1.2 * top, _POINTS // 2)])  # fmt: skip
    # High enough above the axis to average over many eigenvalues, low enough to tell atoms apart.
    z = x + 1j * (0.05 * np.maximum(x, float(eigenvalues.mean())))
    # The companion transform, of the matrix WWᵀ.
    transform = (1.0 / (eigenvalues - z[:, None])).sum(axis=1)
    # WWᵀ has the nonzero eigenvalues of WᵀW, and rows − p zeros more (or fewer).
    transform = (transform - (rows - p) / z) / rows
    # WᵀW is about (n/p) C°, and noise only widens a spectrum: no eigenvalue of C° is far above.
    largest = top / ratio * 1.2
    atoms = np.append(0.0, np.geomspace(1e-4 * largest, largest, _ATOMS))
    table = atoms / (1.0 + ratio * atoms * transform[:, None])
    right = z + 1.0 / transform
    # Relative errors: |z + 1/m| ranges over decades.
    weight = 1.0 / np.abs(right)
    stacked = np.concatenate([(table * weight[:, None]).real, (table * weight[:, None]).imag])
    target = np.concatenate([(right * weight).real, (right * weight).imag])
    # Weights sum to one, and have the sample's first moment.
    mean = float(eigenvalues.sum()) / rows
    # Two rows of this weight outweigh all others together, and so act as equality constraints.
    heavy = 10.0 * len(target)
    stacked = np.concatenate([stacked, [heavy * atoms / mean, np.full(len(atoms), heavy)]])
    target = np.append(target, [heavy, heavy])
    # Less than half an eigenvalue is noise: those atoms are left out, and the others found again.
    kept = nnls(stacked, target)[0] > 0.5 / p
    atoms, weights = atoms[kept], nnls(stacked[:, kept], target)[0]
    atoms, weights = atoms[weights > 0.0], weights[weights > 0.0]
    return atoms, weights / weights.sum()


class BulkExterior:
    """δ(z) of the Silverstein equation, for one z at a time and at little cost.

    With z = c + h(u + 1/u)/2, c and h the middle and half the length of the bulk, all z right of
    it are 0 < u < 1, and δ is analytic in |u| < 1 and real: a Chebyshev series on 0 < u ≤ 0.9.
    Elsewhere, or if the series does not reach rounding, the equation is solved; solutions are kept,
    since the search for eigenvalues begins at the same points for every model.
    """

    def __init__(self, bulk: BulkLaw) -> None:
        self._equation = bulk.equation
        low, high = bulk.support[0][0], bulk.support[-1][1]
        self._middle, self._half = 0.5 * (low + high), 0.5 * (high - low)
        self._series = self._fitted()
        self._solved: dict[float, ComplexArray] = {}

    def __call__(self, z: float) -> ComplexArray:
        """Return δ at z, shape (K,)."""
        if self._series is not None and z > self._middle + self._half:
            distance = (z - self._middle) / self._half
            u = 1.0 / (distance + np.sqrt(distance**2 - 1.0))
            if u <= _NEAREST:
                return np.asarray(chebval(2.0 * u / _NEAREST - 1.0, self._series), np.complex128)
        if z not in self._solved:
            self._solved[z] = self._equation.solve(np.array([z]))[0]
        return self._solved[z]

    def _fitted(self) -> FloatArray | None:
        """Coefficients of the series, shape (terms, K); None if they do not die out."""
        u = 0.5 * _NEAREST * (1.0 + chebyshev_points(_TERMS))
        z = self._middle + 0.5 * self._half * (u + 1.0 / u)
        series = chebyshev_series(self._equation.solve(z).real)
        tail = np.abs(series[-_TERMS // 8 :]).max(axis=0)
        resolved = (tail <= _RESOLVED * np.abs(series).max(axis=0)).all()
        return series if resolved else None


def _isolated_eigenvalues(
    eq: Equivalent, population: Population, bulk: BulkLaw, exterior: BulkExterior
) -> tuple[list[Spike], tuple[float, ...]]:
    """Return the eigenvalues outside the bulk, largest first, and the directions that stay in it.

    Right of the bulk −R is positive definite and decreases with z, so that the eigenvalues of
    (−R)^{1/2} M (−R)^{1/2} decrease too, and each that starts above 1 at the edge crosses 1 once.
    In a gap of the bulk, or below it, those of M⁻¹ + R(z) increase, and each that changes its sign
    has one root.
    """
    determinant = _Determinant(eq, population, exterior)
    scale, shift, n = eq.expansion.linear, eq.expansion.diagonal, eq.shape[0]
    start = population.beyond(bulk.support[-1][1])
    found: list[Spike] = []
    missed: list[float] = []
    for index, strength in enumerate(determinant.strengths(start)):
        # Every one of the eigenvalues, in descending order, decreases with z, so that the same
        # index follows one of them from the edge outwards; at infinity R is 0.
        if strength > 1.0:
            value = _crossing(determinant, index, start)
            found.append(Spike(scale * value + shift, float(strength), index))
        # The others are zero or negative: J and W Bᵀ make pairs of either sign.
        elif strength > 1e-9:
            missed.append(float(strength))
    # Gaps of an estimated spectrum are those between the atoms of the estimate.  Below the bulk is
    # where low rank lifts eigenvalues from the point mass.
    ends = [0.0, *chain.from_iterable(bulk.support)] if population.is_exact else []
    for low, high in zip(ends[0:-1:2], ends[1::2], strict=True):
        if high > low:
            above = round(n * (1.0 - float(bulk.cdf(np.array(0.5 * (low + high))))))
            for root, more in _roots_in_gap(determinant, low, high):
                found.append(Spike(scale * root + shift, math.nan, above + more))
    found.sort(key=lambda spike: -spike.value)
    return found, tuple(missed)


def _point_mass_spikes(eq: Equivalent) -> list[Spike]:
    """Return the eigenvalues of V C Vᵀ + γI other than γ, for a kernel without a linear part."""
    own = StructuredMatrix(eq.X, 0.0, eq.factors, eq.core, 0.0).eigvalsh()[::-1]
    # V C Vᵀ has the rank of C: all other eigenvalues are zero up to rounding.
    isolated = np.flatnonzero(np.abs(own) > 1e-12 * np.abs(own).max())
    return [Spike(float(own[rank]) + eq.shift, math.inf, int(rank)) for rank in isolated]


class _Determinant:
    """M and R(z) of the module's docstring."""

    def __init__(self, eq: Equivalent, population: Population, exterior: BulkExterior) -> None:
        self._population = population
        self._exterior = exterior
        self._middle, self._energies = _middle(eq, population)
        values, axes = np.linalg.eigh(self._middle)
        # M may be singular (coefficients that vanish, absent classes), and `branches` needs M⁻¹.
        kept = np.abs(values) > 1e-13 * np.abs(values).max(initial=0.0)
        self._values, self._axes = values[kept], axes[:, kept]

    def block(self, z: float) -> FloatArray:
        """R at real z outside the bulk, shape (r, r)."""
        place, delta = np.array([z]), self._exterior(z)[None]
        classes = self._population.class_form(place, delta)[0].real
        K = len(classes)
        size = len(self._middle)
        result = np.zeros((size, size))
        result[np.arange(K), np.arange(K)] = classes
        if self._energies.size:
            # B D(D − z)⁻¹Bᵀ for the means, an average of the resolvent for ψ:
            # docs/theory/mixture.md, "Isolated eigenvalues".
            result[K : 2 * K, K : 2 * K] = self._population.mean_form(place, delta)[0].real
            resolvent = self._population.equation.resolvent(place, delta)[0].real
            result[-1, -1] = resolvent[self._population.column] @ self._energies
        return result

    def strengths(self, z: float) -> FloatArray:
        """Eigenvalues of (−R)^{1/2} M (−R)^{1/2} right of the bulk, descending."""
        values, vectors = np.linalg.eigh(-self.block(z))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(linalg.eigvalsh(root.T @ self._middle @ root)[::-1])

    def branches(self, z: float) -> FloatArray:
        """Eigenvalues of M⁻¹ + R(z) on the range of M, ascending."""
        form = self._axes.T @ self.block(z) @ self._axes
        return np.asarray(linalg.eigvalsh(np.diag(1.0 / self._values) + form))

    @property
    def negative(self) -> int:
        """The number of negative eigenvalues of M."""
        return int((self._values < 0.0).sum())


def _middle(eq: Equivalent, population: Population) -> tuple[FloatArray, FloatArray]:
    """Return M, with J's columns scaled to unit length, and the share of each class in ‖ψ‖²."""
    lengths = np.diag(np.sqrt(eq.class_counts.astype(np.float64)))
    core = eq.limit_core / eq.expansion.linear
    stats = eq.statistics
    if stats is None:  # no means and no ψ: the ones are the only direction
        return lengths @ core @ lengths, np.empty(0)
    K, p = stats.means.shape
    B = population.means.T
    energies = np.bincount(stats.J.argmax(axis=1), stats.psi**2, minlength=K)
    # The length of ψ is put into M, so that R has an average of the resolvent in its place.
    length = math.sqrt(float(energies.sum()))
    side = length * (lengths @ core[:-1, -1:]) / np.sqrt(p)
    empty = np.zeros((K, 1))
    # X = W + JB, so that XXᵀ = WWᵀ + JBWᵀ + WBᵀJᵀ + JBBᵀJᵀ; the rest is V C Vᵀ/a.
    middle = np.block(
        [
            [lengths @ (B @ B.T + core[:-1, :-1] / p) @ lengths, lengths, side],
            [lengths, np.zeros((K, K)), empty],
            [side.T, empty.T, core[-1:, -1:] * length**2],
        ]
    )
    return middle, np.asarray(energies / max(length**2, 1e-300), dtype=np.float64)


def _crossing(determinant: _Determinant, index: int, start: float) -> float:
    """Where the strength of a direction falls to 1, right of the edge."""
    stop = 2.0 * start
    while determinant.strengths(stop)[index] > 1.0:
        stop *= 2.0
    return float(brentq(lambda z: determinant.strengths(z)[index] - 1.0, start, stop, rtol=1e-12))


def _roots_in_gap(determinant: _Determinant, low: float, high: float) -> list[tuple[float, int]]:
    """Return the roots in a gap, largest first, and how many eigenvalues join the bulk above."""
    # R has square-root singularities at the edges, where δ is least accurate.
    room = 1e-6 * (high - low)
    left, right = low + room, high - room
    at_right = determinant.branches(right)
    crosses = (determinant.branches(left) < 0.0) & (at_right > 0.0)
    # Haynsworth's inertia: above z there are as many more as M⁻¹ + R(z) has negative eigenvalues
    # more than M.
    joined = int((at_right < 0.0).sum()) - determinant.negative
    roots = [
        float(brentq(lambda z, k=k: determinant.branches(z)[k], left, right, rtol=1e-12))
        for k in np.flatnonzero(crosses)  # of a smaller branch the root is larger
    ]
    return [(root, joined + place) for place, root in enumerate(roots)]
