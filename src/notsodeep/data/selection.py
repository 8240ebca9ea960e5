"""Which samples of a set are used: classes, balanced subsets, drawn rows.

Rows often come sorted, by class or by time, and the first of them are then rows of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import IntArray


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


def select(
    y: IntArray,
    y_test: IntArray,
    positions: IntArray,
    samples: int | None,
    test_samples: int | None,
    *,
    balanced: bool,
    generator: np.random.Generator,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Choose training and test samples of the classes at `positions`.

    Without a test part, the training part gives up `test_samples` of its samples for it.

    Returns
    -------
    indices, labels, test_indices, test_labels : ndarray
        Positions in the whole parts, ascending, and classes numbered as in `positions`; the test
        part is the training part where there was none.
    """
    # Independent streams, so that asking for another test set leaves the training set alone.
    train_stream, test_stream = generator.spawn(2)
    K = len(positions)
    table = np.full(int(max(y.max(), positions.max())) + 1, -1, dtype=np.int64)
    table[positions] = np.arange(K)
    labels, labels_test = table[y], table[y_test]
    if test_samples is not None and not len(y_test):
        labels_test = labels.copy()
        chosen_test = _choose(labels_test, test_samples, balanced, test_stream, "test_samples", K)
        labels[chosen_test] = -1
    else:
        chosen_test = _choose(labels_test, test_samples, balanced, test_stream, "test_samples", K)
    chosen = _choose(labels, samples, balanced, train_stream, "samples", K)
    return chosen, labels[chosen], chosen_test, labels_test[chosen_test]


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
