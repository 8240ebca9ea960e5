"""Networks in single safetensors files: weights, architecture, preprocessing and class names.

The metadata have one entry, JSON: everything but the weights, and a SHA-256 over it and them.
"""

from __future__ import annotations

import importlib
import numbers
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from notsodeep._files import read_tensors, write_tensors
from notsodeep.data import Preprocessing
from notsodeep.errors import DataCorrupted, DataNotFound, InvalidInput
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.weights import load_cell, save_cell

# A module that can be saved has `stored_form()`, JSON, and `from_stored(form)` makes it again.
_KINDS = {
    "network": "notsodeep.networks.random.Network",
    "layers": "notsodeep.trained.layers.ExplicitLayers",
}


def save(
    module: nn.Module,
    path: str | Path,
    *,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str | int] | None = None,
) -> None:
    """Write a network to one file, atomically.

    Parameters
    ----------
    module : Network, ExplicitLayers or AffineDEQ
        As made by `build`, trained or not; the network of a compiled DEQ; or a cell with given
        weights, which is written by `notsodeep.networks.weights.save_cell`.
    path : path
        By custom with the suffix ``.safetensors``.
    preprocessing : Preprocessing, optional
        The map from raw rows to the rows that the network takes, such as ``data.preprocessing``;
        by default the one that the module was loaded with.
    classes : sequence of str or int, optional
        Names of the K outputs; by default those that the module was loaded with.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 4, 8, 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     nsd.save(net, f"{directory}/net.safetensors", classes=("cat", "dog"))
    ...     again = nsd.load(f"{directory}/net.safetensors")
    >>> X = torch.ones(3, 4)
    >>> torch.equal(net(X), again(X)), again.classes
    (True, ('cat', 'dog'))
    """
    if isinstance(module, AffineDEQ):
        if preprocessing is not None or classes is not None:
            raise InvalidInput(
                "preprocessing and classes must be None for a cell, got one of them."
            )
        save_cell(module, path)
        return
    names = {home: kind for kind, home in _KINDS.items()}
    kind = names.get(f"{type(module).__module__}.{type(module).__qualname__}")
    if kind is None:
        remedy = "For other modules use safetensors.torch.save_file(module.state_dict(), path)."
        got = type(module).__name__
        raise InvalidInput(f"module must be a network made by notsodeep, got {got}. {remedy}")
    preprocessing, classes = attached(module, preprocessing, classes)
    content = {
        "kind": kind,
        kind: module.stored_form(),  # type: ignore[operator]
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "classes": None if classes is None else list(classes),
    }
    arrays = {k: v.detach().cpu().contiguous().numpy() for k, v in module.state_dict().items()}
    write_tensors(Path(path), arrays, content)


def load(path: str | Path) -> Any:
    """Read a network written by `save`, on the CPU and in evaluation mode.

    Two attributes come with it: ``preprocessing``, the map from raw rows to the rows it takes, and
    ``classes``, the names of its outputs; None where they were not saved.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> data = nsd.data.load("digits", samples=50, rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 64, 8, 10, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = f"{directory}/net.safetensors"
    ...     nsd.save(net, path, preprocessing=data.preprocessing, classes=data.classes)
    ...     again = nsd.load(path)
    >>> again.preprocessing == data.preprocessing, again.classes[:3], again.training
    (True, ('0', '1', '2'), False)
    """
    place = Path(path)
    if _holds_cell(place):
        return load_cell(place).eval()
    tensors, content = _read(place)
    try:
        kind = content["kind"]
        home, _, name = _KINDS[kind].rpartition(".")
        with torch.device("meta"):  # no memory for weights that are read anyway
            module = getattr(importlib.import_module(home), name).from_stored(content[kind])
        preprocessing, classes = content["preprocessing"], content["classes"]
        if preprocessing is not None:
            preprocessing = Preprocessing.from_dict(preprocessing)
        classes = None if classes is None else tuple(classes)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataCorrupted(
            f"{place} does not describe a network that this release can build ({error!r}). Save it "
            "again from the code that made it."
        ) from error
    expected, found = _shapes(module.state_dict()), _shapes(tensors)
    if expected != found:
        missing, extra = sorted(expected - found), sorted(found - expected)
        raise DataCorrupted(
            f"{place} does not hold the tensors of its network: {', '.join(missing) or 'nothing'} "
            f"missing, {', '.join(extra) or 'nothing'} not expected."
        )
    module.load_state_dict(tensors, assign=True)
    module.preprocessing, module.classes = preprocessing, classes
    return module.eval()


def attached(
    module: Any, preprocessing: Preprocessing | None, classes: Sequence[str | int] | None
) -> tuple[Preprocessing | None, tuple[str | int, ...] | None]:
    """Check what goes with a network; by default it is what it was loaded with."""
    preprocessing = preprocessing or getattr(module, "preprocessing", None)
    if preprocessing is not None and preprocessing.num_features != module.in_features:
        got = f"in_features = {module.in_features} numbers, got {preprocessing.num_features}"
        raise InvalidInput(f"preprocessing must map rows of {got}.")
    given = getattr(module, "classes", None) if classes is None else classes
    if given is None:
        return preprocessing, None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInput(f"classes must be a sequence of names, got {given!r}.")
    names: list[str | int] = []
    for name in given:
        if isinstance(name, bool) or not isinstance(name, str | numbers.Integral):
            raise InvalidInput(f"classes must be strings or integers, got {name!r}.")
        names.append(str(name) if isinstance(name, str) else int(name))
    if len(names) != module.out_features or len(set(names)) != len(names):
        got = f"out_features = {module.out_features} different names, got {names[:6]}"
        raise InvalidInput(f"classes must be {got}.")
    return preprocessing, tuple(names)


def _shapes(state: dict[str, Tensor]) -> set[str]:
    return {f"{name} {value.dtype} {tuple(value.shape)}" for name, value in state.items()}


def _holds_cell(path: Path) -> bool:
    """Say whether the arrays of a file are those of a cell with given weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names = set(file.keys())
    except (SafetensorError, OSError):
        return False
    return {"W", "U"} <= names or {"A", "B", "m", "U"} <= names


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a whole file: tensors that do not depend on it any more, and its checked content."""
    if not path.is_file():
        raise DataNotFound(f"There is no file {path}. Write one with notsodeep.save(module, path).")
    arrays, content = read_tensors(path)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, dict(content)
