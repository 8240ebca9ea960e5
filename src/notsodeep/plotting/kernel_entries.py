"""Kernel matrices in pictures, entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.plotting.canvas import MUTED, axes_or_new, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from notsodeep.kernels import KernelPair
    from notsodeep.networks.sampling import MonteCarlo

_SIDE = 150  # rows and columns that are drawn, at most; others are skipped evenly


def kernel_pair(record: KernelPair, ax: Axes | None = None) -> Axes:
    """Draw entries of the tangent kernel against those of the conjugate kernel.

    Of many samples some are shown; the diagonal of a square pair has a colour of its own.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> model, X = nsd.DeepEquilibrium("relu", 0.2), nsd.data.sphere(20, 5, rng=0)
    >>> pair = nsd.kernel(model, X, kind="both")
    >>> kernel_pair(pair, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'conjugate kernel'
    """
    axes = axes_or_new(ax)
    _against(axes, record.ck, record.ntk)
    axes.set_xlabel("conjugate kernel")
    axes.set_ylabel("tangent kernel")
    axes.set_title("entries of both kernels")
    return axes


def monte_carlo(record: MonteCarlo, ax: Axes | None = None) -> Axes:
    """Draw the standard errors of the tangent kernel's entries against their means.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> model = nsd.ExplicitNetwork(["tanh"])
    >>> estimate = nsd.monte_carlo(model, np.eye(3), width=50, draws=5, rng=0)
    >>> monte_carlo(estimate, nsd.plotting.new_figure()[1][0]).get_title()
    'mean of 5 networks'
    """
    axes = axes_or_new(ax)
    _against(axes, record.ntk, record.ntk_error)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("mean of an entry")
    axes.set_ylabel("standard error")
    axes.set_title(f"mean of {record.draws} networks")
    return axes


def _against(axes: Axes, x: NDArray[Any], y: NDArray[Any]) -> None:
    deep, shallow = colours()
    step = max(1, -(-max(x.shape) // _SIDE))
    square = x.shape[0] == x.shape[1]
    x, y = x[::step, ::step], y[::step, ::step]
    diagonal = np.eye(*x.shape, dtype=np.bool_) & square
    axes.axhline(0.0, color=MUTED, lw=0.6)
    axes.axvline(0.0, color=MUTED, lw=0.6)
    rest = "pairs of samples"
    axes.plot(x[~diagonal], y[~diagonal], ".", ms=2, color=deep, label=rest, rasterized=True)
    if square:
        axes.plot(x[diagonal], y[diagonal], ".", ms=5, color=shallow, label="diagonal")
    axes.legend()
