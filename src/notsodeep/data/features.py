"""Features computed once and kept: a chunked cache on disk that survives interruption.

Each cache directory belongs to one (weights, settings, images) triple, named by its SHA-256.
What is kept is the output of the convolution itself: rectified or pooled features are made from
it.  Chunks are written atomically, so that a killed run resumes where it stopped; the manifest,
written last, holds their digests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import IntArray
from notsodeep.data.vgg19 import VGG19Features
from notsodeep.errors import DataCorrupted
from notsodeep.files import (
    Manifest,
    exclusive_lock,
    make_directory,
    sha256_of_array,
    sha256_of_bytes,
    write_array,
)
from notsodeep.files.stored_arrays import read_npy
from notsodeep.progress import progress_bar

_CHUNK = 2048


def cached_features(
    features: VGG19Features,
    images: NDArray[np.uint8],
    data_dir: Path,
    *,
    rows: IntArray | None = None,
    progress: bool = False,
) -> NDArray[np.float32]:
    """Return the features of `images`, or of some of them, from the cache if they are there.

    Parameters
    ----------
    features : VGG19Features
        The feature map.
    images : ndarray of uint8, shape (n, 3, h, w)
        Colour images, at least one.
    data_dir : Path
        The cache is in its subdirectory ``features``.
    rows : ndarray of int, optional
        Which images are wanted; all if left out.  They are taken from the features of all images
        where those are complete, and computed by themselves otherwise.
    progress : bool
        Show a progress bar.

    Returns
    -------
    ndarray of float32, shape (n, q)
        One row per image.

    Raises
    ------
    DataCorrupted
        A cached file has changed since it was written.
    """
    features.check_images(images)
    if rows is None or len(rows) == len(images):
        return features.finish(_cached(features.convolution, images, data_dir, progress),
                               *images.shape[2:])  # fmt: skip
    if Manifest.read(_place(features.convolution, images, data_dir)[0]) is None:
        return cached_features(features, images[rows], data_dir, progress=progress)
    return cached_features(features, images, data_dir, progress=progress)[rows]


def _place(
    features: VGG19Features, images: NDArray[np.uint8], data_dir: Path
) -> tuple[Path, dict[str, Any]]:
    """Return the directory of the cache, and what it is named after."""
    facts = {
        **features.to_dict(),
        "images_sha256": sha256_of_array(images),
        "images_shape": list(images.shape),
    }
    key = sha256_of_bytes(json.dumps(facts, sort_keys=True).encode())[:24]
    return data_dir / "features" / key, facts


def _cached(
    features: VGG19Features, images: NDArray[np.uint8], data_dir: Path, progress: bool
) -> NDArray[np.float32]:
    directory, facts = _place(features, images, data_dir)
    names = [f"chunk-{k:05d}.npy" for k in range(-(-len(images) // _CHUNK))]
    if Manifest.read(directory) is None:
        make_directory(directory)
        with exclusive_lock(directory.with_name(f".{directory.name}.lock")):
            if Manifest.read(directory) is None:
                _compute(features, images, directory, names, progress)
                Manifest.of_files(directory, names, "features", facts).write(directory)
    manifest = Manifest.read(directory)
    problems = () if manifest is None else manifest.problems(directory)
    if manifest is None or set(manifest.sha256) != set(names) or problems:
        reason = "; ".join(problems) or "the manifest does not fit the images"
        raise DataCorrupted(f"{reason}. Remove {directory}, and the features are computed again.")
    parts = [read_npy(directory / name) for name in names]
    return np.concatenate(parts).astype(np.float32, copy=False)


def _compute(
    features: VGG19Features,
    images: NDArray[np.uint8],
    directory: Path,
    names: list[str],
    progress: bool,
) -> None:
    with progress_bar("VGG-19 features", enabled=progress) as advance:
        for k, name in enumerate(names):
            start = k * _CHUNK

            def shifted(done: int, _: int | None, start: int = start) -> None:
                advance(start + done, len(images))

            if not (directory / name).is_file():
                chunk = images[start : start + _CHUNK]
                write_array(directory / name, features.extract(chunk, shifted))
            advance(min(start + _CHUNK, len(images)), len(images))
