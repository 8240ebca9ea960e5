"""`nsd.compile` on what a user has in hand: arrays, tables, data sets; in memory and saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import notsodeep as nsd
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.compilation.accuracy import Accuracy, row_error
from notsodeep.compilation.labelled_rows import labelled_rows, set_apart
from notsodeep.errors import DataCorrupted, InvalidInput, NotSerialisable

RELU = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
TANH = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
SMALL: dict[str, Any] = {"family": "hard_tanh", "refine": False, "width": 32, "seeds": 2}


def blobs(n: int, classes: int = 2, p: int = 12, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Return rows of about norm one in classes that can be told apart, sorted by class."""
    rng = np.random.default_rng(seed)
    y = np.sort(np.arange(n) % classes)
    means = 1.5 * np.random.default_rng(99).normal(size=(classes, p))
    return (rng.normal(size=(n, p)) + means[y]) / np.sqrt(3 * p), y


@pytest.fixture(scope="module")
def compiled() -> nsd.Compilation:
    return nsd.compile(TANH, *blobs(160), **SMALL)


def numbers(compiled: nsd.Compilation) -> dict[str, Any]:
    """Return what does not depend on a clock."""
    summary = compiled.records["summary"]
    clock = ("inference_quartiles", "tolerance", "steps")  # the fastest solver differs in steps
    return {k: v for k, v in summary.items() if not k.endswith("_ratio") and k not in clock}


def test_the_answer_has_everything(compiled: nsd.Compilation) -> None:
    import torch

    assert compiled.match.network.depth == 1
    gap = compiled.certificate.matched.relative_gap
    assert gap < compiled.certificate.unmatched.relative_gap
    assert set(compiled.accuracy.draws) == {"deq", "matched", "unmatched"}
    low, high = compiled.accuracy.difference
    assert low <= high
    assert compiled.timing.inference.ratio > 0.0
    assert compiled.records["data"]["samples"] == 120
    assert compiled.records["data"]["test_samples"] == 40
    assert compiled.records["data"]["provenance"]["options"]["set_apart"] == 40
    X, y = blobs(200, seed=5)
    with torch.no_grad():
        guess = compiled.network(torch.as_tensor(X, dtype=torch.float32)).argmax(dim=1).numpy()
    assert np.mean(guess == y) > 0.9
    assert compiled.network.classes == ("0", "1")


def test_the_verdict_is_the_printed_rule(compiled: nsd.Compilation) -> None:
    verdict, summary = compiled.verdict, compiled.records["summary"]
    close = compiled.certificate.matched.relative_gap <= 0.05
    accurate = max(map(abs, compiled.accuracy.difference)) <= 0.5
    assert (verdict.word == "replaceable") == (close and accurate) == summary["replaceable"]
    assert verdict.rule.startswith("Rule: replaceable if the relative kernel gap")
    assert "at its best scale" in verdict.reasons[0]
    plain = compiled.certificate.plain_suffices
    assert any("a plain layer does as well" in text for text in verdict.reasons) == plain
    assert verdict.conditions["scale of the data"].holds
    for text in (str(compiled), compiled._repr_html_()):
        assert verdict.headline in text
    assert len(repr(compiled)) < 300
    json.dumps(compiled.to_dict(), allow_nan=False)


def test_the_headline_is_the_cheapest_tolerance_that_keeps_the_accuracy(
    compiled: nsd.Compilation,
) -> None:
    front, summary = compiled.records["front"], compiled.records["summary"]
    low, high = front["interval"]
    accuracies = [point["accuracy"] for point in front["points"]]
    kept = [low <= accuracy <= high for accuracy in accuracies]
    assert kept[-1]  # the strict one itself
    assert front["chosen"] == kept.index(True)
    chosen = front["points"][front["chosen"]]
    assert summary["tolerance"] == chosen["tolerance"]
    assert summary["inference_ratio"] == chosen["inference"]["ratio"]
    steps = [point["inference"]["steps"] for point in front["points"]]
    assert steps == sorted(steps)
    assert accuracies[-1] == pytest.approx(compiled.accuracy.draws["deq"][0], abs=0.051)
    assert compiled.timing.training_step is None  # a ridge read-out has none


def test_the_interval_knows_of_the_test_rows() -> None:
    """Draws that agree with one another, or on all rows, still share the luck of the rows."""
    alike = np.ones((10, 20), dtype=bool)
    error = row_error({"matched": alike, "deq": alike})
    assert error == pytest.approx(100.0 * (1.0 - 0.05 ** (1 / 20)))
    draws = dict.fromkeys(("deq", "matched", "unmatched"), (1.0,) * 10)
    assert Accuracy(draws, error).difference == pytest.approx((-error, error))
    # Many rows that differ: Student's interval of their mean.
    rng = np.random.default_rng(0)
    right = {"matched": rng.random((1, 900)) < 0.8, "deq": np.ones((1, 900), dtype=bool)}
    others = int((~right["matched"]).sum())
    scatter = 100.0 * np.std(right["matched"][0], ddof=1) / 30.0
    assert row_error(right) == pytest.approx(stats.t.ppf(0.975, others - 1) * scatter)


