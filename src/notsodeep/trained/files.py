"""Given networks in files: safetensors with the arrays W, U, b, C, c and a few words about them.

Metadata, all strings: ``activation`` (a name, or the JSON form of one), ``input_shift`` and
``input_scale`` (JSON numbers, or lists with one number for each feature; pixels are in units of
their largest value), and whatever else is worth knowing.  A ``.pt`` file is read with torch's
``weights_only=True``, which builds tensors and containers and nothing else; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import activations, checks, extras
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.files import atomic_write
from notsodeep.trained.cell import AffineCell, EquilibriumCell

_PLAIN = ("W", "U", "b", "C", "c")
_MONOTONE = ("A", "B", "m", "U", "b", "C", "c")


@dataclass(frozen=True, eq=False)
class StoredCell:
    """A network that was read from a file.

    Attributes
    ----------
    cell : AffineCell
    metadata : Mapping[str, str]
        All that the file says besides its arrays.
    scaling_known : bool
        Whether the file, or the caller, says what the network's inputs are.
    """

    cell: AffineCell
    metadata: Mapping[str, str]
    scaling_known: bool


def save_cell(
    cell: AffineCell,
    path: str | os.PathLike[str],
    metadata: Mapping[str, object] | None = None,
    *,
    dtype: str = "float64",
) -> None:
    """Write a network as safetensors, so that `load_cell` and other programs can read it.

    Parameters
    ----------
    cell : AffineCell
    path : path
        Its directory is created; a file that is there is replaced.
    metadata : Mapping, optional
        More facts about the network; values become strings.
    dtype : {"float64", "float32"}
        Of the arrays; float32 halves the file.
    """
    from safetensors.numpy import save

    checks.known_name(dtype, ("float64", "float32"), "dtype")
    arrays = {"W": cell.recurrent, "U": cell.injection, "b": cell.bias}
    if cell.readout is not None:
        arrays |= dict(zip("Cc", cell.readout, strict=True))
    words = {
        "activation": _written_activation(cell.activation),
        "input_shift": _written_numbers(cell.shift),
        "input_scale": _written_numbers(cell.scale),
    }
    words |= {key: str(value) for key, value in (metadata or {}).items()}
    content = save({key: np.ascontiguousarray(v, dtype) for key, v in arrays.items()}, words)
    with atomic_write(Path(path)) as stream:
        stream.write(content)


def load_cell(
    path: str | os.PathLike[str],
    *,
    activation: str | Activation | None = None,
    shift: ArrayLike | None = None,
    scale: ArrayLike | None = None,
) -> StoredCell:
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

    Raises
    ------
    DataNotFound
        There is no such file.
    DataCorrupted
        It is not whole, or holds objects that are no tensors.
    InvalidInput
        Arrays are missing or do not fit each other; no activation is known.

    Examples
    --------
    >>> import tempfile
    >>> cell = EquilibriumCell.from_weights([[0.5]], [[1.0, 1.0]], activation="tanh", scale=2.0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save_cell(cell, f"{directory}/net.safetensors", {"seed": 3})
    ...     stored = load_cell(f"{directory}/net.safetensors")
    >>> stored.cell, stored.cell.scale, stored.scaling_known, stored.metadata["seed"]
    (AffineCell(tanh, width 1, 2 inputs, no read-out), array([2., 2.]), True, '3')
    """
    place = Path(path)
    arrays, words = read_arrays(place)
    if activation is None:
        activation = _read_activation(words, place)
    given = [_numbers(words, key, place) for key in ("input_shift", "input_scale")]
    shift = given[0] if shift is None else shift
    scale = given[1] if scale is None else scale
    cell = cell_of_arrays(arrays, activation, shift, scale, str(place))
    return StoredCell(cell, words, shift is not None and scale is not None)


