"""Runs on disk, finished, unfinished and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.explorer.page_state import plain
from notsodeep.explorer.runs_page import (
    chosen_run,
    findings_table,
    reproduced_records,
    stored_runs,
)
from notsodeep.papers.reproduction import reproduce


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 2
    np.savez(folder / "data.npz", X=rng.standard_normal((160, 12)) + 2.0 * y[:, None], y=y)
    nsd.compile(
        nsd.DeepEquilibrium("tanh", 0.2), nsd.data.load(folder / "data.npz", test_samples=40),
        family="hard_tanh", refine=False, width=32, seeds=2, out=folder / "deep" / "tanh",
    )  # fmt: skip
    reproduce("sphere-spectra", folder / "sphere", profile="smoke")
    (folder / "noise").mkdir()
    (folder / "noise" / "settings.json").write_text("{]")
    (folder / "twice").mkdir()
    (folder / "twice" / "settings.json").write_text(
        '{"kind": "other", "kind": "compile", "settings": {}}'
    )
    (folder / "strange").mkdir()
    (folder / "strange" / "settings.json").write_text('{"kind": "other", "settings": {}}')
    return folder


def page(root: str) -> None:
    from pathlib import Path

    from notsodeep.explorer.runs_page import runs_page

    runs_page(Path(root))


def opened(root: Path, name: str) -> Any:
    test = AppTest.from_function(page, default_timeout=60, kwargs={"root": str(root)})
    test.query_params["run"] = name
    test.run()
    assert not test.exception
    return test


def test_only_runs_are_listed(root: Path) -> None:
    runs = {run.name: run for run in stored_runs(root)}
    assert set(runs) == {"deep/tanh", "sphere"}
    assert runs["deep/tanh"].kind == "compile"
    assert all(run.finished for run in runs.values())
    assert runs["sphere"].title == "sphere: sphere-spectra, smoke"
    assert stored_runs(root / "nowhere") == []


def test_only_what_is_listed_can_be_opened(root: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no run '\.\./deep/tanh'"):
        chosen_run(stored_runs(root), "../deep/tanh")


def test_a_sweep_is_read_without_computing(root: Path, tmp_path: Path) -> None:
    run = chosen_run(stored_runs(root), "sphere")
    records, missing = reproduced_records(run)
    assert missing == 0
    assert len(records) == len(list((root / "sphere" / "pieces").iterdir()))
    assert findings_table(run, records)[0]["ours"]
    part = tmp_path / "part"
    (part / "pieces").mkdir(parents=True)
    (part / "settings.json").write_bytes((root / "sphere" / "settings.json").read_bytes())
    (half,) = stored_runs(tmp_path)
    assert not half.finished
    assert reproduced_records(half) == ([], len(records))


def test_a_compile_run_is_shown(root: Path) -> None:
    test = opened(root, "deep/tanh")
    summary = json.loads((root / "deep" / "tanh" / "pieces" / "summary.json").read_text())
    shown = {metric.label: metric.value for metric in test.metric}
    assert shown["kernel gap, held out"] == f"{summary['relative_gap']:.2%}"
    assert shown["accuracy of the network"] == f"{summary['accuracy']['matched']:.2%}"
    assert len(test.get("html")) == 4
    test.selectbox(key="runs.name").set_value("sphere").run()
    assert test.query_params["run"] in ("sphere", ["sphere"])
    assert not test.exception
    assert len(test.get("html")) == 1


def test_a_run_of_a_trained_network_is_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    W, U, C = 0.1 * rng.normal(size=(8, 8)), rng.normal(size=(8, 5)), rng.normal(size=(3, 8))
    cell = nsd.EquilibriumCell.from_weights(W, U, activation="tanh", readout=(C, None))
    compiled = nsd.compile(cell, rng.normal(size=(80, 5)), layers=1, out=tmp_path / "mine")
    (run,) = stored_runs(tmp_path)
    assert run.finished
    assert "trained network" in run.title
    test = opened(tmp_path, "mine")
    assert test.subheader[0].value == plain(compiled.verdict.headline)
    (tmp_path / "mine" / "pieces" / "front.json").unlink()
    assert "not finished" in opened(tmp_path, "mine").error[0].value


def test_an_unknown_or_broken_run_is_explained(root: Path, tmp_path: Path) -> None:
    test = opened(root, "../secret")
    assert "secret" in test.warning[0].value
    place = tmp_path / "broken"
    (place / "pieces").mkdir(parents=True)
    (place / "settings.json").write_text('{"kind": "compile", "settings": {"data": "digits"}}')
    test = opened(tmp_path, "broken")
    assert "not finished" in test.error[0].value.replace("\\", "")
    other = tmp_path / "old"
    other.mkdir()
    (other / "settings.json").write_text(
        '{"kind": "reproduce", "settings": {"name": "gone", "profile": "quick"}}'
    )
    test = opened(tmp_path, "old")
    assert "gone" in test.error[0].value
