"""The map to the theory's convention: training statistics only, and bit-exact from JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from notsodeep.data import Preprocessing
from notsodeep.errors import InvalidInput, UnknownName

rows = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 12), st.integers(1, 6)),
    elements=st.floats(-1e3, 1e3),
)


@given(rows)
def test_theory_centres_and_gives_unit_root_mean_square_norm(X: np.ndarray) -> None:
    assume(np.ptp(X, axis=0).max() > 1e-3)
    Z = Preprocessing.fit(X).apply(X)
    assert np.abs(Z.mean(axis=0)).max() < 1e-6
    assert (Z**2).sum(axis=1).mean() == pytest.approx(1.0)


def test_test_rows_are_mapped_with_training_statistics() -> None:
    rng = np.random.default_rng(0)
    X, X_test = rng.standard_normal((50, 4)) + 3.0, rng.standard_normal((20, 4))
    fitted = Preprocessing.fit(X)
    mean = X.mean(axis=0)
    scale = np.sqrt(((X - mean) ** 2).sum(axis=1).mean())
    np.testing.assert_allclose(fitted.apply(X_test), (X_test - mean) / scale)
    assert np.abs(fitted.apply(X_test).mean(axis=0)).min() > 0.5


def test_bytes_and_floats_agree_and_blocks_do_not_show() -> None:
    X = np.random.default_rng(1).integers(0, 256, (3000, 50), dtype=np.uint8)
    from_bytes, from_floats = Preprocessing.fit(X), Preprocessing.fit(X.astype(np.float64))
    np.testing.assert_allclose(from_bytes.mean, from_floats.mean, rtol=1e-14)
    assert from_bytes.scale == pytest.approx(from_floats.scale, rel=1e-14)
    whole = from_bytes.apply(X)
    np.testing.assert_array_equal(whole[1234:1240], from_bytes.apply(X[1234:1240]))


@given(rows, st.sampled_from(["theory", "unit_norm", "none"]))
def test_json_round_trip_is_exact(X: np.ndarray, kind: str) -> None:
    X = X + np.arange(len(X))[:, None] * 10.0 + 1e4
    fitted = Preprocessing.fit(X, kind)
    again = Preprocessing.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert again == fitted
    assert hash(again) == hash(fitted)
    np.testing.assert_array_equal(again.apply(X), fitted.apply(X))


def test_different_maps_differ() -> None:
    X = np.random.default_rng(2).standard_normal((5, 3))
    theory = Preprocessing.fit(X)
    assert theory != Preprocessing.fit(2.0 * X)
    assert theory != Preprocessing.fit(X, "none")
    assert Preprocessing.fit(X, "none") != Preprocessing.fit(X, "unit_norm")
    assert Preprocessing.fit(X, "none") != Preprocessing.fit(X[:, :2], "none")
    assert theory != "theory"


def test_unit_norm_and_none() -> None:
    X = np.random.default_rng(3).standard_normal((7, 3))
    unit = Preprocessing.fit(X, "unit_norm").apply(X)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0)
    np.testing.assert_array_equal(Preprocessing.fit(X, "none").apply(X), X)


def test_precision_of_the_result() -> None:
    X = np.random.default_rng(4).standard_normal((7, 3))
    fitted = Preprocessing.fit(X)
    single = fitted.apply(X, "float32")
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, fitted.apply(X).astype(np.float32))


def test_no_rows_are_fine_to_map_but_not_to_fit() -> None:
    fitted = Preprocessing.fit(np.eye(3))
    assert fitted.apply(np.empty((0, 3))).shape == (0, 3)
    with pytest.raises(InvalidInput, match="n_samples"):
        Preprocessing.fit(np.empty((0, 3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Preprocessing.fit(np.ones((4, 2))), "two different rows"),
        (lambda: Preprocessing.fit(np.full((3, 2), 0.1)), "two different rows"),
        (lambda: Preprocessing.fit(np.ones(4)), "matrix of shape"),
        (lambda: Preprocessing.fit([[np.nan, 1.0]]), "finite"),
        (lambda: Preprocessing.fit(np.eye(3)).apply(np.eye(2)), "3 features of the training"),
        (lambda: Preprocessing.fit(np.eye(2), "unit_norm").apply([[1, 0], [0, 0]]), "row 1"),
    ],
)
def test_what_cannot_be_mapped_is_refused(call, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'unit_norm'"):
        Preprocessing.fit(np.eye(2), "unitnorm")
