"""A kernel from which blocks can be asked wherever the work is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.kernels.convolution import ConvolutionPlan
from notsodeep.kernels.exact import checked_plan, make_plan
from notsodeep.kernels.plan import SIDE, Plan, Tile
from notsodeep.models import Convention, KernelModel, KernelName
from notsodeep.threads import map_threads

BLOCK = 5 * SIDE
"""Side of a block that is stored or sent to a worker: whole tiles, some fractions of a second."""


@dataclass(frozen=True, eq=False)
class BlockSource:
    """One kernel of a model on samples.

    It travels as model and samples; what is known about each sample is worked out on arrival.

    Attributes
    ----------
    plan : Plan
        The model on the samples.
    kernel : {"conjugate", "tangent"}
    """

    plan: Plan | ConvolutionPlan
    kernel: KernelName

    @classmethod
    def checked(
        cls,
        model: KernelModel,
        X: ArrayLike,
        Y: ArrayLike | None,
        kernel: KernelName,
        convention: Convention,
        owner: str,
    ) -> BlockSource:
        """Check everything a user may have got wrong, then prepare the source."""
        checks.known_name(kernel, get_args(KernelName), f"kernel of {owner}")
        return cls(checked_plan(model, X, Y, convention, owner, kernel), kernel)

    def __reduce__(self) -> tuple[Any, ...]:
        here = self.plan
        return _arrived, (self.kernel, here.model, here.X, here.Y, here.convention)

    def __sizeof__(self) -> int:
        # Dask asks, to know what a copy costs.
        Y = self.plan.Y
        return object.__sizeof__(self) + self.plan.X.nbytes + (0 if Y is None else Y.nbytes)

    @property
    def symmetric(self) -> bool:
        """Whether the kernel is that of samples with themselves."""
        return self.plan.Y is None

    @property
    def _which(self) -> int:
        return get_args(KernelName).index(self.kernel)

    def diagonal(self) -> FloatArray:
        """Return the diagonal of a symmetric kernel, shape (n,), from its own formula."""
        return self.plan.diagonal()[self._which].copy()

    def block(self, place: Tile, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Compute a block, shape ``place.shape``; every pair in float64, then rounded to `dtype`.

        It is worked on in tiles of `SIDE`.  If it begins at multiples of that, its entries are
        those of `conjugate_kernel` or `tangent_kernel` in float64, rounded, to the last bit.
        """
        result = np.empty(place.shape, dtype)
        on_diagonal = self.symmetric and place.rows == place.columns

        def fill(tile: Tile) -> None:
            rows, columns = _within(tile.rows, place.rows), _within(tile.columns, place.columns)
            result[rows, columns] = self.plan.tile(tile)[self._which]
            if on_diagonal and rows != columns:
                result[columns, rows] = result[rows, columns].T

        tiles = [Tile(r, c) for r in _parts(place.rows) for c in _parts(place.columns)]
        if on_diagonal:
            tiles = [tile for tile in tiles if tile.rows.start <= tile.columns.start]
        for _ in map_threads(fill, tiles):
            pass
        return result


def _arrived(kernel: KernelName, *samples: Any) -> BlockSource:
    return BlockSource(make_plan(*samples), kernel)


def _parts(whole: slice) -> list[slice]:
    starts = range(whole.start, whole.stop, SIDE)
    return [slice(start, min(start + SIDE, whole.stop)) for start in starts]


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)
