"""Neural collapse in pictures: cosines of classes, and class vectors beside their simplex."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.plotting.canvas import MUTED, axes_or_new, blank_figure, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from notsodeep.collapse import CollapseReport, LayerPeeledOptimum


def collapse(
    record: CollapseReport,
    ax: Axes | None = None,
    *,
    vectors: Literal["features", "classifier"] = "features",
) -> Axes:
    """Draw the cosines between centred class means, or between rows of the classifier.

    At collapse everything off the diagonal is −1/(K − 1).

    Parameters
    ----------
    record : CollapseReport
    ax : Axes, optional
    vectors : {"features", "classifier"}

    Examples
    --------
    >>> import notsodeep as nsd
    >>> metrics = nsd.collapse.CollapseMetrics(num_classes=3)
    >>> metrics.update(nsd.collapse.simplex_etf(3, 4, rng=0), [0, 1, 2])
    >>> axes = nsd.plotting.new_figure()[1][0]
    >>> collapse(metrics.compute(), axes).get_title()
    'cosines of class means; −0.5 at collapse'
    """
    owner = "plotting.collapse"
    checks.known_name(vectors, ("features", "classifier"), f"vectors of {owner}")
    cosines = record.feature_cosines if vectors == "features" else record.classifier_cosines
    if cosines is None:
        remedy = "Compute the report with a classifier: metrics.compute(W)."
        raise checks.invalid("record", owner, "hold a classifier", "features only", remedy)
    axes = axes_or_new(ax)
    collapsed = f"{-1.0 / (len(cosines) - 1):.3g}".replace("-", "−")
    words = {"features": "class means", "classifier": "classifiers"}[vectors]
    _draw_cosines(axes, cosines, f"cosines of {words}; {collapsed} at collapse")
    return axes


def layer_peeled(record: LayerPeeledOptimum, ax: Axes | None = None) -> Axes:
    """Draw the cosines between the rows of the optimal classifier; grey where one is zero.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> optimum = nsd.collapse.layer_peeled([10, 10, 1, 1], budget=1.0)
    >>> layer_peeled(optimum, nsd.plotting.new_figure()[1][0]).get_title()
    'cosines of the optimal classifier'
    """
    axes = axes_or_new(ax)
    _draw_cosines(axes, _cosines(record.classifier), "cosines of the optimal classifier")
    return axes


def _cosines(vectors: FloatArray) -> FloatArray:
    """Return cosines of rows, NaN for rows that are zero next to the others."""
    norms = np.linalg.norm(vectors, axis=1)
    safe = np.where(norms > 1e-12 * norms.max(), norms, np.nan)
    return np.asarray(vectors @ vectors.T / np.outer(safe, safe))


def _draw_cosines(axes: Axes, cosines: FloatArray, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor("#d9dce1")  # shows where there is no cosine
    shown = np.ma.masked_invalid(cosines)
    image = axes.imshow(shown, cmap="PuOr", vmin=-1.0, vmax=1.0, interpolation="nearest")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("class")
    axes.set_ylabel("class")
    axes.set_title(title)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, shrink=0.85)


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

    Examples
    --------
    >>> import notsodeep as nsd
    >>> W = nsd.collapse.simplex_etf(4, 6, rng=0)
    >>> figure = simplex_figure(W, np.array([False, False, True, True]))
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['majority', 'minority', 'nearest simplex']
    """
    deep, shallow = colours()
    if vectors.shape[0] != 4:
        requirement = "have four rows: their simplex is the one that fits into space"
        raise checks.invalid("vectors", "simplex_figure", requirement, len(vectors))
    points, corners = _in_space(vectors)
    size = float(np.linalg.norm(points, axis=1).max())
    points, corners = points / size, corners / size
    figure = blank_figure(width, height, None)
    axes: Any = figure.add_axes((0.0, 0.08, 1.0, 0.92), projection="3d")
    axes.set_axis_off()
    for a, b in combinations(corners, 2):
        axes.plot(*np.stack([a, b]).T, color=MUTED, lw=0.8)
    for k, point in enumerate(points):
        colour, name = (shallow, "minority") if minority[k] else (deep, "majority")
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
    figure.legend(loc="lower center", ncols=3, columnspacing=1.0)
    return figure


def _in_space(vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Coordinates of the centred vectors and of their nearest ETF, in which the ETF is upright."""
    from notsodeep.collapse import nearest_etf  # brings optimisers, which most figures do without

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