def cell_of_arrays(
    arrays: Mapping[str, NDArray[Any]],
    activation: str | Activation,
    shift: ArrayLike | None,
    scale: ArrayLike | None,
    source: str,
) -> AffineCell:
    """Make a cell of arrays by their names: W, U, b, C, c, or A, B, m, U, b, C, c."""
    monotone = {"A", "B", "m"} <= arrays.keys()
    needed = ("A", "B", "m", "U") if monotone else ("W", "U")
    if not set(needed) <= arrays.keys():
        found = ", ".join(sorted(arrays)) or "none"
        remedy = (
            "Save z = φ(W z + U x + b) and logits C z + c as arrays of these names, or A, B and m "
            "in place of W for W = (1 − m)I − AᵀA + B − Bᵀ."
        )
        raise checks.invalid(source, "load_cell", "hold arrays W and U", f"{found}", remedy)
    unknown = sorted(arrays.keys() - set(_MONOTONE if monotone else _PLAIN))
    if unknown:
        remedy = "What is not known cannot be left out safely; save only the network's arrays."
        requirement = f"hold no arrays but {', '.join(_MONOTONE if monotone else _PLAIN)}"
        raise checks.invalid(source, "load_cell", requirement, ", ".join(unknown), remedy)
    if "c" in arrays and "C" not in arrays:
        raise checks.invalid(source, "load_cell", "hold C with c", "c alone")
    readout = (arrays["C"], arrays.get("c")) if "C" in arrays else None
    options: dict[str, Any] = {"shift": shift, "scale": scale}
    rest: Any = (arrays["U"], arrays.get("b"), activation, readout)
    if monotone:
        margin = np.asarray(arrays["m"])
        if margin.size != 1:
            raise checks.invalid("m", source, "be one number", f"shape {margin.shape}")
        pair = (arrays["A"], arrays["B"], float(margin.reshape(())))
        return EquilibriumCell.from_monotone(*pair, *rest, **options)
    return EquilibriumCell.from_weights(arrays["W"], *rest, **options)


def read_arrays(path: Path) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Read the arrays of a file, as float64, and its metadata; a ``.pt`` file has none."""
    if not path.is_file():
        raise DataNotFound(
            f"There is no file {path}. Write one with notsodeep.trained.files.save_cell."
        )
    if path.suffix in (".pt", ".pth"):
        return _read_torch(path), {}
    if path.suffix != ".safetensors":
        requirement = "name a .safetensors, .pt or .pth file"
        raise checks.invalid("path", "load_cell", requirement, str(path))
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as stream:
            words = dict(stream.metadata() or {})
            names = stream.keys()
            arrays = {key: stream.get_tensor(key).astype(np.float64) for key in names}
    except (SafetensorError, TypeError, ValueError) as error:  # TypeError: bfloat16
        raise DataCorrupted(
            f"{path} is not a whole safetensors file of real arrays ({error}). Copy it again, or "
            "save it again."
        ) from error
    return arrays, words


def _read_torch(path: Path) -> dict[str, FloatArray]:
    extras.require("A .pt file", "torch")
    import pickle

    import torch

    try:
        with warnings.catch_warnings():  # about old protocols, which it reads all the same
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise DataCorrupted(
            f"{path} cannot be read as tensors alone ({reason}). Objects of other kinds are not "
            "unpickled: save a state_dict, or the arrays as safetensors."
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        got = type(content).__name__
        raise checks.invalid(str(path), "load_cell", "hold a dictionary of tensors", got)
    return {str(key): value.double().numpy() for key, value in content.items()}


def _written_activation(activation: Activation) -> str:
    form = activation.to_dict()
    return form["name"] if not form["parameters"] else json.dumps(form)


def _read_activation(words: Mapping[str, str], path: Path) -> str | Activation:
    text = words.get("activation")
    if text is None:
        got = f"metadata {', '.join(sorted(words))}" if words else "no metadata"
        remedy = "Pass activation=…, or --activation on the command line."
        raise checks.invalid(str(path), "load_cell", "name its activation", got, remedy)
    if not text.startswith("{"):
        return text
    try:
        return activations.from_dict(checks.strict_json(text))
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(f"{path} has an activation that cannot be read ({error}).") from error


def _written_numbers(values: FloatArray) -> str:
    constant = bool((values == values[0]).all())
    return json.dumps(float(values[0]) if constant else values.tolist())


def _numbers(words: Mapping[str, str], key: str, path: Path) -> Any:
    if key not in words:
        return None
    try:
        return np.asarray(checks.strict_json(words[key]), dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise DataCorrupted(
            f"{path} has {key} = {words[key][:40]!r}, which is neither a number nor a list of them."
        ) from error
