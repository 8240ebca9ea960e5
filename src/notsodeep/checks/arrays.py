"""Checks of arrays of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from notsodeep.checks.scalars import finite_number
from notsodeep.checks.wording import refusal

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Kernels need squares of the data, statistics fourth powers; these stay inside double precision.
_LARGEST = 1e60
_SMALLEST = 1e-60
# Kernels count norms below 1e-30 as 1e-30, which must be nothing beside the largest.
_SMALLEST_OF_KERNELS = 1e-15


def unmasked(values: object, parameter: str, owner: str) -> None:
    """Require that no entry of a masked array, or of a list of them, is masked.

    NumPy's own functions go on with what is behind the mask.
    """
    if isinstance(values, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(values)
        if masked.any():
            got = _count_and_place(masked, "masked")
            remedy = "What is behind a mask is no data: leave those rows out, or fill them."
            raise refusal(parameter, owner, "have no masked entries", got, remedy)
    elif isinstance(values, list | tuple):
        for part in values:
            if isinstance(part, list | tuple | np.ma.MaskedArray):
                unmasked(part, parameter, owner)


def plain_array(values: object, parameter: str, owner: str) -> NDArray[Any]:
    """Require something rectangular without masked entries; return it as an array of any dtype."""
    unmasked(values, parameter, owner)
    try:
        return np.asarray(values)
    except ValueError as error:  # ragged nesting
        raise refusal(parameter, owner, "be rectangular", "rows of unequal length") from error
    except RuntimeError as error:  # a torch tensor with a gradient to follow
        raise refusal(parameter, owner, "be an array", str(error)) from error


def real_array(values: object, parameter: str, owner: str) -> FloatArray:
    """Require a rectangular array of finite real numbers; return it as float64."""
    array = plain_array(values, parameter, owner)
    if array.dtype.kind not in "fiub":
        raise refusal(parameter, owner, "hold real numbers", f"dtype {array.dtype}")
    array = array.astype(np.float64, copy=False)
    bad = ~np.isfinite(array)
    if bad.any():
        got = _count_and_place(bad, "NaN or infinite")
        raise refusal(parameter, owner, "be finite", got, "Remove or impute them first.")
    return array


def _count_and_place(bad: NDArray[np.bool_], kind: str) -> str:
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    index = where[0] if len(where) == 1 else where
    return f"{int(bad.sum())} {kind} entries, the first at index {index}"


def samples(X: object, parameter: str = "X", owner: str = "the data") -> FloatArray:
    """Require a finite, non-empty (n_samples, n_features) matrix; return it as float64.

    Entries above 1e60 in size are refused too: their powers would overflow further on.
    """
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
    powers_finite(array, parameter, owner)
    return array


def powers_finite(array: FloatArray, parameter: str, owner: str) -> None:
    """Require entries whose fourth powers, summed, are finite: of at most 1e60 in size."""
    largest = _largest(array)
    if largest > _LARGEST:
        requirement = f"have entries of at most {_LARGEST:.0e} in size"
        remedy = "Their powers overflow; divide the data by its root mean squared norm."
        raise refusal(parameter, owner, requirement, f"{largest:.3g}", remedy)


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
        raise refusal(parameter, owner, requirement, f"at most {largest:.3g}", remedy)


def unit_rows(X: object, parameter: str, owner: str) -> FloatArray:
    """Require samples of norm one, to within 1e-8."""
    array = samples(X, parameter, owner)
    squares = np.einsum("ij,ij->i", array, array)
    worst = int(np.abs(squares - 1.0).argmax())
    if abs(squares[worst] - 1.0) > 2e-8:
        raise refusal(
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
        raise refusal(parameter, owner, f"have shape {shape}", f"shape {array.shape}")
    return array


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


def kernel_dtype(dtype: Any, owner: str) -> np.dtype[Any]:
    """Require float64 or float32."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise refusal("dtype", owner, "be float64 or float32", repr(dtype))
    return kind