def test_the_interval_of_few_rows_covers_the_truth() -> None:
    """Twenty rows of which one in fifty differs: mostly none does, and the interval has room."""
    rng = np.random.default_rng(1)
    truth, covered = 2.0, []
    for _ in range(300):
        worse = np.tile(rng.random(20) < truth / 100.0, (5, 1))
        mean = 100.0 * float(worse.mean())
        error = row_error({"deq": np.ones_like(worse), "matched": ~worse})
        covered.append(abs(mean - truth) <= error)
    assert np.mean(covered) >= 0.93


def test_pictures_and_pages(compiled: nsd.Compilation, tmp_path: Path) -> None:
    assert len(compiled.plot().axes) >= 3
    page = compiled.report(tmp_path / "page.html").read_text()
    assert "40 rows were set apart to test with" in page
    assert compiled.verdict.headline in page


def test_saved_and_loaded_is_the_same(compiled: nsd.Compilation, tmp_path: Path) -> None:
    place = compiled.save(tmp_path / "run")
    again = nsd.load(place)
    assert isinstance(again, nsd.Compilation)
    assert again.to_dict() == json.loads(json.dumps(compiled.to_dict()))
    assert repr(again) == repr(compiled)
    assert again.settings == compiled.settings
    assert again.accuracy == compiled.accuracy
    assert again.timing == compiled.timing
    assert again.match.network == compiled.match.network
    np.testing.assert_array_equal(again.certificate.difference, compiled.certificate.difference)
    state, other = again.network.state_dict(), compiled.network.state_dict()
    assert all(state[name].equal(other[name]) for name in state)
    assert again.network.preprocessing == compiled.network.preprocessing
    again.save(tmp_path / "copy")
    assert nsd.load(tmp_path / "copy").to_dict() == again.to_dict()
    (place / "pieces" / "timing.json").unlink()
    with pytest.raises(DataCorrupted, match="not finished"):
        nsd.load(place)


def test_a_directory_gives_the_same_numbers_and_is_resumed(
    compiled: nsd.Compilation, tmp_path: Path
) -> None:
    X, y = blobs(160)
    stored = nsd.compile(TANH, X, y, **SMALL, out=tmp_path / "run")
    assert numbers(stored) == numbers(compiled)
    (tmp_path / "run" / "pieces" / "network-matched-1.json").unlink()
    (tmp_path / "run" / "network.safetensors").unlink()
    heard: list[str] = []
    again = nsd.compile(TANH, X, y, **SMALL, out=tmp_path / "run", progress=heard.append)
    assert again.records == stored.records
    assert [text for text in heard if "training" in text] == [
        "training network 5 of 6: matched, draw 2"
    ]
    assert nsd.load(tmp_path / "run" / "network.safetensors").classes == ("0", "1")
    with pytest.raises(InvalidInput, match="other data: y has SHA-256"):
        nsd.compile(TANH, X, y[::-1], **SMALL, out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="selection is None there"):
        nsd.compile(TANH, X, y, **SMALL, preprocessing="theory", out=tmp_path / "run")


def test_order_names_and_tables_do_not_matter(compiled: nsd.Compilation) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = blobs(160)
    order = np.random.default_rng(3).permutation(160)
    table = pandas.DataFrame(X[order], columns=[f"x{k}" for k in range(12)])
    labels = pandas.Series(np.array(["ash", "oak"])[y[order]])
    again = nsd.compile(TANH, table, labels, **SMALL)
    assert again.network.classes == ("ash", "oak")
    mine, theirs = numbers(again), numbers(compiled)
    assert mine.pop("relative_gap") == pytest.approx(theirs.pop("relative_gap"), rel=1e-9)
    assert mine["accuracies"] == theirs["accuracies"]


def test_classes_may_be_missing_in_the_test_part() -> None:
    X, y = blobs(120, classes=3)
    X_test, y_test = blobs(60, classes=3, seed=1)
    some = y_test != 1
    found = nsd.compile(TANH, X, y, X_test[some], y_test[some], **SMALL)
    assert found.network.out_features == 3
    assert found.accuracy.mean["deq"] > 0.8
    assert found.records["data"]["provenance"]["options"]["set_apart"] == 0


def test_a_scale_far_off_is_told_and_can_be_mended() -> None:
    X, y = blobs(160)
    raw = 60.0 * X + 100.0
    found = nsd.compile(RELU, raw, y, **(SMALL | {"family": "leaky_relu"}))
    assert not found.verdict.conditions["scale of the data"].holds
    assert "preprocessing='theory'" in found.verdict.reasons[-1]
    mended = nsd.compile(TANH, raw, y, **SMALL, preprocessing="theory")
    assert mended.verdict.conditions["scale of the data"].holds
    assert mended.network.preprocessing.kind == "theory"
    assert mended.accuracy.mean["deq"] > 0.9


