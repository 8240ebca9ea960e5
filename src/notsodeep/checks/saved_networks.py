"""Checks of training settings, checkpoints, saved networks and exports."""

from __future__ import annotations

import numbers
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from notsodeep.checks.json_text import strict_json
from notsodeep.checks.memory import available_memory
from notsodeep.checks.scalars import finite_number, integer_at_least
from notsodeep.checks.wording import refusal
from notsodeep.errors import (
    DataCorrupted,
    DataNotFound,
    InvalidInput,
    NotEnoughMemory,
)


def share(value: object, parameter: str, owner: str) -> float:
    """Require a number with 0 ≤ value < 1."""
    number = finite_number(value, parameter, owner)
    if not 0.0 <= number < 1.0:
        raise refusal(parameter, owner, f"satisfy 0 ≤ {parameter} < 1", number)
    return number


def at_least_zero(value: object, parameter: str, owner: str) -> float:
    """Require a finite number of at least zero."""
    number = finite_number(value, parameter, owner)
    if number < 0.0:
        raise refusal(parameter, owner, "be at least 0", number)
    return number


def something_to_train(names: Collection[str], owner: str) -> None:
    """Require at least one parameter with requires_grad."""
    if not names:
        remedy = "Build it with trainable='readout' or 'all'."
        raise refusal("module", owner, "have a parameter with requires_grad", "none", remedy)


def features_fit(needed: int, samples: int, width: int) -> None:
    """Refuse to keep features that are larger than the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"The features of {samples} samples at width {width} need {needed / 2**30:.1f} GiB, "
            f"and {available / 2**30:.1f} GiB of memory are free. Use fewer samples or a smaller "
            "width, or TrainingSettings(cache_features=False), which computes them in every step."
        )


def matching_validation(has_patience: bool, has_validation: bool, owner: str) -> None:
    """Require validation data for early stopping."""
    if has_patience and not has_validation:
        remedy = "Pass validation=(X_validation, y_validation), or leave patience out."
        raise refusal("validation", owner, "be given with patience", None, remedy)


def class_targets(are_labels: bool, needed_for: str, owner: str) -> None:
    """Require class labels where real targets make no sense."""
    if not are_labels:
        remedy = "Use loss='squared_error' for real targets."
        raise refusal("y", owner, f"hold class labels for {needed_for}", "real numbers", remedy)


def same_run(stored: Mapping[str, Any], asked: Mapping[str, Any], directory: Path) -> None:
    """Require that a checkpoint belongs to the run that wants to go on from it."""
    settings, wanted = stored["settings"], asked["settings"]
    different = [
        f"{key} = {settings.get(key)!r} there, {wanted.get(key)!r} here"
        for key in sorted({*settings, *wanted})
        if settings.get(key) != wanted.get(key)
    ]
    different += [
        f"other {key}" for key in asked if key != "settings" and stored.get(key) != asked[key]
    ]
    if different:
        raise InvalidInput(
            f"The checkpoint in {directory} belongs to another run: {'; '.join(different)}. "
            "Resume with the same data, module and settings, or choose another directory."
        )


def same_names(found: Collection[str], expected: Collection[str], path: Path, what: str) -> None:
    """Require exactly the expected tensors in a file."""
    missing, extra = sorted({*expected} - {*found}), sorted({*found} - {*expected})
    if missing or extra:
        parts = [f"{', '.join(missing)} missing"] if missing else []
        parts += [f"{', '.join(extra)} not expected"] if extra else []
        raise DataCorrupted(
            f"{path} does not hold the tensors of {what}: {'; '.join(parts)}. It was written by "
            "other code or altered; save the network again."
        )


def invertible_gram(reciprocal: float, ridge: float, norm: float, owner: str) -> None:
    """Require a Gram matrix whose reciprocal condition number is above the rounding error."""
    if not reciprocal > 2.2e-16:
        remedy = f"Features are dependent or nearly so; a ridge of {1e-9 * norm:.1e} would do."
        requirement = "make the Gram matrix of the features invertible in double precision"
        raise refusal("ridge", owner, requirement, f"ridge = {ridge:g}", remedy)


def own_network(module: object, is_own: bool, owner: str) -> None:
    """Require a module made by this package."""
    if not is_own:
        remedy = "For other modules use safetensors.torch.save_file(module.state_dict(), path)."
        requirement = "be a network made by notsodeep.build"
        raise refusal("module", owner, requirement, type(module).__name__, remedy)


def fitting_preprocessing(num_features: int, in_features: int, owner: str) -> None:
    """Require a map of rows as long as the network's."""
    if num_features != in_features:
        requirement = f"map rows of in_features = {in_features} numbers"
        raise refusal("preprocessing", owner, requirement, f"num_features = {num_features}")


