"""Accuracy against the width: what is measured, how it is put together, and how it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.accuracy.accuracy_versus_width import EXPERIMENT
from experiments.accuracy.figure import accuracy_figure
from experiments.accuracy.width_summary import by_width
from experiments.runner import Record, run
from notsodeep.plotting.canvas import svg_text

ROLES = ("deq", "matched", "unmatched")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    place = tmp_path_factory.mktemp("width") / "run"
    return run("accuracy-versus-width", "smoke", place)


def record(width: int, draw: int, accuracies: tuple[float, float, float], **cell: Any) -> Record:
    """Make a record as a cell would."""
    names = {"data": "digits", "activation": "relu", "train": "readout"}
    times = dict(zip(ROLES, (6.0 + draw, 2.0, 2.0), strict=True))
    return {
        "cell": {**names, **cell, "width": width, "draw": draw},
        "networks": {r: {"accuracy": a} for r, a in zip(ROLES, accuracies, strict=True)},
        "seconds": {"training": times, "inference": times},
        "kernel_gap": {"matched": 0.01, "unmatched": 0.2},
    }


def test_networks_learn_and_matched_kernels_are_closer(records: list[Record]) -> None:
    assert len(records) == 16
    for each in records:
        assert set(each["networks"]) == set(ROLES)
        # Ten classes: a guess is right once in ten.
        assert all(0.25 < each["networks"][role]["accuracy"] <= 1.0 for role in ROLES)
        assert each["kernel_gap"]["matched"] < each["kernel_gap"]["unmatched"]
        assert each["training_samples"] == 200
        for work in ("training", "inference"):
            assert all(each["seconds"][work][role] > 0.0 for role in ROLES)
    trained = [r["networks"]["deq"] for r in records if r["cell"]["train"] == "all"]
    assert all(network["unsolved_batches"] == 0 for network in trained)


def test_wider_is_better(records: list[Record]) -> None:
    readout = [s for s in by_width(records) if s.train == "readout"]
    for activation in ("relu", "tanh"):
        narrow, wide = (s for s in readout if s.activation == activation)
        assert narrow.width < wide.width
        assert all(narrow.mean(role) < wide.mean(role) for role in ROLES)


def test_draws_are_put_together() -> None:
    found = by_width(
        [
            record(64, 0, (0.9, 0.8, 0.7)),
            record(32, 0, (0.5, 0.5, 0.5)),
            record(64, 1, (0.92, 0.84, 0.7)),
            record(32, 0, (0.1, 0.2, 0.3), activation="tanh"),
        ]
    )
    assert [(s.activation, s.width, s.draws) for s in found] == [
        ("relu", 32, 1),
        ("relu", 64, 2),
        ("tanh", 32, 1),
    ]
    single, pair = found[0], found[1]
    assert pair.mean("deq") == pytest.approx(91.0)
    assert pair.difference("matched") == pytest.approx(-9.0)
    assert pair.deviation("matched") == pytest.approx(np.std([80.0, 84.0], ddof=1))
    low, high = pair.interval("matched")
    assert (low + high) / 2 == pytest.approx(-9.0)
    assert pair.ratio("training") == pytest.approx(6.5 / 2.0)
    assert pair.accuracy_text("deq") == "91.00 ± 1.41"
    assert single.interval("matched") is None
    assert single.accuracy_text("deq") == "50.00"


def test_the_figure_shows_what_there_is(records: list[Record]) -> None:
    text = svg_text(accuracy_figure(records))
    for words in ("read-out trained", "all weights trained", "gap to the DEQ", "tanh unmatched"):
        assert words in text
    part = svg_text(accuracy_figure([r for r in records if r["cell"]["train"] == "readout"]))
    assert "all weights trained" not in part
    assert "read-out trained" in part


def test_cifar_needs_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    assert not any(cell["data"] == "cifar10" for cell in EXPERIMENT.cells("paper"))
    (tmp_path / "vgg19.pth").write_bytes(b"weights")
    assert any(cell["data"] == "cifar10" for cell in EXPERIMENT.cells("paper"))


def test_cheap_cells_come_first_and_wide_ones_last() -> None:
    cells = EXPERIMENT.cells("paper")
    mnist = [c for c in cells if c["data"] == "mnist" and c["width"] <= 2048]
    assert cells[: len(mnist)] == mnist
    costs = [EXPERIMENT.cost(cell) for cell in mnist]
    assert costs == sorted(costs)
    assert costs[-1] > 100 * costs[0]
    assert cells[-1]["width"] == 8192
    widths = {c["width"] for c in cells if c["train"] == "readout"}
    assert widths == {2**k for k in range(5, 14)}
