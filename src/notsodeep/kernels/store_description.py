"""What a kernel on disk says of itself, in ``description.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from notsodeep.errors import DataCorrupted, InvalidInput
from notsodeep.files.manifests import sha256_of_bytes
from notsodeep.kernels.stored_blocks import MOST_BLOCKS, StoredBlocks, block_count
from notsodeep.kernels.zarr_format import stored_json
from notsodeep.models import (
    Convention,
    ConvolutionalEquilibrium,
    ConvolutionalNetwork,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelModel,
    KernelName,
    MonotoneEquilibrium,
)

DESCRIPTION = "description.json"
KIND = "kernel store"
VERSION = 1


def read_description(place: Path) -> dict[str, Any]:
    """Read what a store is of.

    Raises
    ------
    InvalidInput
        There is no store, or one that another release has made.
    DataCorrupted
        There is something that no release would have written.
    """
    path = place / DESCRIPTION
    try:
        content = stored_json(path)
    except OSError as error:
        raise _no_store(place, f"{DESCRIPTION}: {error}") from error
    except ValueError as error:
        raise _damaged_description(path, error) from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise _no_store(place, f"its {DESCRIPTION} is that of something else")
    if content.get("version") != VERSION:
        raise _no_store(place, f"version {content.get('version')} of a {KIND}")
    if not _well_formed(content):
        raise _damaged_description(path, f"it is not that of a {KIND}")
    return content


def _well_formed(content: dict[str, Any]) -> bool:
    match content:
        case {
            "model": dict(),
            "kernel": str(kernel),
            "convention": str(convention),
            "dtype": "float32" | "float64",
            "side": int(side),
            "samples": {"shape": [int(n), int(p)], "sha256": str()},
            "versions": dict(),
        }:
            known = kernel in get_args(KernelName) and convention in get_args(Convention)
            return known and p >= 1 and 1 <= side <= n and block_count(n, side) <= MOST_BLOCKS
    return False


def described_blocks(place: Path, description: dict[str, Any]) -> StoredBlocks:
    """Return the blocks of the store that a description is of."""
    facts = {key: value for key, value in description.items() if key != "versions"}
    matrix = sha256_of_bytes(json.dumps(facts, sort_keys=True).encode())
    n, side = description["samples"]["shape"][0], description["side"]
    return StoredBlocks(place, n, side, description["dtype"], matrix)


def read_model(form: dict[str, Any], place: Path) -> KernelModel:
    """Return the model that a description names."""
    readers: dict[str, Callable[[Mapping[str, Any]], KernelModel]] = {
        "deep_equilibrium": DeepEquilibrium.from_dict,
        "monotone_equilibrium": MonotoneEquilibrium.from_dict,
        "convolutional_equilibrium": ConvolutionalEquilibrium.from_dict,
        "convolutional_network": ConvolutionalNetwork.from_dict,
    }
    try:
        return readers.get(str(form.get("kind")), ExplicitNetwork.from_dict)(form)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise _damaged_description(place / DESCRIPTION, error) from error


def _damaged_description(path: Path, reason: object) -> DataCorrupted:
    """Say that what a store says of itself cannot be read."""
    return DataCorrupted(
        f"{path} is damaged ({reason}). Copy the store again, or make it again in another "
        "directory."
    )


def _no_store(path: Path, reason: object) -> InvalidInput:
    """Say that there is no kernel store."""
    return InvalidInput(
        f"{path} holds no kernel store ({reason}). Make one with store_kernel, in a directory of "
        "its own."
    )
