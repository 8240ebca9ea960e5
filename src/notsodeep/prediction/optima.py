"""The best ridge, training time and σa², with the curve each was read from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import Coefficients
from notsodeep.models import Convention, DeepEquilibrium, KernelName, Model
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.risk import RiskCurve, risk_of
from notsodeep.prediction.task import Axis, FourNumbers, Regularisation, TableName, Task
from notsodeep.records import Plotted

Goal = Literal["test_mse", "accuracy", "log_loss"]

_GRID = 25
_DECADES = 4.0  # either side of the kernel's size


@dataclass(frozen=True, eq=False, repr=False)
class Optimum(Plotted):
    """The best value of a parameter.

    Attributes
    ----------
    value : float
        The ridge or time.
    score : float
        What it reaches.
    goal : {"test_mse", "accuracy", "log_loss"}
    curve : RiskCurve
        Over a grid, which shows how much the choice matters.
    inside : bool
        False if the best of the grid is at its end: a better value may lie beyond.
    """

    _drawing = "optimum"

    value: float
    score: float
    goal: Goal
    curve: RiskCurve
    inside: bool


@dataclass(frozen=True, eq=False, repr=False)
class BestRecurrence(Plotted):
    """The best σa² of a DEQ, over ridges.

    Attributes
    ----------
    value : float
        σa².
    ridge : float
        The best ridge there.
    score : float
    goal : {"test_mse", "accuracy", "log_loss"}
    sigma_a2 : ndarray of shape (S,)
        What was tried.
    ridges : ndarray of shape (R,)
    scores : ndarray of shape (S, R)
    """

    _drawing = "best_recurrence"

    value: float
    ridge: float
    score: float
    goal: Goal
    sigma_a2: FloatArray
    ridges: FloatArray
    scores: FloatArray


def best_ridge(
    model: Model | None,
    mixture: GaussianMixture | MixtureStatistics,
    counts: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    ridges: ArrayLike | None = None,
    goal: Goal = "test_mse",
    width: int | None = None,
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    test_weights: ArrayLike | None = None,
    noise: float = 0.0,
    flips: ArrayLike = 0.0,
    coefficients: Coefficients | FourNumbers | None = None,
    tables: TableName = "resolved",
) -> Optimum:
    """Find the ridge with the lowest predicted error, by a grid and Brent's method.

    Parameters
    ----------
    ridges : array_like, optional
        The grid; 25 values over eight decades about the kernel's size if left out.
    goal : {"test_mse", "accuracy", "log_loss"}
        What is to be best; the last reads the fit as a Gaussian process.
    model, mixture, counts, targets, width, kernel, convention, test_weights, noise, flips, \
coefficients, tables
        As for `predict_risk`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 400)), [0.9, 1.1])
    >>> best = nsd.best_ridge(nsd.DeepEquilibrium("relu", 0.2).centred(1.0), mixture, (400, 400))
    >>> round(best.value, 2), round(best.score, 3), best.inside
    (0.03, 0.519, True)
    """
    problem = Problem.checked(
        mixture, counts, targets, noise=noise, flips=flips, test_weights=test_weights,
        owner="best_ridge",
    )  # fmt: skip
    task = Task.of(
        problem, model, kernel=kernel, convention=convention, tables=tables,
        coefficients=coefficients,
    )  # fmt: skip
    return _searched(task, "ridge", _grid(task, ridges, "ridge"), goal, width)


def best_time(
    model: Model | None,
    mixture: GaussianMixture | MixtureStatistics,
    counts: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    times: ArrayLike | None = None,
    goal: Goal = "test_mse",
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    test_weights: ArrayLike | None = None,
    noise: float = 0.0,
    flips: ArrayLike = 0.0,
    coefficients: Coefficients | FourNumbers | None = None,
    tables: TableName = "resolved",
) -> Optimum:
    """Find the time at which gradient flow has the lowest predicted error.

    Parameters
    ----------
    times : array_like, optional
        The grid; 25 values over eight decades about one over the kernel's size if left out.
    model, mixture, counts, targets, goal, kernel, convention, test_weights, noise, flips, \
