"""Test and training error of a network, predicted from the statistics of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import Coefficients
from notsodeep.models import Convention, KernelName, Model
from notsodeep.prediction.evaluation import Scores, filter_scores, ridge_scores
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.resolvent import Ensemble
from notsodeep.prediction.task import FourNumbers, Regularisation, TableName, Task
from notsodeep.prediction.width import recurrence, width_scores
from notsodeep.records import Plotted


@dataclass(frozen=True, eq=False, repr=False)
class RiskCurve(Plotted):
    """Errors and scores over ridges or training times; squared errors are sums over outputs.

    Attributes
    ----------
    axis : {"ridge", "time"}
    values : ndarray of shape (R,)
        The ridges λ or times t.
    test_mse, train_mse : ndarray of shape (R,)
    accuracy : ndarray of shape (R,)
        Share of new scores that are nearest to the right target.
    train_accuracy : ndarray of shape (R,) or None
        Share of training samples that are put where their label says; None for a finite width.
    class_mse, class_accuracy : ndarray of shape (R, K)
        Of new samples of each class.
    means : ndarray of shape (R, K, k)
        Mean score of a new sample of each class.
    covariances : ndarray of shape (R, K, k, k)
        Covariance of such scores, over samples and training sets.
    train_means, train_covariances : ndarray or None
        The same of training samples; None for a finite width.
    predictive_variance : ndarray of shape (R, K) or None
        1/q_a, the variance, noise λ included, that a Gaussian process gives a new sample.  This
        and the next three are of ridges at infinite width.
    log_loss : ndarray of shape (R,) or None
        Mean of −log of the density that the Gaussian process gives the target of a new sample.
    log_evidence : ndarray of shape (R,) or None
        log of the density that the Gaussian process gives the training targets, up to order one.
    log_determinant : ndarray of shape (R,) or None
        log det(K + λ), up to order one.
    width : int or None
    effective_ridge, effective_width : ndarray of shape (R,) or None
        Of a finite width.
    targets : ndarray of shape (K, k)
    counts : ndarray of shape (K,)
        Training samples of each class.
    test_weights : ndarray of shape (K,)
    dimension : int
        p.
    tables : {"resolved", "limit"}
    model : str

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.paper_mixture(dimension=256)
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> curve = nsd.predict_risk(deq, mixture, (128, 128), ridge=[0.01, 0.1])
    >>> curve.test_mse.round(3), curve.accuracy.round(4)
    (array([0.052, 0.047]), array([1., 1.]))
    """

    _drawing = "risk_curve"

    axis: Literal["ridge", "time"]
    values: FloatArray
    test_mse: FloatArray
    train_mse: FloatArray
    accuracy: FloatArray
    train_accuracy: FloatArray | None
    class_mse: FloatArray
    class_accuracy: FloatArray
    means: FloatArray
    covariances: FloatArray
    train_means: FloatArray | None
    train_covariances: FloatArray | None
    predictive_variance: FloatArray | None
    log_loss: FloatArray | None
    log_evidence: FloatArray | None
    log_determinant: FloatArray | None
    width: int | None
    effective_ridge: FloatArray | None
    effective_width: FloatArray | None
    targets: FloatArray
    counts: FloatArray
    test_weights: FloatArray
    dimension: int
    tables: str
    model: str

    @property
    def samples(self) -> int:
        """Training samples n."""
        return int(self.counts.sum())


def predict_risk(
    model: Model | None,
    mixture: GaussianMixture | MixtureStatistics,
    counts: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    ridge: ArrayLike | None = None,
    time: ArrayLike | None = None,
    rate: float | None = None,
    momentum: float = 0.0,
    width: int | None = None,
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    test_weights: ArrayLike | None = None,
    noise: float = 0.0,
    flips: ArrayLike = 0.0,
    coefficients: Coefficients | FourNumbers | None = None,
    tables: TableName = "resolved",
) -> RiskCurve:
    """Predict errors and accuracies of a network on a Gaussian mixture, before training.

    The network is its kernel: ridge regression of a trained read-out (conjugate kernel) or of all
    weights (tangent kernel), α = (K + λ)⁻¹Y; or gradient flow dα/dt = Y − Kα until a time.  Scores
    of a new sample of a class are Gaussian, and their means and covariances follow from a few
    numbers per class: see the page "Before training" of the documentation.

    Parameters
    ----------
    model : DeepEquilibrium, ExplicitNetwork or any other with a kernel of norms and inner products
        None only if the `coefficients` are given.
    mixture : GaussianMixture or MixtureStatistics
        x ~ N(μ_a/√p, C_a/p).  Covariances that share no basis take p × p inverses.
    counts : array_like of shape (K,)
        Training samples n_a of each class.
    targets : array_like of shape (K,) or (K, k), optional
        (−1, 1) for two classes, one-hot − 1/K for more, if left out.
    ridge, time : float or array_like
        One of them: λ, or the time t at which training stops.
    rate, momentum : float
        With `time`: gradient descent with steps of this size, time/rate of them, instead of the
        flow; with heavy-ball momentum.
    width : int, optional
        Width of the one layer whose read-out is trained; infinite if left out.  For the
        conjugate kernel and the convention "feature".
    kernel : {"conjugate", "tangent"}
    convention : {"feature", "preactivation"}
        Concerns DEQs only.
    test_weights : array_like of shape (K,), optional
        Class shares of new samples; those of the training samples if left out.
    noise : float
        Standard deviation of Gaussian noise on training targets.
    flips : float or array_like of shape (K, K)
        Probability that a training label is another one, any of them; or that class a gets label b.
        Errors of new samples are against clean labels.
    coefficients : Coefficients or tuple, optional
        (a, α2, α3, scale2) of the kernel, instead of the model's; implies ``tables="limit"``.
    tables : {"resolved", "limit"}
        The kernel's expansion at this p, or its limit for large p, whose errors are of order
        p^{-1/2} and which is for centred models alone.

    Returns
    -------
    RiskCurve

    Raises
    ------
    InvalidInput
        Counts, targets or weights that do not fit the mixture, a ridge or time out of range, ….
    NotConverged
        An equation was not solved.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 400)), [0.9, 1.1])
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(1.0)
    >>> early = nsd.predict_risk(deq, mixture, (200, 200), time=[0.3, 3.0])
    >>> early.accuracy.round(3), early.train_accuracy.round(3)
    (array([0.735, 0.754]), array([0.975, 0.999]))
    >>> nsd.predict_risk(deq, mixture, (200, 200), ridge=0.1, width=1000).accuracy.round(3)
    array([0.692])
    """
    problem = Problem.checked(
        mixture, counts, targets, noise=noise, flips=flips, test_weights=test_weights,
        owner="predict_risk",
    )  # fmt: skip
    task = Task.of(
        problem, model, kernel=kernel, convention=convention, tables=tables,
        coefficients=coefficients,
    )  # fmt: skip
    return risk_of(task, task.regularisation(ridge, time, rate, momentum), width)


def risk_of(task: Task, stop: Regularisation, width: int | None = None) -> RiskCurve:
    """Predict, everything being checked; `predict_risk` and the searches for optima end here."""
    problem, ensemble = task.problem, task.ensemble
    more: dict[str, Any] = dict.fromkeys(
        ("predictive_variance", "log_loss", "log_evidence", "log_determinant", "width",
         "effective_ridge", "effective_width", "train_accuracy", "train_means",
         "train_covariances")
    )  # fmt: skip
    if width is not None:
        m = task.readout_width(width, stop)
        q = recurrence(task.model, problem.classes.scale(problem.shares), problem.owner)
        finite = width_scores(ensemble, problem, stop.values, m, q)
        scores, train_mse = finite.scores, finite.train_mse
        more |= {
            "width": m,
            "effective_ridge": finite.effective_ridge,
            "effective_width": finite.effective_width,
        }
    else:
        if stop.axis == "ridge":
            scores = ridge_scores(ensemble, problem, stop.values)
            more |= _gaussian_process(ensemble, problem, stop.values, scores)
        else:
            scores = filter_scores(ensemble, problem, stop.filters())
        train_mse = scores.train_errors(problem)
        means, covariances = scores.train_scores(problem)
        more |= {
            "train_means": means,
            "train_covariances": covariances,
            "train_accuracy": scores.train_accuracies(problem),
        }
    errors, right = scores.class_errors(problem), scores.accuracies(problem)
    return RiskCurve(
        axis=stop.axis,
        values=stop.values,
        test_mse=errors @ problem.test_weights,
        train_mse=train_mse,
        accuracy=right @ problem.test_weights,
        class_mse=errors,
        class_accuracy=right,
        means=scores.means,
        covariances=scores.covariances,
        targets=problem.targets,
        counts=problem.counts,
        test_weights=problem.test_weights,
        dimension=problem.classes.dimension,
        tables=task.table_name,
        model=str(task.model),
        **more,
    )


def _gaussian_process(
    ensemble: Ensemble, problem: Problem, ridges: FloatArray, scores: Scores
) -> dict[str, FloatArray]:
    """Read the same numbers as those of a Gaussian process with noise variance λ."""
    resolvent = ensemble.resolvent(-ridges)
    fit = resolvent.fitted(problem.given)
    q, k, n = resolvent.q, problem.outputs, float(problem.counts.sum())
    noise = np.trace(problem.noise_covariance, axis1=-2, axis2=-1)
    # YᵀQY: α_i = q_a·(leave-one-out residual of i), averaged over targets and their noise.
    energy = n * ((q * ((problem.given * fit.residual).sum(axis=-1) + noise)) @ problem.shares)
    logdet = resolvent.log_determinant()
    surprise = 0.5 * (k * np.log(2.0 * np.pi / q) + q * scores.class_errors(problem))
    return {
        "predictive_variance": np.asarray(1.0 / q),
        "log_loss": np.asarray(surprise @ problem.test_weights),
        "log_evidence": np.asarray(-0.5 * (energy + k * (logdet + n * np.log(2.0 * np.pi)))),
        "log_determinant": logdet,
    }
