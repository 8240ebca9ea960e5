"""Test and training error of a network, predicted from the statistics of its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import Coefficients
from notsodeep.equivalents import coefficients as coefficients_of
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, KernelName, Model
from notsodeep.prediction import filters
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.evaluation import Scores, filter_scores, ridge_scores
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.resolvent import Ensemble
from notsodeep.prediction.tables import KernelTables, limit_tables, resolved_tables
from notsodeep.prediction.width import recurrence, width_scores
from notsodeep.records import Plotted

TableName = Literal["resolved", "limit"]
FourNumbers = tuple[float, float, float, float]

_RANGE = 1e12  # of the kernel's size over a ridge, or of a time times the size, either way


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
    owner = "predict_risk"
    problem = Problem.checked(
        mixture, counts, targets, noise=noise, flips=flips, test_weights=test_weights, owner=owner
    )
    found = tables_of(model, problem, kernel, convention, coefficients, tables, owner)
    choice = _choice(ridge, time, rate, momentum, found, problem, owner)
    return risk_of(
        found, problem, choice, width=width, model=model, kernel=kernel, convention=convention,
        owner=owner,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Regularisation:
    """What stops the fit: ridges, or times of gradient flow or descent."""

    axis: Literal["ridge", "time"]
    values: FloatArray
    rate: float | None = None
    momentum: float = 0.0

    def filters(self) -> list[filters.Filter]:
        """Return one filter for each value."""
        if self.axis == "ridge":
            return [filters.ridge(float(v)) for v in self.values]
        if self.rate is None:
            return [filters.gradient_flow(float(v)) for v in self.values]
        steps = np.rint(self.values / self.rate).astype(int)
        return [filters.gradient_descent(self.rate, int(k), momentum=self.momentum) for k in steps]


@dataclass(frozen=True, eq=False)
class FoundTables:
    """Tables of a kernel and how they were made."""

    tables: KernelTables
    name: TableName


def risk_of(
    found: FoundTables,
    problem: Problem,
    choice: Regularisation,
    *,
    width: int | None,
    model: object,
    kernel: str,
    convention: str,
    owner: str,
) -> RiskCurve:
    """Predict, everything being checked; `predict_risk` and the searches for optima end here."""
    ensemble = Ensemble.of(problem.classes, found.tables, problem.counts)
    shares = problem.shares
    more: dict[str, Any] = dict.fromkeys(
        ("predictive_variance", "log_loss", "log_evidence", "log_determinant", "width",
         "effective_ridge", "effective_width", "train_accuracy", "train_means",
         "train_covariances")
    )  # fmt: skip
    if width is not None:
        m = _readout_width(width, choice, kernel, convention, owner)
        q = recurrence(model, problem.classes.scale(shares), owner)
        finite = width_scores(ensemble, problem, choice.values, m, q)
        scores, train_mse = finite.scores, finite.train_mse
        more |= {
            "width": m,
            "effective_ridge": finite.effective_ridge,
            "effective_width": finite.effective_width,
        }
    else:
        if choice.axis == "ridge":
            scores = ridge_scores(ensemble, problem, choice.values)
            more |= _gaussian_process(ensemble, problem, choice.values, scores)
        else:
            scores = filter_scores(ensemble, problem, choice.filters())
        train_mse = scores.train_errors(problem)
        means, covariances = scores.train_scores(problem)
        more |= {
            "train_means": means,
            "train_covariances": covariances,
            "train_accuracy": scores.train_accuracies(problem),
        }
    errors, right = scores.class_errors(problem), scores.accuracies(problem)
    return RiskCurve(
        axis=choice.axis,
        values=choice.values,
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
        tables=found.name,
        model=str(model),
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
    energy = n * ((q * ((problem.given * fit.residual).sum(axis=-1) + noise)) @ problem.shares)
    logdet = resolvent.log_determinant()
    surprise = 0.5 * (k * np.log(2.0 * np.pi / q) + q * scores.class_errors(problem))
    return {
        "predictive_variance": np.asarray(1.0 / q),
        "log_loss": np.asarray(surprise @ problem.test_weights),
        "log_evidence": np.asarray(-0.5 * (energy + k * (logdet + n * np.log(2.0 * np.pi)))),
        "log_determinant": logdet,
    }


def tables_of(
    model: object,
    problem: Problem,
    kernel: str,
    convention: str,
    coefficients: object,
    name: str,
    owner: str,
) -> FoundTables:
    """Return the tables that a caller of `predict_risk` asks for."""
    checks.known_name(kernel, get_args(KernelName), f"kernel of {owner}")
    checks.known_name(convention, get_args(Convention), f"convention of {owner}")
    checks.known_name(name, get_args(TableName), f"tables of {owner}")
    if coefficients is not None:
        four = _four_numbers(coefficients, owner)
        return FoundTables(limit_tables(problem.classes, problem.shares, four), "limit")
    if model is None:
        raise InvalidInput(f"model of {owner} must be given, or the coefficients. Got neither.")
    if name == "limit":
        tau0 = problem.classes.scale(problem.shares)
        choice: Any = {"kernel": kernel, "convention": convention}
        found = coefficients_of(model, tau0, **choice)  # type: ignore[arg-type]
        return FoundTables(limit_tables(problem.classes, problem.shares, found.four), "limit")
    return FoundTables(kernel_tables(model, problem.classes, kernel, convention, owner), "resolved")


def kernel_tables(
    model: object, classes: Classes, kernel: str, convention: str, owner: str
) -> KernelTables:
    """Return the resolved tables of a model's exact kernel."""
    if hasattr(model, "image_shape"):
        requirement = "have a kernel of norms and inner products alone"
        got = f"{model}, which looks at pixels one by one"
        raise checks.refusal("model", owner, requirement, got, "Use a pilot of the data.")

    def function(X: FloatArray, Y: FloatArray | None) -> FloatArray:
        choice: Any = {"kind": kernel, "convention": convention}
        return np.asarray(exact_kernel(model, X, Y, **choice))  # type: ignore[arg-type]

    return resolved_tables(function, classes, owner)