coefficients, tables
        As for `best_ridge`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 400)), [0.9, 1.1])
    >>> best = nsd.best_time(nsd.DeepEquilibrium("relu", 0.2).centred(1.0), mixture, (400, 400))
    >>> round(best.value, 1), round(best.score, 3)
    (9.6, 0.519)
    """
    problem = Problem.checked(
        mixture, counts, targets, noise=noise, flips=flips, test_weights=test_weights,
        owner="best_time",
    )  # fmt: skip
    task = Task.of(
        problem, model, kernel=kernel, convention=convention, tables=tables,
        coefficients=coefficients,
    )  # fmt: skip
    return _searched(task, "time", _grid(task, times, "time"), goal, None)


def best_sigma_a2(
    activation: str | Activation,
    mixture: GaussianMixture | MixtureStatistics,
    counts: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    sigma_a2: ArrayLike = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    ridges: ArrayLike | None = None,
    goal: Goal = "test_mse",
    width: int | None = None,
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    test_weights: ArrayLike | None = None,
    noise: float = 0.0,
    flips: ArrayLike = 0.0,
    tables: TableName = "resolved",
) -> BestRecurrence:
    """Find σa² and the ridge with the lowest predicted error.

    Which DEQ for my data?  Every DEQ is centred for the scale of the data.

    Parameters
    ----------
    activation : str or Activation
    sigma_a2, ridges : array_like
        The grid.
    mixture, counts, targets, goal, width, kernel, convention, test_weights, noise, flips, tables
        As for `best_ridge`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 256)), [0.85, 1.15])
    >>> best = nsd.best_sigma_a2(
    ...     "relu", mixture, counts=(256, 256), sigma_a2=[0.0, 0.4, 0.8], ridges=[0.01, 0.1, 1.0]
    ... )
    >>> best.value, best.ridge, best.scores.shape
    (0.8, 0.01, (3, 3))
    """
    owner = "best_sigma_a2"
    problem = Problem.checked(
        mixture, counts, targets, noise=noise, flips=flips, test_weights=test_weights, owner=owner
    )
    shares = np.atleast_1d(checks.real_array(sigma_a2, "sigma_a2", owner))
    tau0 = problem.classes.scale(problem.shares)
    tasks = [
        Task.of(
            problem, DeepEquilibrium(activation, float(share)).centred(tau0), kernel=kernel,
            convention=convention, tables=tables,
        )
        for share in shares
    ]  # fmt: skip
    levels = _grid(tasks[0], ridges, "ridge")  # one for all, so that they can be compared
    stop = Regularisation("ridge", levels)
    rows = [_scores(risk_of(task, stop, width), goal) for task in tasks]
    table = np.stack(rows)
    signed = -table if goal == "accuracy" else table
    i, j = np.unravel_index(int(signed.argmin()), table.shape)
    return BestRecurrence(
        float(shares[i]), float(levels[j]), float(table[i, j]), goal, shares, levels, table
    )


def _grid(task: Task, given: object, axis: Axis) -> FloatArray:
    if given is None:
        middle = np.log10(task.size if axis == "ridge" else 1.0 / task.size)
        return np.logspace(middle - _DECADES, middle + _DECADES, _GRID)
    values = np.unique(task.values(given, axis))
    if values.size < 2:
        requirement = "hold at least two positive values"
        raise checks.invalid(f"{axis}s", task.problem.owner, requirement, values.tolist())
    return values


def _scores(curve: RiskCurve, goal: str) -> FloatArray:
    checks.known_name(goal, get_args(Goal), "goal of a search for the best parameter")
    scores = getattr(curve, goal)
    if scores is None:
        requirement = "be test_mse or accuracy for times and finite widths"
        raise checks.invalid("goal", "a search for the best parameter", requirement, repr(goal))
    return np.asarray(scores)


def _searched(task: Task, axis: Axis, grid: FloatArray, goal: Goal, width: int | None) -> Optimum:
    curve = risk_of(task, Regularisation(axis, grid), width)
    sign = -1.0 if goal == "accuracy" else 1.0
    scores = sign * _scores(curve, goal)
    i = int(scores.argmin())
    low, high = np.log(grid[max(i - 1, 0)]), np.log(grid[min(i + 1, len(grid) - 1)])

    def value(x: float) -> float:
        here = risk_of(task, Regularisation(axis, np.exp([x])), width)
        return float(sign * _scores(here, goal)[0])

    # In the logarithm, and between the neighbours of the grid's best: a curve may have several
    # minima.
    refined = minimize_scalar(value, bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    better = refined.fun < scores[i]
    best = float(np.exp(refined.x)) if better else float(grid[i])
    score = sign * float(refined.fun if better else scores[i])
    return Optimum(best, score, goal, curve, 0 < i < len(grid) - 1)
