"""The picture of a spectrum: it is drawn, written, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

import notsodeep as nsd
from notsodeep.equivalents import Comparison
from notsodeep.errors import InvalidInput
from notsodeep.plotting.canvas import DEEP, SHALLOW, house_style, save_figure, svg_text
from notsodeep.plotting.spectra import spectrum_figure


def comparison(n: int, activation: str = "relu", **options: str) -> Comparison:
    mixture = nsd.data.paper_mixture(200)
    X, y = mixture.sample(n, rng=0)
    stats = mixture.statistics(X, y)
    deq = nsd.DeepEquilibrium(activation, 0.2).centred(stats.tau0)
    exact = nsd.kernel(deq, X, **options)
    return nsd.compare(exact, nsd.equivalent(deq, X, y, mixture, **options))


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    with house_style():
        yield


@pytest.fixture(scope="module")
def wide() -> Comparison:
    return comparison(160)


@pytest.fixture(scope="module")
def tall() -> Comparison:
    return comparison(400)


def curves(figure: Figure, colour: str) -> list[np.ndarray]:
    return [
        np.asarray(line.get_xydata())
        for line in figure.axes[0].lines
        if line.get_color() == colour and len(line.get_xydata()) > 2
    ]


def test_density_and_histogram_are_those_of_the_comparison(wide: Comparison) -> None:
    figure = spectrum_figure(wide, title="a title")
    law = wide.law
    assert law is not None
    (curve,) = curves(figure, SHALLOW)
    np.testing.assert_allclose(curve[:, 1], law.density(curve[:, 0]))
    assert (curve[0, 0], curve[-1, 0]) == pytest.approx(law.support[0])
    # All eigenvalues but the two spikes are in the histogram, as shares of n.
    (stairs,) = figure.axes[0].patches
    values, edges, _ = stairs.get_data()
    assert (values * np.diff(edges)).sum() == pytest.approx(158 / 160)
    assert figure.get_suptitle() == "a title"
    found, predicted = (np.asarray(line.get_ydata()) for line in figure.axes[1].lines)
    np.testing.assert_allclose(found, wide.spikes[:, 1])
    np.testing.assert_allclose(predicted, wide.spikes[:, 0])
    assert [line.get_color() for line in figure.axes[1].lines] == [DEEP, SHALLOW]


def test_point_mass_does_not_dwarf_the_bulk(tall: Comparison) -> None:
    figure = spectrum_figure(tall)
    (curve,) = curves(figure, SHALLOW)
    top = figure.axes[0].get_ylim()[1]
    assert curve[:, 1].max() < top < 5.0 * curve[:, 1].max()
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "point mass 0.50" in labels


def test_files_are_the_same_every_time(wide: Comparison, tmp_path: Path) -> None:
    for ending in ("svg", "png"):
        first, second = (
            save_figure(spectrum_figure(wide), tmp_path / f"{name}.{ending}").read_bytes()
            for name in ("first", "second")
        )
        assert first == second
        assert len(first) > 5000
    text = svg_text(spectrum_figure(wide))
    assert (tmp_path / "first.svg").read_text() == text
    assert "<dc:date>" not in text


def test_what_is_written_is_a_picture(wide: Comparison, tmp_path: Path) -> None:
    path = save_figure(spectrum_figure(wide), tmp_path / "figure.png")
    with Image.open(path) as picture:
        assert picture.size == (1260, 480)
        colours = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    orange = np.abs(colours.astype(int) - [0xD9, 0x82, 0x2B]).max(axis=1) < 12
    assert 200 < orange.sum() < 0.1 * len(colours)
    text = svg_text(spectrum_figure(wide))
    for word in ("exact eigenvalues", "limiting density", "isolated eigenvalues", "predicted"):
        assert word in text


def test_no_spikes_and_no_bulk() -> None:
    X = nsd.data.sphere(150, 200, rng=0)
    network = nsd.ExplicitNetwork(["tanh"])  # odd: no constant, so no spike
    plain = nsd.compare(
        nsd.kernel(network, X, convention="preactivation"),
        nsd.sphere_equivalent(network, X, convention="preactivation"),
    )
    assert "none predicted" in svg_text(spectrum_figure(plain))
    even = comparison(160, "cos", convention="feature")
    assert "point mass 1.00" in svg_text(spectrum_figure(even))


def test_in_the_house_style_the_users_own_does_not_matter(wide: Comparison) -> None:
    expected = svg_text(spectrum_figure(wide))
    with rc_context({"svg.hashsalt": None, "font.size": 30.0, "axes.spines.top": True}):
        assert svg_text(spectrum_figure(wide)) != expected
        with house_style():
            assert svg_text(spectrum_figure(wide)) == expected


def test_a_comparison_without_a_law_is_refused(wide: Comparison) -> None:
    from dataclasses import replace

    with pytest.raises(InvalidInput, match=r"hold a limiting law.*population='deconvolved'"):
        spectrum_figure(replace(wide, law=None))
