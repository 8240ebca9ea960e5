"""Which positions of two images are solved together, and the mean over a window.

For the read-out "flatten" only equal positions (s, s) matter.  Pooled read-outs need positions
(s, s + d) as well, and the convolution mixes only those of one offset d: each offset is a problem
of its own, of the same form.  With circular padding it is that of the second image moved by d; with
zeros beyond the border, that of the two parts of the images that overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.models.images import ConvolutionalModel


def window_mean(values: FloatArray, size: int, padding: str) -> FloatArray:
    """Average the last two axes over size × size windows: M of docs/other-models.md.

    Beyond the border are the opposite side or zeros, which count in the mean.
    """
    for axis in (-2, -1):
        length = values.shape[axis]
        total = values.copy()
        moved = np.moveaxis(values, axis, -1)
        result = np.moveaxis(total, axis, -1)
        for step in range(1, size // 2 + 1):
            if padding == "circular":
                result += np.roll(moved, step, -1) + np.roll(moved, -step, -1)
            elif step < length:
                result[..., step:] += moved[..., :-step]
                result[..., :-step] += moved[..., step:]
        values = total / size
    return values


@dataclass(frozen=True)
class Offset:
    """Positions (s, s + d) of one offset d, on the rectangle where both are.

    Attributes
    ----------
    height, width : int
    index1, index2 : ndarray of shape (height·width,)
        s and s + d as pixels of the images.
    shares : ndarray of shape (height·width,)
        Weights of the positions in the read-out.
    """

    height: int
    width: int
    index1: IntArray
    index2: IntArray
    shares: FloatArray

    @property
    def is_zero(self) -> bool:
        """Whether the positions are equal."""
        return bool((self.index1 == self.index2).all())


def offsets(model: ConvolutionalModel) -> list[Offset]:
    """List the offsets that the read-out of a model sees, the zero offset first."""
    height, width = model.grid
    pixels = np.arange(height * width).reshape(height, width)
    circular = model.padding == "circular"
    if model.pooling == "flatten":
        window = (1, 1)
    elif model.pooling == "average":
        window = (height, width)
    else:
        window = (int(model.pooling), int(model.pooling))
    found: dict[tuple[int, int], FloatArray] = {}
    for down in range(1 - window[0], window[0]):
        for right in range(1 - window[1], window[1]):
            step = (down, right)
            if circular:
                # Every window holds as many such positions; an offset and its complement are one.
                count = (window[0] - abs(down)) * (window[1] - abs(right))
                step = (down % height, right % width)
                share = np.full((height, width), count / (window[0] * window[1]) ** 2 / pixels.size)
            else:
                share = _window_counts(height, window[0], down)[:, None] * _window_counts(
                    width, window[1], right
                )
            found[step] = found[step] + share if step in found else share
    result = []
    for (down, right), share in sorted(found.items(), key=lambda item: item[0] != (0, 0)):
        if circular:
            one, two = pixels, np.roll(pixels, (-down, -right), (0, 1))
        else:
            rows, columns = _overlap(height, down), _overlap(width, right)
            one, two = pixels[rows[0], columns[0]], pixels[rows[1], columns[1]]
        result.append(Offset(*one.shape, one.ravel(), two.ravel(), share.ravel()))
    return result


def _overlap(length: int, step: int) -> tuple[slice, slice]:
    """Places s and s + step that are both inside."""
    low, high = max(0, -step), length - max(0, step)
    return slice(low, high), slice(low + step, high + step)


def _window_counts(length: int, window: int, step: int) -> FloatArray:
    """Share of each s in the mean over windows inside of (1/window²) Σ over (s, s + step)."""
    places = np.arange(length)[_overlap(length, step)[0]]
    low, high = np.minimum(places, places + step), np.maximum(places, places + step)
    windows = length - window + 1
    count = np.minimum(low, windows - 1) - np.maximum(high - window + 1, 0) + 1
    return np.asarray(np.maximum(count, 0) / (windows * window**2))
