"""What every source of a data set delivers, before selection and preprocessing."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import IntArray
from notsodeep.data.gaussian_mixture import GaussianMixture
from notsodeep.files import sha256_of_array

ByteArray = NDArray[np.uint8]
ARRAY_NAMES = ("train_images", "train_labels", "test_images", "test_labels")


@dataclass(frozen=True, eq=False)
class ImageArrays:
    """Images and labels as unsigned bytes.

    Attributes
    ----------
    train_images, test_images : ndarray of uint8, shape (n, height, width) or (n, 3, height, width)
        Grey or red-green-blue values, 0 … 255 (0 … 16 for digits).
    train_labels, test_labels : ndarray of uint8, shape (n,)
        Classes 0 … K − 1.
    """

    train_images: ByteArray
    train_labels: ByteArray
    test_images: ByteArray
    test_labels: ByteArray

    def items(self) -> Iterator[tuple[str, ByteArray]]:
        """Name and array of each of the four, in a fixed order."""
        return ((name, getattr(self, name)) for name in ARRAY_NAMES)

    @functools.cached_property
    def sha256(self) -> Mapping[str, str]:
        """SHA-256 of the values of each array, by name."""
        return {name: sha256_of_array(array) for name, array in self.items()}


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