def class_names(classes: object, out_features: int, owner: str) -> tuple[str | int, ...]:
    """Require one name, a string or an integer, for each output."""
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise refusal("classes", owner, "be a sequence of names", repr(classes))
    names: list[str | int] = []
    for name in classes:
        if isinstance(name, bool) or not isinstance(name, str | numbers.Integral):
            raise refusal("classes", owner, "hold strings or integers", repr(name))
        names.append(str(name) if isinstance(name, str) else int(name))
    if len(names) != out_features or len(set(names)) != len(names):
        requirement = f"hold out_features = {out_features} different names"
        raise refusal("classes", owner, requirement, f"{len(names)}: {names[:6]}")
    return tuple(names)


def known_format(entry: str | None, version: int, path: Path) -> dict[str, Any]:
    """Require metadata of our format, of a version that this release reads; return them."""
    if entry is None:
        got, remedy = "another safetensors file", "Read it with safetensors.torch.load_file."
        raise refusal("path", "load", "name a file written by notsodeep.save", got, remedy)
    try:
        content = strict_json(entry)
        found = int(content["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupted(
            f"{path} has metadata that cannot be read ({error!r}). Copy it again, or save the "
            "network again."
        ) from error
    if found > version:
        remedy = "Install a newer release of notsodeep to read it."
        requirement = f"have a format version of at most {version}"
        raise refusal(str(path), "load", requirement, f"version {found}", remedy)
    return dict(content)


def same_digest(found: str, expected: str | None, path: Path) -> None:
    """Require that a file's content has the SHA-256 stored in it."""
    if found != expected:
        raise DataCorrupted(
            f"{path} was altered after it was written: its content has SHA-256 {found[:12]}…, and "
            f"its metadata say {str(expected)[:12]}…. Copy it again, or save the network again."
        )


def no_such_network(path: Path) -> DataNotFound:
    """Word the absence of a saved network."""
    return DataNotFound(f"There is no file {path}. Write one with notsodeep.save(module, path).")


def opset(value: object, least: int, most: int, owner: str) -> int:
    """Require an ONNX operator set that has what we use and that the package knows."""
    number = integer_at_least(value, least, "opset", owner)
    if number > most:
        remedy = "Install a newer onnx package for it."
        raise refusal("opset", owner, f"be at most {most}", number, remedy)
    return number


def steps_for_equilibrium(steps: int | None, owner: str) -> None:
    """Refuse a number of solver steps for a network without a solver."""
    if steps is not None:
        remedy = "An explicit network has no fixed point to solve for."
        raise refusal("steps", owner, "be left out for an ExplicitNetwork", steps, remedy)


def one_message(size: int, owner: str) -> None:
    """Require weights that fit into one protocol-buffers message."""
    if size >= 2**31 - 2**20:
        requirement = "have weights of less than 2 GiB, the most that one ONNX file holds"
        raise refusal("module", owner, requirement, f"{size / 2**30:.1f} GiB")


def same_setting(name: str, deq: object, explicit: object, owner: str) -> None:
    """Require two networks that can be compared."""
    if deq != explicit:
        requirement = f"be the same for both networks in {name}"
        raise refusal("deq and explicit", owner, requirement, f"{deq} and {explicit}")
