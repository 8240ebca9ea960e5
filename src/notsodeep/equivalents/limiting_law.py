"""The limiting spectrum of an equivalent kernel: a bulk, perhaps a point mass, and spikes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.bulk_law import BulkLaw, Interval
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.population import Population, PopulationSource, population_of
from notsodeep.equivalents.spikes import OutsideBulk, Spike, isolated_eigenvalues, point_mass_spikes
from notsodeep.records import Plotted


@dataclass(frozen=True, eq=False, repr=False)
class LimitingSpectrum(Plotted):
    """The law of the eigenvalues of a kernel, and those that leave it.

    Attributes
    ----------
    scale, shift : float
        An eigenvalue λ of the noise's Gram matrix becomes scale·λ + shift.
    bulk : BulkLaw or None
        The law of the noise's Gram matrix; None if the kernel has no linear part, and its bulk
        sits at `shift`.
    spikes : tuple of Spike
        Isolated eigenvalues, largest first.
    undetected : tuple of Spike
        Directions of class means, norms and covariances that stay inside the bulk (value NaN).
    size : int
        Number of eigenvalues n.
    origin : str
        How the population was obtained.
    """

    _drawing = "limiting_spectrum"
    _derived = ("support", "point_mass", "mass_error")

    scale: float
    shift: float
    bulk: BulkLaw | None
    spikes: tuple[Spike, ...]
    undetected: tuple[Spike, ...]
    size: int
    origin: str

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
        # (at + γ)/(at + γ + λ) averaged over t: with s = (γ + λ)/a it is (γ + λ·t/(t + s))/(γ + λ).
        bulk = (self.shift + levels * linear) / (self.shift + levels)
        spikes = np.array([spike.value for spike in self.spikes])
        beyond = (spikes / (spikes + levels[:, None])).sum(axis=1)
        return np.asarray((self.size - len(spikes)) * bulk + beyond)

    def __str__(self) -> str:
        bulk = ", ".join(f"[{low:.4g}, {high:.4g}]" for low, high in self.support) or "none"
        spikes = ", ".join(f"{spike.value:.4g}" for spike in self.spikes) or "none"
        place, mass = self.point_mass
        return f"bulk {bulk}; mass {mass:.4g} at {place:.4g}; spikes {spikes}; from {self.origin}"


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """What the limiting spectra of all kernels on the same samples share, and most of their work.

    Attributes
    ----------
    population : Population
        Covariances and means behind the samples.
    bulk : BulkLaw
        The law of the Gram matrix WWᵀ of the noise.
    outside : OutsideBulk
        Its equation beside the bulk.
    """

    population: Population
    bulk: BulkLaw
    outside: OutsideBulk

    @classmethod
    def of(
        cls,
        eq: Equivalent,
        population: PopulationSource | None = None,
        *,
        like: NoiseLaw | None = None,
    ) -> NoiseLaw:
        """Find the law behind the samples of an equivalent; its model plays no part.

        Parameters and errors are those of `limiting_spectrum`; the bulk of `like` is taken over if
        it belongs to the same covariances and numbers of samples.
        """
        known = population_of(eq, population)
        if like is not None and like.population.equation.is_same(known.equation):
            return cls(known, like.bulk, like.outside)
        bulk = BulkLaw.of(known.equation)
        return cls(known, bulk, OutsideBulk(bulk))


def limiting_spectrum(
    eq: Equivalent,
    *,
    population: PopulationSource | None = None,
    noise: NoiseLaw | None = None,
) -> LimitingSpectrum:
    """Compute the limiting spectrum of an equivalent kernel.

    The bulk is that of linear·WWᵀ + diagonal·I, W = X − E X: a generalised Marchenko–Pastur law,
    for classes with covariances of their own.  Isolated eigenvalues come from the finite-rank rest,
    which holds the class means and V C Vᵀ.  No n × n matrix is made.

    Parameters
    ----------
    eq : Equivalent
        From `equivalent` or `sphere_equivalent`.
    population : {None, "exact", "deconvolved"}
        Where the covariances and means come from.  None takes those of a known mixture (or of the
        uniform law on the sphere) and rejects estimated statistics; "deconvolved" estimates the
        spectrum of C° from the samples (El Karoui, 2008), one for all classes.
    noise : NoiseLaw, optional
        The law of the noise of the same samples, if it has been computed before; `population` is
        then of no use.

    Raises
    ------
    InvalidInput
        The statistics are estimates, and `population` does not say what to do about it.
    NotConverged
        The equation of the law was not solved, or its mass is not 1 to within 1e-6.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(100, 400, rng=0)
    >>> law = limiting_spectrum(nsd.sphere_equivalent(nsd.ExplicitNetwork(["relu"]), X))
    >>> [round(float(edge), 4) for edge in law.support[0]]
    [0.1533, 0.6533]
    """
    owner = "limiting_spectrum"
    if not isinstance(eq, Equivalent):
        remedy = "Make one with equivalent(model, X, stats) or sphere_equivalent(model, X)."
        raise checks.invalid("eq", owner, "be an Equivalent", type(eq).__name__, remedy)
    if population is not None:
        checks.known_name(population, get_args(PopulationSource), f"population of {owner}")
    scale, shift, n = eq.coefficients.linear, eq.coefficients.diagonal, eq.shape[0]
    # Nothing but low rank and identity is left of an even activation's features.
    if scale <= 1e-12 * eq.trace() / n:
        spikes = point_mass_spikes(eq)
        origin = "the equivalent itself, which has no linear part"
        return LimitingSpectrum(scale, shift, None, spikes, (), n, origin)
    law = NoiseLaw.of(eq, population) if noise is None else noise
    spikes, undetected = isolated_eigenvalues(eq, law.population, law.bulk, law.outside)
    return LimitingSpectrum(scale, shift, law.bulk, spikes, undetected, n, law.population.origin)
