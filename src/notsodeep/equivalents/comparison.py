"""An exact kernel beside its equivalent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents.distances import (
    difference_norms,
    kolmogorov,
    kolmogorov_to_law,
    wasserstein,
)
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.limiting_law import LimitingSpectrum, limiting_spectrum
from notsodeep.equivalents.spikes import Spike
from notsodeep.errors import InvalidInput
from notsodeep.records import Plotted, Record


@dataclass(frozen=True, repr=False)
class SpikePair(Record):
    """An isolated eigenvalue as predicted, and the exact kernel's eigenvalue in that place."""

    predicted: float
    found: float

    @property
    def relative_error(self) -> float:
        """|predicted − found|/|found|."""
        return abs(self.predicted - self.found) / abs(self.found)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Plotted):
    """How far an equivalent is from the exact kernel.

    Attributes
    ----------
    gap : float
        ‖G − Ḡ‖ in operator norm.
    relative_gap : float
        Divided by ‖G‖.
    frobenius : float
        ‖G − Ḡ‖ in Frobenius norm.
    trace_gap : float
        |tr(G − Ḡ)|/n.
    kolmogorov, wasserstein : float
        Distances between the eigenvalues of G and of Ḡ.
    law : LimitingSpectrum or None
        The limiting law, if the population is known.
    law_kolmogorov : float
        Kolmogorov distance of the eigenvalues of G from that law, NaN without one.  If the law has
        a point mass, which the exact kernel spreads a little, from the bulk's lower edge upwards.
    spikes : tuple of SpikePair
        Predicted by the law, and found.
    eigenvalues : ndarray of shape (n,)
        Of G, ascending.
    """

    _drawing = "comparison"

    gap: float
    relative_gap: float
    frobenius: float
    trace_gap: float
    kolmogorov: float
    wasserstein: float
    law: LimitingSpectrum | None
    law_kolmogorov: float
    spikes: tuple[SpikePair, ...]
    eigenvalues: FloatArray = field(repr=False)

    def __str__(self) -> str:
        lines = [
            f"operator-norm gap      {self.gap:.4g} ({100 * self.relative_gap:.3g} % of ‖kernel‖)",
            f"Frobenius gap          {self.frobenius:.4g}",
            f"Kolmogorov distance    {self.kolmogorov:.4g}",
            f"Wasserstein distance   {self.wasserstein:.4g}",
        ]
        if math.isfinite(self.law_kolmogorov):
            lines.append(f"Kolmogorov to the law  {self.law_kolmogorov:.4g}")
        for spike in self.spikes:
            lines.append(
                f"spike                  {spike.predicted:.5g} predicted, {spike.found:.5g} found"
            )
        return "\n".join(lines)


def compare(kernel: ArrayLike, eq: Equivalent, law: LimitingSpectrum | None = None) -> Comparison:
    """Compare an exact kernel matrix with its equivalent.

    Parameters
    ----------
    kernel : array_like of shape (n, n)
        The exact kernel of the same model on the same X: ``conjugate_kernel(model, X)``.
    eq : Equivalent
    law : LimitingSpectrum, optional
        Computed here if it is left out and the population is known.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(200, 240, rng=0)
    >>> deq = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
    >>> result = nsd.compare(nsd.conjugate_kernel(deq, X), nsd.sphere_equivalent(deq, X))
    >>> result.relative_gap < 1e-3, result.spikes[0].relative_error < 0.01
    (True, True)
    """
    owner = "compare"
    if not isinstance(eq, Equivalent):
        remedy = "Make one with equivalent(model, X, stats) or sphere_equivalent(model, X)."
        raise checks.invalid("eq", owner, "be an Equivalent", type(eq).__name__, remedy)
    exact = checks.matrix_of_shape(kernel, eq.shape, "kernel", owner)
    asymmetry = float(np.abs(exact - exact.T).max())
    if asymmetry > 1e-8 * float(np.abs(exact).max()):
        raise checks.invalid("kernel", owner, "be symmetric", f"an asymmetry of {asymmetry:.3g}")
    if law is None:
        law = _law_if_known(eq)
    gap, frobenius = difference_norms(exact, eq)
    assert frobenius is not None  # both sides have rows
    eigenvalues = np.asarray(np.linalg.eigvalsh(exact), dtype=np.float64)
    theirs = eq.eigvalsh()
    n = len(exact)
    spikes = () if law is None else law.spikes
    return Comparison(
        gap=gap,
        relative_gap=gap / float(np.abs(eigenvalues).max()),
        frobenius=frobenius,
        trace_gap=abs(float(np.trace(exact)) - eq.trace()) / n,
        kolmogorov=kolmogorov(eigenvalues, theirs),
        wasserstein=wasserstein(eigenvalues, theirs),
        law=law,
        law_kolmogorov=math.nan if law is None else _distance_to_law(eigenvalues, law),
        spikes=tuple(_paired(spike, eigenvalues) for spike in spikes),
        eigenvalues=eigenvalues,
    )


def _law_if_known(eq: Equivalent) -> LimitingSpectrum | None:
    try:
        return limiting_spectrum(eq)
    except InvalidInput:  # estimated statistics: the caller may bring a law
        return None


def _distance_to_law(eigenvalues: FloatArray, law: LimitingSpectrum) -> float:
    if not law.support:
        return math.nan
    start = law.support[0][0] if law.point_mass[1] else -math.inf
    return kolmogorov_to_law(eigenvalues, law.cdf, start)


def _paired(spike: Spike, eigenvalues: FloatArray) -> SpikePair:
    assert spike.rank is not None  # it is isolated
    return SpikePair(spike.value, float(eigenvalues[len(eigenvalues) - 1 - spike.rank]))
