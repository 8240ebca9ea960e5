"""Figures of the explorer: what they show, and that they are the report's."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
import zipfile

import numpy as np
import pytest

from notsodeep.collapse import simplex_etf
from notsodeep.errors import InvalidInput
from notsodeep.explorer.drawings import ALT, archive, figures_of
from notsodeep.explorer.explorer_data import prepared
from notsodeep.explorer.shown import KnownData, view_of
from notsodeep.explorer.state import ExplorerState
from notsodeep.plotting.canvas import new_figure, themed_svg
from notsodeep.plotting.class_geometry import simplex_figure
from notsodeep.plotting.spectra import draw_isolated, draw_twin_bulks


def drawn(**changes: object) -> dict[str, str]:
    state = ExplorerState(samples=100, dimension=120, **changes)
    return figures_of(view_of(state, KnownData.of(prepared(state))))


def test_all_figures_are_drawn_and_packed() -> None:
    figures = drawn(family="leaky_relu")
    assert set(figures) == set(ALT)
    for svg in figures.values():
        ET.fromstring(svg)
        ET.fromstring(themed_svg(svg))
    assert "limiting density" in figures["bulk"]
    assert "predicted" in figures["isolated"]
    content = archive(figures)
    assert content == archive(dict(reversed(figures.items())))
    with zipfile.ZipFile(io.BytesIO(content)) as files:
        assert sorted(files.namelist()) == sorted(f"{name}.svg" for name in ALT)


def test_without_a_network_there_is_the_activation() -> None:
    assert set(drawn(activation="tanh", family="quadratic")) == {"activations"}


def test_a_wide_spectrum_gets_a_logarithmic_axis() -> None:
    deq = np.geomspace(1e-3, 10.0, 100)
    _, (axes,) = new_figure(1)
    draw_twin_bulks(axes, deq, deq, None)
    assert axes.get_xscale() == "log"
    _, (axes,) = new_figure(1)
    draw_twin_bulks(axes, 5.0 + deq, 5.0 + deq, None)
    assert axes.get_xscale() == "linear"
    _, (axes,) = new_figure(1)
    draw_isolated(axes, deq, deq, None)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), deq[::-1][:3])


def test_the_simplex_stands_upright_however_it_was_turned() -> None:
    minority = np.array([False, False, True, True])
    corners = []
    for seed in (0, 1):
        figure = simplex_figure(simplex_etf(4, 6, rng=seed), minority)
        lines = figure.axes[0].lines
        corners.append(np.array([line.get_data_3d() for line in lines[:6]]))
        ends = np.array([line.get_data_3d() for line in lines[6:14:2]])[:, :, 1]
        np.testing.assert_allclose(np.linalg.norm(ends, axis=1), 1.0)
        np.testing.assert_allclose(ends[0], [0.0, 0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(corners[0], corners[1], atol=1e-12)
    with pytest.raises(InvalidInput, match="four rows"):
        simplex_figure(np.eye(3), np.zeros(3, dtype=bool))
