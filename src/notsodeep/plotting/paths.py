"""Solves, training runs and regularisation paths in pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from notsodeep.plotting.canvas import MUTED, axes_or_new, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from notsodeep.kernel_solvers import RidgePath, Solution
    from notsodeep.networks.implicit import SolveRecord
    from notsodeep.networks.training import Training


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
    (deep,) = colours(1)
    steps = np.arange(len(record.residuals))
    axes.semilogy(steps, record.worst, color=deep, label="worst column")
    if record.residuals.shape[1] > 1:
        median = np.median(record.residuals, axis=1)
        axes.semilogy(steps, median, color=MUTED, lw=1.2, label="median column")
        axes.legend()
    axes.set_xlabel("step")
    axes.set_ylabel("relative residual")
    axes.set_title(record.reason if len(record.reason) < 40 else "residuals")
    return axes


def solve(record: SolveRecord, ax: Axes | None = None) -> Axes:
    """Draw the largest relative residual of an equilibrium solver after every step.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> network = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 3, 64, 1, rng=0)
    >>> import torch
    >>> outputs = network(torch.eye(3))
    >>> solve(network.record, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'evaluations of the layer'
    """
    axes = axes_or_new(ax)
    axes.semilogy(range(1, len(record.history) + 1), record.history, color=colours(1)[0])
    axes.axhline(record.tolerance, color=MUTED, lw=0.8, ls=":")
    axes.set_xlabel("evaluations of the layer")
    axes.set_ylabel("largest relative residual")
    axes.set_title(record.reason)
    return axes


def training(record: Training, ax: Axes | None = None) -> Axes:
    """Draw the loss of every epoch.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> data = nsd.data.load("digits", samples=60, rng=0)
    >>> network = nsd.build(nsd.ExplicitNetwork(["relu"]), 64, 32, 10, rng=0)
    >>> settings = nsd.networks.TrainingSettings(epochs=2, learning_rate=0.1)
    >>> run = nsd.networks.train(network, data.X, data.y, settings)
    >>> training(run, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'epoch'
    """
    from matplotlib.ticker import MaxNLocator

    axes = axes_or_new(ax)
    epochs = [1 + epoch["epoch"] for epoch in record.history]
    axes.plot(epochs, [epoch["loss"] for epoch in record.history], color=colours()[0])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss")
    return axes


def ridge_path(record: RidgePath, ax: Axes | None = None) -> Axes:
    """Draw training error, cross-validation and leave-one-out error along the ridge or the time.

    A grey line marks the one with the lowest cross-validation, of those that were solved.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> K = np.diag([4.0, 1.0, 0.1])
    >>> path = nsd.kernel_solvers.ridge_path(K, [2.0, 1.0, 0.0], [0.1, 1.0, 10.0])
    >>> ridge_path(path, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'ridge λ'
    """
    axes = axes_or_new(ax)
    deep, shallow = colours()
    x = record.values
    axes.loglog(x, record.training_error, color=MUTED, label="training")
    axes.loglog(x, record.generalised_cross_validation, color=deep, label="cross-validation")
    if record.leave_one_out is not None:
        axes.loglog(x, record.leave_one_out, color=shallow, label="leave-one-out")
    if (record.residual <= record.tolerance).any():
        axes.axvline(record.best(), color=MUTED, lw=0.8)
    axes.set_xlabel("ridge λ" if record.axis == "ridge" else "time")
    axes.set_ylabel("mean squared error")
    axes.legend()
    return axes
