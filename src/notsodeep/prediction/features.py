"""Read-outs on any features of real data, from class means and covariances of the features."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture
from notsodeep.errors import TheoryDoubtful
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.resolvent import Ensemble, Resolvent
from notsodeep.prediction.risk import RiskCurve, predict_risk
from notsodeep.prediction.scores import point_errors
from notsodeep.prediction.tables import limit_tables
from notsodeep.records import Plotted


@dataclass(frozen=True, eq=False, repr=False)
class PointRisk(Plotted):
    """Predicted errors on given points.

    Attributes
    ----------
    ridges : ndarray of shape (R,)
    test_mse, accuracy : ndarray of shape (R,)
    """

    _drawing = "point_risk"

    ridges: FloatArray
    test_mse: FloatArray
    accuracy: FloatArray


def estimated_mixture(Z: ArrayLike, y: ArrayLike) -> GaussianMixture:
    """Return the Gaussian mixture with the class means and covariances of the rows of Z.

    Raises
    ------
    InvalidInput
        A class has no more rows than there are columns, so that its covariance is singular.

    Warns
    -----
    TheoryDoubtful
        A class has fewer than three rows per column: predictions may be off by some 10 %.

    Examples
    --------
    >>> mixture = GaussianMixture(2.0 * np.eye(2, 20), 1.0)
    >>> found = estimated_mixture(*mixture.sample(4000, rng=0))
    >>> found.means[:, :3].round(1) + 0.0
    array([[2., 0., 0.],
           [0., 2., 0.]])
    """
    owner = "estimated_mixture"
    rows = checks.samples(Z, "Z", owner)
    classes, labels = np.unique(checks.class_labels(y, len(rows), owner), return_inverse=True)
    counts, p = np.bincount(labels), rows.shape[1]
    checks.class_sizes(counts, p + 1, owner, f"(the covariance of {p} features needs them)")
    if counts.min() < 3 * p:
        warnings.warn(
            f"The smallest class has {counts.min()} rows for {p} features: its covariance is a "
            "poor estimate, and predictions may be off by some 10 %. Use three times as many.",
            TheoryDoubtful,
            stacklevel=2,
        )
    means = np.stack([rows[labels == a].mean(axis=0) for a in range(len(classes))])
    centred = rows - means[labels]
    covariances = np.stack(
        [
            p * centred[labels == a].T @ centred[labels == a] / (counts[a] - 1)
            for a in range(len(classes))
        ]
    )
    return GaussianMixture(math.sqrt(p) * means, covariances, counts / len(rows))


def predict_readout(
    mixture: GaussianMixture,
    counts: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    ridge: ArrayLike,
    noise: float = 0.0,
    test_weights: ArrayLike | None = None,
) -> RiskCurve:
    """Predict ridge regression on features z themselves, kernel z·z′.

    `mixture` is that of the features, see `estimated_mixture`: of a finite DEQ, of any backbone.
    Scores are taken for Gaussian; real ones have heavier tails, and `predict_on_points` keeps them.
    Other parameters are those of `predict_risk`.

    Examples
    --------
    >>> mixture = GaussianMixture(2.0 * np.eye(2, 50), 1.0)
    >>> predict_readout(mixture, (100, 100), ridge=0.1).accuracy.round(3)
    array([0.878])
    """
    problem = Problem.checked(mixture, counts, owner="predict_readout")
    tau2 = problem.classes.scale(problem.shares) ** 2
    return predict_risk(
        None, mixture, counts, targets, ridge=ridge, noise=noise, test_weights=test_weights,
        coefficients=(1.0, 0.0, 0.0, tau2),
    )  # fmt: skip


def predict_on_points(
    mixture: GaussianMixture,
    counts: ArrayLike,
    points: ArrayLike,
    labels: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    ridge: ArrayLike,
    rng: int | np.random.Generator = 0,
) -> PointRisk:
    """Predict ridge regression on features, scored on given points instead of Gaussian ones.

    The weights of the fit have a mean over training sets, √p d with d = −Y μᵀ G_Z U, and a sample
    x_i moves them by Ỹ x_i q_a r_i, r_i its leave-one-out residual and Ỹ = (I + Σ_a c_a q_a (C_a +
    μ_a μ_aᵀ))⁻¹.  The score of a point follows, whatever its law.

    Parameters
    ----------
    mixture : GaussianMixture
        Of the features.
    counts : array_like of shape (K,)
        Training samples of each class.
    points : array_like of shape (N, p)
        Features; not those that the mixture was estimated from.
    labels : array_like of shape (N,)
        Their classes, 0 … K − 1.
    targets, ridge
        As for `predict_risk`.
    rng : int or Generator
        Eight scores of each point are drawn for the accuracy.

    Examples
    --------
    >>> mixture = GaussianMixture(2.0 * np.eye(2, 50), 1.0)
    >>> points, labels = mixture.sample(2000, rng=0)
    >>> found = predict_on_points(mixture, (100, 100), points, labels, ridge=0.1)
    >>> bool(abs(found.accuracy[0] - 0.878) < 0.02)
    True
    """
    owner = "predict_on_points"
    problem = Problem.checked(_dense(mixture), counts, targets, owner=owner)
    classes = problem.classes
    z = checks.samples(points, "points", owner)
    if z.shape[1] != classes.dimension:
        requirement = f"have the mixture's {classes.dimension} features"
        raise checks.invalid("points", owner, requirement, z.shape[1])
    truth = checks.class_labels(labels, len(z), owner, classes.count)
    levels = np.atleast_1d(checks.real_array(ridge, "ridge", owner))
    generator = checks.random_generator(rng, owner)
    tau2 = classes.scale(problem.shares) ** 2
    tables = limit_tables(classes, problem.shares, (1.0, 0.0, 0.0, tau2))
    resolvent = Ensemble.of(classes, tables, problem.counts).resolvent(-levels)
    fit = resolvent.fitted(problem.given)
    spreads = fit.covariance(problem.noise_covariance) + problem.noise_covariance
    assert classes.full is not None
    assert classes.means is not None
    mse, right = [], []
    for i in range(len(levels)):
        d = -resolvent.responses[0][i] @ (classes.means.T @ fit.along[i])
        mean = math.sqrt(classes.dimension) * z @ d
        spread = _score_spread(z, d, fit.residual[i], spreads[i], resolvent, i)
        errors = point_errors(mean, spread, problem.targets, truth, generator)
        mse.append(errors[0])
        right.append(errors[1])
    return PointRisk(levels, np.array(mse), np.array(right))


def _score_spread(
    z: FloatArray,
    d: FloatArray,
    residual: FloatArray,
    spreads: FloatArray,
    resolvent: Resolvent,
    place: int,
) -> FloatArray:
    """Return the covariance of the scores of points z over training sets, shape (N, k, k).

    The sum over samples of q_a² Cov(u·x_i r_i), u = Ỹz, with r_i Gaussian: of mean `residual`, of
    covariance `spreads`, and −√p d of it along the noise of x_i itself.
    """
    classes, occupation = resolvent.ensemble.classes, resolvent.occupation[place]
    assert classes.full is not None
    assert classes.means is not None
    moments = classes.full + classes.means[:, :, None] * classes.means[:, None, :]
    u = z @ np.linalg.inv(np.eye(z.shape[1]) + np.tensordot(occupation, moments, axes=1))
    total = np.zeros((len(z), d.shape[1], d.shape[1]))
    weights = occupation * resolvent.q[place]
    for weight, C, mu, r, V in zip(
        weights, classes.full, classes.means, residual, spreads, strict=True
    ):
        seen, along = u @ C, u @ mu
        noise, mean = np.einsum("ni,ni->n", seen, u), np.square(along)
        own = seen @ d - along[:, None] * r
        part = own[:, :, None] * own[:, None, :]
        # Var(XR) = (s² + m²)V + s² rrᵀ + ccᵀ + m(crᵀ + rcᵀ) for Gaussian X ~ (m, s²) and R ~ (r, V)
        # with covariance c; own·ownᵀ = (c + mr)(c + mr)ᵀ has m² rrᵀ too many.
        part += np.multiply.outer(noise + mean, V) + np.multiply.outer(noise - mean, np.outer(r, r))
        total += weight * part
    return total


def _dense(mixture: GaussianMixture) -> Classes:
    """Return classes with full covariances, whether or not they share a basis."""
    K, p = mixture.means.shape
    if mixture.covariances.ndim < 3:
        diagonals = np.broadcast_to(mixture.covariances.reshape(K, -1), (K, p))
        full = np.stack([np.diag(row) for row in diagonals])
        mixture = GaussianMixture(mixture.means, full, mixture.weights)
    return Classes.without_basis(mixture, "predict_on_points")
