"""Checks of user input that several packages share; what one alone requires stands there.

A message names the parameter, its owner, the requirement and the value got, and ends with a
remedy where one is known.  Checks return the value in the form the caller wants it in.
"""

from __future__ import annotations

import difflib
import json
import math
import numbers
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory, UnknownName

_LONGEST_VALUE = 400  # characters of a value that a message repeats


def invalid(
    parameter: str, owner: str, requirement: str, got: object, remedy: str = ""
) -> InvalidInput:
    """Word the standard message: parameter, owner, requirement, value got, remedy."""
    value = " ".join(str(got).split())  # arrays print themselves on many lines
    if len(value) > _LONGEST_VALUE:
        value = f"{value[: _LONGEST_VALUE // 2]} … {value[-_LONGEST_VALUE // 4 :]}"
    message = f"{parameter} of {owner} must {requirement}. Got {value}."
    return InvalidInput(f"{message} {remedy}" if remedy else message)


def known_name(value: str, table: Iterable[str], kind: str) -> str:
    """Require that `value` is one of the names in `table`; suggest near names otherwise."""
    names = sorted(table)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=3, cutoff=0.5)
    hint = (
        f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(names)}."
    )
    raise UnknownName(f"Unknown {kind} {value!r}. {hint}")


def finite_number(value: object, parameter: str, owner: str) -> float:
    """Require one finite real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.ndarray):
        raise invalid(parameter, owner, "be a finite real number", repr(value))
    if isinstance(value, np.ndarray) and (value.ndim or value.dtype.kind not in "fiu"):
        raise invalid(parameter, owner, "be a single finite real number", f"shape {value.shape}")
    number = float(value)
    if not math.isfinite(number):
        raise invalid(parameter, owner, "be finite", number)
    return number


def positive_number(value: object, parameter: str, owner: str, remedy: str = "") -> float:
    """Require one finite number above zero."""
    number = finite_number(value, parameter, owner)
    if number <= 0.0:
        raise invalid(parameter, owner, "be positive", number, remedy)
    return number


def data_scale(value: object, parameter: str, owner: str) -> float:
    """Require a scale τ0 of data between 1e-60 and 1e60, whose powers are finite and not zero."""
    number = positive_number(value, parameter, owner)
    if not 1e-60 <= number <= 1e60:
        remedy = "It is the root mean squared norm of the data; divide the data by it."
        raise invalid(parameter, owner, "be between 1e-60 and 1e60", f"{number:.3g}", remedy)
    return number


def positive_integer(value: object, parameter: str, owner: str) -> int:
    """Require an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        raise invalid(parameter, owner, "be an integer of at least 1", repr(value))
    return int(value)


def integer_at_least(
    value: object, least: int, parameter: str, owner: str, remedy: str = ""
) -> int:
    """Require an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        requirement = f"be an integer of at least {least}"
        raise invalid(parameter, owner, requirement, repr(value), remedy)
    return int(value)


def random_generator(rng: Any, owner: str) -> np.random.Generator:
    """Turn a seed (a non-negative integer) or a Generator into a Generator."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, numbers.Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        return np.random.default_rng(int(rng))
    requirement = "be a non-negative integer seed or a numpy.random.Generator"
    raise invalid("rng", owner, requirement, repr(rng))


def stored_form(data: object, kind: str, keys: set[str]) -> None:
    """Require a mapping with exactly the stored keys and the right kind."""
    if not isinstance(data, Mapping) or data.get("kind") != kind or set(data) != {"kind", *keys}:
        got = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise InvalidInput(
            f"A stored {kind} must have kind = {kind!r} and the keys {sorted(keys)}. Got {got}."
        )


def share(value: object, parameter: str, owner: str) -> float:
    """Require a number with 0 ≤ value < 1."""
    number = finite_number(value, parameter, owner)
    if not 0.0 <= number < 1.0:
        raise invalid(parameter, owner, f"satisfy 0 ≤ {parameter} < 1", number)
    return number


def at_least_zero(value: object, parameter: str, owner: str, remedy: str = "") -> float:
    """Require a finite number of at least zero."""
    number = finite_number(value, parameter, owner)
    if number < 0.0:
        raise invalid(parameter, owner, "be at least 0", number, remedy)
    return number


def flag(value: object, parameter: str, owner: str) -> bool:
    """Require True or False."""
    if not isinstance(value, bool):
        raise invalid(parameter, owner, "be True or False", repr(value))
    return value


