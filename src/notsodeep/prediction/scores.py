"""What is learned, and the Gaussian scores of a fit: their class means and covariances."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from notsodeep.arrays import FloatArray
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.filters import flow_poles
from notsodeep.prediction.resolvent import Array, Ensemble
from notsodeep.prediction.tables import KernelTables

LATTICE_POINTS = 2048
CHUNK = 3_000_000
"""Numbers in an array over poles, directions and pairs of classes."""


def default_targets(K: int) -> FloatArray:
    """Return (−1, 1) for two classes, one-hot − 1/K for more; shape (K, k)."""
    return np.array([[-1.0], [1.0]]) if K == 2 else np.eye(K) - 1.0 / K


@dataclass(frozen=True, eq=False)
class Task:
    """Training samples of a mixture, what is fitted to them, and the kernel it is fitted with."""

    classes: Classes
    counts: FloatArray  # (K,): n_a
    targets: FloatArray  # (K, k): U_a
    noise: float  # standard deviation of Gaussian noise on training targets
    test_weights: FloatArray  # (K,): class shares of new samples
    tables: KernelTables

    @property
    def shares(self) -> FloatArray:
        """n_a/n."""
        return np.asarray(self.counts / self.counts.sum())

    @property
    def noise_covariance(self) -> FloatArray:
        """Of the noise on training targets, shape (k, k)."""
        return self.noise**2 * np.eye(self.targets.shape[1])

    @functools.cached_property
    def ensemble(self) -> Ensemble:
        """The resolvents of the kernel."""
        return Ensemble.of(self.classes, self.tables, self.counts)

    @property
    def kernel_size(self) -> float:
        """The diagonal of the kernel, without what class means and norms add."""
        return float(
            (self.tables.diagonal + np.diag(self.tables.linear) * self.classes.traces).max()
        )


class Scores(NamedTuple):
    """Gaussian scores of each class, for R fits."""

    means: FloatArray  # (R, K, k)
    covariances: FloatArray  # (R, K, k, k)
    train_mse: FloatArray  # (R,)
    train_accuracy: FloatArray | None  # (R,)


def ridge_scores(task: Task, ridges: FloatArray) -> Scores:
    """Return the scores of ridge regression for every λ at once."""
    resolvent = task.ensemble.resolvent(-ridges)
    fit = resolvent.fitted(task.targets)
    covariance = fit.covariance(task.noise_covariance)
    means, shrinkage = task.targets - fit.residual, ridges[:, None] * resolvent.q
    spread = np.square(shrinkage)[..., None, None] * covariance
    train = _training(task, shrinkage, shrinkage[..., None] * means, spread)
    return Scores(means, covariance, *train)


def flow_scores(task: Task, times: FloatArray) -> Scores:
    """Return the scores of gradient flow for every t, a few at a time.

    Scores are linear in the filter: means are sums over poles, covariances over pairs of poles.
    """
    numbers = task.classes.values.size * task.classes.count
    poles, residual_weights = flow_poles(times)
    batch = max(1, CHUNK // numbers // poles.shape[1])
    parts = [
        _flow_batch(task, poles[i : i + batch], residual_weights[i : i + batch])
        for i in range(0, len(times), batch)
    ]
    return Scores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _flow_batch(task: Task, poles: Array, residual_weights: Array) -> Scores:
    resolvent, noise = task.ensemble.resolvent(poles), task.noise_covariance
    fit = resolvent.fitted(task.targets)
    same, crossed = fit.covariances(fit, noise), fit.covariances(fit.conjugate(), noise)
    weights = -residual_weights / poles
    residual = residual_weights[..., None] * resolvent.q
    scores = task.targets - fit.residual  # of every pole, (R, P, K, k)
    train = _training(
        task,
        residual.sum(axis=1).real,
        np.einsum("rpa,rpak->rak", residual, scores).real,
        _real_forms(residual, same, crossed),
    )
    spread = _real_forms(np.repeat(weights[..., None], scores.shape[-2], -1), same, crossed)
    return Scores(np.einsum("rp,rpak->rak", weights, scores).real, spread, *train)


def _training(
    task: Task, shrinkage: FloatArray, others: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return error and accuracy on training samples, shape (R,).

    Their scores are (1 − shrinkage)·(their target) + N(others, spread); `shrinkage` is λ q_a for a
    ridge.
    """
    bias = np.square(shrinkage[..., None] * task.targets - others).sum(axis=-1)
    noise = np.square(shrinkage) * np.trace(task.noise_covariance)
    mse = (bias + np.trace(spread, axis1=-2, axis2=-1) + noise) @ task.shares
    fitted = 1.0 - shrinkage[..., None]
    spread = spread + np.square(fitted)[..., None] * task.noise_covariance
    means = fitted * task.targets + others
    return mse, class_accuracies(means, spread, task.targets, task.targets) @ task.shares


