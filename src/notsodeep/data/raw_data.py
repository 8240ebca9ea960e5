"""What every source of a data set delivers, before selection and preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.checks import IntArray
from notsodeep.data.gaussian_mixture import GaussianMixture
from notsodeep.data.image_arrays import ImageArrays


@dataclass(frozen=True, eq=False)
class RawData:
    """Training and test rows as they were found.

    Attributes
    ----------
    X, X_test : ndarray of shape (n, …)
        Raw values, of any real dtype; images keep their axes.  The test part may have no rows.
    y, y_test : ndarray of shape (n,)
        Classes 0 … K − 1.
    class_names : tuple of str
        Name of each class.
    source : str
        Where the rows come from.
    sha256 : Mapping[str, str]
        Digests of the arrays as they were found.
    population : GaussianMixture or None
        The law they were drawn from, if it is known.
    """

    X: NDArray[Any]
    y: IntArray
    X_test: NDArray[Any]
    y_test: IntArray
    class_names: tuple[str, ...]
    source: str
    sha256: Mapping[str, str]
    population: GaussianMixture | None = None

    @classmethod
    def from_images(cls, arrays: ImageArrays, class_names: tuple[str, ...], source: str) -> RawData:
        """Wrap the arrays of an image set, which have been verified."""
        return cls(
            X=arrays.train_images,
            y=arrays.train_labels.astype(np.int64),
            X_test=arrays.test_images,
            y_test=arrays.test_labels.astype(np.int64),
            class_names=class_names,
            source=source,
            sha256=arrays.sha256,
        )
