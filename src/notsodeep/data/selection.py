"""Which samples of a set are used: classes, balanced subsets, drawn rows.

Rows often come sorted, by class or by time, and the first of them are then rows of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import IntArray
from notsodeep.data.raw_data import RawData


def draw_rows(rows: NDArray[Any], count: int, rng: int | np.random.Generator = 0) -> IntArray:
    """Draw `count` rows without replacement, or all of them if there are no more.

    The seed and the values of the rows decide which they are, and in which order they are
    returned; the order in which the rows come does not matter.

    Parameters
    ----------
    rows : ndarray of shape (n, p)
    count : int
    rng : int or Generator

    Returns
    -------
    ndarray of shape (min(n, count),)
        Their indices, in random order.

    Examples
    --------
    >>> rows = np.arange(20.0).reshape(10, 2)
    >>> drawn = draw_rows(rows, 4, rng=0)
    >>> backwards = rows[::-1]
    >>> np.array_equal(rows[drawn], backwards[draw_rows(backwards, 4, rng=0)])
    True
    """
    generator = checks.random_generator(rng, "draw_rows")
    chosen = generator.permutation(len(rows))[:count]
    return order_by_content(rows)[chosen]


def order_by_content(rows: NDArray[Any]) -> IntArray:
    """Return an order of rows that does not depend on the order in which they come.

    They are sorted by the bytes of their values, which has no other meaning.

    Examples
    --------
    >>> rows = np.array([[3.0, 1.0], [0.5, 2.0], [3.0, 0.0]])
    >>> backwards = rows[::-1]
    >>> np.array_equal(rows[order_by_content(rows)], backwards[order_by_content(backwards)])
    True
    """
    packed = np.ascontiguousarray(rows)
    length = packed.itemsize * packed.shape[1]
    return packed.view(np.dtype((np.void, length))).reshape(-1).argsort(kind="stable")


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples of one part, training or test.

    Attributes
    ----------
    rows : ndarray of shape (n, …)
        Raw values.
    labels : ndarray of shape (n,)
        Classes, numbered in the order they were asked for.
    indices : ndarray of shape (n,)
        Positions in the whole part, ascending.
    """

    rows: NDArray[Any]
    labels: IntArray
    indices: IntArray


def select(
    raw: RawData,
    positions: IntArray,
    samples: int | None,
    test_samples: int | None,
    *,
    balanced: bool,
    generator: np.random.Generator,
) -> tuple[Selection, Selection]:
    """Choose training and test samples of the classes at `positions`.

    A set without a test part gives up `test_samples` of its training samples for it.
    """
    # Independent streams, so that asking for another test set leaves the training set alone.
    train_stream, test_stream = generator.spawn(2)
    K = len(positions)
    labels, labels_test = (
        _relabel(y, positions, len(raw.class_names)) for y in (raw.y, raw.y_test)
    )
    rows_test = raw.X_test
    if test_samples is not None and not len(rows_test):
        rows_test, labels_test = raw.X, labels.copy()
        chosen_test = _choose(labels_test, test_samples, balanced, test_stream, "test_samples", K)
        labels[chosen_test] = -1
    else:
        chosen_test = _choose(labels_test, test_samples, balanced, test_stream, "test_samples", K)
    chosen = _choose(labels, samples, balanced, train_stream, "samples", K)
    return _part(raw.X, labels, chosen), _part(rows_test, labels_test, chosen_test)


def _part(rows: NDArray[Any], labels: IntArray, chosen: IntArray) -> Selection:
    # Ascending indices without repeats that are as many as the rows are all of them: no copy.
    some = len(chosen) < len(rows)
    return Selection(rows[chosen] if some else rows, labels[chosen], chosen)


def class_positions(classes: Sequence[int | str], class_names: tuple[str, ...]) -> IntArray:
    """Turn class names or numbers into positions in `class_names`, in the order given."""
    if isinstance(classes, str) or not len(classes):
        raise checks.invalid("classes", "load", "be a sequence like (6, 8)", repr(classes))
    positions = []
    for item in classes:
        if str(item) in class_names:
            positions.append(class_names.index(str(item)))
        elif isinstance(item, int | np.integer) and 0 <= item < len(class_names):
            positions.append(int(item))
        else:
            checks.known_name(str(item), class_names, "class")
    if len(set(positions)) != len(positions):
        raise checks.invalid("classes", "load", "name each class once", repr(tuple(classes)))
    return np.asarray(positions, dtype=np.int64)


def _relabel(labels: IntArray, positions: IntArray, num_classes: int) -> IntArray:
    """Give the chosen classes the numbers 0, 1, … in their order, and the others −1."""
    table = np.full(num_classes, -1, dtype=np.int64)
    table[positions] = np.arange(len(positions))
    return np.asarray(table[labels])


def _choose(
    labels: IntArray,
    samples: int | None,
    balanced: bool,
    generator: np.random.Generator,
    parameter: str,
    num_classes: int,
) -> IntArray:
    """Choose samples among those with a label ≥ 0; ascending indices.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Classes, −1 for samples that are not wanted.
    samples : int or None
        How many; all if None.
    balanced : bool
        Take equally many of each class (up to one), or any samples alike.
    generator : Generator
        The source of the choice.
    parameter : str
        Name of `samples` in messages.
    num_classes : int
        Number of classes K.
    """
    wanted = np.flatnonzero(labels >= 0)
    if samples is None:
        return wanted
    number = checks.positive_integer(samples, parameter, "load")
    if not balanced:
        if number > len(wanted):
            requirement = f"be at most the {len(wanted)} samples there are"
            raise checks.invalid(parameter, "load", requirement, number)
        return np.sort(generator.choice(wanted, size=number, replace=False))
    counts = balanced_counts(number, num_classes)
    available = np.bincount(labels[wanted], minlength=num_classes)
    if (available < counts).any():
        k = int(available.argmin())
        requirement = (
            f"allow equal classes (class {k} has {int(available[k])} samples, and "
            f"{int(counts[k])} of each are needed)"
        )
        most = num_classes * int(available[k])
        remedy = f"Ask for at most {most}, or pass balanced=False."
        raise checks.invalid(parameter, "load", requirement, number, remedy)
    return per_class_indices(labels, counts, generator)


def per_class_indices(
    labels: IntArray, counts: IntArray, generator: np.random.Generator
) -> IntArray:
    """Draw ``counts[k]`` samples of each class k without replacement; ascending indices."""
    chosen = [
        generator.choice(np.flatnonzero(labels == k), size=int(count), replace=False)
        for k, count in enumerate(counts)
    ]
    return np.sort(np.concatenate(chosen))


def balanced_counts(n: int, num_classes: int) -> IntArray:
    """Class sizes that sum to `n` and differ by at most one, larger ones first."""
    counts = np.full(num_classes, n // num_classes)
    counts[: n % num_classes] += 1
    return counts
