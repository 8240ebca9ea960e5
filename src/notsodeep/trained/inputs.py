"""Rows for a given network: in the units of its training, not in those of the theory."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from notsodeep import data as data_sets
from notsodeep.data import Dataset
from notsodeep.data.catalogue import IMAGE_SETS
from notsodeep.data.digits import LARGEST_PIXEL as LARGEST_OF_DIGITS

_LARGEST_OF_IMAGES = 255


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
    data = data_sets.load(name, preprocessing="none", **options)
    if not is_image_set(name):
        return data
    largest = LARGEST_OF_DIGITS if name == "digits" else _LARGEST_OF_IMAGES
    X, X_test = (rows / rows.dtype.type(largest) for rows in (data.X, data.X_test))
    return dataclasses.replace(data, X=X, X_test=X_test)