def _four_numbers(given: object, owner: str) -> FourNumbers:
    numbers = given.four if isinstance(given, Coefficients) else given
    array = checks.real_array(numbers, "coefficients", owner)
    if array.shape != (4,) or not array[0] > 0.0 or not array[3] > 0.0:
        requirement = "be the numbers (linear, norm_fluctuation, covariance_overlap, scale2)"
        raise checks.refusal("coefficients", owner, requirement, array.tolist())
    a, bend, overlap, scale2 = map(float, array)
    return a, bend, overlap, scale2


def _choice(
    ridge: object,
    time: object,
    rate: object,
    momentum: object,
    found: FoundTables,
    problem: Problem,
    owner: str,
) -> Regularisation:
    if (ridge is None) == (time is None):
        got = "neither" if ridge is None else "both"
        raise InvalidInput(f"One of ridge and time must be given to {owner}. Got {got}.")
    if ridge is not None:
        if rate is not None or momentum != 0.0:
            raise checks.refusal("rate", owner, "come with time, not with a ridge", rate)
        return Regularisation("ridge", checked_values(ridge, "ridge", found, problem, owner))
    times = checked_values(time, "time", found, problem, owner)
    beta = checks.finite_number(momentum, "momentum", owner)
    if not 0.0 <= beta < 1.0:
        raise checks.refusal("momentum", owner, "satisfy 0 ≤ momentum < 1", beta)
    if rate is None:
        if beta:
            raise checks.refusal("momentum", owner, "come with a rate", beta)
        return Regularisation("time", times)
    step = checks.positive_number(rate, "rate", owner)
    steps = times / step
    if (np.rint(steps) < 1).any() or (np.abs(steps - np.rint(steps)) > 1e-6 * steps).any():
        requirement = f"be whole numbers of steps of the rate {step:g}"
        raise checks.refusal("time", owner, requirement, times.tolist())
    limit = 2.0 * (1.0 + beta) / _largest_eigenvalue(found.tables, problem)
    if step > limit:
        requirement = f"be at most {limit:.3g}, 2(1 + momentum) over a bound on the kernel's norm"
        remedy = "With a larger rate gradient descent may diverge."
        raise checks.refusal("rate", owner, requirement, step, remedy)
    return Regularisation("time", times, step, beta)


def checked_values(
    values: object, parameter: str, found: FoundTables, problem: Problem, owner: str
) -> FloatArray:
    """Require ridges or times within the range that the equations are solved for."""
    array = np.atleast_1d(checks.real_array(values, parameter, owner))
    if array.ndim != 1 or not array.size or not (array > 0.0).all():
        requirement = "be a positive number or a list of them"
        raise checks.refusal(parameter, owner, requirement, array.tolist())
    size = kernel_size(found.tables, problem)
    shares = array / size if parameter == "ridge" else array * size
    if shares.min() < 1.0 / _RANGE or shares.max() > _RANGE:
        unit = f"{size:.3g}" if parameter == "ridge" else f"1/{size:.3g}"
        requirement = f"lie within a factor of {_RANGE:g} of {unit}, the size of the kernel"
        raise checks.refusal(parameter, owner, requirement, array.tolist())
    return array


def kernel_size(tables: KernelTables, problem: Problem) -> float:
    """Return the diagonal of the kernel, without what class means and norms add."""
    return float((tables.diagonal + np.diag(tables.linear) * problem.classes.traces).max())


def _largest_eigenvalue(tables: KernelTables, problem: Problem) -> float:
    """Bound the norm of the kernel: its bulk and its class means together."""
    classes = problem.classes
    ratio = problem.counts.sum() / classes.dimension
    top = float((np.diag(tables.linear) * classes.values.max(axis=0)).max())
    bulk = top * (1.0 + np.sqrt(ratio)) ** 2 + float(tables.diagonal.max())
    bulk += float((np.diag(tables.quadratic) * classes.traces**2).max())
    blocks = (tables.constant + tables.linear * classes.mean_products) / classes.dimension
    root = np.sqrt(problem.counts)
    return float(bulk) + max(0.0, float(np.linalg.eigvalsh(root[:, None] * blocks * root)[-1]))


def _readout_width(
    width: object, choice: Regularisation, kernel: str, convention: str, owner: str
) -> int:
    m = checks.positive_integer(width, "width", owner)
    if choice.axis != "ridge":
        raise checks.refusal("width", owner, "come with a ridge", f"width = {m} and a time")
    if kernel != "conjugate" or convention != "feature":
        requirement = "come with the conjugate kernel in the feature convention, of a read-out"
        raise checks.refusal("width", owner, requirement, f"the {kernel} kernel, {convention}")
    return m