def _real_forms(weights: Array, same: Array, crossed: Array) -> FloatArray:
    """Cov of Re Σ w_i s_i, as Re u·Re v = Re(uv + uv̄)/2.

    Weights are of shape (R, P, K), forms of shape (R, P, P, K, k, k).
    """
    forms = np.einsum("rpa,rqa,rpqakl->rakl", weights, weights, same, optimize=True)
    forms = forms + np.einsum(
        "rpa,rqa,rpqakl->rakl", weights, weights.conj(), crossed, optimize=True
    )
    return np.asarray(0.5 * forms.real)


def class_accuracies(
    means: FloatArray, covariances: FloatArray, targets: FloatArray, own: FloatArray
) -> FloatArray:
    """Return the probability that scores N(m_a, V_a) are nearer to their own target than to others.

    Nearest is the sign for two targets ∓1 and the largest score for one-hot ones.  One output is
    an interval of the normal law.  More take Genz's sequence of conditional intervals (J. Comp.
    Graph. Stat. 1, 1992) on 2048 points of a rank-one lattice: the same every time, smooth in the
    scores, and right to some 1e-4.

    Means are (…, K, k), covariances (…, K, k, k), all targets (T, k), of which equal ones count
    once, and those of the classes (K, k).

    Examples
    --------
    >>> two = np.array([[-1.0], [1.0]])
    >>> class_accuracies(two, np.full((2, 1, 1), 4.0), two, two).round(4)
    array([0.6915, 0.6915])
    """
    distinct = np.unique(targets, axis=0)
    result = np.empty(means.shape[:-1])
    for a, target in enumerate(own):
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
    drawn = np.zeros((d, LATTICE_POINTS))
    weight = np.ones(LATTICE_POINTS)
    for i in range(d):
        rest = m[i] + L[i, :i] @ drawn[:i]
        if L[i, i] == 0.0:  # no variance: the condition holds or not
            weight = weight * (rest > 0.0)
            continue
        inside = ndtr(rest / L[i, i])  # P(conditional part > −rest)
        weight = weight * inside
        if i < d - 1:
            # Conditioned on g > −rest/L, by symmetry as −Φ⁻¹(uΦ(rest/L)): lower tails keep their
            # relative precision, where 1 − Φ would round to zero.
            drawn[i] = -ndtri(np.clip(inside * lattice[i], 1e-15, 1.0))
    return float(weight.mean())


def _lower_root(V: FloatArray) -> FloatArray:
    """Cholesky factors; a direction without conditional variance has a zero on the diagonal."""
    d = V.shape[-1]
    L = np.zeros_like(V)
    size = 1e-13 * np.maximum(np.diagonal(V, axis1=1, axis2=2), 1e-300)
    for i in range(d):
        pivot = V[:, i, i] - np.square(L[:, i, :i]).sum(axis=1)
        # Singular covariances are usual: one-hot scores sum to a constant.
        L[:, i, i] = np.sqrt(np.where(pivot > size[:, i], pivot, 0.0))
        below = V[:, i + 1 :, i] - np.einsum("njk,nk->nj", L[:, i + 1 :, :i], L[:, i, :i])
        pivots = np.where(L[:, i, i] > 0.0, L[:, i, i], np.inf)
        L[:, i + 1 :, i] = below / pivots[:, None]
    return L


def _lattice(dimension: int) -> FloatArray:
    """Points of the unit cube, folded so that they are even: fractional parts of i·√prime."""
    primes = [n for n in range(2, 12 * (dimension + 2)) if all(n % k for k in range(2, n))]
    generators = np.sqrt(np.array(primes[:dimension], float))
    points = (np.arange(1, LATTICE_POINTS + 1) * generators[:, None]) % 1.0
    return np.asarray(np.abs(2.0 * points - 1.0))
