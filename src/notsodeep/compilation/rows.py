"""From what a user has in hand, arrays, tables or a data set, to rows for each part of the work."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep._files import sha256_of_array
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import Dataset, Preprocessing, Provenance, names
from notsodeep.data.selection import draw_rows, order_by_content
from notsodeep.errors import InvalidInput
from notsodeep.models import ConvolutionalEquilibrium, DeepEquilibrium

MIN_ROWS = 20
"""Of every part."""

ARRAYS = "arrays"
"""Name of data that came as arrays."""


def rows_for_model(
    model: DeepEquilibrium | ConvolutionalEquilibrium,
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    preprocessing: str,
    seed: int,
) -> Dataset:
    """Return labelled training and test rows for a random DEQ; images for a convolutional one.

    Images are brought into the order of the model, and with "auto" or "pixels" centred and scaled
    to pixels of norm one in the mean square.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("relu", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (8, 8))
    >>> data = nsd.data.load("digits", samples=100, rng=0)
    >>> rows = rows_for_model(model, data, None, None, None, preprocessing="auto", seed=0)
    >>> rows.image_shape, round(float((rows.X**2).mean()), 12), rows.preprocessing.kind
    ((8, 8, 1), 1.0, 'pixels')
    """
    if isinstance(model, DeepEquilibrium):
        kind = "none" if preprocessing == "auto" else preprocessing
        return labelled_rows(X, y, X_test, y_test, preprocessing=kind, seed=seed)
    checks.known_name(preprocessing, ("auto", "pixels", "none"), "preprocessing of images")
    if isinstance(X, Dataset):
        kind = "none" if preprocessing == "auto" else preprocessing
        data = labelled_rows(X, y, X_test, y_test, preprocessing=kind, seed=seed)
        if data.image_shape != model.image_shape:
            raise _wrong("X", f"have images of {model.image_shape}, as the model", data.image_shape)
    else:
        rows, rows_test = (
            None if given is None else model.rows(given, name, "compile")
            for given, name in ((X, "X"), (X_test, "X_test"))
        )
        kind = "none" if preprocessing == "none" else "theory"
        data = labelled_rows(rows, y, rows_test, y_test, preprocessing=kind, seed=seed)
        data = replace(data, image_shape=model.image_shape)
    if data.preprocessing.kind != "theory":
        return data
    # From rows of norm one to pixels of norm one it is a factor.
    factor = math.sqrt(model.image_shape[0] * model.image_shape[1])
    fitted = replace(data.preprocessing, kind="pixels", scale=data.preprocessing.scale / factor)
    options = {**data.provenance.options, "preprocessing": "pixels"}
    return replace(
        data,
        X=factor * data.X,
        X_test=factor * data.X_test,
        preprocessing=fitted,
        provenance=replace(data.provenance, options=options),
    )


def labelled_rows(
    X: Any, y: Any, X_test: Any, y_test: Any, *, preprocessing: Any, seed: int
) -> Dataset:
    """Return training and test rows as a `Dataset`.

    Without test rows a quarter, and 20 at the least, is held out: the same share of each class,
    drawn by `seed` whatever the order of the rows.  A data set has labels, a test part and a
    preprocessing of its own.

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> labelled_rows(X, ["cat", "dog"] * 50, None, None, preprocessing="theory", seed=0)
    Dataset('arrays', n=75, n_test=25, p=5, classes=2, preprocessing='theory')
    """
    if isinstance(X, Dataset):
        return _with_test_part(X, y, X_test, y_test, preprocessing)
    rows = checks.samples(X, "X", "compile")
    given = _labels(y, len(rows), "y")
    if (X_test is None) != (y_test is None):
        raise _wrong("y_test" if y_test is None else "X_test", "come with the other of the two")
    classes, labels = np.unique(given, return_inverse=True)
    if len(classes) < 2:
        raise _wrong("y", "hold two classes or more", f"only {classes[0]!s}")
    digests = {"X": sha256_of_array(rows), "y": sha256_of_array(given)}
    train = np.arange(len(rows))
    if X_test is None:
        _require_rows(len(rows), 2 * MIN_ROWS, "X", "Pass more, or X_test and y_test too.")
        test = held_out(rows, labels, max(MIN_ROWS, len(rows) // 4), seed)
        train = np.setdiff1d(train, test)
        rows_test, labels_test = rows[test], labels[test]
        count = len(test)
    else:
        _require_rows(len(rows), MIN_ROWS, "X")
        _require_same_columns(X, X_test)
        rows_test = checks.samples(X_test, "X_test", "compile")
        if rows_test.shape[1] != rows.shape[1]:
            raise _wrong("X_test", f"have the {rows.shape[1]} features of X", rows_test.shape[1])
        _require_rows(len(rows_test), MIN_ROWS, "X_test")
        given_test = _labels(y_test, len(rows_test), "y_test")
        labels_test = _numbered_as(classes, given_test)
        digests |= {"X_test": sha256_of_array(rows_test), "y_test": sha256_of_array(given_test)}
        test, count = np.arange(len(rows_test)), 0
    fitted = Preprocessing.fit(rows[train], preprocessing)
    options = {"held_out": count, "seed": seed, "preprocessing": fitted.kind}
    return Dataset(
        X=fitted.apply(rows[train]),
        y=labels[train].astype(np.int64),
        X_test=fitted.apply(rows_test),
        y_test=labels_test.astype(np.int64),
        classes=tuple(map(str, classes)),
        preprocessing=fitted,
        provenance=Provenance(ARRAYS, "arrays of the caller", digests, options),
        train_indices=train,
        test_indices=test,
    )


def input_digests(provenance: Provenance) -> dict[str, str]:
    """Return the SHA-256 of the user's own data; sets known by name are verified elsewhere."""
    return {} if provenance.name in names() else dict(provenance.sha256)


