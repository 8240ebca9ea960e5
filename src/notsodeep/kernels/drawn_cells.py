"""One random DEQ of finite width, and its features: float32 products, float64 where it is asked.

Weights are rounded to float32, so that the network is the same in either precision.  From
rest the iteration runs in float32 until its residual is at most 1e-6.  Beyond that it continues in
float64: every product z W is z₀W + (z − z₀)W, the first computed once in float64, the second in
float32, whose error is 1e-7 of a difference that is small itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import inv

from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.models import DeepEquilibrium
from notsodeep.models.cell import Dense
from notsodeep.numerics.fixed_point import FixedPoint

Real = NDArray[Any]
"""Of float32 or float64."""
Entries = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float32]]
"""Makes float32 matrices with entries of mean 0 and variance 1."""

SINGLE = 1e-6  # residuals that are certain in float32
_RANGE = 1e15  # of pre-activations, both ways, that leave float32 room to square
_PROBE = 64  # rows that show the slopes of φ
_ROWS = 512  # in one pass: they stay in the cache
_CHUNK = 2**17  # random numbers that stay in the cache
_STALL = 8  # steps in which float32 must have made progress
_NOISE = 16.0 * float(np.finfo(np.float32).eps)  # of a float32 product, relative, with room


def normal_entries(generator: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw standard normal float32 numbers, by Box and Muller's √(−2 log u)(cos 2πv, sin 2πv).

    Twice as fast as NumPy's, because all of it is vectorised.  u has 24 bits: none is above 5.77.
    """
    result = np.empty(shape, np.float32)
    flat = result.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        half = (len(part) + 1) // 2
        radius, angle = (generator.random(half, dtype=np.float32) for _ in range(2))
        np.log(np.subtract(np.float32(1.0), radius, out=radius), out=radius)
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        angle *= np.float32(2.0 * math.pi)
        np.multiply(radius, np.cos(angle), out=part[:half])
        np.sin(angle, out=angle)
        np.multiply(radius[: len(part) - half], angle[: len(part) - half], out=part[half:])
    return result


