"""Checks of user input: one function per condition, and the only place where messages are worded.

A message names the parameter, its owner, the requirement and the value got, and ends with a
remedy where one is known.  Checks return the value in the form the caller wants it in.
"""

from __future__ import annotations

import difflib
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.errors import InvalidInput, NotEnoughMemory, UnknownName

FloatArray = NDArray[np.float64]


def refusal(
    parameter: str, owner: str, requirement: str, got: object, remedy: str = ""
) -> InvalidInput:
    """Word the standard message: parameter, owner, requirement, value got, remedy."""
    message = f"{parameter} of {owner} must {requirement}. Got {got}."
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
        raise refusal(parameter, owner, "be a finite real number", repr(value))
    if isinstance(value, np.ndarray) and (value.ndim or value.dtype.kind not in "fiu"):
        raise refusal(parameter, owner, "be a single finite real number", f"shape {value.shape}")
    number = float(value)
    if not math.isfinite(number):
        raise refusal(parameter, owner, "be finite", number)
    return number


def positive_number(value: object, parameter: str, owner: str, remedy: str = "") -> float:
    """Require one finite number above zero."""
    number = finite_number(value, parameter, owner)
    if number <= 0.0:
        raise refusal(parameter, owner, "be positive", number, remedy)
    return number


def positive_integer(value: object, parameter: str, owner: str) -> int:
    """Require an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < 1:
        raise refusal(parameter, owner, "be an integer of at least 1", repr(value))
    return int(value)


def recurrent_variance(value: object, owner: str = "DeepEquilibrium") -> float:
    """Require 0 ≤ σa² < 1 (σb² = 1 − σa² must stay positive)."""
    number = finite_number(value, "sigma_a2", owner)
    if not 0.0 <= number < 1.0:
        remedy = (
            "sigma_a2 is the share of variance carried by the recurrent weights A; the rest, "
            "1 − sigma_a2, goes to the input weights B. Values up to 0.25 are typical."
        )
        raise refusal("sigma_a2", owner, "satisfy 0 ≤ sigma_a2 < 1", number, remedy)
    return number


def increasing_points(values: object, parameter: str, owner: str) -> tuple[float, ...]:
    """Require a (possibly empty) sequence of finite numbers; return it sorted, without repeats."""
    if not isinstance(values, Iterable) or isinstance(values, str):
        raise refusal(parameter, owner, "be a sequence of numbers, like (0.0,)", repr(values))
    return tuple(sorted({finite_number(v, f"each of the {parameter}", owner) for v in values}))


def scales(values: object, parameter: str, owner: str) -> FloatArray:
    """Require finite positive scales τ; any shape, returned as float64."""
    array = real_array(values, parameter, owner)
    if array.size and not (array > 0.0).all():
        worst = float(array.min())
        raise refusal(parameter, owner, "be positive", f"a value of {worst}")
    return array


def real_array(values: object, parameter: str, owner: str) -> FloatArray:
    """Require a rectangular array of finite real numbers; return it as float64."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # ragged nesting
        raise refusal(parameter, owner, "be rectangular", "rows of unequal length") from error
    if array.dtype.kind not in "fiub":
        raise refusal(parameter, owner, "hold real numbers", f"dtype {array.dtype}")
    array = array.astype(np.float64, copy=False)
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        index = where[0] if len(where) == 1 else where
        raise refusal(
            parameter,
            owner,
            "be finite",
            f"{int(bad.sum())} NaN or infinite entries, the first at index {index}",
            "Remove or impute them first.",
        )
    return array


def samples(X: object, parameter: str = "X", owner: str = "the data") -> FloatArray:
    """Require a finite, non-empty (n_samples, n_features) matrix; return it as float64."""
    array = real_array(X, parameter, owner)
    if array.ndim != 2:
        remedy = f"Reshape it with {parameter}.reshape(1, -1) or {parameter}.reshape(-1, 1)."
        raise refusal(
            parameter,
            owner,
            "be a matrix of shape (n_samples, n_features)",
            f"shape {array.shape}",
            remedy if array.ndim == 1 else "",
        )
    if 0 in array.shape:
        raise refusal(
            parameter, owner, "have at least one sample and one feature", f"shape {array.shape}"
        )
    return array


