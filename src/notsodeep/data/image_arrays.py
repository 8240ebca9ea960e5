"""The decoded form of an image set: four arrays of bytes, the same from every source."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
