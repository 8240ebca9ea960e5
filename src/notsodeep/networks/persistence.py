"""Networks in single safetensors files: weights, architecture, preprocessing and class names.

The metadata hold everything but the weights as JSON, and a SHA-256 over that JSON and all weights:
one file, which can be moved, says what it is and whether it is still what was written.
"""

from __future__ import annotations

import json
import numbers
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from notsodeep import checks
from notsodeep.data import Preprocessing
from notsodeep.errors import DataCorrupted, DataNotFound
from notsodeep.files.stored_arrays import (
    ENTRY,
    VERSION,
    canonical_json,
    sha256_of_arrays,
    write_network_file,
)
from notsodeep.models import model_from_dict
from notsodeep.networks import requirements
from notsodeep.networks.build import module_class
from notsodeep.networks.modules import (
    EquilibriumNetwork,
    ExplicitModule,
    FeatureNetwork,
    ImplicitNetwork,
)


def save(
    module: FeatureNetwork,
    path: str | Path,
    *,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str | int] | None = None,
) -> None:
    """Write a network to one file, atomically.

    Parameters
    ----------
    module : ImplicitNetwork or ExplicitModule
        As made by `build`, trained or not.
    path : path
        By custom with the suffix ``.safetensors``.
    preprocessing : Preprocessing, optional
        The map from raw rows to the rows that the network takes, such as ``data.preprocessing``.
        Without it, the one that the module was loaded with, if any.
    classes : sequence of str or int, optional
        Names of the outputs, K of them.  Without it, those that the module was loaded with.

    Raises
    ------
    NotSerialisable
        The activation is a Python function, which is not data.
    InvalidInput
        `preprocessing` or `classes` do not fit the network.
    NotWritable
        The file cannot be written.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> from notsodeep.networks.build import build
    >>> net = build(nsd.ExplicitNetwork(["relu"]), 4, 8, 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save(net, f"{directory}/net.safetensors", classes=("cat", "dog"))
    ...     again = load(f"{directory}/net.safetensors")
    >>> X = torch.ones(3, 4)
    >>> torch.equal(net(X), again(X)), again.classes
    (True, ('cat', 'dog'))
    """
    requirements.own_network(module, isinstance(module, FeatureNetwork), "save")
    preprocessing, classes = attached(module, preprocessing, classes, "save")
    content = {
        "network": _architecture(module),
        "preprocessing": None if preprocessing is None else preprocessing.to_dict(),
        "classes": None if classes is None else list(classes),
    }
    arrays = {k: v.detach().cpu().contiguous().numpy() for k, v in module.state_dict().items()}
    write_network_file(Path(path), arrays, content)


def load(path: str | Path) -> ImplicitNetwork | ExplicitModule:
    """Read a network written by `save`, on the CPU and in evaluation mode.

    Two attributes come with it: ``preprocessing``, the map from raw rows to the rows it takes, and
    ``classes``, the names of its outputs; None where they were not saved.  From raw rows to names:
    ``X = torch.as_tensor(net.preprocessing.apply(raw, "float32"))``, then
    ``[net.classes[k] for k in net(X).argmax(dim=1)]``.

    Raises
    ------
    DataNotFound
        There is no such file.
    DataCorrupted
        The file is truncated or altered, or lacks tensors.
    InvalidInput
        Some other safetensors file, or one of a newer format.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> data = nsd.data.load("digits", samples=50, rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 64, 8, 10, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     place = f"{directory}/net.safetensors"
    ...     nsd.save(net, place, preprocessing=data.preprocessing, classes=data.classes)
    ...     again = nsd.load(place)
    >>> again.preprocessing == data.preprocessing, again.classes[:3], again.training
    (True, ('0', '1', '2'), False)
    """
    place = Path(path)
    tensors, metadata = _read(place)
    content = _known_format(metadata.get(ENTRY), VERSION, place)
    version, expected = content.pop("version"), content.pop("sha256", None)
    _same_digest(sha256_of_tensors(tensors, canonical_json(content)), expected, place)
    try:
        module = _empty_module(content["network"])
        preprocessing, classes = content["preprocessing"], content["classes"]
        if preprocessing is not None:
            preprocessing = Preprocessing.from_dict(preprocessing)
        extras = {
            "preprocessing": preprocessing,
            "classes": None if classes is None else tuple(classes),
        }
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataCorrupted(
            f"{place} does not describe a network that this release can build (format {version}: "
            f"{error}). Save it again from the code that made it."
        ) from error
    _fill(module, tensors, place)
    vars(module).update(extras)
    return module.eval()


def attached(
    module: FeatureNetwork,
    preprocessing: Preprocessing | None,
    classes: Sequence[str | int] | None,
    owner: str,
) -> tuple[Preprocessing | None, tuple[str | int, ...] | None]:
    """Check what goes with a network; what is not given is what it was loaded with."""
    if preprocessing is None:
        preprocessing = getattr(module, "preprocessing", None)
    if preprocessing is not None:
        _fitting_preprocessing(preprocessing.num_features, module.in_features, owner)
    if classes is None:
        classes = getattr(module, "classes", None)
    names = None
    if classes is not None:
        names = _class_names(classes, module.out_features, owner)
    return preprocessing, names


