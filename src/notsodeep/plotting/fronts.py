"""Fidelity against cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from notsodeep.plotting.canvas import MUTED, axes_or_new, colours, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.trained.fidelity import Fidelity
    from notsodeep.trained.front import Front

_STYLES = {
    "tolerance": ("o", "DEQ at a tolerance"),
    "explicit": ("D", "explicit layers"),
    "hybrid": ("*", "certified hybrid"),
    "truncated": ("s", "solver cut off"),
}


def front(record: Front, ax: Axes | None = None) -> Axes:
    """Draw disagreement with the converged DEQ against time, both on logarithmic axes.

    An agreement on every row is drawn at the bottom, at half a row.
    """
    axes = axes_or_new(ax)
    # What the rows can show: below one in `rows` there is nothing to see.
    shares = [1.0 - p.agreement for p in record.points]
    least = min((s for s in shares if s > 0.0), default=1e-3) / 2.0
    for (kind, (marker, label)), colour in zip(_STYLES.items(), (*colours(3), MUTED), strict=True):
        points = [p for p in record.points if p.kind == kind]
        if not points:
            continue
        x = [p.ratio for p in points]
        y = [max(1.0 - p.agreement, least) for p in points]
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
    axes.set_yscale("log")
    axes.set_xlabel(f"time, in units of {record.reference}")
    axes.set_ylabel("share of rows with another class")
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
