"""Labelled images for convolutional models: channels last, pixels of norm one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from notsodeep import checks
from notsodeep.compilation.labelled_rows import labelled_rows
from notsodeep.data import Dataset
from notsodeep.models import ConvolutionalEquilibrium

_OWNER = "compile"


def image_rows(
    model: ConvolutionalEquilibrium,
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    preprocessing: str,
    seed: int,
) -> Dataset:
    """Return training and test images as a `Dataset`, as `labelled_rows` does other rows.

    Parameters
    ----------
    model : ConvolutionalEquilibrium
    X : array_like of shape (n, features) or (n, height, width, channels), or Dataset
        The rows of a data set are brought into the order of the model, and its scale, if it was
        "theory", to that of pixels.
    y, X_test, y_test
        As for `labelled_rows`.
    preprocessing : {"auto", "pixels", "none"}
        "auto" is "pixels": images are centred, and pixels have norm one in the mean square.
    seed : int

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("relu", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (8, 8))
    >>> data = nsd.data.load("digits", samples=100, rng=0)
    >>> rows = image_rows(model, data, None, None, None, preprocessing="auto", seed=0)
    >>> rows.image_shape, round(float((rows.X**2).mean()), 12), rows.preprocessing.kind
    ((8, 8, 1), 1.0, 'pixels')
    """
    checks.known_name(preprocessing, ("auto", "pixels", "none"), "preprocessing of images")
    if isinstance(X, Dataset):
        kind = "none" if preprocessing == "auto" else preprocessing
        data = labelled_rows(X, y, X_test, y_test, preprocessing=kind, seed=seed).images_last()
        if data.image_shape != model.image_shape:
            requirement = f"have images of {model.image_shape}, as the model"
            raise checks.invalid("X", _OWNER, requirement, data.image_shape)
    else:
        rows, rows_test = (
            None if given is None else model.rows(given, name, _OWNER)
            for given, name in ((X, "X"), (X_test, "X_test"))
        )
        kind = "none" if preprocessing == "none" else "theory"
        data = labelled_rows(rows, y, rows_test, y_test, preprocessing=kind, seed=seed)
        data = replace(data, image_shape=model.image_shape)
    if data.preprocessing.kind != "theory":
        return data
    # From rows of norm one to pixels of norm one it is a factor.
    factor = math.sqrt(model.image_shape[0] * model.image_shape[1])
    fitted = replace(data.preprocessing, kind="pixels", scale=data.preprocessing.scale / factor)
    options = {**data.provenance.options, "preprocessing": "pixels"}
    return replace(
        data,
        X=factor * data.X,
        X_test=factor * data.X_test,
        preprocessing=fitted,
        provenance=replace(data.provenance, options=options),
    )
