"""Trained networks in public repositories: where they are, what they hash to, how they are read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data.download import RemoteFile, download
from notsodeep.data.image_store import data_directory
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.files import exclusive_lock, sha256_of_file
from notsodeep.progress import Advance
from notsodeep.trained.files import StoredCell, cell_of_arrays, read_arrays

Converter = Callable[[Mapping[str, FloatArray]], dict[str, FloatArray]]
"""From the arrays of a file to W, U, b, C, c, or to A, B, m, U, b, C, c."""


@dataclass(frozen=True)
class PublicNetwork:
    """A network that others have trained and published.

    Attributes
    ----------
    name : str
    file : RemoteFile
        Address, SHA-256 and, if it is known, length.
    convert : callable
        From the arrays of the file to those of a cell.
    activation : str
    shift, scale : float
        Inputs are (pixel − shift)/scale, pixels in [0, 1].
    data : str
        The image set it was trained on.
    licence, source : str
    """

    name: str
    file: RemoteFile
    convert: Converter
    activation: str
    shift: float
    scale: float
    data: str
    licence: str
    source: str


def softplus_monotone(
    arrays: Mapping[str, FloatArray], *, layer: str, readout: str
) -> dict[str, FloatArray]:
    """Convert W = (1 − m)I − AᵀA + S − Sᵀ with m = log(1 + exp(m_raw)) + 1e-4.

    Parameters
    ----------
    arrays : Mapping
        With A, S, m_raw, U and b under the prefix `layer`, weight and bias under `readout`.
    """
    try:
        A, S, raw, U, b = (arrays[f"{layer}.{key}"] for key in ("A", "S", "m_raw", "U", "b"))
        C, c = (arrays[f"{readout}.{key}"] for key in ("weight", "bias"))
    except KeyError as error:
        raise DataCorrupted(
            f"The file has no array {error}; its form is not the known one."
        ) from error
    margin = float(np.logaddexp(0.0, raw.reshape(-1)[0])) + 1e-4
    if raw.size != 1 or not math.isfinite(margin):
        raise DataCorrupted(f"m_raw must be one finite number; its shape is {raw.shape}.")
    return {"A": A, "B": S, "m": np.array(margin), "U": U, "b": b, "C": C, "c": c}


def _mondeq_quant(arrays: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    return softplus_monotone(arrays, layer="mon.core", readout="classifier")


_COMMIT = "169e986a6580767925c5f9dcdb239d6221fb01d9"
PUBLIC: dict[str, PublicNetwork] = {
    entry.name: entry
    for entry in (
        PublicNetwork(
            "mondeq-quant-mnist-100",
            RemoteFile(
                "mnist_mondeq_float.pt",
                (
                    "https://raw.githubusercontent.com/JLi-Projects/mondeq-quant/"
                    f"{_COMMIT}/checkpoints/mnist_mondeq_float.pt",
                ),
                "f6882a4c8e4f3b5d2e6d86279ad0de83800b69444ec32ea8c8d1f6b808796b6a",
                None,
            ),
            _mondeq_quant,
            "relu",
            0.1307,
            0.3081,
            "mnist",
            "MIT, Copyright (c) 2026 James Li",
            "https://github.com/JLi-Projects/mondeq-quant",
        ),
    )
}
"""The public networks by their names."""


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    advance: Advance | None = None,
) -> Path:
    """Download a public network into the data directory, verified; or find it there.

    Parameters
    ----------
    name : str
        One of `PUBLIC`.
    data_dir : path, optional
        See `notsodeep.data.data_directory`.
    advance : Advance, optional
        Told the bytes received.

    Raises
    ------
    SourceUnavailable
        The address did not deliver it.
    DataCorrupted
        What it delivered is another file.
    """
    entry = PUBLIC[checks.known_name(name, PUBLIC, "public network")]
    directory = _directory(data_dir)
    with exclusive_lock(directory / f".{entry.name}.lock"):
        return download(entry.file, directory, advance=advance)


def load_public(name: str, data_dir: str | os.PathLike[str] | None = None) -> StoredCell:
    """Read a public network that was fetched; its file is verified, and nothing is unpickled."""
    entry = PUBLIC[name]
    path = _directory(data_dir) / entry.file.name
    if not path.is_file():
        raise DataNotFound(
            f"{name} is not on this machine. Fetch it from {entry.source} (licence: "
            f"{entry.licence}) with notsodeep.zoo.fetch({name!r}), or --fetch on the command line."
        )
    if sha256_of_file(path) != entry.file.sha256:
        raise DataCorrupted(f"{path} was altered. Remove it, and fetch it again.")
    arrays = entry.convert(read_arrays(path)[0])
    cell = cell_of_arrays(arrays, entry.activation, entry.shift, entry.scale, str(path))
    words = {"licence": entry.licence, "source": entry.source, "data": entry.data}
    return StoredCell(cell, words, scaling_known=True)


def _directory(data_dir: str | os.PathLike[str] | None) -> Path:
    return data_directory(data_dir) / "zoo"
