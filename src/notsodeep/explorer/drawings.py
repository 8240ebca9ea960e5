"""The pictures of the pages, as SVG, by the drawing code of the report.

They are drawn again at every move, so that labels are few, and margins and titles have fixed
places: to measure every label for them costs more than to draw it.
"""

from __future__ import annotations

import contextlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, LogFormatter, MaxNLocator

from notsodeep.arrays import FloatArray
from notsodeep.explorer.shown import View
from notsodeep.plotting.canvas import house_style, new_figure, svg_text
from notsodeep.plotting.matches import (
    draw_activations,
    draw_difference,
    draw_eigenvalue_scatter,
    draw_spectra,
)
from notsodeep.plotting.spectra import draw_isolated, draw_twin_bulks

ALT = {
    "activations": "The DEQ's activation and the network's, drawn over one another.",
    "bulk": "Histograms of the eigenvalues of both kernels, with the limiting density.",
    "isolated": "The largest eigenvalues of both kernels, with those that the law predicts.",
    "difference": "Heat map of the difference of the two kernel matrices, rows sorted by class.",
}
_MARGINS = {"left": 0.15, "right": 0.97, "bottom": 0.15, "top": 0.9}
# Matplotlib's settings are global, and every visitor of the page has a thread.
_ONE_AT_A_TIME = threading.Lock()


def figures_of(view: View) -> dict[str, str]:
    """Draw what the first page shows, by name."""
    with _drawing():
        return _figures(view)


def _figures(view: View) -> dict[str, str]:
    found, certificate = view.match, view.certificate
    x = np.linspace(-3.0 * found.tau0, 3.0 * found.tau0, 301)
    layers = [] if found.fitted is None else [a(x) for a in found.fitted.activations]
    phi = found.model.cell[-1].activation(x)
    figures = {"activations": _drawn(lambda axes: draw_activations(axes, x, phi, layers))}
    if certificate is None:
        return figures
    spectra = certificate.matched.eigenvalues, certificate.matched.other_eigenvalues
    figures["bulk"] = _drawn(lambda axes: draw_twin_bulks(axes, *spectra, view.law))
    figures["isolated"] = _drawn(lambda axes: draw_isolated(axes, *spectra, view.law))
    figures["difference"] = _drawn(lambda axes: _difference(axes, certificate.difference))
    return figures


def stored_figures(
    arrays: Mapping[str, FloatArray], spectrum: Mapping[str, FloatArray]
) -> list[tuple[str, str]]:
    """Draw what a compile run has stored: alternative texts and figures.

    Parameters
    ----------
    arrays, spectrum : Mapping
        The pieces ``certificate`` and ``spectrum`` of the run.
    """
    with _drawing():
        return _stored_figures(arrays, spectrum)


def _stored_figures(
    arrays: Mapping[str, FloatArray], spectrum: Mapping[str, FloatArray]
) -> list[tuple[str, str]]:
    layers = [arrays[name] for name in sorted(arrays) if name.startswith("layer_")]
    deq, matched, unmatched = (arrays[name] for name in ("deq", "matched", "unmatched"))
    return [
        (
            ALT["activations"],
            _drawn(lambda axes: draw_activations(axes, arrays["x"], arrays["phi"], layers)),
        ),
        (
            "Histogram of the eigenvalues of both kernels, with the limiting law as dots.",
            _drawn(
                lambda axes: draw_spectra(axes, spectrum["edges"], deq, matched, spectrum["shares"])
            ),
        ),
        (
            "Eigenvalues of the networks against those of the DEQ, on the diagonal if equal.",
            _drawn(lambda axes: draw_eigenvalue_scatter(axes, deq, matched, unmatched)),
        ),
        (ALT["difference"], _drawn(lambda axes: _difference(axes, arrays["difference"]))),
    ]


def _difference(axes: Axes, difference: FloatArray) -> None:
    draw_difference(axes, difference)
    figure = axes.get_figure()
    assert figure is not None
    figure.subplots_adjust(left=0.03, right=0.87)
    # The differences are small: a common power of ten keeps the labels short.
    bar = figure.axes[-1]
    bar.locator_params(nbins=5)
    bar.ticklabel_format(style="sci", scilimits=(-2, 3))
    bar.yaxis.get_offset_text().set_horizontalalignment("left")


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    """Take turns, in the style of the house, to which one goes and from which one comes once."""
    with _ONE_AT_A_TIME, house_style(), rc_context({"axes.titley": 1.02}):
        yield


def svg_of(make: Callable[[], Figure]) -> str:
    """Draw a figure of the report as it is, in the style of the house."""
    with _ONE_AT_A_TIME, house_style():
        return svg_text(make())


def panels(draws: Iterable[Callable[[Axes], object]]) -> list[str]:
    """Draw figures of one panel each."""
    with _drawing():
        return [_drawn(draw) for draw in draws]


def _drawn(draw: Callable[[Axes], object]) -> str:
    figure, (axes,) = new_figure(1, width=4.6, height=3.3)
    figure.set_layout_engine(None)
    figure.subplots_adjust(**_MARGINS)
    draw(axes)
    _thin_out(axes)
    return svg_text(figure)


def _thin_out(axes: Axes) -> None:
    """Leave few ticks, with labels in plain text: formulas take a hundred times as long."""
    for axis in (axes.xaxis, axes.yaxis):
        if isinstance(axis.get_major_locator(), AutoLocator):
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        elif isinstance(axis.get_major_formatter(), LogFormatter):
            axis.set_major_formatter(_power)
    axes.minorticks_off()


def _power(x: float, _: float) -> str:
    """Write a power of ten as 0.01 or 10⁻⁵, others as a number."""
    if 1e-4 < x < 1e5:
        return f"{x:g}"
    digits, exponent = f"{x:.0e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


def archive(figures: dict[str, str]) -> bytes:
    """Pack figures into a ZIP file, the same bytes every time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as files:
        for name, svg in sorted(figures.items()):
            files.writestr(zipfile.ZipInfo(f"{name}.svg"), svg, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
