"""From raw features to the theory's convention, and the record that repeats it on new data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray

# A sample of the mixture paper is x ~ N(μ_a/√p, C_a/p): means and covariances are those of the raw
# vector √p·x.  Every factor of √p between the two worlds goes through these two functions.


def to_theory_scale(raw: FloatArray) -> FloatArray:
    """Scale raw vectors (…, p) with law N(μ_a, C_a) to the theory's x = raw/√p."""
    return raw / math.sqrt(raw.shape[-1])


def from_theory_scale(X: FloatArray) -> FloatArray:
    """Scale theory vectors (…, p) back to raw ones, √p·x."""
    return X * math.sqrt(X.shape[-1])


PreprocessingKind = Literal["theory", "pixels", "unit_range", "unit_norm", "none"]
FloatName = Literal["float64", "float32"]

# Numbers handled at a time: half a megabyte, which stays in a core's own cache.
_BLOCK = 65536


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """A map of raw rows that was fixed on training data and applies unchanged to any other.

    Attributes
    ----------
    kind : {"theory", "pixels", "unit_range", "unit_norm", "none"}
        ``theory``: x ↦ (x − mean)/scale with the training mean and the training root mean squared
        norm scale = √(mean_i ‖x_i − mean‖²), so that τ0 ≈ 1 (mixture theory, real data).
        ``pixels``: the same, times √(number of pixels): a pixel of an image has norm one in the
        mean square, as convolutional models want it.
        ``unit_range``: x ↦ x/scale with the largest value of a pixel, as trained networks take
        images.  ``unit_norm``: x ↦ x/‖x‖ (sphere theory).  ``none``: x ↦ x.
    num_features : int
        Number of features p.
    mean : ndarray of shape (p,) or None
        Training mean; only for ``theory`` and ``pixels``.
    scale : float
        Training root mean squared norm, of rows or of pixels; 1 without a mean.

    Examples
    --------
    >>> raw = [[1.0, 2.0], [3.0, 2.0], [5.0, 5.0]]
    >>> fitted = Preprocessing.fit(raw)
    >>> fitted.mean, round(fitted.scale, 6)
    (array([3., 3.]), 2.160247)
    >>> fitted.apply([[5.0, 3.0]]).round(6)  # new rows: the training rows' mean and scale
    array([[0.92582, 0.     ]])
    """

    kind: PreprocessingKind
    num_features: int
    mean: FloatArray | None = None
    scale: float = 1.0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Preprocessing):
            return NotImplemented
        same = self.kind == other.kind and self.num_features == other.num_features
        if self.mean is None or other.mean is None:
            return same and self.mean is other.mean and self.scale == other.scale
        return same and np.array_equal(self.mean, other.mean) and self.scale == other.scale

    def __hash__(self) -> int:
        mean = b"" if self.mean is None else self.mean.tobytes()
        return hash((self.kind, self.num_features, mean, self.scale))

    @classmethod
    def fit(
        cls,
        X: object,
        kind: PreprocessingKind = "theory",
        *,
        pixels: int | None = None,
        weights: FloatArray | None = None,
    ) -> Preprocessing:
        """Fix the map on training data.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Raw training rows, of any real dtype.
        kind : {"theory", "pixels", "unit_range", "unit_norm", "none"}
            Which map.
        pixels : int, optional
            Number of pixels in a row, for ``pixels``; p, for images of one channel, if left out.
        weights : ndarray of shape (n,), optional
            Positive; a row of weight 2 counts as two rows.

        Raises
        ------
        InvalidInput
            ``theory`` with rows that are all equal: they have no scale.
        """
        rows = _rows(X)
        checks.known_name(kind, get_args(PreprocessingKind), "preprocessing")
        if kind == "unit_norm" or kind == "none":
            return cls(kind, rows.shape[1])
        if kind == "unit_range":
            return cls(kind, rows.shape[1], scale=255.0 if rows.dtype == np.uint8 else 1.0)
        checks.powers_nonzero(rows, "X", "Preprocessing")
        count = float(len(rows) if weights is None else weights.sum())
        mean = rows.mean(axis=0, dtype=np.float64) if weights is None else weights @ rows / count
        total = 0.0
        for block in _blocks(rows):
            centred = rows[block] - mean
            squares = np.einsum("ij,ij->i", centred, centred)
            total += float(squares.sum() if weights is None else weights[block] @ squares)
        # Equal rows can leave their rounding errors, 1e-16 of the mean, behind.
        if not total > count * 1e-26 * float(mean @ mean):
            remedy = "All rows are equal, so there is no scale to divide by."
            raise checks.invalid("X", "Preprocessing", "have two different rows", "one", remedy)
        mean.flags.writeable = False
        scale = math.sqrt(total / count)
        if kind == "theory":
            return cls("theory", rows.shape[1], mean, scale)
        return cls("pixels", rows.shape[1], mean, scale / math.sqrt(pixels or rows.shape[1]))

    def apply(self, X: object, dtype: FloatName = "float64") -> FloatArray:
        """Map raw rows (n, p) to the convention; n may be zero.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Raw rows, with the features the map was fixed on.
        dtype : {"float64", "float32"}
            Precision of the result; the arithmetic is in float64.

        Raises
        ------
        InvalidInput
            Another number of features, or a row of norm zero under ``unit_norm``.
        """
        rows = _rows(X, self.num_features)
        result = np.empty(rows.shape, dtype=np.dtype(dtype))
        for block in _blocks(rows):
            values = rows[block].astype(np.float64)
            if self.mean is not None:
                values -= self.mean
                values /= self.scale
            elif self.kind == "unit_norm":
                values /= _norms(values, block.start)
            else:
                values /= self.scale
            result[block] = values
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form; `from_dict` gives back an equal map, to the last bit."""
        mean = None if self.mean is None else self.mean.tolist()
        return {
            "kind": self.kind,
            "num_features": self.num_features,
            "mean": mean,
            "scale": self.scale,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Preprocessing:
        """Rebuild a map from `to_dict`."""
        mean = None
        if content["mean"] is not None:
            mean = np.asarray(content["mean"], dtype=np.float64)
            mean.flags.writeable = False
        return cls(content["kind"], int(content["num_features"]), mean, float(content["scale"]))


def _rows(X: object, num_features: int | None = None) -> NDArray[Any]:
    """Require finite real rows, without a float copy of integers (an image set is large)."""
    if isinstance(X, np.ndarray) and X.dtype.kind in "iub":
        array = checks.plain_array(X, "X", "Preprocessing")
    else:
        array = checks.real_array(X, "X", "Preprocessing")
        checks.powers_finite(array, "X", "Preprocessing")
    if array.ndim != 2 or array.shape[1] == 0 or (num_features is None and not len(array)):
        requirement = "be a matrix of shape (n_samples, n_features)"
        raise checks.invalid("X", "Preprocessing", requirement, f"shape {array.shape}")
    if num_features is not None and array.shape[1] != num_features:
        requirement = f"have the {num_features} features of the training data"
        raise checks.invalid("X", "Preprocessing", requirement, f"{array.shape[1]} features")
    return array


def _blocks(rows: NDArray[Any]) -> Iterator[slice]:
    step = max(1, _BLOCK // rows.shape[1])
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _norms(block: FloatArray, start: int) -> FloatArray:
    norms = np.linalg.norm(block, axis=1, keepdims=True)
    if not norms.all():
        row = start + int(np.flatnonzero(norms == 0.0)[0])
        remedy = "It has no direction; remove it, or use preprocessing='theory'."
        raise checks.invalid(
            "X", "Preprocessing", "have no zero row under unit_norm", f"row {row}", remedy
        )
    return np.asarray(norms)
