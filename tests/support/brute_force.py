"""The equations of convolutional kernels as they are written, over all pairs of positions.

G is a (P, P) matrix for a pair of images; windows are index lists; expectations are those of
`pair_expectations`, pixel by pixel; iteration is plain.  Nothing is shared with the package's
solver but the expectations.
"""

from __future__ import annotations

import numpy as np

import notsodeep as nsd
from notsodeep.activations.pairs import pair_expectations
from notsodeep.models import ConvolutionalModel

Array = np.ndarray


def window_matrix(grid: tuple[int, int], size: int, padding: str) -> list[Array]:
    """For each place of a window, a (P,) list of the pixels seen there, −1 outside."""
    height, width = grid
    reach = size // 2
    seen = []
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            y, x = np.mgrid[0:height, 0:width]
            y, x = y + down, x + right
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            place = (y % height) * width + x % width
            seen.append(np.where(inside | (padding == "circular"), place, -1).ravel())
    return seen


def moved_mean(values: Array, seen: list[Array]) -> Array:
    """(M F)(s, s′) = mean over δ of F(s + δ, s′ + δ)."""
    padded = np.zeros((values.shape[0] + 1, values.shape[1] + 1))
    padded[:-1, :-1] = values
    return sum(padded[np.ix_(places, places)] for places in seen) / len(seen)


def read_out(values: Array, model: ConvolutionalModel) -> float:
    """Mean over windows of the mean over the pairs of positions inside."""
    height, width = model.grid
    side = {"flatten": 1, "average": None}.get(model.pooling, model.pooling)
    pixels = np.arange(height * width).reshape(height, width)
    if side is None:
        return float(values.mean())
    if model.padding == "circular":
        pixels = np.pad(pixels, ((0, side - 1), (0, side - 1)), mode="wrap")
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (side, side)).reshape(-1, side**2)
    return float(np.mean([values[np.ix_(window, window)].mean() for window in windows]))


def kernels(model: ConvolutionalModel, x: Array, y: Array, turns: int = 400) -> dict[str, float]:
    """All four kernels of a pair of rows; stride 1."""
    cell = model.cell
    seen = [window_matrix(model.grid, layer.size, model.padding) for layer in cell]
    images = model.images(np.stack([x, y])).reshape(2, -1, model.image_shape[2])
    gram = {(i, j): images[i] @ images[j].T for i, j in ((0, 0), (1, 1), (0, 1))}
    G: dict[tuple[int, int], list[Array]] = {
        pair: [layer.inject * moved_mean(S, seen[k]) + layer.bias for k, layer in enumerate(cell)]
        for pair, S in gram.items()
    }
    source = {pair: [part.copy() for part in parts] for pair, parts in G.items()}
    theta = [part.copy() for part in G[0, 1]]

    def expectations(pair: tuple[int, int], k: int) -> tuple[Array, Array]:
        one, two = (np.diag(G[i, i][k]) for i in pair)
        bound = np.sqrt(np.outer(one, two))
        cov = np.clip(G[pair][k], -bound, bound)
        found = pair_expectations(cell[k].activation, one[:, None], two[None, :], cov)
        return found.value, found.derivative

    for _ in range(turns):
        change = 0.0
        for k, layer in enumerate(cell):
            for pair in G:
                value, slope = expectations(pair, k - 1)
                new = source[pair][k] + layer.weight * moved_mean(value, seen[k])
                change = max(change, np.abs(new - G[pair][k]).max())
                G[pair][k] = new
                if pair == (0, 1):
                    new = G[pair][k] + layer.weight * moved_mean(slope * theta[k - 1], seen[k])
                    change = max(change, np.abs(new - theta[k]).max())
                    theta[k] = new
        if change < 1e-16:
            break
    value, slope = expectations((0, 1), len(cell) - 1)
    parts = {
        "preactivation ck": G[0, 1][-1],
        "preactivation ntk": theta[-1],
        "feature ck": value,
        "feature ntk": value + slope * theta[-1],
    }
    return {name: read_out(part, model) for name, part in parts.items()}


def waves(count: int, height: int, width: int, channels: int) -> Array:
    """Images sin(1 + 3i + 2y + 5x + 7c), flattened."""
    i, y, x, c = np.meshgrid(*map(np.arange, (count, height, width, channels)), indexing="ij")
    return np.sin(1 + 3 * i + 2 * y + 5 * x + 7 * c).reshape(count, -1)


def equilibrium(
    activation: str = "relu", image_shape: tuple[int, ...] = (4, 4, 2), **options: object
) -> nsd.ConvolutionalEquilibrium:
    """A model of one layer; options of the layer and of the model together."""
    own = {name: options.pop(name) for name in ("pooling", "stride", "padding") if name in options}
    layer = {"weight": 0.6, "inject": 0.9, "bias": 0.15, **options}
    return nsd.ConvolutionalEquilibrium([nsd.Convolution(activation, **layer)], image_shape, **own)
