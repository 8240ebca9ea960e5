"""Equivalents of kernels on high-dimensional Gaussian mixtures."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.data import MixtureStatistics
from notsodeep.data.preprocessing import to_theory_scale
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.mixture_coefficients import Coefficients, coefficients
from notsodeep.errors import InvalidInput
from notsodeep.models import Convention, KernelName, Model, checked_choice


def equivalent(
    model: Model,
    X: ArrayLike,
    stats: MixtureStatistics,
    *,
    kernel: KernelName = "conjugate",
    convention: Convention = "preactivation",
) -> Equivalent:
    """Compute the random-matrix equivalent of a centred model's kernel on a Gaussian mixture.

    Ḡ = a·XXᵀ + V C Vᵀ + γI with V = [J/√p, ψ],
    C = [[α2 ttᵀ + α3 T, α2 t], [α2 tᵀ, α2]] and γ = scale2 − τ0² a; its distance from the exact
    kernel in operator norm is O(n^{-1/2}) (mixture paper, arXiv 2402.02697, theorems 1 and 2, the
    identity term corrected).

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
        Centred at the scale of the data: ``deq.centred(stats.tau0)``.
    X : array_like of shape (n, p)
    stats : MixtureStatistics
        Of this X: ``mixture.statistics(X, y)`` or ``MixtureStatistics.estimate(X, y)``.
    kernel : {"conjugate", "tangent"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.

    Raises
    ------
    InvalidInput
        The model is not centred at this scale, or the statistics are not those of X.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.paper_mixture(dimension=300)
    >>> X, y = mixture.sample(240, rng=0)
    >>> stats = mixture.statistics(X, y)
    >>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.1).centred(stats.tau0)
    >>> G = nsd.conjugate_kernel(deq, X)
    >>> bool(np.linalg.norm(G - nsd.equivalent(deq, X, stats).to_dense(), 2) < 0.2)
    True
    """
    owner = "equivalent"
    checked_choice(model, kernel, convention, owner)
    rows = checks.samples(X, "X", owner)
    n, p = rows.shape
    if min(n, p) < 2:
        requirement = "have at least two rows and two columns (the theory lets both grow)"
        raise checks.refusal("X", owner, requirement, f"shape {rows.shape}")
    _require_own_statistics(rows, stats)
    numbers = coefficients(model, stats.tau0, kernel=kernel, convention=convention)
    factors = np.column_stack([stats.J / np.sqrt(p), stats.psi])
    return Equivalent(
        rows, factors, low_rank_core(numbers, stats), numbers, stats, model, kernel, convention
    )


def low_rank_core(numbers: Coefficients, stats: MixtureStatistics) -> FloatArray:
    """C = α2 [t; 1][t; 1]ᵀ + α3 [T 0; 0 0], shape (K + 1, K + 1)."""
    direction = np.append(stats.t, 1.0)
    core = numbers.norm_fluctuation * np.outer(direction, direction)
    core[:-1, :-1] += numbers.covariance_overlap * stats.T
    return np.asarray(core)


def _require_own_statistics(X: FloatArray, stats: MixtureStatistics) -> None:
    """Refuse statistics of other data: ψ must be ‖x_i − μ_a/√p‖² up to one constant per class."""
    if not isinstance(stats, MixtureStatistics):
        remedy = "Use mixture.statistics(X, y) or MixtureStatistics.estimate(X, y)."
        raise checks.refusal("stats", "equivalent", "be a MixtureStatistics", repr(stats), remedy)
    n, p = X.shape
    theirs = (len(stats.psi), stats.means.shape[1])
    if theirs != (n, p):
        requirement = f"be those of X, of shape {X.shape}"
        raise checks.refusal("stats", "equivalent", requirement, f"statistics of shape {theirs}")
    labels = stats.J.argmax(axis=1)
    # In blocks: a second array of the size of X is not needed.
    expected = np.empty(n)
    means = to_theory_scale(stats.means)
    for start in range(0, n, 4096):
        part = slice(start, start + 4096)
        centred = X[part] - means[labels[part]]
        expected[part] = np.einsum("ij,ij->i", centred, centred)
    difference = expected - stats.psi
    for a in range(len(stats.means)):
        here = difference[labels == a]
        if len(here) and np.ptp(here) > 1e-8 * max(float(expected.max()), 1e-300):
            raise InvalidInput(
                "stats of equivalent must be those of X. Got the right shape, but ψ does not "
                f"agree with the norms of the rows of class {stats.classes[a]}: X was changed, "
                "reordered or rescaled after the statistics were made. Make them again from X."
            )
