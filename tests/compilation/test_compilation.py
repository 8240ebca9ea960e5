"""Compiling a DEQ in a directory: the evidence, resuming, and refusing to mix results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.compilation import numpy_networks, random_deq
from notsodeep.compilation.accuracy import difference_interval
from notsodeep.compilation.pieces import MemoryPieces
from notsodeep.compilation.settings import CompileSettings
from notsodeep.errors import DataCorrupted, InvalidInput, RunInUse
from notsodeep.files import Manifest
from notsodeep.files.run_directory import RunDirectory

RELU = nsd.DeepEquilibrium("relu", 0.2)
SMALL: dict[str, Any] = {"family": "leaky_relu", "refine": False, "width": 48, "seeds": 2}


def compile_in(out: Path, **changes: Any) -> nsd.Compilation:
    data = nsd.data.load("digits", samples=200, test_samples=60, rng=0)
    return nsd.compile(RELU, data, out=out, **(SMALL | changes))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "relu"
    compile_in(out)
    return out


def piece(out: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "pieces" / f"{name}.json").read_text())
    return content


def test_the_summary_is_what_the_pieces_say(finished: Path) -> None:
    summary = piece(finished, "summary")
    certificate = piece(finished, "certificate")
    assert summary["relative_gap"] == certificate["matched"]["relative_gap"] < 0.05
    assert summary["unmatched_relative_gap"] > summary["relative_gap"]
    for role in ("deq", "matched", "unmatched"):
        draws = [piece(finished, f"network-{role}-{k}")["accuracy"] for k in range(2)]
        assert summary["accuracies"][role] == draws
        assert summary["accuracy"][role] == pytest.approx(np.mean(draws))
    low, high = summary["accuracy_difference"]
    close = max(abs(low), abs(high)) <= 0.5
    assert summary["replaceable"] == (summary["kernel_close"] and close)


def test_the_exported_network_is_the_one_that_was_measured(finished: Path) -> None:
    import torch

    net = nsd.load(finished / "network.safetensors")
    data = nsd.data.load("digits", samples=200, test_samples=60, rng=0)
    with torch.no_grad():
        guess = net(torch.as_tensor(data.X_test, dtype=torch.float32)).argmax(dim=1).numpy()
    assert np.mean(guess == data.y_test) == piece(finished, "network-matched-0")["accuracy"]
    assert net.classes == data.classes
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(finished / "network.onnx"))
    raw = nsd.data.load("digits", samples=200, test_samples=60, rng=0, preprocessing="none")
    logits = session.run(None, {"x": raw.X_test.astype(np.float32)})[0]
    assert (logits.argmax(axis=1) == guess).mean() > 0.98


def test_settings_are_stored_as_ever(finished: Path) -> None:
    """Or else the number of the format changes, and runs of other formats are rejected by name."""
    settings = json.loads((finished / "settings.json").read_text())["settings"]
    assert settings == {
        "deq": RELU.to_dict(), "data": "digits", "samples": 200, "test_samples": 60,
        "family": "leaky_relu", "kind": "ck", "convention": "feature", "refine": False,
        "width": 48, "train": "readout", "epochs": 10, "seeds": 2, "seed": 0, "ridge": 0.01,
        "tolerance": 1e-05, "gap_limit": 0.05, "accuracy_limit": 0.5, "format": 2,
    }  # fmt: skip


def test_runs_of_another_version_are_rejected_by_name(finished: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    stored = json.loads((copy / "settings.json").read_text())
    del stored["settings"]["format"]
    (copy / "settings.json").write_text(json.dumps(stored))
    with pytest.raises(InvalidInput, match="another version of notsodeep"):
        nsd.load(copy)


def test_other_selections_of_the_same_data_are_other_runs(finished: Path) -> None:
    data = nsd.data.load("digits", classes=(6, 8), samples=200, test_samples=60, rng=0)
    with pytest.raises(
        InvalidInput, match=r"selection is None there and {'classes': \['6', '8'\]}"
    ):
        nsd.compile(RELU, data, out=finished, **SMALL)


def test_the_manifest_knows_every_file(finished: Path) -> None:
    manifest = Manifest.read(finished)
    assert manifest is not None
    assert manifest.problems(finished) == ()
    assert "network.safetensors" in manifest.sha256
    assert manifest.facts["settings"]["width"] == 48
    assert manifest.facts["versions"]["notsodeep"] == nsd.__version__


def test_a_missing_piece_is_computed_again_with_the_same_numbers(
    finished: Path, tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    for name in ("network-deq-1", "certificate", "summary"):
        (copy / "pieces" / f"{name}.json").unlink()
    compile_in(copy)
    for name in ("network-deq-1", "certificate", "summary"):
        assert piece(copy, name) == piece(finished, name)


def test_other_settings_are_refused_unless_forced(finished: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    with pytest.raises(InvalidInput, match="width is 48 there and 32 here"):
        compile_in(copy, width=32)
    compile_in(copy, width=32, force=True)
    assert Manifest.read(copy).facts["settings"]["width"] == 32


def test_more_seeds_extend_a_run(finished: Path, tmp_path: Path) -> None:
    """The draws that are there are kept; the verdict is found anew, also by other limits."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    heard: list[str] = []
    more = compile_in(copy, seeds=3, gap_limit=1e-6, progress=heard.append)
    trained = [text for text in heard if text.startswith("training")]
    assert len(trained) == 3
    assert all("draw 3" in text for text in trained)
    kept = nsd.load(finished).accuracy.draws
    assert {role: values[:2] for role, values in more.accuracy.draws.items()} == kept
    assert not more.records["summary"]["kernel_close"]
    manifest = Manifest.read(copy)
    assert manifest is not None
    assert manifest.problems(copy) == ()
    assert manifest.facts["settings"]["seeds"] == 3
    fewer = compile_in(copy, seeds=2)
    assert fewer.records["summary"] == nsd.load(finished).records["summary"]


