"""One call from a name to data that an experiment can use."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from notsodeep import checks
from notsodeep.data import digits, image_store
from notsodeep.data.catalogue import IMAGE_SETS
from notsodeep.data.dataset import Dataset, Provenance
from notsodeep.data.image_store import data_directory, with_home
from notsodeep.data.own_files import own_digests, read_own_files
from notsodeep.data.preprocessing import FloatName, Preprocessing, PreprocessingKind
from notsodeep.data.raw_data import RawData
from notsodeep.data.selection import class_positions, select
from notsodeep.data.synthetic import SYNTHETIC_SETS, paper_mixture, sphere
from notsodeep.files import sha256_of_array

_LARGEST_OF_IMAGES = 255


def names() -> tuple[str, ...]:
    """Return the names that `load` knows; paths of a user's own files come on top.

    Examples
    --------
    >>> names()
    ('digits', 'gaussian_mixture', 'sphere', 'mnist', 'fashion_mnist', 'cifar10', 'cifar100')
    """
    return ("digits", *SYNTHETIC_SETS, *IMAGE_SETS)


def load(
    name: str | os.PathLike[str] = "digits",
    *,
    classes: Sequence[int | str] | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    balanced: bool = True,
    preprocessing: PreprocessingKind | Literal["auto"] = "auto",
    channels: Literal["as stored", "last"] = "as stored",
    dimension: int | None = None,
    rng: int | np.random.Generator = 0,
    data_dir: str | os.PathLike[str] | None = None,
    dtype: FloatName = "float64",
) -> Dataset:
    """Load a data set: select, preprocess with training statistics, record what was done.

    Nothing is downloaded: a set that is not on the machine gives an error that says how to get it.

    Parameters
    ----------
    name : str or path
        ``digits``, ``gaussian_mixture``, ``sphere``, ``mnist``, ``fashion_mnist``, ``cifar10``,
        ``cifar100``, or the path of a user's ``.npz``, ``.csv`` or directory
        (see `notsodeep.data.own_files`).
    classes : sequence of int or str, optional
        Classes to keep, by number or name; ``y`` numbers them 0, 1, … in this order.
    samples : int, optional
        Number of training samples; all if left out.  For a drawn set, the number to draw.
    test_samples : int, optional
        Number of test samples; all if left out.  A user's set without a test part gives up this
        many of its training samples for it, and none if left out; a drawn set draws a quarter
        of `samples`.
    balanced : bool
        Take equally many samples of every class, up to one; otherwise any samples alike.
    preprocessing : {"auto", "theory", "pixels", "unit_norm", "none"}
        See `Preprocessing`.  ``auto`` is ``theory``, but ``none`` for a drawn set, which has the
        theory's scaling already.
    channels : {"as stored", "last"}
        Order of the numbers in a row of colour images: as planes, (channels, height, width), in
        which the sets are stored, or (height, width, channels), which convolutional models read;
        see `Dataset.images_last`.
    dimension : int, optional
        Number of features of a drawn set; the paper's if left out.
    rng : int or Generator
        Seed of everything random here; the same seed gives the same choice.
    data_dir : path, optional
        Where sets are kept; see `data_directory`.
    dtype : {"float64", "float32"}
        Precision of X and X_test.

    Examples
    --------
    >>> data = load("digits", classes=(6, 8), samples=100, rng=0)
    >>> data
    Dataset('digits', n=100, n_test=70, p=64, classes=2, preprocessing='theory')
    >>> round(float((data.X**2).sum(axis=1).mean()), 12)
    1.0
    """
    drawing, choosing = checks.random_generator(rng, "load").spawn(2)
    checks.known_name(dtype, ("float64", "float32"), "dtype")
    checks.known_name(preprocessing, ("auto", *get_args(PreprocessingKind)), "preprocessing")
    options: dict[str, Any] = {
        "classes": None if classes is None else [str(item) for item in classes],
        "samples": _whole(samples, "samples"),
        "test_samples": _whole(test_samples, "test_samples"),
        "balanced": bool(balanced),
        "dimension": _whole(dimension, "dimension"),
        "seed": None if isinstance(rng, np.random.Generator) else int(rng),
        "dtype": dtype,
    }
    if checks.known_name(channels, ("as stored", "last"), "channels") == "last":
        options["channels"] = "last"
    drawn = name in SYNTHETIC_SETS
    if drawn:
        raw = _draw(str(name), samples, test_samples, dimension, drawing)
        samples = test_samples = None
    elif dimension is None:
        raw = _read(name, data_dir)
    else:
        requirement = "be left out: only a drawn set has a choice of dimension"
        raise checks.invalid("dimension", "load", requirement, dimension)

    positions = class_positions(raw.class_names if classes is None else classes, raw.class_names)
    train, test = select(
        raw,
        positions,
        samples,
        test_samples,
        balanced=balanced,
        generator=choosing,
    )
    rows, rows_test = train.rows, test.rows
    kind = ("none" if drawn else "theory") if preprocessing == "auto" else preprocessing
    flat = math.prod(rows.shape[1:])
    # The sides of an image are the last two axes: colour sets are stored as planes.
    pixels = math.prod(rows.shape[-2:]) if rows.ndim > 2 else None
    fitted = Preprocessing.fit(rows.reshape(-1, flat), kind, pixels=pixels)
    loaded = Dataset(
        X=fitted.apply(rows.reshape(-1, flat), dtype),
        y=train.labels,
        X_test=fitted.apply(rows_test.reshape(-1, flat), dtype),
        y_test=test.labels,
        classes=tuple(raw.class_names[k] for k in positions),
        preprocessing=fitted,
        provenance=Provenance(
            os.fspath(name), raw.source, raw.sha256, {**options, "preprocessing": kind}
        ),
        train_indices=train.indices,
        test_indices=test.indices,
        image_shape=train.rows.shape[1:] if train.rows.ndim > 2 else None,
        # Other classes or another scale would be another law.
        population=raw.population if classes is None and kind == "none" else None,
    )
    return loaded.images_last() if channels == "last" else loaded


def is_image_set(name: str | os.PathLike[str]) -> bool:
    """Say whether `pixel_data` knows the unit of a set's pixels."""
    return name == "digits" or name in IMAGE_SETS


