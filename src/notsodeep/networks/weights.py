"""Networks with given weights in files: arrays W, U, b, C, c and a few words about them.

Metadata of a safetensors file, all strings: ``activation`` (a name, or the JSON form of one),
``input_shift`` and ``input_scale`` (JSON numbers, or lists with one number for each feature; pixels
are in units of their largest value), ``sha256`` of the arrays, and whatever else is worth knowing.
A ``.pt`` file is read with ``weights_only=True``: nothing is unpickled but tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from notsodeep import activations, checks
from notsodeep._files import atomic_write
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell

_PLAIN = ("W", "U", "b", "C", "c")
_MONOTONE = ("A", "B", "m", "U", "b", "C", "c")


def save_cell(
    cell: AffineDEQ,
    path: str | os.PathLike[str],
    metadata: Mapping[str, object] | None = None,
    *,
    dtype: str = "float64",
) -> None:
    """Write a network as safetensors, so that `load_cell` and other programs can read it.

    Parameters
    ----------
    cell : AffineDEQ
    path : path
        Its directory is created; a file that is there is replaced.
    metadata : Mapping, optional
        More facts about the network; values become strings.
    dtype : {"float64", "float32"}
        Of the arrays; float32 halves the file.
    """
    from safetensors.numpy import save

    checks.known_name(dtype, ("float64", "float32"), "dtype")
    arrays = cell.arrays()
    form = cell.activation.to_dict()
    words = {
        "activation": json.dumps(form) if form["parameters"] else form["name"],
        "input_shift": _written_numbers(arrays.pop("shift")),
        "input_scale": _written_numbers(arrays.pop("scale")),
    }
    stored = {name: np.ascontiguousarray(values, dtype) for name, values in arrays.items()}
    words["sha256"] = _digest({name: torch.from_numpy(v) for name, v in stored.items()})
    words |= {key: str(value) for key, value in (metadata or {}).items()}
    with atomic_write(Path(path)) as stream:
        stream.write(save(stored, words))


def load_cell(
    path: str | os.PathLike[str],
    *,
    activation: str | Activation | None = None,
    shift: ArrayLike | None = None,
    scale: ArrayLike | None = None,
) -> AffineDEQ:
    """Read a network z = φ(W z + U (x − shift)/scale + b), logits C z + c.

    Parameters
    ----------
    path : path
        ``.safetensors``, ``.pt`` or ``.pth``, with arrays W (m, m) and U (m, p), or A, B, m and U
        of the monotone form; b, C and c may be missing.
    activation : str or Activation, optional
        φ; needed unless the file's metadata have it, and in place of theirs.
    shift, scale : float or array_like of shape (p,), optional
        Of the inputs; likewise.

    Returns
    -------
    AffineDEQ
        Its `metadata` are what the file says besides its arrays; ``input_shift`` and
        ``input_scale`` are among them if it, or the caller, says what the network's inputs are.

    Examples
    --------
    >>> import tempfile
    >>> cell = EquilibriumCell.from_weights([[0.5]], [[1.0, 1.0]], activation="tanh", scale=2.0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save_cell(cell, f"{directory}/net.safetensors", {"seed": 3})
    ...     again = load_cell(f"{directory}/net.safetensors")
    >>> again, again.scale, again.metadata["seed"]
    (AffineDEQ(tanh, width 1, 2 inputs, no read-out), tensor([2., 2.], dtype=torch.float64), '3')
    """
    file = Path(path)
    tensors, words = _read(file)
    if activation is None:
        activation = _read_activation(words, file)
    given = {"input_shift": shift, "input_scale": scale}
    stored = {key: _numbers(words, key, file) for key in given}
    shift, scale = (stored[k] if value is None else value for k, value in given.items())
    cell = _cell_of(tensors, activation, shift, scale, file)
    cell.metadata = {**words, **{k: str(v) for k, v in given.items() if v is not None}}
    return cell


def _cell_of(
    tensors: Mapping[str, Tensor], activation: str | Activation, shift: Any, scale: Any, file: Path
) -> AffineDEQ:
    """Make a network of arrays by their names: W, U, b, C, c, or A, B, m, U, b, C, c."""
    monotone = {"A", "B", "m"} <= tensors.keys()
    needed = ("A", "B", "m", "U") if monotone else ("W", "U")
    names = ", ".join(sorted(tensors)) or "none"
    if not set(needed) <= tensors.keys():
        raise InvalidInput(
            f"{file} must hold arrays W and U, got {names}. Save z = φ(W z + U x + b) and logits "
            "C z + c by these names, or A, B and m for W = (1 − m)I − AᵀA + B − Bᵀ."
        )
    known = _MONOTONE if monotone else _PLAIN
    if unknown := sorted(tensors.keys() - set(known)):
        raise InvalidInput(
            f"{file} must hold no arrays but {', '.join(known)}, got {', '.join(unknown)}."
        )
    if "c" in tensors and "C" not in tensors:
        raise InvalidInput(f"{file} must hold C with c, got c alone.")
    readout: Any = (tensors["C"], tensors.get("c")) if "C" in tensors else None
    rest: Any = (tensors["U"], tensors.get("b"), activation, readout)
    options: dict[str, Any] = {"shift": shift, "scale": scale}
    if not monotone:
        return EquilibriumCell.from_weights(tensors["W"], *rest, **options)
    if tensors["m"].numel() != 1:
        raise InvalidInput(f"m must be one number, got shape {tuple(tensors['m'].shape)}.")
    three: Any = (tensors["A"], tensors["B"], float(tensors["m"].double()))
    return EquilibriumCell.from_monotone(*three, *rest, **options)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors of a file, and its metadata; a ``.pt`` file has none."""
    if not path.is_file():
        raise DataNotFound(f"There is no file {path}. Write one with nsd.save.")
    if path.suffix in (".pt", ".pth"):
        return _read_torch(path), {}
    if path.suffix != ".safetensors":
        raise InvalidInput(f"path must name a .safetensors, .pt or .pth file, got {path}.")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as stream:
            words = dict(stream.metadata() or {})
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    except (SafetensorError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise DataCorrupted(
            f"{path} is not a whole safetensors file ({error}). Copy it again, or save it again."
        ) from error
    if words.get("sha256", known := _digest(tensors)) != known:
        raise DataCorrupted(f"{path} was altered: its arrays do not have its checksum.")
    return tensors, words


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():  # about old protocols, which it reads all the same
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        OSError,
        EOFError,
        ValueError,
        LookupError,
    ) as error:
        reason = str(error).strip().split("\n")[0]
        raise DataCorrupted(
            f"{path} cannot be read as tensors alone ({reason}). Objects of other kinds are not "
            "unpickled: save a state_dict, or the arrays as safetensors."
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise InvalidInput(
            f"{path} must hold a dictionary of tensors, got {type(content).__name__}."
        )
    most = path.stat().st_size  # an entry that is stored takes a byte at least
    if any(value.numel() > most for value in content.values()):
        raise DataCorrupted(f"{path} has a tensor with more entries than the file has bytes.")
    return {str(key): value.detach() for key, value in content.items()}


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        whole.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def _read_activation(words: Mapping[str, str], path: Path) -> str | Activation:
    text = words.get("activation")
    if text is None:
        raise InvalidInput(f"{path} must name its activation, got none. Pass activation=…")
    if not text.startswith("{"):
        return text
    try:
        return activations.from_dict(checks.strict_json(text))
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(f"{path} has an activation that cannot be read ({error}).") from error


def _written_numbers(values: FloatArray) -> str:
    constant = bool((values == values[0]).all())
    return json.dumps(float(values[0]) if constant else values.tolist())


def _numbers(words: Mapping[str, str], key: str, path: Path) -> FloatArray | None:
    if key not in words:
        return None
    try:
        return np.asarray(checks.strict_json(words[key]), dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataCorrupted(
            f"{path} has {key} = {words[key][:40]!r}, which is neither a number nor a list of them."
        ) from error