def test_a_failed_start_leaves_the_directory_free(tmp_path: Path) -> None:
    out = tmp_path / "run"
    data = nsd.data.load("digits", samples=200, test_samples=60, rng=0)
    tanh = nsd.DeepEquilibrium("tanh", 0.2)
    with pytest.raises(nsd.errors.NotSoDeepError, match="quadratic"):
        nsd.compile(tanh, data, out=out, **(SMALL | {"family": "quadratic"}))
    compile_in(out)
    assert Manifest.read(out).facts["settings"]["family"] == "leaky_relu"


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        compile_in(tmp_path, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run", "compile", {})
    with run.opened(), pytest.raises(RunInUse, match="in use by another process"):
        compile_in(tmp_path / "run")


def test_a_corrupted_piece_is_named(finished: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "pieces" / "certificate.json").write_text("{")
    with pytest.raises(DataCorrupted, match=r"certificate\.json"):
        compile_in(copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 1}, "seeds"),
        ({"width": 0}, "width"),
        ({"gap_limit": 0.0}, "gap_limit"),
        ({"train": "everything"}, "train"),
        ({"family": "leaky"}, "family"),
        ({"kind": "ntkk"}, "kernel"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        compile_in(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_the_interval_is_students() -> None:
    low, high = difference_interval([0.9, 0.92, 0.94], [0.9, 0.9, 0.9])
    # Mean 2, standard deviation 2, t(0.975, 2) = 4.3027.
    assert (low + high) / 2 == pytest.approx(2.0)
    assert high - low == pytest.approx(2 * 4.3027 * 2 / np.sqrt(3), rel=1e-4)


@pytest.mark.slow
def test_all_weights_can_be_trained(tmp_path: Path) -> None:
    compiled = compile_in(tmp_path / "all", train="all", epochs=3)
    assert min(compiled.accuracy.mean.values()) > 0.5


def test_networks_trained_side_by_side_are_those_trained_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = nsd.data.load("digits", samples=120, test_samples=60, rng=0)
    deq = nsd.DeepEquilibrium("relu", 0.2)
    settings = CompileSettings(deq, "digits", width=40, seeds=3)
    found = nsd.match(deq, data.X, family="leaky_relu")
    draws = []
    for at_once, threads in ((False, "1"), (True, "3")):
        monkeypatch.setattr(numpy_networks, "AT_ONCE", at_once)
        monkeypatch.setenv("NOTSODEEP_THREADS", threads)
        said: list[str] = []
        accuracy, first = random_deq._accuracies(
            settings, found, data, MemoryPieces(), said.append, numpy_networks
        )
        draws.append(accuracy.draws)
        assert len(said) == 9
        assert set(first) == {"deq", "matched", "unmatched"}
    assert draws[0] == draws[1]
