"""Majority and minority classes."""

from __future__ import annotations

import numpy as np

from notsodeep.checks import FloatArray, IntArray


def majority_and_minority(counts: FloatArray | IntArray) -> dict[str, IntArray]:
    """Split the classes by size, ``{"majority": …, "minority": …}``; empty if all are equal.

    A class is in the minority if it has fewer samples than the average class.  With two sizes these
    are the smaller classes, whatever their number.

    Examples
    --------
    >>> majority_and_minority(np.array([50, 50, 50, 5]))
    {'majority': array([0, 1, 2]), 'minority': array([3])}
    """
    if counts.min() == counts.max():
        return {}
    small = counts < counts.mean()
    return {"majority": np.flatnonzero(~small), "minority": np.flatnonzero(small)}