# Kernels need squares of the data, statistics fourth powers; these stay inside double precision.
_LARGEST = 1e60
_SMALLEST = 1e-60
# Kernels count norms below 1e-30 as 1e-30, which must be nothing beside the largest.
_SMALLEST_OF_KERNELS = 1e-15


def unmasked(values: object, parameter: str, owner: str) -> None:
    """Require that no entry of a masked array, or of a list of them, is masked.

    NumPy's own functions use what is behind the mask.
    """
    if isinstance(values, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(values)
        if masked.any():
            got = _count_and_place(masked, "masked")
            remedy = "What is behind a mask is no data: leave those rows out, or fill them."
            raise invalid(parameter, owner, "have no masked entries", got, remedy)
    elif isinstance(values, list | tuple):
        for part in values:
            if isinstance(part, list | tuple | np.ma.MaskedArray):
                unmasked(part, parameter, owner)


def plain_array(values: object, parameter: str, owner: str) -> NDArray[Any]:
    """Require something rectangular without masked entries; return it as an array of any dtype."""
    unmasked(values, parameter, owner)
    if hasattr(values, "toarray"):  # SciPy's sparse arrays; NumPy would wrap one as an object
        remedy = f"Pass {parameter}.toarray()."
        raise invalid(parameter, owner, "be a dense array", "a sparse one", remedy)
    try:
        return np.asarray(values)
    except ValueError as error:  # ragged nesting
        raise invalid(parameter, owner, "be rectangular", "rows of unequal length") from error
    except RuntimeError as error:  # a torch tensor with a gradient to follow
        remedy = f"Pass {parameter}.detach(); nothing is differentiated here."
        got = "a tensor that requires a gradient"
        raise invalid(parameter, owner, "be an array", got, remedy) from error


def real_array(values: object, parameter: str, owner: str) -> FloatArray:
    """Require a rectangular array of finite real numbers; return it as float64."""
    array = plain_array(values, parameter, owner)
    if array.dtype.kind not in "fiub":
        raise invalid(parameter, owner, "hold real numbers", f"dtype {array.dtype}")
    array = array.astype(np.float64, copy=False)
    bad = ~np.isfinite(array)
    if bad.any():
        got = _count_and_place(bad, "NaN or infinite")
        raise invalid(parameter, owner, "be finite", got, "Remove or impute them first.")
    return array


def _count_and_place(bad: NDArray[np.bool_], kind: str) -> str:
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    index = where[0] if len(where) == 1 else where
    return f"{int(bad.sum())} {kind} entries, the first at index {index}"


def samples(X: object, parameter: str = "X", owner: str = "the data") -> FloatArray:
    """Require a finite, non-empty (n_samples, n_features) matrix; return it as float64.

    Entries above 1e60 in size are rejected too: their powers would overflow further on.
    """
    array = real_array(X, parameter, owner)
    if array.ndim != 2:
        remedy = f"Reshape it with {parameter}.reshape(1, -1) or {parameter}.reshape(-1, 1)."
        raise invalid(
            parameter,
            owner,
            "be a matrix of shape (n_samples, n_features)",
            f"shape {array.shape}",
            remedy if array.ndim == 1 else "",
        )
    if 0 in array.shape:
        raise invalid(
            parameter, owner, "have at least one sample and one feature", f"shape {array.shape}"
        )
    powers_finite(array, parameter, owner)
    return array


def powers_finite(array: FloatArray, parameter: str, owner: str) -> None:
    """Require entries whose fourth powers, summed, are finite: of at most 1e60 in size."""
    largest = _largest(array)
    if largest > _LARGEST:
        requirement = f"have entries of at most {_LARGEST:.0e} in size"
        remedy = "Their powers overflow; divide the data by its root mean squared norm."
        raise invalid(parameter, owner, requirement, f"{largest:.3g}", remedy)


def powers_nonzero(array: FloatArray, parameter: str, owner: str) -> None:
    """Require zeros, or some entry whose fourth power does not vanish: above 1e-60 in size."""
    _sizeable(_largest(array), _SMALLEST, parameter, owner)


def kernel_resolved(X: FloatArray, Y: FloatArray | None, owner: str) -> None:
    """Require zeros, or some entry above 1e-15 in size: the accuracy is relative to the largest."""
    largest = max(_largest(X), 0.0 if Y is None else _largest(Y))
    _sizeable(largest, _SMALLEST_OF_KERNELS, "X", owner)


def _largest(array: FloatArray) -> float:
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))


