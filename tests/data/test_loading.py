"""`load`: what an experiment gets from one call."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from notsodeep.data import (
    MixtureStatistics,
    Preprocessing,
    load,
    names,
)
from notsodeep.errors import DataNotFound, InvalidInput, UnknownName


def test_digits_are_the_default_and_need_no_download(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path / "nothing"))
    data = load()
    bunch = load_digits()
    raw, raw_test = bunch.data[:1437], bunch.data[1437:]
    mean = raw.mean(axis=0)
    scale = np.sqrt(((raw - mean) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(data.X, (raw - mean) / scale, atol=1e-14)
    np.testing.assert_allclose(data.X_test, (raw_test - mean) / scale, atol=1e-14)
    np.testing.assert_array_equal(data.y, bunch.target[:1437])
    np.testing.assert_array_equal(data.y_test, bunch.target[1437:])
    assert data.classes == tuple("0123456789")
    assert data.image_shape == (8, 8, 1)
    assert not (tmp_path / "nothing").exists()
    assert load(preprocessing="unit_range").X.max() == 1.0


def test_the_scale_of_the_theory_is_about_one() -> None:
    data = load("digits")
    stats = MixtureStatistics.estimate(data.X, data.y)
    assert 0.5 < stats.tau0 < 1.0
    assert (np.diag(stats.T) > 0.0).all()


def test_classes_are_chosen_by_number_or_name_and_renumbered_in_order() -> None:
    by_number = load("digits", classes=(8, 6))
    by_name = load("digits", classes=("8", "6"))
    np.testing.assert_array_equal(by_number.X, by_name.X)
    assert by_number.classes == ("8", "6")
    target = load_digits().target[by_number.train_indices]
    np.testing.assert_array_equal(np.array([8, 6])[by_number.y], target)
    assert set(target) == {6, 8}


@given(st.integers(10, 800), st.integers(0, 5))
def test_balanced_samples(samples: int, seed: int) -> None:
    data = load("digits", samples=samples, test_samples=50, rng=seed)
    counts = np.bincount(data.y, minlength=10)
    assert counts.sum() == samples
    assert np.ptp(counts) <= 1
    np.testing.assert_array_equal(np.bincount(data.y_test), np.full(10, 5))
    assert (np.diff(data.train_indices) > 0).all()


def test_a_seed_fixes_the_choice_and_the_test_part_does_not_disturb_it() -> None:
    first = load("digits", samples=100, rng=3)
    again = load("digits", samples=100, test_samples=30, rng=3)
    np.testing.assert_array_equal(first.X, again.X)
    assert not np.array_equal(first.train_indices, load("digits", samples=100, rng=4).train_indices)
    by_generator = load("digits", samples=100, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(first.train_indices, by_generator.train_indices)
    assert by_generator.provenance.options["seed"] is None


def test_unbalanced_samples_follow_the_set() -> None:
    data = load("digits", samples=1437, balanced=False)
    np.testing.assert_array_equal(data.train_indices, np.arange(1437))
    assert len(load("digits", samples=200, balanced=False, rng=0).X) == 200


def test_preprocessing_is_recorded_and_repeats_on_new_data() -> None:
    raw = load_digits().data
    for kind in ("theory", "unit_norm", "unit_range", "pixels", "none"):
        data = load("digits", preprocessing=kind, samples=200)
        again = Preprocessing.from_dict(json.loads(json.dumps(data.preprocessing.to_dict())))
        np.testing.assert_array_equal(again.apply(raw[data.train_indices]), data.X)
        assert data.provenance.options["preprocessing"] == kind


def test_provenance_is_enough_to_make_it_again() -> None:
    data = load("digits", classes=(1, 2), samples=60, rng=9)
    record = json.loads(json.dumps(data.provenance.to_dict()))
    assert record["name"] == "digits"
    assert len(record["sha256"]) == 4
    options = record["options"]
    again = load(
        record["name"],
        classes=options["classes"],
        samples=options["samples"],
        preprocessing=options["preprocessing"],
        rng=options["seed"],
    )
    np.testing.assert_array_equal(again.X, data.X)


def test_a_missing_set_says_how_to_get_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NOTSODEEP_DATA", str(tmp_path))
    with pytest.raises(DataNotFound, match="notsodeep data get cifar10"):
        load("cifar10")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": (3, 3)}, "name each class once"),
        ({"classes": "38"}, r"sequence like \(6, 8\)"),
        ({"classes": ()}, "sequence like"),
        ({"classes": (11,)}, "Unknown class '11'"),
        ({"samples": 0}, "samples of load must be an integer of at least 1"),
        ({"samples": 1430}, r"class 8 has 141 samples.*at most 1410, or pass balanced=False"),
        ({"samples": 2000, "balanced": False}, "at most the 1437 samples"),
        ({"test_samples": 359}, "test_samples of load must allow equal classes.*class 8 has 33"),
        ({"preprocessing": "standard"}, "Unknown preprocessing"),
        ({"rng": "zero"}, "rng of load"),
    ],
)
def test_what_cannot_be_loaded_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load("digits", **arguments)


def test_unknown_names_suggest_known_ones() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'fashion_mnist'"):
        load("fashionmnist")
    assert names()[0] == "digits"
