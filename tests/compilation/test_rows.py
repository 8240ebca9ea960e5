"""What `nsd.compile` takes for rows and labels, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.compilation.rows import held_out, labelled_rows
from notsodeep.errors import InvalidInput

TANH = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
X = np.random.default_rng(0).normal(size=(80, 12))
Y = np.arange(80) % 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": None}, "y must be given for a random DEQ"),
        ({"y": np.zeros(80)}, "y must hold two classes or more, got only 0"),
        ({"y": np.arange(79)}, "one label for each of the 80 rows"),
        ({"y": Y[:, None]}, r"y\.ravel\(\)"),
        ({"y": np.linspace(0, 1, 80)}, "must hold classes: whole numbers or strings, got 0.01"),
        ({"y": ["a", None] * 40}, "a label in every row, got None at row 1"),
        ({"y": np.array(["a", 1] * 40, dtype=object)}, "one kind, got 40 strings and 40 numbers"),
        ({"y": np.where(np.arange(80) % 9, 1.0, np.nan)}, "got nan at row 0"),
        ({"X": np.ones(80)}, "must be a matrix"),
        ({"X": np.full((80, 3), "x")}, "must hold real numbers"),
        ({"X": np.full((80, 3), np.nan)}, "must be finite"),
        ({"X_test": np.ones((30, 12))}, "y_test must come with the other"),
        ({"X_test": np.ones((30, 9)), "y_test": np.ones(30)}, "the 12 features of X, got 9"),
        ({"X_test": np.ones((5, 12)), "y_test": np.ones(5)}, "at least 20 rows, got 5"),
        ({"X_test": np.ones((30, 12)), "y_test": np.full(30, 7)}, "labels that occur in y.*7"),
        ({"X_test": np.ones((30, 12)), "y_test": ["a"] * 30}, "labels that occur in y.*a"),
        ({"X": X[:39], "y": Y[:39]}, "at least 40 rows, got 39"),
        ({"preprocessing": "thoery"}, "theory"),
        ({"random_state": -1}, "random_state"),
        ({"seeds": 1}, "seeds"),
        ({"width": -1}, "width"),
        ({"gap_limit": 0.0}, "gap_limit"),
        ({"train": "everything"}, "train"),
        ({"family": "leaky"}, "family"),
        ({"kind": "ntkk"}, "kernel|kind"),
        ({"refine": "distil"}, "refine must be a bool"),
        ({"layers": 2}, "layers is no option for a random DEQ; its options are family"),
        ({"model": "relu"}, "model must be a DeepEquilibrium or an EquilibriumCell, got 'relu'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": TANH, "X": X, "y": Y, **arguments}
    with pytest.raises(InvalidInput, match=message):
        nsd.compile(**given)


def test_data_sets_have_their_own_labels_and_test_rows() -> None:
    data = nsd.data.load("digits", samples=50)
    with pytest.raises(InvalidInput, match="y must be left out with a Dataset"):
        nsd.compile(TANH, data, data.y)
    with pytest.raises(InvalidInput, match="Choose it when the data are loaded"):
        nsd.compile(TANH, data, preprocessing="theory")
    with pytest.raises(InvalidInput, match="at least 20 test samples, got 10 in digits"):
        nsd.compile(TANH, nsd.data.load("digits", samples=50, test_samples=10))


def test_columns_in_another_order_are_noticed() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=list("abcdefghijkl"))
    with pytest.raises(InvalidInput, match="the columns of X, in the same order"):
        nsd.compile(TANH, table, Y, table[list("lkjihgfedcba")], Y)


def test_rows_are_held_out_by_class_whatever_their_order() -> None:
    rows = np.random.default_rng(1).normal(size=(100, 12))
    y = np.repeat([0, 1, 2, 3], [60, 37, 2, 1])
    chosen = held_out(rows, y, 25, seed=0)
    assert np.bincount(y[chosen], minlength=4).tolist() == [15, 9, 1, 0]
    assert not np.array_equal(held_out(rows, y, 25, seed=1), chosen)
    order = np.random.default_rng(0).permutation(100)
    other = order[held_out(rows[order], y[order], 25, seed=0)]
    assert set(other) == set(chosen)
    data = labelled_rows(rows, y, None, None, preprocessing="none", seed=0)
    np.testing.assert_array_equal(data.X_test, rows[chosen])
    assert set(data.train_indices) | set(data.test_indices) == set(range(100))