def _sizeable(largest: float, least: float, parameter: str, owner: str) -> None:
    if 0.0 < largest < least:
        requirement = f"have an entry above {least:.0e} in size, or be zero"
        remedy = "Divide the data by its root mean squared norm."
        raise invalid(parameter, owner, requirement, f"at most {largest:.3g}", remedy)


def unit_rows(X: object, parameter: str, owner: str) -> FloatArray:
    """Require samples of norm one, to within 1e-8."""
    array = samples(X, parameter, owner)
    squares = np.einsum("ij,ij->i", array, array)
    worst = int(np.abs(squares - 1.0).argmax())
    if abs(squares[worst] - 1.0) > 2e-8:
        raise invalid(
            parameter,
            owner,
            "have rows of norm one",
            f"row {worst} with norm {np.sqrt(squares[worst]):.8g}",
            f"Divide the rows by numpy.linalg.norm({parameter}, axis=1, keepdims=True).",
        )
    return array


def matrix_of_shape(
    values: object, shape: tuple[int, int], parameter: str, owner: str
) -> FloatArray:
    """Require a finite real matrix of the given shape; return it as float64."""
    array = real_array(values, parameter, owner)
    if array.shape != shape:
        raise invalid(parameter, owner, f"have shape {shape}", f"shape {array.shape}")
    return array


def increasing_points(values: object, parameter: str, owner: str) -> tuple[float, ...]:
    """Require a (possibly empty) sequence of finite numbers; return it sorted, without repeats."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise invalid(parameter, owner, "be a sequence of numbers, like (0.0,)", repr(values))
    return tuple(sorted({finite_number(v, f"each of the {parameter}", owner) for v in values}))


def scales(values: object, parameter: str, owner: str) -> FloatArray:
    """Require finite positive scales τ; any shape, returned as float64."""
    array = real_array(values, parameter, owner)
    if array.size and not (array > 0.0).all():
        worst = float(array.min())
        raise invalid(parameter, owner, "be positive", f"a value of {worst}")
    return array


def covariances(var1: FloatArray, var2: FloatArray, cov: FloatArray, owner: str) -> None:
    """Require |cov| ≤ √(var1·var2), up to rounding."""
    excess = np.abs(cov) - np.sqrt(var1) * np.sqrt(var2) * (1.0 + 1e-12)
    if excess.size and excess.max() > 0.0:
        worst = np.unravel_index(int(excess.argmax()), excess.shape)
        raise invalid(
            "cov",
            owner,
            "satisfy |cov| ≤ √(var1·var2)",
            f"cov = {cov[worst]:.6g} with var1 = {var1[worst]:.6g}, var2 = {var2[worst]:.6g}",
        )


def kernel_dtype(dtype: Any, owner: str) -> np.dtype[Any]:
    """Require float64 or float32."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise invalid("dtype", owner, "be float64 or float32", repr(dtype))
    return kind


def class_labels(
    y: object, num_samples: int, owner: str, num_classes: int | None = None
) -> IntArray:
    """Require one integer label per sample, in 0 … K − 1 if K is given; return them as int64."""
    array = plain_array(y, "y", owner)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise invalid(
            "y",
            owner,
            "be a vector of integer class labels",
            f"shape {array.shape} and dtype {array.dtype}",
            "Encode names with numpy.unique(y, return_inverse=True)[1].",
        )
    if len(array) != num_samples:
        requirement = f"have one label for each of the {num_samples} rows of X"
        raise invalid("y", owner, requirement, f"{len(array)} labels")
    array = array.astype(np.int64, copy=False)
    if num_classes is not None and len(array) and not 0 <= array.min() <= array.max() < num_classes:
        worst = int(array.min() if array.min() < 0 else array.max())
        requirement = f"hold labels from 0 to {num_classes - 1}, one for each of the classes"
        raise invalid("y", owner, requirement, f"a label {worst}")
    return array


def class_sizes(counts: IntArray, least: int, owner: str, why: str) -> None:
    """Require at least `least` samples in every class; `why` completes the sentence."""
    small = np.flatnonzero(counts < least)
    if small.size:
        first = int(small[0])
        count = int(counts[first])
        got = f"class {first} with {count}" if count else f"class {first} empty"
        plural = "sample" if least == 1 else "samples"
        raise invalid("y", owner, f"have at least {least} {plural} in every class {why}", got)


def nonzero_scale(tau0_squared: float, owner: str, rounding: float = 0.0) -> float:
    """Require τ0² = tr C°/p above zero and the rounding error it may carry; return τ0."""
    if not tau0_squared > rounding:
        remedy = "Every sample equals its class mean, so there is no scale τ0 to work at."
        raise invalid("tau0", owner, "be positive", 0.0, remedy)
    return math.sqrt(tau0_squared)


