"""An exact kernel alongside its equivalent."""

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
from notsodeep.equivalents.equivalent import Equivalent
from notsodeep.equivalents.spectrum import LimitingSpectrum, limiting_spectrum
from notsodeep.errors import InvalidInput
from notsodeep.records import Plotted


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Plotted):
    """How far an equivalent is from the exact kernel."""

    _drawing = "comparison"

    gap: float  # ‖K − K̄‖ in operator norm
    relative_gap: float  # divided by ‖K‖
    frobenius: float  # ‖K − K̄‖ in Frobenius norm
    trace_gap: float  # |tr(K − K̄)|/n
    kolmogorov: float  # distances between the eigenvalues of both
    wasserstein: float
    law: LimitingSpectrum | None  # the limiting law, if the population is known
    law_kolmogorov: float  # of the eigenvalues of K from that law, above its point mass; or NaN
    spikes: FloatArray  # predicted by the law and found, shape (m, 2), largest first
    eigenvalues: FloatArray = field(repr=False)  # of K, ascending

    def __str__(self) -> str:
        lines = [
            f"operator-norm gap      {self.gap:.4g} ({100 * self.relative_gap:.3g} % of ‖kernel‖)",
            f"Frobenius gap          {self.frobenius:.4g}",
            f"Kolmogorov distance    {self.kolmogorov:.4g}",
            f"Wasserstein distance   {self.wasserstein:.4g}",
        ]
        if math.isfinite(self.law_kolmogorov):
            lines.append(f"Kolmogorov to the law  {self.law_kolmogorov:.4g}")
        lines += [
            f"spike                  {a:.5g} predicted, {b:.5g} found" for a, b in self.spikes
        ]
        return "\n".join(lines)


def compare(K: ArrayLike, eq: Equivalent, law: LimitingSpectrum | None = None) -> Comparison:
    """Compare an exact kernel matrix with its equivalent.

    Parameters
    ----------
    K : array_like of shape (n, n)
        The exact kernel of the same model on the same X.
    eq : Equivalent
    law : LimitingSpectrum, optional
        Computed by default, if the population is known.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(200, 240, rng=0)
    >>> deq = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
    >>> K = nsd.kernel(deq, X, convention="feature")
    >>> nsd.compare(K, nsd.sphere_equivalent(deq, X)).relative_gap < 1e-3
    True
    """
    if not isinstance(eq, Equivalent):
        remedy = "Make one with equivalent(model, X, y) or sphere_equivalent(model, X)."
        raise checks.invalid("eq", "compare", "be an Equivalent", type(eq).__name__, remedy)
    exact = checks.matrix_of_shape(K, eq.shape, "K", "compare")
    asymmetry = float(np.abs(exact - exact.T).max())
    if asymmetry > 1e-8 * float(np.abs(exact).max()):
        raise checks.invalid("K", "compare", "be symmetric", f"an asymmetry of {asymmetry:.3g}")
    if law is None:
        law = _law_if_known(eq)
    gap, frobenius = difference_norms(exact, eq)
    assert frobenius is not None  # both sides have rows
    eigenvalues = np.asarray(np.linalg.eigvalsh(exact), dtype=np.float64)
    theirs = eq.eigvalsh()
    spikes = np.empty((0, 2))
    law_kolmogorov = math.nan
    if law is not None:
        pairs = [(spike.value, eigenvalues[-1 - spike.rank]) for spike in law.spikes]
        spikes = np.array(pairs).reshape(-1, 2)
        if law.support:
            start = law.support[0][0] if law.point_mass[1] else -math.inf
            law_kolmogorov = kolmogorov_to_law(eigenvalues, law.cdf, start)
    return Comparison(
        gap=gap,
        relative_gap=gap / float(np.abs(eigenvalues).max()),
        frobenius=frobenius,
        trace_gap=abs(float(np.trace(exact)) - eq.trace()) / len(exact),
        kolmogorov=kolmogorov(eigenvalues, theirs),
        wasserstein=wasserstein(eigenvalues, theirs),
        law=law,
        law_kolmogorov=law_kolmogorov,
        spikes=spikes,
        eigenvalues=eigenvalues,
    )


def _law_if_known(eq: Equivalent) -> LimitingSpectrum | None:
    try:
        return limiting_spectrum(eq)
    except InvalidInput:  # estimated statistics: the caller may bring a law
        return None
