"""The phase diagram: thresholds, heads as gains, and what the findings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.collapse.phase import EXPERIMENT, cosine_at, merged, rows_of
from experiments.runner import run

Record = dict[str, Any]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder: Path = tmp_path_factory.mktemp("phase")
    return run("collapse-phase", "smoke", folder / "records.jsonl")


def of_head(records: list[Record], row: str, feature_budget: str = "class") -> Record:
    (found,) = [r for r in rows_of(records, row) if r["cell"]["feature_budget"] == feature_budget]
    return found


@pytest.mark.parametrize(
    ("row", "gain", "threshold"),
    [
        ("explicit", 0.5, 3.380),
        ("plain", 1.0, 27.74),
        ("residual", 1.5, 283.0),
        ("deq_truncated", 1.75, None),
        ("deq", 2.0, None),
        ("explicit_matched", 2.0, None),
    ],
)
def test_heads_have_their_gain_and_threshold(
    records: list[Record], row: str, gain: float, threshold: float | None
) -> None:
    record = of_head(records, row)
    assert record["gain"] == pytest.approx(gain, rel=1e-12)
    if threshold is not None:
        assert record["threshold"] == pytest.approx(threshold, rel=1e-3)


def test_thresholds_of_the_sample_budget(records: list[Record]) -> None:
    assert of_head(records, "explicit", "sample")["threshold"] == pytest.approx(5.915, rel=1e-3)
    assert of_head(records, "plain", "sample")["threshold"] == pytest.approx(84.24, rel=1e-3)


def test_the_deq_keeps_its_minority_by_gain_alone(records: list[Record]) -> None:
    cosines = {row: cosine_at(of_head(records, row), 100.0) for row in ("explicit", "plain")}
    assert all(merged(cosine) for cosine in cosines.values())
    deq, control = of_head(records, "deq"), of_head(records, "explicit_matched")
    assert cosine_at(deq, 100.0) == pytest.approx(0.0426, abs=1e-3)
    assert control["cosines"] == pytest.approx(deq["cosines"], abs=1e-9)
    assert control["log_losses"] == pytest.approx(deq["log_losses"], abs=1e-9)
    # At equal spectral budget the loss falls in the order of the gains, at every ratio.
    order = ("explicit", "plain", "residual", "deq_truncated", "deq")
    for columns in zip(*(of_head(records, row)["log_losses"] for row in order), strict=True):
        assert list(columns) == sorted(columns, reverse=True)


def test_the_line_separates_the_points(records: list[Record]) -> None:
    sides = {True: 0, False: 0}
    for record in records:
        for ratio, cosine in zip(record["cell"]["ratios"], record["cosines"], strict=True):
            assert merged(cosine) == (ratio >= record["threshold"])
            sides[merged(cosine)] += 1
    assert min(sides.values()) > 20
    # Minority classifiers are zero somewhere: the rank falls to that of the majority.
    vanished = [
        rank
        for record in records
        for rank, cosine in zip(record["ranks"], record["cosines"], strict=True)
        if cosine is None
    ]
    assert set(vanished) == {1}


def test_optima_are_reached_by_actual_heads(records: list[Record]) -> None:
    assert max(record["attainment_error"] for record in records) < 1e-12


def test_findings_name_the_gain(records: list[Record]) -> None:
    findings = {finding.quantity: finding for finding in EXPERIMENT.findings(records)}
    deq = findings["minority cosine at R = 10, 50, 100; DEQ, (K_A, K_B) = (2, 2)"]
    assert deq.ours == "-0.194, -0.043, 0.043"
    assert "gain 2," in deq.why
    line = findings["points of the diagram on the wrong side of the threshold line"]
    assert line.ours == f"0 of {sum(len(record['cosines']) for record in records)}"
    spoiled = [{**record, "threshold": 1.0} for record in records]
    assert not EXPERIMENT.findings(spoiled)[-1].ours.startswith("0 of")