def pixel_data(name: str | os.PathLike[str], **options: Any) -> Dataset:
    """Load a data set with its values as they are, images in units of the largest pixel value.

    The theory's centring and scaling would ruin a network that was trained on other inputs; what
    its own inputs were, (pixel/255 − shift)/scale, is the network's to apply.

    Parameters
    ----------
    name : str or path
        As for `notsodeep.data.load`.
    **options
        Those of `notsodeep.data.load`, except ``preprocessing``.

    Examples
    --------
    >>> rows = pixel_data("digits", samples=100).X
    >>> float(rows.min()), float(rows.max())
    (0.0, 1.0)
    """
    data = load(name, preprocessing="none", **options)
    if not is_image_set(name):
        return data
    largest = digits.LARGEST_PIXEL if name == "digits" else _LARGEST_OF_IMAGES
    X, X_test = (rows / rows.dtype.type(largest) for rows in (data.X, data.X_test))
    return dataclasses.replace(data, X=X, X_test=X_test)


def file_digests(name: str | os.PathLike[str]) -> dict[str, str]:
    """Return the SHA-256 of the files that `load` would read, if they are the user's own.

    Sets that are known by name are verified whenever they are loaded; for them it is {}.

    Examples
    --------
    >>> file_digests("digits")
    {}
    """
    return {} if os.fspath(name) in names() else own_digests(_own_path(name))


def _whole(value: int | None, parameter: str) -> int | None:
    return None if value is None else checks.positive_integer(value, parameter, "load")


def _read(name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None) -> RawData:
    text = os.fspath(name)
    if text == "digits":
        return RawData.from_images(digits.read_digits(), digits.CLASS_NAMES, "scikit-learn")
    if text in IMAGE_SETS:
        entry = IMAGE_SETS[text]
        arrays, location = image_store.find_and_read(entry, data_directory(data_dir))
        return RawData.from_images(arrays, entry.class_names, image_store.source_of(location))
    return read_own_files(_own_path(name))


def _own_path(name: str | os.PathLike[str]) -> Path:
    path = with_home(text := os.fspath(name))
    if isinstance(name, str) and path.name == text and not path.suffix and not path.exists():
        checks.known_name(text, names(), "data set")  # a name, and not one of ours
    return path


def _draw(
    name: str,
    samples: int | None,
    test_samples: int | None,
    dimension: int | None,
    generator: np.random.Generator,
) -> RawData:
    preset = SYNTHETIC_SETS[name]
    n = preset.samples if samples is None else samples
    m = max(n // 4, 2) if test_samples is None else test_samples
    p = preset.dimension if dimension is None else dimension
    population = None
    if name == "sphere":
        X, X_test = np.split(sphere(n + m, p, generator), [n])
        y, y_test = np.zeros(n, dtype=np.int64), np.zeros(m, dtype=np.int64)
        class_names: tuple[str, ...] = ("sphere",)
    else:
        population = paper_mixture(p)
        X, y = population.sample(n, generator)
        X_test, y_test = population.sample(m, generator)
        class_names = tuple(str(a) for a in range(population.num_classes))
    digests = {"X": sha256_of_array(X), "X_test": sha256_of_array(X_test)}
    return RawData(X, y, X_test, y_test, class_names, preset.reference, digests, population)