def test_a_python_function_can_be_compiled_but_not_saved(tmp_path: Path) -> None:
    phi = nsd.activations.from_function(np.arctan, name="arctan")
    deq = nsd.DeepEquilibrium(phi, sigma_a2=0.2)
    X, y = blobs(80)
    with pytest.raises(NotSerialisable):
        nsd.compile(deq, X, y, **SMALL, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": None}, "y of compile must be given for a DeepEquilibrium"),
        ({"y": np.zeros(80)}, "y of compile must hold two classes or more. Got only 0"),
        ({"y": np.arange(79)}, "one label for each of the 80 rows"),
        ({"y": np.arange(80)[:, None] % 2}, r"y\.ravel\(\)"),
        ({"y": np.linspace(0, 1, 80)}, "must hold classes: whole numbers or strings. Got 0.01"),
        ({"y": ["a", None] * 40}, "a label in every row. Got None at row 1"),
        ({"y": np.array(["a", 1] * 40, dtype=object)}, "one kind. Got 40 strings and 40 numbers"),
        ({"y": np.where(np.arange(80) % 9, 1.0, np.nan)}, "Got nan at row 0"),
        ({"X": np.ones(80)}, "X of compile must be a matrix"),
        ({"X": np.full((80, 3), "x")}, "X of compile must hold real numbers"),
        ({"X": np.full((80, 3), np.nan)}, "X of compile must be finite"),
        ({"X_test": np.ones((30, 12))}, "y_test of compile must be given with the other"),
        ({"X_test": np.ones((30, 9)), "y_test": np.ones(30)}, "have the 12 features of X. Got 9"),
        ({"X_test": np.ones((5, 12)), "y_test": np.ones(5)}, "at least 20 rows. Got 5"),
        ({"X_test": np.ones((30, 12)), "y_test": np.full(30, 7)}, "labels that occur in y.*7"),
        ({"X_test": np.ones((30, 12)), "y_test": ["a"] * 30}, "labels that occur in y.*a"),
        ({"preprocessing": "thoery"}, "theory"),
        ({"random_state": -1}, "seed"),
        (
            {"model": "relu"},
            "model of compile must be a DeepEquilibrium or an EquilibriumCell. Got 'relu'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    X, y = blobs(80)
    given: dict[str, Any] = {"model": TANH, "X": X, "y": y, **arguments}
    with pytest.raises(InvalidInput, match=message):
        nsd.compile(**given)


def test_few_rows_and_data_sets_with_extras_are_named() -> None:
    X, y = blobs(39)
    with pytest.raises(InvalidInput, match=r"at least 40 rows, half of them.* Got 39"):
        nsd.compile(TANH, X, y)
    data = nsd.data.load("digits", samples=50)
    with pytest.raises(InvalidInput, match="y of compile must be left out with a Dataset"):
        nsd.compile(TANH, data, data.y)
    with pytest.raises(InvalidInput, match=r"Choose it when the data are loaded"):
        nsd.compile(TANH, data, preprocessing="theory")
    few = nsd.data.load("digits", samples=50, test_samples=10)
    with pytest.raises(InvalidInput, match=r"at least 20 test samples\. Got 10 in digits"):
        nsd.compile(TANH, few)


def test_the_model_that_is_compared_can_be_chosen() -> None:
    relu, data = nsd.DeepEquilibrium("relu", 0.2), nsd.data.load("digits", samples=100, rng=0)
    options: dict[str, Any] = {"family": "leaky_relu", "refine": False, "width": 16, "seeds": 2}
    given = nsd.compile(relu, data, centre=False, **options)
    assert given.match.model == relu
    assert given.settings.to_dict()["centre"] is False


def test_columns_in_another_order_are_noticed() -> None:
    pandas = pytest.importorskip("pandas")
    X, y = blobs(80)
    table = pandas.DataFrame(X, columns=list("abcdefghijkl"))
    with pytest.raises(InvalidInput, match="the columns of X, in the same order"):
        nsd.compile(TANH, table, y, table[list("lkjihgfedcba")], y)


def test_rows_are_set_apart_by_class_whatever_their_order() -> None:
    X, _ = blobs(100)
    y = np.repeat([0, 1, 2, 3], [60, 37, 2, 1])
    chosen = set_apart(X, y, 25, seed=0)
    assert np.bincount(y[chosen], minlength=4).tolist() == [15, 9, 1, 0]
    assert not np.array_equal(set_apart(X, y, 25, seed=1), chosen)
    order = np.random.default_rng(0).permutation(100)
    other = order[set_apart(X[order], y[order], 25, seed=0)]
    assert set(other) == set(chosen)
    data = labelled_rows(X, y, None, None, preprocessing="none", seed=0)
    np.testing.assert_array_equal(data.X_test, X[chosen])
    assert set(data.train_indices) | set(data.test_indices) == set(range(100))


def test_compile_shadows_nothing() -> None:
    """The function is an attribute of the package; the builtin is untouched."""
    import builtins

    assert nsd.compile is not builtins.compile
    assert callable(nsd.compile)
    import notsodeep.compilation  # noqa: F401 - a package of another name

    assert nsd.compile.__name__ == "compile"
