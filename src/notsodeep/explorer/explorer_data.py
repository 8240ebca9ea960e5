"""The rows that the explorer works on: some to match on, as many held out, uploads among them.

The contents are those of `notsodeep.data.own_files`; this module limits their size, also that of
what a small archive unpacks to, and words what is wrong with them.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from notsodeep import checks
from notsodeep.data import (
    Dataset,
    GaussianMixture,
    Preprocessing,
    Provenance,
    draw_rows,
    load,
)
from notsodeep.data.own_files import read_own_files
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput, NotSoDeepError
from notsodeep.explorer.state import UPLOAD, ExplorerState

Upload = tuple[str, bytes]
"""Name and content of a file."""
MAX_MEGABYTES = 20
"""Largest file that is taken."""
_MAX_UNPACKED = 200 * 2**20
_LEAST_ROWS = 32
_OWNER = "the uploaded file"


def checked_suffix(name: str, content: bytes) -> str:
    """Require a file of a known kind and a size that can be handled; return its suffix."""
    suffix = Path(name).suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise checks.invalid("name", _OWNER, "end in .npz or .csv", repr(name))
    if len(content) > MAX_MEGABYTES * 2**20:
        got = f"{len(content) / 2**20:.1f} MB"
        raise checks.invalid("size", _OWNER, f"be at most {MAX_MEGABYTES} MB", got)
    if suffix == ".npz":
        _require_small_arrays(content)
    return suffix


def _require_small_arrays(content: bytes) -> None:
    """Read the headers of an archive alone: kinds and sizes of the arrays in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            total = sum(_promised_bytes(archive, member) for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, RuntimeError) as error:
        if isinstance(error, NotSoDeepError):
            raise
        raise InvalidInput(
            f"The uploaded file is not a readable .npz archive ({error}). Write it with "
            "numpy.savez(path, X=X, y=y)."
        ) from error
    if total > _MAX_UNPACKED:
        got = f"{total / 2**20:.0f} MB"
        requirement = f"hold arrays of at most {_MAX_UNPACKED // 2**20} MB together"
        raise checks.invalid("content", _OWNER, requirement, got, "Take fewer rows.")


def _promised_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    with archive.open(member) as stream:
        shape, dtype = _header(stream)
    if dtype.hasobject:
        remedy = "Reading Python objects would run code. Store numbers and strings only."
        raise checks.invalid(member.filename, _OWNER, "hold no Python objects", dtype, remedy)
    return max(math.prod(shape) * dtype.itemsize, member.file_size)


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    reader = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = reader(stream)
    return shape, dtype


@contextlib.contextmanager
def stored(name: str, content: bytes) -> Iterator[tuple[Path, int, int]]:
    """Keep an uploaded file on disk for as long as it is read.

    Yields
    ------
    path : Path
    rows, test_rows : int
        Samples in its training part and in its test part.

    Raises
    ------
    InvalidInput, DataCorrupted
        It is too large, of another kind, or does not hold what it should; the message calls it
        "the uploaded file".
    """
    suffix = checked_suffix(name, content)
    with tempfile.TemporaryDirectory(prefix="notsodeep-") as directory:
        path = Path(directory) / f"upload{suffix}"
        path.write_bytes(content)
        try:
            raw = read_own_files(path)
        except NotSoDeepError as error:
            raise type(error)(str(error).replace(str(path), _OWNER)) from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataCorrupted(f"The uploaded file is not a table in UTF-8 ({error}).") from error
        if len(raw.X) + len(raw.X_test) < _LEAST_ROWS:
            got = len(raw.X) + len(raw.X_test)
            raise checks.invalid("X", _OWNER, f"have at least {_LEAST_ROWS} rows", got)
        yield path, len(raw.X), len(raw.X_test)


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
