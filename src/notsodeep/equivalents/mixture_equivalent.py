"""Equivalents of kernels on high-dimensional Gaussian mixtures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data import MixtureStatistics
from notsodeep.data.mixture_statistics import statistics_of
from notsodeep.data.preprocessing import to_theory_scale
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.expansion import expansion
from notsodeep.equivalents.mixture_coefficients import CENTRED, Coefficients, coefficients
from notsodeep.errors import InvalidInput
from notsodeep.models import (
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    checked_choice,
)
from notsodeep.models.cell import solve_variances
from notsodeep.models.varying_activations import require_varying
from notsodeep.numerics.distances import difference_norms


def equivalent(
    model: DeepEquilibrium | ExplicitNetwork,
    X: ArrayLike,
    stats: MixtureStatistics | ArrayLike | None = None,
    *,
    kernel: KernelName = "conjugate",
    convention: Convention = "preactivation",
    order: Literal[1, 2, "auto"] = 1,
    exact: ArrayLike | None = None,
) -> Equivalent:
    """Compute the random-matrix equivalent of a model's kernel on a Gaussian mixture.

    Of a centred model, with ``order=1``:

    Ḡ = a·XXᵀ + V C Vᵀ + γI with V = [J/√p, ψ],
    C = [[α2 ttᵀ + α3 T, α2 t], [α2 tᵀ, α2]] and γ = scale2 − τ0² a; its distance from the exact
    kernel in operator norm is O(n^{-1/2}) (mixture paper, arXiv 2402.02697, theorems 1 and 2, the
    identity term corrected).

    Of any other network, and of any other DEQ, with biases, normalised layers or activations as
    they are, it has seven coefficients (see `Expansion`) and χ_i = ‖x_i‖² − τ0² from the data:
    K̄ = κ0 11ᵀ + κ_s XXᵀ + κ_q(χ1ᵀ + 1χᵀ) + κ_qq(χ²1ᵀ + 1χ²ᵀ) + κ_qr χχᵀ + κ_ss JTJᵀ/p + γI.

    The largest term left out, κ_sq x_i·x_j(χ_i + χ_j), is a rescaling of rows: with ``order=2``
    XXᵀ is made of (1 + (κ_sq/κ_s)χ_i)x_i, in a copy of X, and χ is that of the data in all cases.
    For kernels of pre-activations that lowers the distance several times; for kernels of features
    too at p = 1000, and in most cases at a few hundred.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    X : array_like of shape (n, p)
    stats : MixtureStatistics or array_like of shape (n,), optional
        Statistics of this X, as ``mixture.statistics(X, y)`` gives them, or the labels from which
        they are estimated.  Left out, all rows are of one class.
    kernel : {"conjugate", "tangent"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.
    order : {1, 2, "auto"}
        1 is the papers' form, whose limiting spectra are those of both.  "auto" takes the one that
        is nearer to `exact`.
    exact : array_like of shape (n, n), optional
        The exact kernel on X, for "auto".  All of it: on a part of the rows the other order may
        be nearer.

    Raises
    ------
    InvalidInput
        The statistics are not those of X.

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
    kernel = checked_choice(model, kernel, convention, owner)
    rows = checks.samples(X, "X", owner)
    n, p = rows.shape
    if min(n, p) < 2:
        requirement = "have at least two rows and two columns (the theory lets both grow)"
        raise checks.invalid("X", owner, requirement, f"shape {rows.shape}")
    stats = statistics_of(rows, stats)
    _require_own_statistics(rows, stats)
    _known_order(order, exact)
    choice: dict[str, Any] = {"kernel": kernel, "convention": convention}
    if not isinstance(model, DeepEquilibrium | ExplicitNetwork):
        raise checks.invalid("model", "an equivalent", "be a DEQ or a network", str(model))
    if order == "auto":
        matrix = checks.matrix_of_shape(exact, (n, n), "exact", owner)
        first, second = (equivalent(model, rows, stats, **choice, order=k) for k in (1, 2))
        gaps = {1: difference_norms(matrix, first)[0], 2: difference_norms(matrix, second)[0]}
        best = first if gaps[1] < gaps[2] else second
        best.gaps = gaps
        return best
    if order == 2 or not is_centred(model, stats.tau0):
        return _expanded(model, rows, stats, order, choice)
    numbers = coefficients(model, stats.tau0, **choice)
    factors = np.column_stack([stats.J / np.sqrt(p), stats.psi])
    return Equivalent(
        rows, factors, low_rank_core(numbers, stats), numbers, stats, model, kernel, convention
    )


def _known_order(order: object, exact: object) -> None:
    if isinstance(order, bool) or order not in (1, 2, "auto"):
        raise checks.invalid("order", "equivalent", "be 1, 2 or 'auto'", repr(order))
    if (order == "auto") != (exact is not None):
        requirement = "be given with order='auto', and only then"
        got = "none" if exact is None else f"one with order={order}"
        remedy = "Use exact=kernel(model, X, ...), the kernel to compare with."
        raise checks.invalid("exact", "equivalent", requirement, got, remedy)


def is_centred(model: DeepEquilibrium | ExplicitNetwork, tau0: float) -> bool:
    """Whether four coefficients describe the kernel: every mean vanishes, and there is no bias."""
    if isinstance(model, ExplicitNetwork):
        require_varying(model.activations[0], tau0, "ExplicitNetwork")
        units = zip(model.activations, model.scales(tau0)[:-1], strict=True)
        return _means_vanish(units)
    if any(layer.bias > 0.0 or layer.normalise != "none" for layer in model.cell):
        return False
    if model.is_centred_for(tau0):
        return True
    variances, solution = solve_variances(model.cell, np.array([tau0**2]), raises=False)
    scales = variances.scales[:, 0]
    return solution.converged and _means_vanish(
        (layer.activation, float(tau)) for layer, tau in zip(model.cell, scales, strict=True)
    )


def _means_vanish(units: Iterable[tuple[Activation, float]]) -> bool:
    moments = (activation.moments(scale) for activation, scale in units)
    return all(abs(m.mean) <= CENTRED * np.sqrt(m.square) for m in moments)


def _expanded(
    model: DeepEquilibrium | ExplicitNetwork,
    rows: FloatArray,
    stats: MixtureStatistics,
    order: Literal[1, 2],
    choice: dict[str, Any],
) -> Equivalent:
    """Build the equivalent from the Taylor coefficients and the norms of the rows."""
    numbers = expansion(model, stats.tau0, **choice)
    p, samples = rows.shape[1], rows
    chi = np.einsum("ij,ij->i", rows, rows) - stats.tau0**2
    if order == 2 and numbers.linear > 0.0:
        rows = rows * (1.0 + numbers.rescaling / numbers.linear * chi)[:, None]
    factors = np.column_stack([stats.J / np.sqrt(p), np.ones_like(chi), chi, chi**2])
    K = stats.J.shape[1]
    core = np.zeros((K + 3, K + 3))
    core[:K, :K] = numbers.covariance_overlap * stats.T
    core[K, K] = numbers.constant
    core[K, K + 1] = core[K + 1, K] = numbers.norm_shift
    core[K, K + 2] = core[K + 2, K] = numbers.norm_curvature
    core[K + 1, K + 1] = numbers.norm_fluctuation
    # For spectra: 1, χ and χ² in the directions J/√p and ψ, of which they consist to first order.
    means = np.bincount(stats.J.argmax(axis=1), chi**2, minlength=K) / np.maximum(stats.counts, 1)
    change = np.zeros((K + 1, K + 3))
    change[:K, :K] = np.eye(K)
    change[:K, K] = np.sqrt(p)
    change[:, K + 1] = np.append(stats.t, 1.0)
    change[:K, K + 2] = np.sqrt(p) * means
    limit = change @ core @ change.T
    return Equivalent(
        rows, factors, core, numbers, stats, model, **choice,
        limit_core=limit, samples=samples, order=order,
    )  # fmt: skip


def low_rank_core(numbers: Coefficients, stats: MixtureStatistics) -> FloatArray:
    """C = α2 [t; 1][t; 1]ᵀ + α3 [T 0; 0 0], shape (K + 1, K + 1)."""
    direction = np.append(stats.t, 1.0)
    core = numbers.norm_fluctuation * np.outer(direction, direction)
    core[:-1, :-1] += numbers.covariance_overlap * stats.T
    return np.asarray(core)


def _require_own_statistics(X: FloatArray, stats: MixtureStatistics) -> None:
    """Reject statistics of other data: ψ must be ‖x_i − μ_a/√p‖² up to one constant per class."""
    n, p = X.shape
    theirs = (len(stats.psi), stats.means.shape[1])
    if theirs != (n, p):
        requirement = f"be those of X, of shape {X.shape}"
        raise checks.invalid("stats", "equivalent", requirement, f"statistics of shape {theirs}")
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
        # ψ is ‖x − μ‖² less its expectation, so that the difference is constant within a class.
        if len(here) and np.ptp(here) > 1e-8 * max(float(expected.max()), 1e-300):
            raise InvalidInput(
                "stats of equivalent must be those of X. Got the right shape, but ψ does not "
                f"agree with the norms of the rows of class {stats.classes[a]}: X was changed, "
                "reordered or rescaled after the statistics were made. Make them again from X."
            )
