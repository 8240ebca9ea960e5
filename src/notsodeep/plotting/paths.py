"""Solves and regularisation paths in pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from notsodeep.checks import FloatArray
from notsodeep.plotting.canvas import DEEP, MUTED, SHALLOW, axes_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from notsodeep.kernel_solvers import EarlyStoppingPath, RidgePath, Solution


def solution(record: Solution, ax: Axes | None = None) -> Axes:
    """Draw the relative residual of the worst and of the median column after every step.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.kernel_solvers.solve(np.diag([1.0, 2.0, 3.0]), np.ones(3), ridge=1.0)
    >>> solution(found, nsd.plotting.new_figure()[1][0]).get_ylabel()
    'relative residual'
    """
    axes = axes_or_new(ax)
    steps = np.arange(len(record.residuals))
    axes.semilogy(steps, record.worst, color=DEEP, lw=1.8, label="worst column")
    if record.residuals.shape[1] > 1:
        median = np.median(record.residuals, axis=1)
        axes.semilogy(steps, median, color=MUTED, lw=1.2, label="median column")
        axes.legend(frameon=False)
    axes.set_xlabel("step")
    axes.set_ylabel("relative residual")
    axes.set_title(record.reason if len(record.reason) < 40 else "residuals")
    return axes


def ridge_path(record: RidgePath, ax: Axes | None = None) -> Axes:
    """Draw training error, cross-validation and leave-one-out error along the ridge.

    A grey line marks the ridge with the lowest cross-validation, of those that were solved.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> K = np.diag([4.0, 1.0, 0.1])
    >>> path = nsd.kernel_solvers.ridge_path(K, [2.0, 1.0, 0.0], [0.1, 1.0, 10.0])
    >>> ridge_path(path, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'ridge λ'
    """
    axes = axes_or_new(ax)
    _draw_path(axes, record, record.ridges)
    if record.leave_one_out is not None:
        axes.loglog(record.ridges, record.leave_one_out, color=SHALLOW, label="leave-one-out")
    axes.set_xlabel("ridge λ")
    axes.legend(frameon=False)
    return axes


def early_stopping(record: EarlyStoppingPath, ax: Axes | None = None) -> Axes:
    """Draw training error and cross-validation against the time at which the flow is stopped.

    A grey line marks the time with the lowest cross-validation, of those that were followed.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> K = np.diag([1.0, 0.01])
    >>> path = nsd.kernel_solvers.early_stopping_path(K, [1.0, 1.0], [0.1, 1.0, 10.0])
    >>> early_stopping(path, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'time'
    """
    axes = axes_or_new(ax)
    _draw_path(axes, record, record.times)
    axes.set_xlabel("time")
    axes.legend(frameon=False)
    return axes


def _draw_path(axes: Axes, record: RidgePath | EarlyStoppingPath, x: FloatArray) -> None:
    scores = record.generalised_cross_validation
    axes.loglog(x, record.training_error, color=MUTED, label="training")
    axes.loglog(x, scores, color=DEEP, lw=1.8, label="cross-validation")
    if (record.residual <= record.tolerance).any():
        axes.axvline(record.best(), color=MUTED, lw=0.8)
    axes.set_ylabel("mean squared error")
