"""`nsd.compile` of random DEQs: evidence, verdict, directories, saved and read again."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep import extras
from notsodeep._runs import Run
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.compilation.evidence import Accuracy
from notsodeep.compilation.record import Step, judge
from notsodeep.errors import DataCorrupted, InvalidInput, NotSerialisable, RunInUse

TANH = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
RELU = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
SMALL: dict[str, Any] = {"family": "hard_tanh", "refine": False, "width": 32, "seeds": 2}


def blobs(n: int, classes: int = 2, p: int = 12, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Return rows of about norm one in classes that can be told apart, sorted by class."""
    rng = np.random.default_rng(seed)
    y = np.sort(np.arange(n) % classes)
    means = 1.5 * np.random.default_rng(99).normal(size=(classes, p))
    return (rng.normal(size=(n, p)) + means[y]) / np.sqrt(3 * p), y


def compile_in(out: Path, **changes: Any) -> nsd.Compilation:
    return nsd.compile(TANH, *blobs(160), out=out, **(SMALL | changes))


def numbers(compiled: nsd.Compilation) -> dict[str, Any]:
    """Return what does not depend on a clock."""
    form = compiled.to_dict()
    del form["front"], form["verdict"]
    return form


@pytest.fixture(scope="module")
def compiled() -> nsd.Compilation:
    return nsd.compile(TANH, *blobs(160), **SMALL)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tanh"
    compile_in(out)
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def test_the_answer_has_everything(compiled: nsd.Compilation) -> None:
    import torch

    assert compiled.match.network.depth == 1
    gap = compiled.certificate.matched.relative_gap
    assert gap < compiled.certificate.unmatched.relative_gap
    assert set(compiled.accuracy.draws) == {"deq", "matched", "unmatched"}
    assert (compiled.data.samples, compiled.data.test_samples) == (120, 40)
    assert "40 rows were held out" in str(compiled.data)
    assert compiled.transfer is not None
    X, y = blobs(200, seed=5)
    with torch.no_grad():
        guess = compiled.network(torch.as_tensor(X, dtype=torch.float32)).argmax(dim=1).numpy()
    assert np.mean(guess == y) > 0.9
    assert compiled.network.classes == ("0", "1")
    assert len(compiled.plot().axes) >= 3


def test_the_front_has_products_first(compiled: nsd.Compilation) -> None:
    front = compiled.front
    points = front.of_kind("tolerance")
    steps = [point.steps for point in points]
    assert steps == sorted(steps)
    m, p, classes = 32, 12, 2
    network = m * p + classes * m
    for point in points:  # the first step starts from zero
        assert point.products == pytest.approx(1.0 + (point.steps - 1) * m * m / network)
    rows = compiled.data.test_samples
    low, high = nsd_interval(round((points[-1].accuracy or 0.0) * rows), rows)
    kept = [low <= (point.accuracy or 0.0) <= high for point in points]
    assert front.chosen_point == points[kept.index(True)]
    (cost,) = (r for r in compiled.verdict.reasons if "multiplications" in r)
    assert cost.index("multiplications") < cost.index("the time")


