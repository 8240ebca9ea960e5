"""One call from a name to data that an experiment can use."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from notsodeep import checks
from notsodeep._files import sha256_of_array
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import images
from notsodeep.data.gaussian_mixture import GaussianMixture
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.data.selection import class_positions, select
from notsodeep.data.user_files import read_files
from notsodeep.errors import DataNotFound

_DIGITS_FOR_TRAINING = 1437  # 80 %; the images are ordered by writer
_LARGEST_DIGIT = 16.0


@dataclass(frozen=True)
class Provenance:
    """Where data comes from and what was done to it."""

    name: str  # the set's name, or the path of a user's file
    source: str
    sha256: Mapping[str, str]  # of the arrays or files, by name
    options: Mapping[str, Any]  # the arguments of `load`

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data, preprocessed with the training statistics.

    Attributes
    ----------
    X, X_test : ndarray of shape (n, p) and (m, p)
        Rows; m may be 0.
    y, y_test : ndarray of shape (n,) and (m,)
        Their classes, numbered 0 … K − 1 in the order of `classes`.
    classes : tuple of str
    preprocessing : Preprocessing
        The map from raw rows to rows of X.
    provenance : Provenance
    train_indices, test_indices : ndarray of shape (n,) and (m,)
        Positions of the rows in the full set's training and test part.
    image_shape : tuple of int or None
        (height, width, channels) of a row, if it is an image.
    population : GaussianMixture or None
        The law that the rows were drawn from, if it is known.
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
    image_shape: tuple[int, int, int] | None = None
    population: GaussianMixture | None = None

    def __repr__(self) -> str:
        n, p = self.X.shape
        return (
            f"Dataset({self.provenance.name!r}, n={n}, n_test={len(self.X_test)}, p={p}, "
            f"classes={len(self.classes)}, preprocessing={self.preprocessing.kind!r})"
        )


def names() -> tuple[str, ...]:
    """Return the names that `load` knows; paths of a user's own files come on top."""
    return ("digits", *images.IMAGE_SETS)


def is_image_set(name: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a set of images whose largest pixel is known."""
    return name in names()


def load(
    name: str | os.PathLike[str] = "digits",
    *,
    classes: Sequence[int | str] | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    balanced: bool = True,
    preprocessing: PreprocessingKind = "theory",
    rng: int | np.random.Generator = 0,
) -> Dataset:
    """Load a data set: select, preprocess with training statistics, record what was done.

    Nothing is downloaded; ``notsodeep data get NAME`` does that.

    Parameters
    ----------
    name : str or path
        ``digits``, ``mnist``, ``fashion_mnist``, ``cifar10``, ``cifar100``, or the path of a user's
        ``.npz``, ``.npy``, ``.csv`` or directory (see `notsodeep.data.user_files`).
    classes : sequence of int or str, optional
        Classes to keep, by number or name; ``y`` numbers them 0, 1, … in this order.
    samples, test_samples : int, optional
        Numbers of samples; all if left out.  A user's set without a test part gives up
        `test_samples` of its training samples for it.
    balanced : bool
        Take equally many samples of every class, up to one; otherwise any samples alike.
    preprocessing : {"theory", "pixels", "unit_range", "unit_norm", "none"}
        See `Preprocessing`.
    rng : int or Generator
        Seed of the choice.

    Examples
    --------
    >>> data = load("digits", classes=(6, 8), samples=100, rng=0)
    >>> data
    Dataset('digits', n=100, n_test=70, p=64, classes=2, preprocessing='theory')
    >>> round(float((data.X**2).sum(axis=1).mean()), 12)
    1.0
    """
    generator = checks.random_generator(rng, "load").spawn(2)[1]
    checks.known_name(preprocessing, get_args(PreprocessingKind), "preprocessing")
    for parameter, value in (("samples", samples), ("test_samples", test_samples)):
        if value is not None:
            checks.positive_integer(value, parameter, "load")
    arrays, class_names, source, digests = _raw(name)
    X, X_test = arrays["X"], arrays["X_test"]
    positions = class_positions(class_names if classes is None else classes, class_names)
    kept, y, kept_test, y_test = select(
        arrays["y"].astype(np.int64),
        arrays["y_test"].astype(np.int64),
        positions,
        samples,
        test_samples,
        balanced=balanced,
        generator=generator,
    )
    rows = X[kept] if len(kept) < len(X) else X
    rows_test = (X_test if len(X_test) else X)[kept_test]
    shape = rows.shape[1:]
    image = (*shape, 1) if len(shape) == 2 else shape if len(shape) == 3 else None
    flat, flat_test = (part.reshape(len(part), math.prod(shape)) for part in (rows, rows_test))
    pixels = None if image is None else image[0] * image[1]
    fitted = Preprocessing.fit(flat, preprocessing, pixels=pixels)
    if preprocessing == "unit_range" and name == "digits":
        fitted = Preprocessing("unit_range", flat.shape[1], scale=_LARGEST_DIGIT)
    options = {
        "classes": None if classes is None else [str(item) for item in classes],
        "samples": samples,
        "test_samples": test_samples,
        "balanced": bool(balanced),
        "preprocessing": preprocessing,
        "seed": None if isinstance(rng, np.random.Generator) else int(rng),
    }
    return Dataset(
        X=fitted.apply(flat),
        y=y,
        X_test=fitted.apply(flat_test),
        y_test=y_test,
        classes=tuple(class_names[k] for k in positions),
        preprocessing=fitted,
        provenance=Provenance(os.fspath(name), source, digests, options),
        train_indices=kept,
        test_indices=kept_test,
        image_shape=image,
    )


def _raw(
    name: str | os.PathLike[str],
) -> tuple[Mapping[str, Any], tuple[str, ...], str, dict[str, str]]:
    """Return the four arrays of a set as they are stored, class names, source and digests."""
    text = os.fspath(name)
    if text == "digits":
        from sklearn.datasets import load_digits

        bunch, cut = load_digits(), _DIGITS_FOR_TRAINING
        pixels = bunch.images.astype(np.uint8)
        parts = (pixels[:cut], bunch.target[:cut], pixels[cut:], bunch.target[cut:])
        arrays: Mapping[str, Any] = dict(zip(images.ARRAYS, parts, strict=True))
        return arrays, tuple("0123456789"), "scikit-learn", _digests(arrays)
    if text in images.IMAGE_SETS:
        arrays = images.read(text)
        return arrays, images.IMAGE_SETS[text].classes, "image files", _digests(arrays)
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~somebody, who is not known here
        raise DataNotFound(f"There is no file {text}: {error}") from error
    if isinstance(name, str) and path.name == text and not path.suffix and not path.exists():
        checks.known_name(text, names(), "data set")  # a name, and not one of ours
    arrays, class_names, digests = read_files(path)
    return arrays, class_names, str(path), digests


def _digests(arrays: Mapping[str, Any]) -> dict[str, str]:
    return {name: sha256_of_array(array) for name, array in arrays.items()}
