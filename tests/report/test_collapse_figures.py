"""Pictures of collapse: they show the numbers of the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from notsodeep.head_names import FIVE_HEADS, HEAD_LABELS
from notsodeep.papers.collapse_kernels import EXPERIMENT as KERNELS
from notsodeep.papers.collapse_phase import HEADS
from notsodeep.papers.head_comparison import by_settings, last_value
from notsodeep.papers.reproduction import reproduce
from notsodeep.plotting.canvas import save_figure, svg_text
from notsodeep.report.collapse_figures import head_style, kernel_figure, phase_figure
from notsodeep.report.trained_head_figures import (
    balanced_figure,
    curves_figure,
    gram_figure,
    imbalanced_figure,
    projection_figure,
)

Record = dict[str, Any]


def test_phase_diagram(tmp_path: Path) -> None:
    records = reproduce("collapse-phase", tmp_path / "run", profile="smoke")
    figure = phase_figure(records)
    maps = [axes for axes in figure.axes if axes.collections and axes.get_yscale() == "log"]
    assert len(maps) == 2  # class and sample budget
    line = maps[0].lines[1]
    rows = [r for r in records if r["cell"]["row"] == "gain"][:5]
    np.testing.assert_allclose(line.get_xdata(), [row["threshold"] for row in rows])
    np.testing.assert_allclose(line.get_ydata(), [row["gain"] for row in rows])
    text = svg_text(figure)
    for word in ("minority cosine", "threshold R*", "minority classifiers are zero", "imbalance R"):
        assert word in text
    for head in HEADS:
        assert HEAD_LABELS[head] in text


def test_kernel_comparison() -> None:
    """Two designs by hand; the numbers of real runs are tested with the experiment."""
    cells = KERNELS.cells("quick")[:4]
    sides = {"deq": 1.0, "matched": 1.01, "unmatched": 1.2, "inputs": 2.0}
    records = [{"cell": c, **{s: {"nc1": v} for s, v in sides.items()}} for c in cells]
    figure = kernel_figure(records)
    values, errors = figure.axes
    assert [float(np.mean(line.get_ydata())) for line in values.lines] == pytest.approx(
        [1.0, 1.01, 1.2, 2.0]
    )
    heights = {round(float(line.get_ydata()[0]), 6) for line in errors.lines}
    assert heights == {0.01, 0.2}
    assert "σa² = 0.2" not in svg_text(kernel_figure(records[:1]))


def test_curves_are_medians_over_seeds(balanced: list[Record]) -> None:
    def merged(record: Record) -> Record:
        epochs = [{**epoch, "nc1": 1e6 * epoch["nc1"]} for epoch in record["epochs"]]
        return {**record, "epochs": epochs, "settings": {**record["settings"], "seed": 7}}

    first = [r for r in balanced if r["settings"]["seed"] == balanced[0]["settings"]["seed"]]
    figure = balanced_figure([*balanced, *map(merged, first)])
    assert len(figure.axes) == 8
    nc1 = figure.axes[0]
    assert nc1.get_yscale() == "log"
    (line,) = [line for line in nc1.lines if line.get_label() == "DEQ"]
    wanted = max(last_value(r, "nc1") for r in balanced if r["settings"]["head"] == "deq")
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(wanted)  # two seeds and one far away
    assert len(nc1.lines) == len(nc1.collections) == 5  # a curve and a band per head
    titles = [axes.get_title() for axes in figure.axes]
    assert "minority cosine, classifier" not in titles


def test_the_minority_has_curves_of_its_own(imbalanced: list[Record]) -> None:
    group = by_settings(imbalanced)[1]
    titles = [axes.get_title() for axes in curves_figure(group).axes]
    assert "minority cosine, classifier" in titles
    figure = imbalanced_figure(imbalanced)
    assert len(figure.axes) == 2
    deq = [r for r in group if r["settings"]["head"] == "deq"]
    wanted = np.mean([last_value(r, "minority_cosine") for r in deq])
    lines = [
        line for line in figure.axes[0].lines if line.get_color() == head_style("deq")["color"]
    ]
    assert any(
        len(y) == 2 and y[-1] == pytest.approx(wanted) for y in (x.get_ydata() for x in lines)
    )


def test_the_legend_names_heads_that_the_first_panel_lacks(imbalanced: list[Record]) -> None:
    def moved(record: Record) -> Record:
        settings = {**record["settings"], "data": "zzz", "head": "explicit_started"}
        return {**record, "settings": settings}

    elsewhere = [moved(r) for r in imbalanced if r["settings"]["head"] == "deq"]
    figure = imbalanced_figure([*imbalanced, *elsewhere])
    assert len(figure.axes) == 4
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [HEAD_LABELS[head] for head in (*FIVE_HEADS, "explicit_started")]


def test_gram_matrices(balanced: list[Record]) -> None:
    figure = gram_figure(balanced)
    first = balanced[0]["final"]["report"]
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), first["feature_cosines"])
    np.testing.assert_allclose(figure.axes[5].images[0].get_array(), first["classifier_cosines"])


def test_projections_number_the_classes(imbalanced: list[Record]) -> None:
    figure = projection_figure(by_settings(imbalanced)[0])
    assert len(figure.axes) == 5
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert shown == [str(k) for k in range(10)]
    points = sum(len(c.get_offsets()) for c in figure.axes[0].collections)
    assert points == len(imbalanced[0]["final"]["projection"]["labels"])


def test_pictures_are_written(imbalanced: list[Record], tmp_path: Path) -> None:
    path = save_figure(imbalanced_figure(imbalanced), tmp_path / "figure.png")
    assert path.stat().st_size > 10_000
