"""Trained networks in pictures: diagnoses, and fidelity against cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from notsodeep.plotting.canvas import MUTED, axes_or_new, colours, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.trained.diagnosis import Diagnosis
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.compilation.evidence import Fidelity, Front, FrontPoint, PointKind


def diagnosis(record: Diagnosis, ax: Axes | None = None) -> Axes:
    """Draw the median residual from every start against the steps.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    >>> axes = diagnosis(nsd.diagnose(cell, [[0.1], [0.7]]), new_figure()[1][0])
    >>> axes.get_title()
    'settles: median residual'
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
    """Draw residuals, agreement of truncations with the limit, and spectral radii.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0]], activation="tanh")
    >>> figure = diagnosis_figure(nsd.diagnose(cell, [[0.1], [0.7]]))
    >>> [axes.get_title() for axes in figure.axes][1:]
    ['truncation agrees with the limit', 'spectral radius of ∂f/∂z']
    """
    figure, (left, middle, right) = new_figure(3, width=3.9)
    diagnosis(record, left)
    _draw_agreement(middle, record)
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


_STYLES: dict[PointKind, tuple[str, str]] = {
    "tolerance": ("o", "DEQ at a tolerance"),
    "explicit": ("D", "explicit network"),
    "hybrid": ("*", "certified hybrid"),
    "truncated": ("s", "solver cut off"),
}


def front(record: Front, ax: Axes | None = None) -> Axes:
    """Draw quality against time: the share of other classes than the DEQ's, or the accuracy.

    An agreement on every row is drawn at the bottom, at half a row.
    """
    axes = axes_or_new(ax)
    by_agreement = record.points[0].agreement is not None
    # What the rows can show: below one in `rows` there is nothing to see.
    shares = [1.0 - p.agreement for p in record.points if p.agreement is not None]
    least = min((s for s in shares if s > 0.0), default=1e-3) / 2.0

    def height(point: FrontPoint) -> float:
        if point.agreement is None:
            return 100.0 * (point.accuracy or 0.0)
        return max(1.0 - point.agreement, least)

    for (kind, (marker, label)), colour in zip(_STYLES.items(), (*colours(3), MUTED), strict=True):
        points = record.of_kind(kind)
        if not points:
            continue
        x, y = [p.ratio for p in points], [height(p) for p in points]
        low = [max(p.ratio - p.quartiles[0], 0.0) for p in points]
        high = [max(p.quartiles[1] - p.ratio, 0.0) for p in points]
        line = "none" if kind == "hybrid" else "-"
        axes.errorbar(
            x, y, xerr=[low, high], color=colour, marker=marker, linestyle=line, label=label,
            linewidth=1.0, markersize=8 if kind == "hybrid" else 5, capsize=2,
        )  # fmt: skip
        # Of points at one height the first is the cheapest; more labels would overlap.
        firsts = {b: (point, a) for point, a, b in reversed([*zip(points, x, y, strict=True)])}
        for b, (point, a) in firsts.items() if kind != "hybrid" else ():
            axes.annotate(
                f"{point.parameter:g}", (a, b), xytext=(3, 4), textcoords="offset points",
                fontsize="x-small",
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(f"time, in units of {record.reference}")
    if by_agreement:
        axes.set_yscale("log")
    axes.set_ylabel("share of rows with another class" if by_agreement else "test accuracy in %")
    axes.legend(fontsize="small")
    return axes


def fidelities(
    by_layers: Mapping[int, Fidelity],
    baselines: Mapping[str, Fidelity] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw agreement and certified share against the number of layers, with baselines as lines."""
    axes = axes_or_new(ax)
    _, shallow, sure = colours(3)
    numbers = list(by_layers)
    agreement = [100.0 * f.agreement for f in by_layers.values()]
    bounds = [100.0 * (f.agreement - f.agreement_bound) for f in by_layers.values()]
    upper = [0.0] * len(bounds)
    axes.errorbar(
        numbers, agreement, yerr=[bounds, upper], color=shallow, marker="D", capsize=2,
        label="same class as the DEQ",
    )  # fmt: skip
    proved = [f.certified for f in by_layers.values()]
    if any(share is not None for share in proved):
        shares = [100.0 * (share or 0.0) for share in proved]
        axes.plot(numbers, shares, color=sure, marker="*", label="proved")
    for line, (name, fidelity) in enumerate((baselines or {}).items()):
        dashes = (0, (1 + 2 * line, 2))
        axes.axhline(100.0 * fidelity.agreement, color=MUTED, lw=0.9, ls=dashes, label=name)
    axes.set_xticks(numbers)
    axes.set_xlabel("explicit layers")
    axes.set_ylabel("held-out rows, %")
    axes.legend(fontsize="x-small", loc="lower right")
    return axes


def trained_figure(
    record: Front, by_layers: Mapping[int, Fidelity], baselines: Mapping[str, Fidelity]
) -> Figure:
    """Draw the front beside fidelity by the number of layers."""
    figure, (left, right) = new_figure(2, width=5.2, height=3.8)
    front(record, left)
    fidelities(by_layers, baselines, right)
    return figure