def _architecture(module: FeatureNetwork) -> dict[str, Any]:
    """Everything that `_empty_module` needs, as JSON."""
    form = {
        "description": module.description.to_dict(),
        "in_features": module.in_features,
        "width": module.width,
        "out_features": module.out_features,
        "trainable": module.trainable,
        "bias": module.readout_bias is not None,
        "dtype": str(module.readout.dtype).removeprefix("torch."),
    }
    if isinstance(module, EquilibriumNetwork):
        form["input_scale"] = module.input_scale
    if isinstance(module, ImplicitNetwork):
        form |= {
            "solver": module.solver.to_dict(),
            "gradient": module.gradient.to_dict(),
            "on_failure": module.on_failure,
        }
    return form


def _empty_module(form: Mapping[str, Any]) -> ImplicitNetwork | ExplicitModule:
    """Build a module without memory for its weights."""
    options = dict(form)
    description = options.pop("description")
    sizes = [options.pop(name) for name in ("in_features", "width", "out_features")]
    options["dtype"] = {"float32": torch.float32, "float64": torch.float64}[options["dtype"]]
    model = model_from_dict(description)
    module: ImplicitNetwork | ExplicitModule = module_class(model)(
        model, *sizes, device="meta", **options
    )
    return module


def _fill(module: FeatureNetwork, tensors: Mapping[str, Tensor], path: Path) -> None:
    def shapes(state: Mapping[str, Tensor]) -> dict[str, str]:
        return {k: f"{k} {v.dtype} {tuple(v.shape)}" for k, v in state.items()}

    expected, found = shapes(module.state_dict()), shapes(tensors)
    _same_names(found.values(), expected.values(), path, str(module.description))
    module.load_state_dict(tensors, assign=True)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file whole: tensors that do not depend on the file any more."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise _no_such_network(path) from error
    try:
        tensors = safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise DataCorrupted(
            f"{path} is not a whole safetensors file ({error}). Copy it again, or save the network "
            "again."
        ) from error
    # The header was found valid: its length, then JSON.
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return tensors, header.get("__metadata__", {})


def _same_names(found: Collection[str], expected: Collection[str], path: Path, what: str) -> None:
    """Require exactly the expected tensors in a file."""
    missing, extra = sorted({*expected} - {*found}), sorted({*found} - {*expected})
    if missing or extra:
        parts = [f"{', '.join(missing)} missing"] if missing else []
        parts += [f"{', '.join(extra)} not expected"] if extra else []
        raise DataCorrupted(
            f"{path} does not hold the tensors of {what}: {'; '.join(parts)}. It was written by "
            "other code or altered; save the network again."
        )


def _fitting_preprocessing(num_features: int, in_features: int, owner: str) -> None:
    """Require a map of rows as long as the network's."""
    if num_features != in_features:
        requirement = f"map rows of in_features = {in_features} numbers"
        raise checks.invalid("preprocessing", owner, requirement, f"num_features = {num_features}")


def _class_names(classes: object, out_features: int, owner: str) -> tuple[str | int, ...]:
    """Require one name, a string or an integer, for each output."""
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise checks.invalid("classes", owner, "be a sequence of names", repr(classes))
    names: list[str | int] = []
    for name in classes:
        if isinstance(name, bool) or not isinstance(name, str | numbers.Integral):
            raise checks.invalid("classes", owner, "hold strings or integers", repr(name))
        names.append(str(name) if isinstance(name, str) else int(name))
    if len(names) != out_features or len(set(names)) != len(names):
        requirement = f"hold out_features = {out_features} different names"
        raise checks.invalid("classes", owner, requirement, f"{len(names)}: {names[:6]}")
    return tuple(names)


def _known_format(entry: str | None, version: int, path: Path) -> dict[str, Any]:
    """Require metadata of our format, of a version that this release reads; return them."""
    if entry is None:
        got, remedy = "another safetensors file", "Read it with safetensors.torch.load_file."
        raise checks.invalid("path", "load", "name a file written by notsodeep.save", got, remedy)
    try:
        content = checks.strict_json(entry)
        found = int(content["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(
            f"{path} has metadata that cannot be read ({error!r}). Copy it again, or save the "
            "network again."
        ) from error
    if found > version:
        remedy = "Install a newer release of notsodeep to read it."
        requirement = f"have a format version of at most {version}"
        raise checks.invalid(str(path), "load", requirement, f"version {found}", remedy)
    return dict(content)


def _same_digest(found: str, expected: str | None, path: Path) -> None:
    """Require that a file's content has the SHA-256 stored in it."""
    if found != expected:
        raise DataCorrupted(
            f"{path} was altered after it was written: its content has SHA-256 {found[:12]}…, and "
            f"its metadata say {str(expected)[:12]}…. Copy it again, or save the network again."
        )


def _no_such_network(path: Path) -> DataNotFound:
    """Word the absence of a saved network."""
    return DataNotFound(f"There is no file {path}. Write one with notsodeep.save(module, path).")


def sha256_of_tensors(tensors: Mapping[str, Tensor], beside: str = "") -> str:
    """Hexadecimal SHA-256 of a text and of names, dtypes, shapes and values, in order of names."""
    return sha256_of_arrays({k: v.detach().cpu().numpy() for k, v in tensors.items()}, beside)
