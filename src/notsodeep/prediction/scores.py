"""Classification by Gaussian scores: the probability that a score is nearest to its own target."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from notsodeep.arrays import FloatArray, IntArray

_POINTS = 2048
_TINY = 1e-15
_DRAWS = 8  # of each point's score


def class_accuracies(
    means: FloatArray, covariances: FloatArray, targets: FloatArray, wanted: FloatArray
) -> FloatArray:
    """Return the probability that scores N(m_a, V_a) are nearer to a wanted target than to others.

    Nearest is the sign for two targets ∓1 and the largest score for one-hot ones.  One output is
    an interval of the normal law.  More take Genz's sequence of conditional intervals (J. Comp.
    Graph. Stat. 1, 1992) on 2048 points of a rank-one lattice: the same every time, smooth in the
    scores, and right to some 1e-4.

    Parameters
    ----------
    means : ndarray of shape (…, K, k)
    covariances : ndarray of shape (…, K, k, k)
    targets : ndarray of shape (T, k)
        All targets; equal ones count once.
    wanted : ndarray of shape (K, k)
        The right target of each class, one of them.

    Examples
    --------
    >>> two = np.array([[-1.0], [1.0]])
    >>> class_accuracies(two, np.full((2, 1, 1), 4.0), two, two).round(4)
    array([0.6915, 0.6915])
    """
    distinct = np.unique(targets, axis=0)
    result = np.empty(means.shape[:-1])
    for a, target in enumerate(wanted):
        others = distinct[(distinct != target).any(axis=1)]
        # ‖s − u‖² < ‖s − u′‖² for all others u′: (u − u′)·s > (‖u‖² − ‖u′‖²)/2.
        normals = target - others
        offsets = 0.5 * (np.square(target).sum() - np.square(others).sum(axis=1))
        centre = means[..., a, :] @ normals.T - offsets
        if means.shape[-1] == 1:
            result[..., a] = _interval(centre, normals[:, 0], covariances[..., a, 0, 0])
        else:
            result[..., a] = _orthant(centre, normals @ covariances[..., a, :, :] @ normals.T)
    return result


def point_errors(
    means: FloatArray,
    covariances: FloatArray,
    targets: FloatArray,
    truth: IntArray,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return squared error and accuracy over points with Gaussian scores of their own.

    Shapes (N, k) and (N, k, k); eight scores of each point are drawn for the accuracy.
    """
    values, vectors = np.linalg.eigh(covariances)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    drawn = rng.standard_normal((_DRAWS, *means.shape))
    scores = means + np.einsum("nkl,dnl->dnk", roots, drawn)
    nearest = np.square(scores[:, :, None] - targets).sum(axis=-1).argmin(axis=-1)
    right = (targets[nearest] == targets[truth]).all(axis=-1).mean()
    bias = np.square(means - targets[truth]).sum(axis=1)
    return float((bias + np.trace(covariances, axis1=1, axis2=2)).mean()), float(right)


def _interval(centre: FloatArray, normals: FloatArray, variance: FloatArray) -> FloatArray:
    """P(centre + normal·g > 0 for all), g ~ N(0, variance): one interval of g."""
    bounds = -centre / normals / np.sqrt(np.maximum(variance, 1e-300))[..., None]
    lower = np.where(normals > 0.0, bounds, -np.inf).max(axis=-1)
    upper = np.where(normals < 0.0, bounds, np.inf).min(axis=-1)
    # Differences of tails on the side where they are small.
    flip = lower > 0.0
    low, high = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    return np.asarray(np.maximum(ndtr(high) - ndtr(low), 0.0))


def _orthant(centre: FloatArray, covariance: FloatArray) -> FloatArray:
    """P(g > 0) for g ~ N(centre, covariance), shapes (…, d) and (…, d, d)."""
    shape, d = centre.shape[:-1], centre.shape[-1]
    m, V = centre.reshape(-1, d), covariance.reshape(-1, d, d)
    L = _lower_root(V)
    lattice = _lattice(d - 1)
    result = np.empty(len(m))
    for item in range(len(m)):
        result[item] = _conditioned(m[item], L[item], lattice)
    return result.reshape(shape)


def _conditioned(m: FloatArray, L: FloatArray, lattice: FloatArray) -> float:
    d = len(m)
    drawn = np.zeros((d, _POINTS))
    weight = np.ones(_POINTS)
    for i in range(d):
        rest = m[i] + L[i, :i] @ drawn[:i]
        if L[i, i] == 0.0:  # nothing of its own: the condition holds or not
            weight = weight * (rest > 0.0)
            continue
        inside = ndtr(rest / L[i, i])  # P(own part > −rest)
        weight = weight * inside
        if i < d - 1:
            # Conditioned on own > −rest/L, by symmetry as −Φ⁻¹(uΦ(rest/L)): lower tails keep their
            # relative precision, where 1 − Φ would round to zero.
            drawn[i] = -ndtri(np.clip(inside * lattice[i], _TINY, 1.0))
    return float(weight.mean())


def _lower_root(V: FloatArray) -> FloatArray:
    """Cholesky factors; a direction without variance of its own has a zero on the diagonal."""
    d = V.shape[-1]
    L = np.zeros_like(V)
    size = 1e-13 * np.maximum(np.diagonal(V, axis1=1, axis2=2), 1e-300)
    for i in range(d):
        pivot = V[:, i, i] - np.square(L[:, i, :i]).sum(axis=1)
        # Singular covariances are usual: one-hot scores sum to a constant.
        L[:, i, i] = np.sqrt(np.where(pivot > size[:, i], pivot, 0.0))
        below = V[:, i + 1 :, i] - np.einsum("njk,nk->nj", L[:, i + 1 :, :i], L[:, i, :i])
        own = np.where(L[:, i, i] > 0.0, L[:, i, i], np.inf)
        L[:, i + 1 :, i] = below / own[:, None]
    return L


def _lattice(dimension: int) -> FloatArray:
    """Points of the unit cube, folded so that they are even: fractional parts of i·√prime."""
    primes = [n for n in range(2, 12 * (dimension + 2)) if all(n % k for k in range(2, n))]
    generators = np.sqrt(np.array(primes[:dimension], float))
    points = (np.arange(1, _POINTS + 1) * generators[:, None]) % 1.0
    return np.asarray(np.abs(2.0 * points - 1.0))
