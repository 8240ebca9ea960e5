"""Class vectors in space beside the simplex that neural collapse leads to."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.checks import FloatArray
from notsodeep.collapse import nearest_etf
from notsodeep.report.drawing import DEEP, MUTED, SHALLOW, house_style


def simplex_figure(
    vectors: FloatArray, minority: NDArray[np.bool_], *, width: float = 4.6, height: float = 4.0
) -> Figure:
    """Draw four class vectors in 3-D, and the nearest simplex ETF behind them.

    Four vectors minus their mean span at most three dimensions, so that nothing is lost but the
    position: they are turned so that the ETF stands the same way in every picture.

    Parameters
    ----------
    vectors : ndarray of shape (4, d)
        Classifiers or class means, d ≥ 3, not all equal.
    minority : ndarray of bool, shape (4,)
        Which classes are the small ones.
    width, height : float
        In inches.
    """
    if vectors.shape[0] != 4:
        requirement = "have four rows: their simplex is the one that fits into space"
        raise checks.refusal("vectors", "simplex_figure", requirement, len(vectors))
    points, corners = _in_space(vectors)
    size = float(np.linalg.norm(points, axis=1).max())
    points, corners = points / size, corners / size
    with house_style():
        figure = Figure(figsize=(width, height))
        axes: Any = figure.add_axes((0.0, 0.08, 1.0, 0.92), projection="3d")
        axes.set_axis_off()
        for a, b in combinations(corners, 2):
            axes.plot(*np.stack([a, b]).T, color=MUTED, lw=0.8)
        for k, point in enumerate(points):
            colour, name = (SHALLOW, "minority") if minority[k] else (DEEP, "majority")
            axes.plot(*np.stack([np.zeros(3), point]).T, color=colour, lw=2.4)
            seen = bool(minority[k]) in [bool(small) for small in minority[:k]]
            label = "_" if seen else name
            axes.plot(*point[:, None], "o", color=colour, ms=6, label=label)
            axes.text(*(1.14 * point), str(k + 1), ha="center", va="center")
        axes.plot([], [], color=MUTED, lw=0.8, label="nearest simplex")
        reach = 0.75 * max(1.0, float(np.abs(corners).max()))
        for name in "xyz":
            getattr(axes, f"set_{name}lim")(-reach, reach)
        axes.set_box_aspect((1, 1, 1))
        axes.view_init(elev=18.0, azim=70.0)
        figure.legend(frameon=False, loc="lower center", ncols=3, columnspacing=1.0)
    return figure


def _in_space(vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Coordinates of the centred vectors and of their nearest ETF, in which the ETF is upright."""
    etf = nearest_etf(vectors)
    corners = etf.vertices - etf.centre
    # The first corner upward, the second in the plane of the page.
    up = corners[0] / np.linalg.norm(corners[0])
    side = corners[1] - (corners[1] @ up) * up
    side /= np.linalg.norm(side)
    depth = corners[2] - (corners[2] @ up) * up - (corners[2] @ side) * side
    depth /= np.linalg.norm(depth)
    basis = np.stack([side, depth, up], axis=1)
    return (vectors - etf.centre) @ basis, corners @ basis
