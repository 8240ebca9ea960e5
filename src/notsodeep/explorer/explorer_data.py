"""The rows that the explorer works on: some to match on, and as many that were held out."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from notsodeep.data import (
    Dataset,
    GaussianMixture,
    Preprocessing,
    Provenance,
    draw_rows,
    load,
)
from notsodeep.errors import DataNotFound
from notsodeep.explorer.state import UPLOAD, ExplorerState
from notsodeep.explorer.uploads import stored

SPACING = 8
"""The mean of class a lies along coordinate 8a, as in the mixture paper's experiments."""


def mixture_of(state: ExplorerState) -> GaussianMixture:
    """Return the mixture that the state describes."""
    p, a = state.dimension, np.arange(state.num_classes)
    means = np.zeros((len(a), p))
    means[a, SPACING * a] = state.means
    scales = 1.0 + state.trace_step * a / np.sqrt(p)
    if state.spread == 0.0:
        return GaussianMixture(means, scales)
    levels = np.where(np.arange(p) % 2 == 0, 1.0 + state.spread, 1.0 - state.spread)
    return GaussianMixture(means, np.outer(scales, levels))


def prepared(state: ExplorerState, upload: tuple[str, bytes] | None = None) -> Dataset:
    """Draw or load the rows that the state describes; the test part is what was held out.

    Parameters
    ----------
    state : ExplorerState
    upload : (str, bytes), optional
        Name and content of the uploaded file.

    Raises
    ------
    NotSoDeepError
        The data is not here, or cannot be used; the message says why.
    """
    n, seed = state.samples, state.seed
    if state.data == "mixture":
        return _drawn(state)
    if state.data == "sphere":
        return load("sphere", samples=n, test_samples=n, dimension=state.dimension, rng=seed)
    if state.data == UPLOAD:
        return _uploaded(state, upload)
    data = load(state.data, classes=state.class_names or None, samples=n, rng=seed)
    drawn = draw_rows(data.X_test, n, rng=seed)
    return replace(
        data,
        X_test=data.X_test[drawn],
        y_test=data.y_test[drawn],
        test_indices=data.test_indices[drawn],
    )


def _drawn(state: ExplorerState) -> Dataset:
    mixture = mixture_of(state)
    rng = np.random.default_rng(state.seed)
    X, y = mixture.sample(state.samples, rng)
    X_test, y_test = mixture.sample(state.samples, rng)
    indices = np.arange(state.samples)
    return Dataset(
        X=X,
        y=y,
        X_test=X_test,
        y_test=y_test,
        classes=tuple(map(str, range(state.num_classes))),
        preprocessing=Preprocessing.fit(X, "none"),
        provenance=Provenance("mixture", "drawn", {}, asdict(state)),
        train_indices=indices,
        test_indices=indices,
        population=mixture,
    )


def _uploaded(state: ExplorerState, upload: tuple[str, bytes] | None) -> Dataset:
    if upload is None:
        told = f" This link is about one whose SHA-256 begins with {state.upload}."
        raise DataNotFound(
            f"No file is here yet: upload a .npz or .csv on the left.{told if state.upload else ''}"
        )
    name, content = upload
    with stored(name, content) as (path, rows, test_rows):
        # A file without a test part gives up half of its rows for one.
        return load(
            path,
            samples=min(state.samples, rows if test_rows else rows // 2),
            test_samples=min(state.samples, test_rows or rows // 2),
            balanced=False,
            rng=state.seed,
        )
