"""From what a user has in hand, arrays, tables or a data set, to labelled rows in two parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import Dataset, Preprocessing, Provenance, names
from notsodeep.data.selection import order_by_content
from notsodeep.files import sha256_of_array

LEAST_ROWS = 20
"""Of either part, training and test."""

ARRAYS = "arrays"
"""Name of data that came as arrays."""

_OWNER = "compile"


def labelled_rows(
    X: Any, y: Any, X_test: Any, y_test: Any, *, preprocessing: str, seed: int
) -> Dataset:
    """Return training and test rows as a `Dataset`.

    Parameters
    ----------
    X : array_like of shape (n, p), or Dataset
        A table of numbers of any kind that NumPy can read.  A data set has labels and a test part
        of its own.
    y : array_like of shape (n,)
        Labels: whole numbers, truth values or strings.
    X_test, y_test : array_like, optional
        Without them a quarter of the rows, and 20 at the least, is set apart: the same share of
        each class, drawn by `seed` whatever the order of the rows.
    preprocessing : {"none", "theory", "unit_norm"}
        Fixed on the training rows; a data set has its own.
    seed : int

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> data = labelled_rows(
    ...     X, ["cat", "dog"] * 50, None, None, preprocessing="theory", seed=0
    ... )
    >>> data
    Dataset('arrays', n=75, n_test=25, p=5, classes=2, preprocessing='theory')
    >>> data.classes, data.provenance.options["set_apart"]
    (('cat', 'dog'), 25)
    """
    if isinstance(X, Dataset):
        return _given(X, y, X_test, y_test, preprocessing)
    rows = checks.samples(X, "X", _OWNER)
    given = _labels(y, len(rows), "y")
    if (X_test is None) != (y_test is None):
        missing = "y_test" if y_test is None else "X_test"
        raise checks.invalid(missing, _OWNER, "be given with the other of the two", None)
    classes, labels = np.unique(given, return_inverse=True)
    if len(classes) < 2:
        raise checks.invalid("y", _OWNER, "hold two classes or more", f"only {classes[0]!s}")
    digests = {"X": sha256_of_array(rows), "y": sha256_of_array(given)}
    train = np.arange(len(rows))
    if X_test is None:
        _require_rows(len(rows), 2 * LEAST_ROWS, "X", "half of them to test with")
        test = set_apart(rows, labels, max(LEAST_ROWS, len(rows) // 4), seed)
        train = np.setdiff1d(train, test)
        rows_test, labels_test = rows[test], labels[test]
        apart = len(test)
    else:
        _require_rows(len(rows), LEAST_ROWS, "X", "")
        _require_same_columns(X, X_test)
        rows_test = checks.samples(X_test, "X_test", _OWNER)
        if rows_test.shape[1] != rows.shape[1]:
            requirement = f"have the {rows.shape[1]} features of X"
            raise checks.invalid("X_test", _OWNER, requirement, rows_test.shape[1])
        _require_rows(len(rows_test), LEAST_ROWS, "X_test", "")
        given_test = _labels(y_test, len(rows_test), "y_test")
        labels_test = _known(given_test, classes)
        digests |= {"X_test": sha256_of_array(rows_test), "y_test": sha256_of_array(given_test)}
        test, apart = np.arange(len(rows_test)), 0
    fitted = Preprocessing.fit(rows[train], preprocessing)
    return Dataset(
        X=fitted.apply(rows[train]),
        y=labels[train].astype(np.int64),
        X_test=fitted.apply(rows_test),
        y_test=labels_test.astype(np.int64),
        classes=tuple(map(str, classes)),
        preprocessing=fitted,
        provenance=Provenance(
            ARRAYS,
            "arrays of the caller",
            digests,
            {"set_apart": apart, "seed": seed, "preprocessing": fitted.kind},
        ),
        train_indices=train,
        test_indices=test,
    )


def selection(data: Dataset, seed: int) -> dict[str, Any]:
    """Return how data were selected and prepared, where that is not the default.

    Examples
    --------
    >>> from notsodeep.data import load
    >>> selection(load("digits", classes=(6, 8), samples=100, rng=0), seed=0)
    {'classes': ['6', '8']}
    """
    kind = "none" if data.provenance.name in (ARRAYS, "sphere", "gaussian_mixture") else "theory"
    usual = {"balanced": True, "dtype": "float64", "seed": seed, "preprocessing": kind}
    apart = ("samples", "test_samples", "set_apart")  # settings of their own, or no choice
    return {
        name: value
        for name, value in data.provenance.options.items()
        if name not in apart and value != usual.get(name)
    }


def input_digests(provenance: Provenance) -> dict[str, str]:
    """Return the SHA-256 of what is the user's own; sets known by name are verified elsewhere."""
    return {} if provenance.name in names() else dict(provenance.sha256)


