"""The rows that the explorer works on: some to match on, as many held out, uploads among them.

The contents are those of `notsodeep.data.user_files`; this module limits their size, also that of
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
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import (
    Dataset,
    GaussianMixture,
    Preprocessing,
    Provenance,
    draw_rows,
    load,
    sphere,
)
from notsodeep.data.user_files import read_files
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
            arrays, _, _ = read_files(path)
        except NotSoDeepError as error:
            raise type(error)(str(error).replace(str(path), _OWNER)) from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataCorrupted(f"The uploaded file is not a table in UTF-8 ({error}).") from error
        rows, test_rows = len(arrays["X"]), len(arrays["X_test"])
        if rows + test_rows < _LEAST_ROWS:
            got = rows + test_rows
            raise checks.invalid("X", _OWNER, f"have at least {_LEAST_ROWS} rows", got)
        yield path, rows, test_rows


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
        points = sphere(2 * n, state.dimension, seed)
        return _dataset(state, points, np.zeros(2 * n, dtype=np.int64), ("sphere",), None)
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
    (X, y), (X_test, y_test) = (mixture.sample(state.samples, rng) for _ in range(2))
    names = tuple(map(str, range(state.num_classes)))
    return _dataset(state, np.concatenate([X, X_test]), np.concatenate([y, y_test]), names, mixture)


def _dataset(
    state: ExplorerState,
    rows: FloatArray,
    labels: IntArray,
    classes: tuple[str, ...],
    population: GaussianMixture | None,
) -> Dataset:
    """Wrap drawn rows, the first half for training."""
    n = state.samples
    return Dataset(
        X=rows[:n],
        y=labels[:n],
        X_test=rows[n:],
        y_test=labels[n:],
        classes=classes,
        preprocessing=Preprocessing.fit(rows, "none"),
        provenance=Provenance(state.data, "drawn", {}, asdict(state)),
        train_indices=np.arange(n),
        test_indices=np.arange(n),
        population=population,
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