def nsd_interval(right: int, rows: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    interval = binomtest(right, rows).proportion_ci()
    return float(interval.low), float(interval.high)


@pytest.mark.parametrize(
    ("gap", "interval", "word", "words"),
    [
        (0.01, (-0.2, 0.3), "replaceable", "replaced by a one-hidden-layer hard tanh network"),
        (0.01, (-0.9, 0.9), "not shown", "too few draws"),
        (0.01, (0.07, 0.59), "not shown", "too few draws"),
        (0.01, (0.45, 3.0), "not shown", "too few draws"),
        (0.01, (-3.0, -1.0), "not replaceable", "accuracies differ"),
        (0.20, (-0.1, 0.1), "not replaceable", "kernels differ too much"),
    ],
)
def test_the_verdict_follows_the_rule(
    compiled: nsd.Compilation, gap: float, interval: tuple[float, float], word: str, words: str
) -> None:
    class Known(Accuracy):
        @property
        def difference(self) -> tuple[float, float]:
            return interval

    kernels = compiled.certificate
    near = dataclasses.replace(kernels.matched, relative_gap=gap, centred_gap=gap)
    changed = dataclasses.replace(compiled, certificate=dataclasses.replace(kernels, matched=near))
    changed.__dict__["accuracy"] = Known(compiled.accuracy.draws, 0.0)
    verdict = judge(changed)
    assert verdict.word == word
    assert words in verdict.headline


def test_a_plain_layer_that_does_as_well_is_named(compiled: nsd.Compilation) -> None:
    """With scale and constant free, as a tuned read-out with a bias sees both."""
    kernels = compiled.certificate
    for plain, words in ((0.5 * kernels.matched.readout_gap, True), (0.5, False)):
        far = dataclasses.replace(kernels.unmatched, readout_gap=plain)
        changed = dataclasses.replace(
            compiled, certificate=dataclasses.replace(kernels, unmatched=far)
        )
        assert ("a plain layer does as well" in str(changed.verdict)) == words
        assert "scale and constant free" in str(changed)


def test_what_is_printed(compiled: nsd.Compilation) -> None:
    verdict = compiled.verdict
    for text in (str(compiled), compiled._repr_html_()):
        assert verdict.headline in text
        assert "Rule: replaceable if" in text
    assert len(repr(compiled)) < 300
    json.dumps(compiled.to_dict(), allow_nan=False)


def test_saved_and_loaded_is_the_same(compiled: nsd.Compilation, tmp_path: Path) -> None:
    again = nsd.load(compiled.save(tmp_path / "run"))
    assert isinstance(again, nsd.Compilation)
    assert again.to_dict() == json.loads(json.dumps(compiled.to_dict()))
    assert (repr(again), str(again)) == (repr(compiled), str(compiled))
    assert again.settings == compiled.settings
    np.testing.assert_array_equal(again.certificate.difference, compiled.certificate.difference)
    state, other = again.network.state_dict(), compiled.network.state_dict()
    assert all(state[name].equal(other[name]) for name in state)
    again.save(tmp_path / "copy")
    assert nsd.load(tmp_path / "copy").to_dict() == again.to_dict()
    (tmp_path / "run" / "pieces" / "front.json").unlink()
    with pytest.raises(DataCorrupted, match="not finished"):
        nsd.load(tmp_path / "run")


def test_a_directory_gives_the_same_numbers_and_is_resumed(
    compiled: nsd.Compilation, copy: Path
) -> None:
    stored = nsd.load(copy)
    mine, theirs = numbers(stored), numbers(compiled)
    mine["data"]["provenance"], theirs["data"]["provenance"] = {}, {}
    assert mine == json.loads(json.dumps(theirs))
    for name in ("pieces/draw-1.json", "pieces/certificate.json", "network.safetensors"):
        (copy / name).unlink()
    heard: list[Step] = []
    again = compile_in(copy, progress=heard.append)
    assert again.to_dict() == stored.to_dict()
    assert [str(step) for step in heard if step.total] == ["training networks: 1 of 2"]
    assert nsd.load(copy / "network.safetensors").classes == ("0", "1")
    X, y = blobs(160)
    with pytest.raises(InvalidInput, match=r"other data \(y is"):
        nsd.compile(TANH, X, y[::-1], **SMALL, out=copy)
    with pytest.raises(InvalidInput, match="selection is"):
        compile_in(copy, preprocessing="theory")


def test_more_seeds_and_other_limits_extend_a_run(finished: Path, copy: Path) -> None:
    """The draws that are there are kept; the verdict is found anew."""
    heard: list[Step] = []
    more = compile_in(copy, seeds=3, gap_limit=1e-6, progress=heard.append)
    assert [str(step) for step in heard if step.total] == ["training networks: 2 of 3"]
    kept = nsd.load(finished)
    assert {r: v[:2] for r, v in more.accuracy.draws.items()} == kept.accuracy.draws
    assert "kernels differ" in more.verdict.headline
    assert numbers(compile_in(copy, seeds=2)) == numbers(kept)


def test_other_settings_are_refused_unless_forced(copy: Path) -> None:
    with pytest.raises(InvalidInput, match="width is 32 there and 16 here"):
        compile_in(copy, width=16)
    assert compile_in(copy, width=16, force=True).settings.width == 16


def test_what_a_resumed_run_says_of_packages_is_of_today(
    finished: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was made without PyTorch is exported as soon as that is there."""
    for name in ("network.safetensors", "network.onnx"):
        (copy / name).unlink(missing_ok=True)
    with monkeypatch.context() as patch:
        patch.setattr(extras, "is_installed", lambda package: package != "torch")
        compile_in(copy)
        assert not (copy / "network.onnx").exists()
    compile_in(copy)
    assert (copy / "network.safetensors").exists()
    assert (copy / "network.onnx").exists() == (finished / "network.onnx").exists()


def test_the_exported_network_is_the_one_that_was_measured(finished: Path) -> None:
    import torch

    onnxruntime = pytest.importorskip("onnxruntime")
    net, stored = nsd.load(finished / "network.safetensors"), nsd.load(finished)
    X, y = blobs(160)
    with torch.no_grad():
        scores = net(torch.as_tensor(X, dtype=torch.float32)).numpy()
        own = stored.network(torch.as_tensor(X, dtype=torch.float32)).numpy()
    np.testing.assert_array_equal(scores, own)
    session = onnxruntime.InferenceSession(str(finished / "network.onnx"))
    (logits,) = session.run(None, {"x": X.astype(np.float32)})
    np.testing.assert_allclose(logits, own, atol=1e-5)
    assert np.mean(own.argmax(axis=1) == y) > 0.9


def test_a_failed_start_leaves_the_directory_free(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(nsd.errors.NotSoDeepError, match="quadratic"):
        compile_in(out, family="quadratic")
    assert compile_in(out).settings.family == "hard_tanh"


def test_foreign_and_busy_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        compile_in(tmp_path, force=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    run = Run(tmp_path / "run", "compile", {})
    with run.opened(), pytest.raises(RunInUse, match="in use by another process"):
        compile_in(tmp_path / "run")


def test_a_corrupted_record_is_named(copy: Path) -> None:
    path = copy / "pieces" / "certificate.json"
    content = path.read_text()
    edited = content.replace('"relative_gap": 0.', '"relative_gap": 0.9', 1)
    assert edited != content
    for text in ("{", edited):  # also where one digit was changed
        path.write_text(text)
        for read in (lambda: compile_in(copy), lambda: nsd.load(copy)):
            with pytest.raises(DataCorrupted, match=r"certificate\.json"):
                read()


def test_order_names_and_tables_do_not_matter(compiled: nsd.Compilation) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = blobs(160)
    order = np.random.default_rng(3).permutation(160)
    table = pandas.DataFrame(X[order], columns=[f"x{k}" for k in range(12)])
    labels = pandas.Series(np.array(["ash", "oak"])[y[order]])
    again = nsd.compile(TANH, table, labels, **SMALL)
    assert again.network.classes == ("ash", "oak")
    assert again.accuracy == compiled.accuracy
    gaps = [c.certificate.matched.relative_gap for c in (again, compiled)]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-9)


def test_classes_may_be_missing_in_the_test_part() -> None:
    X, y = blobs(120, classes=3)
    X_test, y_test = blobs(60, classes=3, seed=1)
    some = y_test != 1
    found = nsd.compile(TANH, X, y, X_test[some], y_test[some], **SMALL)
    assert found.network.out_features == 3
    assert found.accuracy.mean["deq"] > 0.8


def test_a_scale_far_off_is_told_and_can_be_mended() -> None:
    X, y = blobs(160)
    raw = 60.0 * X + 100.0
    found = nsd.compile(RELU, raw, y, **(SMALL | {"family": "leaky_relu"}))
    assert "preprocessing='theory'" in found.verdict.reasons[-1]
    mended = nsd.compile(TANH, raw, y, **SMALL, preprocessing="theory")
    assert mended.verdict.conditions["scale of the data"].holds
    assert mended.network.preprocessing.kind == "theory"
    assert mended.accuracy.mean["deq"] > 0.9


def test_a_python_function_can_be_compiled_but_not_saved(tmp_path: Path) -> None:
    deq = nsd.DeepEquilibrium(nsd.activations.from_function(np.arctan, name="arctan"), 0.2)
    with pytest.raises(NotSerialisable):
        nsd.compile(deq, *blobs(80), **SMALL, out=tmp_path / "run")


@pytest.mark.slow
def test_all_weights_can_be_trained(tmp_path: Path) -> None:
    data = nsd.data.load("digits", samples=200, test_samples=60, rng=0)
    options = SMALL | {"family": "leaky_relu", "train": "all", "epochs": 3}
    found = nsd.compile(RELU, data, out=tmp_path / "all", **options)
    assert min(found.accuracy.mean.values()) > 0.5
    assert found.front.library == "torch"


def test_threads_give_the_numbers_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("NOTSODEEP_THREADS", threads)
        found.append(nsd.compile(TANH, *blobs(120), **(SMALL | {"seeds": 3})).accuracy)
    assert found[0] == found[1]


def test_compile_shadows_nothing() -> None:
    """The function is an attribute of the package; the builtin is untouched."""
    import builtins

    import notsodeep.compilation.compile  # noqa: F401 - a module of the same name

    assert nsd.compile is not builtins.compile
    assert callable(nsd.compile)
