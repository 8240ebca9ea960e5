"""What finite networks require of what they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from notsodeep import checks


def input_features(X: Any, in_features: int, dtype: object, owner: str) -> None:
    """Require a floating-point tensor with p features along its last axis."""
    if not hasattr(X, "requires_grad"):
        remedy = "Use torch.as_tensor(X, dtype=module.readout.dtype)."
        raise checks.invalid("X", owner, "be a torch tensor", type(X).__name__, remedy)
    if X.ndim == 0 or X.shape[-1] != in_features:
        requirement = f"have in_features = {in_features} features along its last axis"
        raise checks.invalid("X", owner, requirement, f"shape {tuple(X.shape)}")
    if X.dtype != dtype:
        remedy = "Convert the data with X.to(dtype), or the module with module.to(dtype)."
        raise checks.invalid("X", owner, f"have the module's dtype, {dtype}", X.dtype, remedy)


def network_dtype(dtype: object, allowed: Iterable[object], owner: str) -> None:
    """Require one of the two precisions that networks are built in."""
    if dtype not in allowed:
        remedy = "A fixed point cannot be found in half precision: leave autocast off around it."
        requirement = "be torch.float32 or torch.float64"
        raise checks.invalid("dtype", owner, requirement, repr(dtype), remedy)


def named_options(
    value: Mapping[str, Any], table: Mapping[str, type], kind: str
) -> tuple[str, dict[str, Any]]:
    """Split a stored form {"name": …, option: value, …}; every key must be known."""
    options = dict(value)
    name = checks.known_name(str(options.pop("name", "")), table, kind)
    known = [field.name for field in fields(table[name])]
    for option in options:
        checks.known_name(option, known, f"option of the {kind} {name!r}")
    return name, options


def own_network(module: object, is_own: bool, owner: str) -> None:
    """Require a module made by this package."""
    if not is_own:
        remedy = "For other modules use safetensors.torch.save_file(module.state_dict(), path)."
        requirement = "be a network made by notsodeep.build"
        raise checks.invalid("module", owner, requirement, type(module).__name__, remedy)
