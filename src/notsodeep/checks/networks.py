"""Checks of what finite networks are given.  Tensors are looked at, torch is not imported."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from notsodeep.checks.memory import available_memory
from notsodeep.checks.wording import known_name, refusal
from notsodeep.errors import NotEnoughMemory


def input_features(X: Any, in_features: int, dtype: object, owner: str) -> None:
    """Require a floating-point tensor with p features along its last axis."""
    if not hasattr(X, "requires_grad"):
        remedy = "Use torch.as_tensor(X, dtype=module.readout.dtype)."
        raise refusal("X", owner, "be a torch tensor", type(X).__name__, remedy)
    if X.ndim == 0 or X.shape[-1] != in_features:
        requirement = f"have in_features = {in_features} features along its last axis"
        raise refusal("X", owner, requirement, f"shape {tuple(X.shape)}")
    if X.dtype != dtype:
        remedy = "Convert the data with X.to(dtype), or the module with module.to(dtype)."
        raise refusal("X", owner, f"have the module's dtype, {dtype}", X.dtype, remedy)


def network_dtype(dtype: object, allowed: Iterable[object], owner: str) -> None:
    """Require one of the two precisions that networks are built in."""
    if dtype not in allowed:
        remedy = "A fixed point cannot be found in half precision: leave autocast off around it."
        requirement = "be torch.float32 or torch.float64"
        raise refusal("dtype", owner, requirement, repr(dtype), remedy)


def shape_of_state(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Require that a map returns what it is given, a state of the same shape."""
    if shape != expected:
        raise refusal("problem", "implicit_layer", f"return the shape of z, {expected}", shape)


def finite_parameters(parameters: Mapping[str, Any], owner: str) -> None:
    """Require tensors without NaN and infinity; name the first that has some."""
    for name, tensor in parameters.items():
        bad = int((~tensor.isfinite()).sum())
        if bad:
            got = f"{bad} NaN or infinite entries of {tensor.numel()}"
            remedy = (
                "Look at the inputs first. If it is the weights, training has diverged: go back to "
                "the last good ones and lower the learning rate."
            )
            raise refusal(name, owner, "be finite", got, remedy)


def solver_tolerance(value: float, least: float, dtype: object, owner: str) -> float:
    """Require a relative tolerance that the precision can meet."""
    if value < least:
        requirement = f"be at least {least:.2g}, the rounding error of {dtype}"
        remedy = "Use float64, or leave tolerance=None for the default of the dtype."
        raise refusal("tolerance", owner, requirement, f"{value:g}", remedy)
    return value


def optional_tolerance(value: object, owner: str) -> None:
    """Require None, or a relative tolerance between zero and one."""
    if value is None:
        return
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0.0 < float(value) < 1.0:  # type: ignore[arg-type]
        requirement = "be None or a relative tolerance between 0 and 1"
        raise refusal("tolerance", owner, requirement, repr(value))


def share(value: object, parameter: str, owner: str) -> None:
    """Require a number with 0 < value ≤ 1."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0.0 < float(value) <= 1.0:  # type: ignore[arg-type]
        raise refusal(parameter, owner, "satisfy 0 < value ≤ 1", repr(value))


def named_options(
    value: Mapping[str, Any], table: Mapping[str, type], kind: str
) -> tuple[str, dict[str, Any]]:
    """Split a stored form {"name": …, option: value, …}; every key must be known."""
    options = dict(value)
    name = known_name(str(options.pop("name", "")), table, kind)
    for option in options:
        known_name(option, table[name].__dataclass_fields__, f"option of the {kind} {name!r}")  # type: ignore[attr-defined]
    return name, options


def no_options_for(options: Mapping[str, object], owner: str, why: str) -> None:
    """Refuse options that are set but would have no effect; `why` completes the sentence."""
    for option, value in options.items():
        if value is not None:
            raise refusal(option, owner, f"be left out {why}", repr(value))


def module_with_features(module: object, is_module: bool, owner: str) -> None:
    """Require a torch module with a method `features` and at least one parameter."""
    if not is_module:
        requirement = "be a torch.nn.Module"
        remedy = "notsodeep.build makes one from a description."
        raise refusal("module", owner, requirement, repr(module), remedy)
    if not callable(getattr(module, "features", None)):
        remedy = "Give it one that returns what its last linear layer is applied to."
        name = type(module).__name__
        raise refusal("module", owner, "have a method features(X)", f"{name} without one", remedy)
    if not any(p.requires_grad for p in module.parameters()):  # type: ignore[attr-defined]
        remedy = "A tangent kernel is about the gradients in trained weights."
        requirement = "have a parameter that requires gradients"
        raise refusal("module", owner, requirement, "none", remedy)


def factors_fit(needed: int, owner: str) -> None:
    """Refuse kernels whose factors do not fit into the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{owner} keeps the features and one gradient for every output of every sample: "
            f"{needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB of memory are free. Use "
            "fewer samples at a time (blocks of X and Y), fewer outputs, or a smaller width."
        )


def weights_fit(needed: int, owner: str) -> None:
    """Refuse weights that do not fit into the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The weights of {owner} need {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} "
            "GiB of memory are free. Use a smaller width."
        )