def random_generator(rng: Any, owner: str) -> np.random.Generator:
    """Turn a seed (a non-negative integer) or a Generator into a Generator."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, numbers.Integral) and not isinstance(rng, bool) and int(rng) >= 0:
        return np.random.default_rng(int(rng))
    requirement = "be a non-negative integer seed or a numpy.random.Generator"
    raise refusal("rng", owner, requirement, repr(rng))


IntArray = NDArray[np.int64]


def class_labels(
    y: object, num_samples: int, owner: str, num_classes: int | None = None
) -> IntArray:
    """Require one integer label per sample, in 0 … K − 1 if K is given; return them as int64."""
    array = np.asarray(y)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise refusal(
            "y",
            owner,
            "be a vector of integer class labels",
            f"shape {array.shape} and dtype {array.dtype}",
            "Encode names with numpy.unique(y, return_inverse=True)[1].",
        )
    if len(array) != num_samples:
        requirement = f"have one label for each of the {num_samples} rows of X"
        raise refusal("y", owner, requirement, f"{len(array)} labels")
    array = array.astype(np.int64, copy=False)
    if num_classes is not None and len(array) and not 0 <= array.min() <= array.max() < num_classes:
        worst = int(array.min() if array.min() < 0 else array.max())
        requirement = f"hold labels from 0 to {num_classes - 1}, one for each of the classes"
        raise refusal("y", owner, requirement, f"a label {worst}")
    return array


def class_sizes(counts: IntArray, least: int, owner: str, why: str) -> None:
    """Require at least `least` samples in every class; `why` completes the sentence."""
    small = np.flatnonzero(counts < least)
    if small.size:
        first = int(small[0])
        count = int(counts[first])
        got = f"class {first} with {count}" if count else f"class {first} empty"
        plural = "sample" if least == 1 else "samples"
        raise refusal("y", owner, f"have at least {least} {plural} in every class {why}", got)


def class_proportions(weights: object, num_classes: int, owner: str) -> FloatArray:
    """Require K positive weights that sum to one; None stands for equal weights."""
    if weights is None:
        return np.full(num_classes, 1.0 / num_classes)
    array = real_array(weights, "weights", owner)
    if array.shape != (num_classes,):
        requirement = f"hold one number for each of the {num_classes} rows of means"
        raise refusal("weights", owner, requirement, f"shape {array.shape}")
    if not (array > 0.0).all():
        remedy = "Leave out a class that never occurs."
        raise refusal("weights", owner, "be positive", f"a weight of {array.min()}", remedy)
    if abs(array.sum() - 1.0) > 1e-8:
        raise refusal("weights", owner, "sum to 1", f"a sum of {array.sum()}", "Divide by the sum.")
    return np.asarray(array / array.sum(), dtype=np.float64)


def nonzero_scale(tau0_squared: float, owner: str, rounding: float = 0.0) -> float:
    """Require τ0² = tr C°/p above zero and the rounding error it may carry; return τ0."""
    if not tau0_squared > rounding:
        remedy = "Every sample equals its class mean, so there is no scale τ0 to work at."
        raise refusal("tau0", owner, "be positive", 0.0, remedy)
    return math.sqrt(tau0_squared)


def covariance_stack(covariances: object, means: FloatArray, owner: str) -> FloatArray:
    """Require one scalar, K scalars, (K, p) diagonals or (K, p, p) symmetric matrices."""
    K, p = means.shape
    array = real_array(covariances, "covariances", owner)
    if array.ndim == 0:
        array = np.full(K, float(array))
    if array.shape not in ((K,), (K, p), (K, p, p)):
        requirement = f"be a scalar, or have shape ({K},), ({K}, {p}) or ({K}, {p}, {p})"
        remedy = "They are K scalars, K diagonals or K full matrices, one per row of means."
        raise refusal("covariances", owner, requirement, f"shape {array.shape}", remedy)
    if array.ndim < 3 and (array < 0.0).any():
        remedy = "A covariance is positive semi-definite."
        raise refusal("covariances", owner, "not be negative", f"a value of {array.min()}", remedy)
    if array.ndim == 3:
        for a, matrix in enumerate(array):
            gap = float(np.abs(matrix - matrix.T).max())
            if gap > 1e-10 * max(float(np.abs(matrix).max()), 1e-300):
                got = f"class {a} with an asymmetry of {gap:.3g}"
                raise refusal("covariances", owner, "be symmetric", got, "Use (C + C.T) / 2.")
    return array


def positive_semidefinite(smallest: float, largest: float, a: int, owner: str) -> None:
    """Require that the smallest eigenvalue of class `a` is not negative beyond rounding."""
    if smallest < -1e-10 * max(largest, 0.0) or largest < 0.0:
        raise refusal(
            "covariances",
            owner,
            "be positive semi-definite",
            f"class {a} with a smallest eigenvalue of {smallest:.6g}",
            "Clip its negative eigenvalues, or estimate it from more samples.",
        )


def variances(values: object, parameter: str, owner: str) -> FloatArray:
    """Require finite numbers of at least zero."""
    array = real_array(values, parameter, owner)
    if array.size and array.min() < 0.0:
        raise refusal(parameter, owner, "be at least 0", f"a value of {float(array.min())}")
    return array


def covariances(var1: FloatArray, var2: FloatArray, cov: FloatArray, owner: str) -> None:
    """Require |cov| ≤ √(var1·var2), up to rounding."""
    excess = np.abs(cov) - np.sqrt(var1) * np.sqrt(var2) * (1.0 + 1e-12)
    if excess.size and excess.max() > 0.0:
        worst = np.unravel_index(int(excess.argmax()), excess.shape)
        raise refusal(
            "cov",
            owner,
            "satisfy |cov| ≤ √(var1·var2)",
            f"cov = {cov[worst]:.6g} with var1 = {var1[worst]:.6g}, var2 = {var2[worst]:.6g}",
        )


def elementwise(function: Callable[[FloatArray], Any], owner: str) -> None:
    """Require that a function maps float64 arrays entry by entry to float64 arrays."""
    x = np.linspace(-2.0, 2.0, 12)
    try:
        with np.errstate(all="ignore"):
            whole = function(x.copy())
            square = function(x.reshape(3, 4))
            part = function(x[::2].copy())
    except Exception as error:
        raise InvalidInput(
            f"The {owner} must accept NumPy arrays of any shape. It raised "
            f"{type(error).__name__}: {error}. Write it with NumPy functions "
            "(np.tanh, np.where, …), or wrap it in numpy.vectorize."
        ) from error
    for argument, result in ((x, whole), (x.reshape(3, 4), square), (x[::2], part)):
        shape = np.shape(result)
        if shape != argument.shape:
            requirement = "return an array of the shape it is given"
            got = f"shape {shape} for shape {argument.shape}"
            raise InvalidInput(f"The {owner} must {requirement}. Got {got}.")
        dtype = np.asarray(result).dtype
        if dtype != np.float64:
            raise InvalidInput(
                f"The {owner} must return float64 for float64 input. Got dtype {dtype}. "
                "Lower precision would spoil every moment; keep the computation in double."
            )
    if not np.array_equal(whole[::2], part, equal_nan=True):
        raise InvalidInput(
            f"The {owner} must be elementwise and deterministic: its value at a point changed with "
            "the other points in the array, or from one call to the next."
        )


def stored_form(data: object, kind: str, keys: set[str]) -> None:
    """Require a mapping with exactly the stored keys and the right kind."""
    if not isinstance(data, Mapping) or data.get("kind") != kind or set(data) != {"kind", *keys}:
        got = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise InvalidInput(
            f"A stored {kind} must have kind = {kind!r} and the keys {sorted(keys)}. Got {got}."
        )


def kernel_dtype(dtype: Any, owner: str) -> np.dtype[Any]:
    """Require float64 or float32."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise refusal("dtype", owner, "be float64 or float32", repr(dtype))
    return kind