def set_apart(rows: FloatArray, labels: IntArray, count: int, seed: int) -> IntArray:
    """Draw rows to test with: the same share of each class, and never all of one.

    Which they are depends on the seed and the values of the rows, not on their order.

    Returns
    -------
    ndarray
        Ascending indices.
    """
    sizes = np.bincount(labels)
    share = count * sizes / len(rows)
    counts = np.floor(share).astype(np.int64)
    # What rounding down has left goes to the largest remainders, the first classes first.
    for k in np.argsort(counts - share, kind="stable")[: count - int(counts.sum())]:
        counts[k] += 1
    counts = np.minimum(counts, sizes - 1)
    chosen = []
    for k, generator in enumerate(np.random.default_rng(seed).spawn(len(sizes))):
        members = np.flatnonzero(labels == k)
        members = members[order_by_content(rows[members])]
        chosen.append(members[generator.permutation(len(members))[: counts[k]]])
    return np.sort(np.concatenate(chosen))


def _given(data: Dataset, y: Any, X_test: Any, y_test: Any, preprocessing: str) -> Dataset:
    for name, value in (("y", y), ("X_test", X_test), ("y_test", y_test)):
        if value is not None:
            requirement = "be left out with a Dataset, which has its own"
            raise checks.invalid(name, _OWNER, requirement, type(value).__name__)
    if preprocessing != "none":
        remedy = "Choose it when the data are loaded: data.load(..., preprocessing=...)."
        requirement = "be left out with a Dataset, which has its own"
        raise checks.invalid("preprocessing", _OWNER, requirement, preprocessing, remedy)
    if len(data.X_test) < LEAST_ROWS:
        remedy = (
            "Set some of the training samples apart when the data are loaded: test_samples=, or "
            "--test-samples."
        )
        got = f"{len(data.X_test)} in {data.provenance.name}"
        requirement = f"have at least {LEAST_ROWS} test samples"
        raise checks.invalid("data", _OWNER, requirement, got, remedy)
    return data


def _labels(y: Any, count: int, name: str) -> NDArray[Any]:
    """Return labels as a vector of whole numbers or strings, one for each row."""
    if y is None:
        remedy = "The read-out of a random DEQ is trained on labels: pass compile(deq, X, y)."
        raise checks.invalid(name, _OWNER, "be given for a DeepEquilibrium", None, remedy)
    array = checks.plain_array(y, name, _OWNER)
    if array.ndim != 1 or len(array) != count:
        requirement = f"be a vector with one label for each of the {count} rows"
        remedy = "Use its values as one vector, y.ravel()." if array.size == count else ""
        raise checks.invalid(name, _OWNER, requirement, f"shape {array.shape}", remedy)
    if array.dtype.kind == "O":
        array = _of_one_kind(array, name)
    if array.dtype.kind == "f":
        array = _whole(array, name)
    if array.dtype.kind not in "iubU":
        requirement = "hold whole numbers, truth values or strings"
        raise checks.invalid(name, _OWNER, requirement, f"dtype {array.dtype}")
    return array


def _of_one_kind(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Turn Python objects, as tables hold them, into one type of NumPy."""
    for row, value in enumerate(array):
        # NaN is the only one of these that differs from itself.
        if not isinstance(value, str | int | float | np.generic) or value != value:
            remedy = "Leave out rows without one."
            got = f"{value!r} at row {row}"
            raise checks.invalid(name, _OWNER, "have a label in every row", got, remedy)
    texts = sum(isinstance(value, str) for value in array)
    if texts not in (0, len(array)):
        got = f"{texts} strings and {len(array) - texts} numbers"
        remedy = "Use y.astype(str) if that is meant."
        raise checks.invalid(name, _OWNER, "hold labels of one kind", got, remedy)
    return array.astype(np.str_ if texts else np.float64)


def _whole(array: NDArray[Any], name: str) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):
        wrong = ~(array == np.round(array)) | ~np.isfinite(array)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        requirement = "hold classes: whole numbers or strings"
        remedy = "Leave out rows without a label; quantities would need a regression."
        raise checks.invalid(name, _OWNER, requirement, f"{array[row]} at row {row}", remedy)
    return array.astype(np.int64)


def _known(given: NDArray[Any], classes: NDArray[Any]) -> IntArray:
    """Give test labels the numbers that training labels have."""
    same_kind = (given.dtype.kind == "U") == (classes.dtype.kind == "U")
    known = np.isin(given, classes) if same_kind else np.zeros(len(given), dtype=bool)
    if not known.all():
        got = f"the label {given[~known][0]!s}"
        raise checks.invalid("y_test", _OWNER, "hold only labels that occur in y", got)
    return np.searchsorted(classes, given)


def _require_rows(count: int, least: int, name: str, why: str) -> None:
    if count < least:
        requirement = f"have at least {least} rows" + (f", {why}" if why else "")
        remedy = "Pass more, or X_test and y_test beside them." if why else "Pass more."
        raise checks.invalid(name, _OWNER, requirement, count, remedy)


def _require_same_columns(X: Any, X_test: Any) -> None:
    """Require that two tables with named columns have the same, in the same order."""
    columns, others = getattr(X, "columns", None), getattr(X_test, "columns", None)
    if columns is None or others is None or list(columns) == list(others):
        return
    requirement = "have the columns of X, in the same order"
    remedy = "Use X_test[X.columns]."
    raise checks.invalid("X_test", _OWNER, requirement, f"{list(others)[:5]} …", remedy)
