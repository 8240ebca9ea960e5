"""What `load` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data.gaussian_mixture import GaussianMixture
from notsodeep.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Provenance:
    """Where data comes from and what was done to it; enough to make it again.

    Attributes
    ----------
    name : str
        The set's name, or the path of a user's file.
    source : str
        Where the raw values come from.
    sha256 : Mapping[str, str]
        Digests of the raw arrays or files.
    options : Mapping[str, Any]
        The arguments of `load`, as plain JSON values; the seed is None if a generator was passed.

    Examples
    --------
    >>> from notsodeep.data import load
    >>> provenance = load("digits", samples=100, rng=0).provenance
    >>> provenance.source, sorted(provenance.sha256), provenance.options["samples"]
    ('scikit-learn', ['test_images', 'test_labels', 'train_images', 'train_labels'], 100)
    """

    name: str
    source: str
    sha256: Mapping[str, str]
    options: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {
            "name": self.name,
            "source": self.source,
            "sha256": dict(self.sha256),
            "options": dict(self.options),
        }


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data in the theory's convention.

    Attributes
    ----------
    X : ndarray of shape (n, p)
        Training samples, preprocessed.
    y : ndarray of shape (n,)
        Their classes, numbered 0 … K − 1 in the order of `classes`.
    X_test : ndarray of shape (m, p)
        Test samples, preprocessed with the *training* statistics; m may be 0.
    y_test : ndarray of shape (m,)
        Their classes.
    classes : tuple of str
        Names of the K classes.
    preprocessing : Preprocessing
        The map from raw rows to rows of X.
    provenance : Provenance
        Source, digests and options.
    train_indices, test_indices : ndarray of shape (n,) and (m,)
        Positions of the rows in the full set's training and test part.
    image_shape : tuple of int or None
        Shape of a raw row before it was flattened, if it is an image.
    population : GaussianMixture or None
        The law the samples were drawn from, if it is known.

    Examples
    --------
    >>> import numpy as np
    >>> from notsodeep.data import load
    >>> data = load("digits", samples=100, rng=0)
    >>> data.X.shape, np.bincount(data.y), data.image_shape
    ((100, 64), array([10, 10, 10, 10, 10, 10, 10, 10, 10, 10]), (8, 8))
    >>> data.preprocessing.kind, data.provenance.options["seed"]
    ('theory', 0)
    """

    X: FloatArray
    y: IntArray
    X_test: FloatArray
    y_test: IntArray
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    provenance: Provenance
    train_indices: IntArray
    test_indices: IntArray
    image_shape: tuple[int, ...] | None = None
    population: GaussianMixture | None = None

    def images_last(self) -> Dataset:
        """Return the same data with images in the order (height, width, channels).

        Convolutional models read rows in this order.  Colour sets are stored as planes, (channels,
        height, width); images that are in order already are returned as they are.

        Raises
        ------
        InvalidInput
            The rows are not images.
        """
        shape = self.image_shape
        if shape is None or len(shape) not in (2, 3):
            requirement = "be images, with an image_shape"
            raise checks.invalid("the rows", repr(self), requirement, f"image_shape = {shape}")
        if len(shape) == 2:
            return replace(self, image_shape=(*shape, 1))
        if shape[0] > min(shape[1:]):  # channels are fewer than pixels on a side
            return self
        order = np.arange(np.prod(shape)).reshape(shape).transpose(1, 2, 0).ravel()
        mean = self.preprocessing.mean
        return replace(
            self,
            X=np.ascontiguousarray(self.X[:, order]),
            X_test=np.ascontiguousarray(self.X_test[:, order]),
            preprocessing=replace(self.preprocessing, mean=None if mean is None else mean[order]),
            image_shape=(shape[1], shape[2], shape[0]),
        )

    def __repr__(self) -> str:
        n, p = self.X.shape
        return (
            f"Dataset({self.provenance.name!r}, n={n}, n_test={len(self.X_test)}, p={p}, "
            f"classes={len(self.classes)}, preprocessing={self.preprocessing.kind!r})"
        )
