"""Diagnoses of equilibrium networks in pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from notsodeep.plotting.canvas import MUTED, axes_or_new, colours, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.trained.diagnosis import Diagnosis


def diagnosis(record: Diagnosis, ax: Axes | None = None) -> Axes:
    """Draw the median residual from every start against the steps.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    >>> axes = diagnosis(nsd.diagnose(cell, [[0.1], [0.7]]), new_figure()[1][0])
    >>> axes.get_title()
    'iterative: median residual'
    """
    axes = axes_or_new(ax)
    deep, shallow = colours()
    least = np.finfo(float).eps
    for name, curve in zip(record.starts, record.residuals, strict=True):
        steps = np.arange(1, len(curve) + 1)
        own = name == "zero"
        axes.semilogy(
            steps,
            np.maximum(curve, least),
            color=deep if own else MUTED,
            linewidth=1.8 if own else 0.9,
            label=f"from {name}",
        )
    if len(record.solver_residuals):
        steps = np.arange(1, len(record.solver_residuals) + 1)
        curve = np.maximum(record.solver_residuals, least)
        axes.semilogy(steps, curve, color=shallow, label=record.method)
    axes.axhline(record.tolerance, color=MUTED, linewidth=0.7, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("steps")
    axes.set_title(f"{record.verdict}: median residual")
    axes.legend(fontsize="x-small")
    return axes


def diagnosis_figure(record: Diagnosis) -> Figure:
    """Draw residuals, agreement of truncations with the limit, and the spectrum.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    >>> figure = diagnosis_figure(nsd.diagnose(cell, [[0.1], [0.7]]))
    >>> [axes.get_title() for axes in figure.axes][1:]
    ['truncation agrees with the limit', 'eigenvalues of W']
    """
    figure, (left, middle, right) = new_figure(3, width=3.9)
    diagnosis(record, left)
    _draw_agreement(middle, record)
    if len(record.spectrum):
        _draw_eigenvalues(right, record)
    else:
        _draw_radii(right, record)
    return figure


def _draw_agreement(axes: Axes, record: Diagnosis) -> None:
    deep, shallow = colours()
    axes.set_title("truncation agrees with the limit")
    axes.set_xlabel("steps")
    if not len(record.agreement):
        _say(axes, "no limit to agree with")
        return
    steps = np.arange(1, len(record.agreement) + 1)
    axes.plot(steps, 100.0 * record.agreement, color=deep, marker=".")
    axes.axhline(99.5, color=MUTED, linewidth=0.7, linestyle=":")
    if record.effective_depth is not None:
        axes.axvline(record.effective_depth, color=shallow, linewidth=0.9)
    axes.set_ylabel(f"% of rows, by {record.agreement_kind}")


def _draw_eigenvalues(axes: Axes, record: Diagnosis) -> None:
    (deep,) = colours(1)
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    axes.plot(np.cos(angle), np.sin(angle), color=MUTED, linewidth=0.7)
    real, imaginary = record.spectrum.T
    axes.scatter(real, imaginary, s=6.0, color=deep)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title("eigenvalues of W")


def _draw_radii(axes: Axes, record: Diagnosis) -> None:
    (deep,) = colours(1)
    axes.set_title("spectral radius of ∂f/∂z")
    if not len(record.local_radii):
        _say(axes, "no limit to take it at")
        return
    axes.hist(record.local_radii, bins=20, color=deep)
    axes.axvline(1.0, color=MUTED, linewidth=0.7)
    axes.set_ylabel("rows")


def _say(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color=MUTED)
