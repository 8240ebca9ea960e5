"""NC1 of kernels: what is recorded, and how close a matched network comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from experiments.collapse.kernels import EXPERIMENT, MEASURES, error
from experiments.runner import cell_seed

Record = dict[str, Any]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    cells = [cell for cell in EXPERIMENT.cells("smoke") if cell["activation"] == "relu"]
    return [{"cell": cell, **EXPERIMENT.compute(cell, cell_seed(cell))} for cell in cells]


def test_measures_are_those_of_the_exact_kernel(records: list[Record]) -> None:
    for record in records:
        cell = record["cell"]
        rows = {"samples": cell["samples"], "test_samples": cell["test_samples"]}
        data = nsd.data.load(cell["data"], rng=cell["draw"], **rows)
        tau0 = float(np.sqrt(np.square(data.X).sum(axis=1).mean()))
        found = nsd.DeepEquilibrium("relu", cell["sigma_a2"]).centred(tau0)
        K = nsd.kernel(found, data.X_test, kind=cell["kernel"])
        overall = nsd.collapse.kernel_collapse(K, data.y_test).overall
        for measure in MEASURES:
            assert record["deq"][measure] == pytest.approx(overall[measure], rel=1e-9)


def test_a_matched_network_has_the_variability_of_its_deq(records: list[Record]) -> None:
    for record in records:
        for measure in ("nc1", "nc1_trace_ratio", "nc1_cdnv"):
            assert abs(error(record, "matched", measure)) < 0.02
            assert abs(error(record, "matched", measure)) < abs(error(record, "unmatched", measure))
        assert record["gaps"]["matched"] < 0.02 < record["gaps"]["unmatched"]


def test_inputs_are_the_linear_kernel(records: list[Record]) -> None:
    data = nsd.data.load("digits", samples=100, test_samples=100, rng=0)
    metrics = nsd.collapse.CollapseMetrics(num_classes=10)
    metrics.update(data.X_test, data.y_test)
    wanted = metrics.compute().overall
    assert records[0]["inputs"]["nc1"] == pytest.approx(wanted["nc1"], rel=1e-6)
    assert records[0]["inputs"]["nc1_cdnv"] == pytest.approx(wanted["nc1_cdnv"], rel=1e-9)


def test_findings_give_both_networks(records: list[Record]) -> None:
    findings = EXPERIMENT.findings(records)
    assert len(findings) == 2 * len(records)
    worst = np.abs([error(records[0], "unmatched", "nc1")]).max()
    assert f"unmatched within {worst:.2%}" in findings[0].ours


def test_paper_profile_has_images_and_draws() -> None:
    cells = EXPERIMENT.cells("paper")
    assert {"mnist", "fashion_mnist"} < {cell["data"] for cell in cells}
    assert len(cells) == 4 * 2 * 3 * 2 * 3
