"""Images averaged over blocks of pixels."""

from __future__ import annotations

import numpy as np


def block_means(
    rows: np.ndarray, image_shape: tuple[int, int, int], side: int
) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Average flattened images over blocks, as ``torch.nn.AvgPool2d(side)``; also their new shape.

    Rows and columns of pixels that do not fill a block are dropped.
    """
    height, width, channels = image_shape
    shape = (height // side, width // side, channels)
    images = rows.reshape(-1, *image_shape)[:, : shape[0] * side, : shape[1] * side]
    blocks = images.reshape(-1, shape[0], side, shape[1], side, channels)
    return blocks.mean(axis=(2, 4)).reshape(len(rows), -1), shape