def held_out(rows: FloatArray, labels: IntArray, count: int, seed: int) -> IntArray:
    """Draw rows to test with: the same share of each class, and never all of one.

    Which they are depends on the seed and the values of the rows, not on their order.
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


class CellRows(NamedTuple):
    """Rows for a given network, and labels of the last, indices of its logits."""

    train: NDArray[Any]
    validation: NDArray[Any]
    test: NDArray[Any]
    labels: IntArray | None


def rows_for_cell(
    rows: NDArray[Any],
    y: Any,
    rows_test: NDArray[Any] | None,
    y_test: Any,
    *,
    num_classes: int,
    seed: int,
) -> CellRows:
    """Divide rows into those to fit layers to, to choose by and to judge on.

    Which rows are which depends on their values and the seed, not on their order.
    """
    labels = _logit_indices(y, len(rows), num_classes, "y")
    generator = np.random.default_rng(seed)
    if rows_test is None:
        if y_test is not None:
            raise _wrong("y_test", "come with X_test", "labels alone")
        _require_rows(len(rows), 3 * MIN_ROWS, "X")
        order = draw_rows(rows.reshape(len(rows), -1), len(rows), generator)
        held = order[: max(MIN_ROWS, len(rows) // 4)]
        test, labels = rows[held], None if labels is None else labels[held]
        rows = rows[order[len(held) :]]
    else:
        _require_rows(len(rows), 2 * MIN_ROWS, "X")
        if y is not None and y_test is None:
            raise _wrong("y_test", "come with y and X_test: accuracies are those of X_test", "none")
        _require_rows(len(rows_test), MIN_ROWS, "X_test")
        test, labels = rows_test, _logit_indices(y_test, len(rows_test), num_classes, "y_test")
    order = draw_rows(rows.reshape(len(rows), -1), len(rows), generator)
    count = max(MIN_ROWS, len(rows) // 5)
    return CellRows(rows[order[count:]], rows[order[:count]], test, labels)


def _logit_indices(y: Any, count: int, num_classes: int, name: str) -> IntArray | None:
    if y is None:
        return None
    labels = checks.plain_array(y, name, "compile")
    if labels.shape != (count,) or labels.dtype.kind not in "iub":
        requirement = f"be a vector of {count} whole numbers, the indices of logits"
        raise _wrong(name, requirement, f"{labels.dtype} {labels.shape}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        requirement = f"be the indices of the network's {num_classes} logits"
        raise _wrong(name, requirement, f"{labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


def _with_test_part(data: Dataset, y: Any, X_test: Any, y_test: Any, preprocessing: str) -> Dataset:
    for name, value in (("y", y), ("X_test", X_test), ("y_test", y_test)):
        if value is not None:
            raise _wrong(name, "be left out with a Dataset, which has its own")
    if preprocessing != "none":
        remedy = "Choose it when the data are loaded: data.load(..., preprocessing=...)."
        raise _wrong("preprocessing", "be left out with a Dataset", preprocessing, remedy)
    if len(data.X_test) < MIN_ROWS:
        got = f"{len(data.X_test)} in {data.provenance.name}"
        remedy = "Load them with test_samples= (--test-samples)."
        raise _wrong("data", f"have at least {MIN_ROWS} test samples", got, remedy)
    return data


def _labels(y: Any, count: int, name: str) -> NDArray[Any]:
    """Return labels as a vector of whole numbers or strings, one for each row."""
    if y is None:
        remedy = "Its read-out is trained on labels: compile(deq, X, y)."
        raise _wrong(name, "be given for a random DEQ", None, remedy)
    array = checks.plain_array(y, name, "compile")
    if array.ndim != 1 or len(array) != count:
        remedy = "Use y.ravel()." if array.size == count else ""
        requirement = f"be a vector with one label for each of the {count} rows"
        raise _wrong(name, requirement, f"shape {array.shape}", remedy)
    if array.dtype.kind == "O":  # Python objects, as tables hold them
        for row, value in enumerate(array):
            # NaN is the only one of these that differs from itself.
            if not isinstance(value, str | int | float | np.generic) or value != value:
                raise _wrong(name, "have a label in every row", f"{value!r} at row {row}")
        texts = sum(isinstance(value, str) for value in array)
        if texts not in (0, len(array)):
            got = f"{texts} strings and {len(array) - texts} numbers"
            raise _wrong(name, "hold labels of one kind", got, "Use y.astype(str).")
        array = array.astype(np.str_ if texts else np.float64)
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            wrong = np.flatnonzero(~(array == np.round(array)) | ~np.isfinite(array))
        if len(wrong):
            got = f"{array[wrong[0]]} at row {wrong[0]}"
            raise _wrong(name, "hold classes: whole numbers or strings", got)
        array = array.astype(np.int64)
    if array.dtype.kind not in "iubU":
        raise _wrong(name, "hold whole numbers, truth values or strings", f"dtype {array.dtype}")
    return array


def _numbered_as(classes: NDArray[Any], given: NDArray[Any]) -> IntArray:
    """Give test labels the numbers that training labels have."""
    same_kind = (given.dtype.kind == "U") == (classes.dtype.kind == "U")
    known = np.isin(given, classes) if same_kind else np.zeros(len(given), dtype=bool)
    if not known.all():
        got = f"the label {given[~known][0]!s}"
        raise _wrong("y_test", "hold only labels that occur in y", got)
    return np.searchsorted(classes, given)


def _require_rows(count: int, minimum: int, name: str, remedy: str = "Pass more.") -> None:
    if count < minimum:
        raise _wrong(name, f"have at least {minimum} rows", count, remedy)


def _require_same_columns(X: Any, X_test: Any) -> None:
    """Require that two tables with named columns have the same, in the same order."""
    columns, others = getattr(X, "columns", None), getattr(X_test, "columns", None)
    if columns is None or others is None or list(columns) == list(others):
        return
    got, remedy = f"{list(others)[:5]} …", "Use X_test[X.columns]."
    raise _wrong("X_test", "have the columns of X, in the same order", got, remedy)


def _wrong(name: str, requirement: str, got: object = "none", remedy: str = "") -> InvalidInput:
    return InvalidInput(f"{name} must {requirement}, got {got}. {remedy}".rstrip())