def output_array(out: object, shape: tuple[int, int], owner: str) -> None:
    """Require a writable float array of the given shape to put a result into."""
    if not isinstance(out, np.ndarray) or out.shape != shape:
        got = f"shape {np.shape(out)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise refusal("out", owner, f"be an array of shape {shape}", got)
    if out.dtype not in (np.float64, np.float32) or not out.flags.writeable:
        state = "" if out.flags.writeable else ", read-only"
        raise refusal("out", owner, "be writable, of float64 or float32", f"{out.dtype}{state}")


def enough_memory(needed: int, what: str) -> None:
    """Refuse an allocation that does not fit into the memory that is free now."""
    available = available_memory()
    if needed > available:
        raise NotEnoughMemory(
            f"{what} needs {needed / 2**30:.1f} GiB, and {available / 2**30:.1f} GiB of memory are "
            "free. Use dtype=numpy.float32, out=numpy.memmap(…) for a result on disk, or "
            "KernelOperator, which never holds the whole kernel."
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


def memory_budget(value: object, least: int, owner: str) -> int:
    """Require a number of bytes of at least `least`."""
    number = finite_number(value, "memory", owner)
    if number < least:
        requirement = f"be at least {least:,} bytes"
        raise refusal("memory", owner, requirement, f"{number:g}", "One GiB is 2**30.")
    return int(number)


def cache_fits(needed: int, memory: int, owner: str) -> None:
    """Refuse a cache that is larger than its budget, or than the memory that is free now."""
    available = available_memory()
    if needed > min(memory, available):
        raise NotEnoughMemory(
            f"The cache of {owner} needs {needed / 2**20:,.1f} MiB. It has memory = "
            f"{memory / 2**20:,.1f} MiB, and {available / 2**20:,.1f} MiB are free. "
            "Use cache='never', or cache='float32' and a larger memory."
        )


def symmetric_operator(symmetric: bool, shape: tuple[int, int], owner: str) -> None:
    """Require a kernel of X with itself, for what makes sense of no other."""
    if not symmetric:
        raise InvalidInput(
            f"diagonal() of {owner} must be asked of a symmetric kernel. Got a cross kernel of "
            f"shape {shape}, made with Y. Leave Y out for the kernel of X with itself."
        )


def integer_at_least(
    value: object, least: int, parameter: str, owner: str, remedy: str = ""
) -> int:
    """Require an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        requirement = f"be an integer of at least {least}"
        raise refusal(parameter, owner, requirement, repr(value), remedy)
    return int(value)


def matrix_of_shape(
    values: object, shape: tuple[int, int], parameter: str, owner: str
) -> FloatArray:
    """Require a finite real matrix of the given shape; return it as float64."""
    array = real_array(values, parameter, owner)
    if array.shape != shape:
        raise refusal(parameter, owner, f"have shape {shape}", f"shape {array.shape}")
    return array