def enough_memory(needed: int, what: str, remedy: str) -> None:
    """Reject an allocation that does not fit into the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{what} needs {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB of memory are "
            f"free. {remedy}"
        )


def available_memory() -> int:
    """Bytes that can be allocated without swapping, as the operating system sees it."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 1 << 62  # unknown: let the allocation itself decide


def unpacked_fits(needed: int, path: Path) -> None:
    """Reject a file whose content is larger than the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{path} holds {needed / 2**30:.1f} GiB of data, and {available / 2**30:.1f} GiB of "
            "memory are free. Use a smaller part of it."
        )


def symmetric_operator(symmetric: bool, shape: tuple[int, int], owner: str) -> None:
    """Require a kernel of X with itself, for what makes sense of no other."""
    if not symmetric:
        raise InvalidInput(
            f"diagonal() of {owner} must be asked of a symmetric kernel. Got a cross kernel of "
            f"shape {shape}, made with Y. Leave Y out for the kernel of X with itself."
        )


DEEPEST = 100
"""Levels of nesting that are read: far more than we write, far less than what Python can follow."""


def strict_json(text: str | bytes) -> Any:
    """Parse JSON as its standard has it: no NaN, no infinity, and no key twice in one object.

    Raises
    ------
    ValueError
        The text is something else, or nested more than `DEEPEST` levels deep.
    """
    try:
        content = json.loads(text, parse_constant=_not_json, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if not shallow(content):
        raise ValueError(_TOO_DEEP)
    return content


def shallow(content: Any) -> bool:
    """Whether lists and mappings lie at most `DEEPEST` levels within each other."""
    level = [content]
    for _ in range(DEEPEST + 1):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return True
    return False


def _members(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return content


def head_budget(head: str, spectral_budget: object, owner: str) -> float:
    """Require the bound that belongs to a head: none, s > 0, s ≥ 0 or 0 ≤ ρ < 1; return it."""
    if head == "plain":
        if spectral_budget is not None:
            remedy = "The plain head is the identity; it has no matrix to bound."
            got = repr(spectral_budget)
            raise invalid("spectral_budget", owner, "be None for a plain head", got, remedy)
        return 0.0
    if spectral_budget is None:
        requirement = f"be given for the {head} head"
        raise invalid("spectral_budget", owner, requirement, None)
    number = finite_number(spectral_budget, "spectral_budget", owner)
    if head == "deq" and not 0.0 <= number < 1.0:
        remedy = "The layer z = A z + h must contract."
        raise invalid("spectral_budget", owner, "satisfy 0 ≤ ρ < 1 for a DEQ", number, remedy)
    if head == "explicit" and number <= 0.0:
        raise invalid("spectral_budget", owner, "be positive for an explicit head", number)
    if number < 0.0:
        raise invalid("spectral_budget", owner, "not be negative", number)
    return number


RESOLVED = 1e-6
"""Relative residual above which a dense solution is called one of rounding errors."""


def sufficient_ridge(norm: float, tolerance: float) -> float:
    """Return a λ at which rounding errors of K, 2.2e-16·‖K‖, cannot spoil any right-hand side."""
    return 2.0 * float(np.finfo(np.float64).eps) * norm / tolerance


def resolved(
    system: FloatArray, x: FloatArray, B: FloatArray, ridge: float, owner: str, remedy: str = ""
) -> None:
    """Require that x, of shape (n, k), solves the `system` K + λI to a relative 1e-6.

    A factorisation is exact for a matrix that differs from K + λI by rounding errors.  Where they
    are not small beside λ, as with equal rows, they decide x, and the residual shows it.
    """
    largest = np.abs(B).max(axis=0)
    units = np.where(largest > 0.0, largest, 1.0)  # squares of tiny targets would vanish
    norms = np.linalg.norm(B / units, axis=0)
    gaps = np.linalg.norm((B - system @ x) / units, axis=0) / np.where(norms > 0.0, norms, 1.0)
    if not gaps.max() <= RESOLVED:
        enough = sufficient_ridge(float(np.linalg.norm(system, 1)), RESOLVED)
        raise NotConverged(
            f"(K + λI) x = y of {owner} was not solved at λ = {ridge:g}: rounding errors leave a "
            f"relative residual of {gaps.max():.2g}, above {RESOLVED:g}. Rows that are equal, or "
            "nearly so, and have different targets want a larger ridge: "
            f"{enough:.1g} is enough{remedy}."
        )