class DrawnCell:
    """A cell of width m with weights of its own.

    Parameters
    ----------
    deq : DeepEquilibrium
    inputs, width : int
        p and m.
    entries : callable
    generator : numpy.random.Generator
    """

    def __init__(
        self,
        deq: DeepEquilibrium,
        inputs: int,
        width: int,
        entries: Entries,
        generator: np.random.Generator,
    ) -> None:
        self.deq, self.width = deq, width
        self._layers = [_DrawnLayer(each, inputs, width, entries, generator) for each in deq.cell]

    def features(self, X: FloatArray, tolerance: float, max_steps: int) -> Real:
        """Return z* of every row, shape (n, m): in float32 for a tolerance of 1e-6 or more.

        Raises
        ------
        NotConverged
            With the record of the rows, 512 at most, among which there was no fixed point.
        """
        starts = range(0, len(X), _ROWS)
        linear = self._linear_part(X, max(tolerance, SINGLE))
        parts = [self._units(X[k : k + _ROWS], tolerance, max_steps, linear) for k in starts]
        units: Real = np.concatenate(parts) if len(parts) > 1 else parts[0]
        units *= units.dtype.type(1.0 / math.sqrt(self.width))
        return units

    def last_reads(self, features: Real, X: FloatArray) -> Real:
        """Return what the last layer reads: what the layers before make of the features."""
        if len(self._layers) == 1:
            return features
        units = np.asarray(features, dtype=np.float64) * math.sqrt(self.width)
        with np.errstate(over="ignore", invalid="ignore"):
            for layer in self._layers[:-1]:
                units = layer.turn(units, layer.drive(X, np.float64), _Product(layer, 0.0))
        return units / math.sqrt(self.width)

    def _linear_part(self, X: FloatArray, tolerance: float) -> _LinearPart | None:
        """Return what takes fewer steps in float32, if there are rows enough to be worth it."""
        layer = self._layers[0]
        single = len(self._layers) == 1 and layer.layer.normalise == "none"
        if layer.weight is None or not single or not layer.fits_float32(X):
            return None
        rows = X[:: max(1, len(X) // _PROBE)][:_PROBE]
        drive = layer.drive(rows, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            field = layer.activation(drive) @ layer.weight + drive
            slopes = layer.layer.activation.derivative(field.astype(np.float64))
        # The squared spectral radii of both iterations, linearised, at large width.
        slope, square = float(slopes.mean()), layer.layer.weight * float(np.square(slopes).mean())
        known = layer.layer.weight * slope**2
        if not (0.0 < square < 0.8 and 0.0 < known < square):
            return None
        goal = 2.0 * math.log(tolerance)
        saved = goal / math.log(square) - goal / math.log((square - known) / (1.0 - known)) - 1.0
        if saved * len(X) < 2.0 * self.width:
            return None
        return _LinearPart(slope, layer)

    def _units(
        self, X: FloatArray, tolerance: float, max_steps: int, linear: _LinearPart | None
    ) -> Real:
        """Iterate turns from zero until every row's relative residual is within the tolerance."""
        state: Real = np.zeros((len(X), self.width), np.float32)
        residual, steps, reason = math.inf, 0, ""
        if all(layer.fits_float32(X) for layer in self._layers):
            goal = max(tolerance, SINGLE)
            drives = [layer.drive(X, np.float32) for layer in self._layers]
            if linear is not None:
                state, steps = linear.iterate(drives[0], goal, max_steps - 1)
            left = max_steps - steps
            state, residual, more, reason = self._iterate(state, drives, goal, left, stall=_STALL)
            steps += more
            if residual <= tolerance:
                return state
            if not np.isfinite(residual):  # float64 reaches further
                state = np.zeros_like(state)
        if steps < max_steps:
            units, left = state.astype(np.float64), max_steps - steps
            drives = [layer.drive(X, np.float64) for layer in self._layers]
            state, residual, more, reason = self._iterate(units, drives, tolerance, left)
            steps += more
            if residual <= tolerance:
                return state
        remedy = "Use smaller weights, a larger width or more steps."
        if self.deq.is_vanilla:
            remedy = (
                "At finite width they are sure to exist for "
                f"σa² < 1/(4L²) = {self.deq.contraction_bound:.4g} only. Use a smaller sigma_a2, "
                "a larger width or more steps."
            )
        raise NotConverged(
            f"The features z* of a {self.deq} of width {self.width} were not found: {reason} "
            f"(relative residual {residual:.3g} after {steps} steps). {remedy}",
            FixedPoint(
                np.asarray(state / math.sqrt(self.width), dtype=np.float64),
                False,
                residual,
                steps,
                reason,
            ),
        )

    def _iterate(
        self, state: Real, drives: list[Real], goal: float, max_steps: int, stall: int = 0
    ) -> tuple[Real, float, int, str]:
        """Return the last iterate, its residual, the number of steps, and why it ended there."""
        products = [_Product(layer, goal) for layer in self._layers]
        tiny = np.finfo(state.dtype).tiny
        history: list[float] = []
        while len(history) < max_steps:
            image = state
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                for layer, drive, product in zip(self._layers, drives, products, strict=True):
                    image = layer.turn(image, drive, product)
                size = _row_norms(image)
                residual = float((_row_norms(image - state) / np.maximum(size, tiny)).max())
            if not np.isfinite(size).all():
                return state, math.inf, len(history) + 1, "the iterates grow without bound"
            state = image
            history.append(residual)
            if residual <= goal:
                break
            # Rounding errors keep float32 from coming nearer, or there is nothing to come near to.
            if stall and len(history) > stall and residual > 0.9 * history[-1 - stall]:
                break
        reason = f"no convergence in {len(history)} steps"
        return state, history[-1], len(history), reason


class _DrawnLayer:
    """The weights of one layer, and what it does."""

    def __init__(
        self,
        layer: Dense,
        inputs: int,
        width: int,
        entries: Entries,
        generator: np.random.Generator,
    ) -> None:
        self.layer = layer
        self._injection = entries(generator, (inputs, width))
        self._bias = entries(generator, (1, width)) if layer.bias > 0.0 else None
        # Samples are rows, so this is the transpose of √(weight/m)·A.
        self.weight = entries(generator, (width, width)) if layer.weight > 0.0 else None
        if self.weight is not None:
            self.weight *= np.float32(math.sqrt(layer.weight / width))

    def fits_float32(self, X: FloatArray) -> bool:
        """Whether the pre-activations of these rows keep clear of float32's largest and least."""
        with np.errstate(over="ignore", under="ignore"):
            norms = math.sqrt(self.layer.inject) * _row_norms(X)
        return bool(((norms == 0.0) | (norms > 1.0 / _RANGE)).all() and (norms < _RANGE).all())

    def drive(self, X: FloatArray, kind: type[Any]) -> Real:
        """Return √inject·X Uᵀ + √bias·βᵀ, in the precision asked for."""
        rows = X.astype(kind, copy=False) * kind(math.sqrt(self.layer.inject))
        field = np.asarray(rows @ self._injection.astype(kind, copy=False))
        if self._bias is not None:
            field += kind(math.sqrt(self.layer.bias)) * self._bias.astype(kind)
        return field

    def turn(self, units: Real, drive: Real, product: _Product) -> Real:
        """Return φ of the weights times the units, with normalisation."""
        field = drive
        if self.weight is not None:
            field = product(units)
            field += drive
        if self.layer.normalise == "preactivation":
            field = _normalised(field)
        result = self.activation(field)
        return _normalised(result) if self.layer.normalise == "feature" else result

    def activation(self, field: Real) -> Real:
        """Return φ of the field, in its precision: some activations turn float32 into float64."""
        return np.asarray(self.layer.activation.value(field), dtype=field.dtype)


class _LinearPart:
    """The iteration of one layer, h ← d + φ(h)W, with the linear part g of φ solved for exactly.

    With r(h) = φ(h) − gh the fixed point satisfies h = (d + r(h)W)S, S = (I − gW)⁻¹, which is
    h = d + (φ(h) − g(h − d))M with M = (S − I)/g.  With i.i.d. weights of variance σ²/m the error
    falls by √(σ² Var φ′/(1 − σ²g²)) a step instead of √(σ² E φ′²), and no iteration that uses
    products with W alone can do better than the latter: its eigenvalues fill a disc.
    """

    def __init__(self, slope: float, layer: _DrawnLayer) -> None:
        assert layer.weight is not None
        self._layer, self._slope = layer, np.float32(slope)
        matrix = -self._slope * layer.weight
        np.fill_diagonal(matrix, matrix.diagonal() + np.float32(1.0))
        matrix = inv(matrix, overwrite_a=True, check_finite=False)  # NumPy's takes twice as long
        np.fill_diagonal(matrix, matrix.diagonal() - np.float32(1.0))
        matrix /= self._slope
        self._matrix = matrix

    def iterate(self, drive: Real, goal: float, max_steps: int) -> tuple[Real, int]:
        """Return φ(h) near the fixed point, and the steps; the plain iteration is to follow."""
        layer, field = self._layer, drive
        last, steps = math.inf, 0
        while steps < max_steps:
            steps += 1
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                reads = field - drive
                reads *= -self._slope
                reads += layer.activation(field)
                image = reads @ self._matrix
                image += drive
                change, size = _row_norms(image - field), _row_norms(image)
                residual = float((change / np.maximum(size, np.finfo(np.float32).tiny)).max())
            field = image
            # The step that is to follow shows whether it was right to expect one as good again.
            if not residual < last or (steps > 1 and residual * residual / last <= goal):
                break
            last = residual
        with np.errstate(over="ignore", invalid="ignore"):
            return layer.activation(field), steps


class _Product:
    """Units times the weights of a layer, with errors below a tenth of the tolerance."""

    def __init__(self, layer: _DrawnLayer, tolerance: float) -> None:
        self._layer, self._reach = layer, 0.1 * tolerance / _NOISE
        self._base: FloatArray | None = None
        self._image: FloatArray | None = None

    def __call__(self, units: Real) -> Real:
        weight = self._layer.weight
        assert weight is not None
        if units.dtype == np.float32:
            return np.asarray(units @ weight)
        if self._base is not None and self._image is not None:
            change = units - self._base
            if np.linalg.norm(change) <= self._reach * np.linalg.norm(units):
                size = float(np.abs(change).max()) or 1.0  # far below float32's least, perhaps
                single = np.asarray((change / size).astype(np.float32) @ weight)
                return np.asarray(self._image + size * single.astype(np.float64))
        self._base = np.asarray(units, dtype=np.float64)
        self._image = np.asarray(units @ weight.astype(np.float64))
        return self._image.copy()


def _row_norms(rows: Real) -> Real:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def _normalised(units: Real) -> Real:
    """Layer normalisation over the units."""
    centred = units - units.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
    return np.asarray(centred / spread)
