"""Some rows of a sample, for work that cannot afford all of them: drawn, never the first ones.

Rows often come sorted, by class or by time, and the first of them are then rows of one kind.
"""

from __future__ import annotations

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
