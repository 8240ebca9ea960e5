"""Convolutional networks: the equilibrium model, its explicit siblings, and their images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.models.explicit import checked_activations
from notsodeep.models.layers import Convolution, Dense, checked_cell
from notsodeep.records import Record

Padding = Literal["circular", "zero"]
Pooling = Literal["flatten", "average"] | int

MIN_PIXEL = 0.05
"""Mean squared norm of a pixel below which a saturating activation is effectively linear."""


@dataclass(frozen=True, repr=False)
class ConvolutionalModel(Record):
    """What convolutional models share: images, a border, and a read-out.

    Rows of data are images flattened in the order (height, width, channel).

    Attributes
    ----------
    cell : tuple of Convolution
        The layers; the first reads the last, if its weight is not zero.
    image_shape : tuple of int
        (height, width, channels).
    pooling : "flatten", "average" or int
        What the linear read-out sees: the states of all pixels, their mean over the image, or their
        means over all b × b windows (stride 1; wrapped if the padding is circular, full windows
        only if it is zero), flattened.
    padding : {"circular", "zero"}
        What is beyond the border: the opposite side, or zeros, as in
        ``torch.nn.Conv2d(..., k, padding=k // 2, padding_mode=...)``.
    stride : int
        The injection reads windows around every stride-th pixel: rows and columns 0, stride, …, as
        ``torch.nn.Conv2d(..., stride=stride, padding=k // 2)``.  States have as many pixels.
    """

    _derived: ClassVar[tuple[str, ...]] = ("kind",)
    kind: ClassVar[str]

    cell: tuple[Convolution, ...]
    image_shape: tuple[int, int, int]
    pooling: Pooling
    padding: Padding
    stride: int

    @property
    def features(self) -> int:
        """Length of a row of data: height × width × channels."""
        return int(np.prod(self.image_shape))

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the states."""
        height, width, _ = self.image_shape
        return -(-height // self.stride), -(-width // self.stride)

    @property
    def activation(self) -> Activation:
        """That of the last layer, which makes the features."""
        return self.cell[-1].activation

    def rows(self, X: object, parameter: str, owner: str) -> FloatArray:
        """Require rows that are flattened images; arrays (n, height, width, channels) do too."""
        array = checks.real_array(X, parameter, owner)
        if array.ndim == 4:
            if array.shape[1:] != self.image_shape:
                expected = ", ".join(map(str, self.image_shape))
                remedy = "Channels are the last axis: images.transpose(0, 2, 3, 1) moves planes."
                raise checks.invalid(
                    parameter, owner, f"be images of shape (n, {expected})", array.shape, remedy
                )
            array = array.reshape(len(array), -1)
        array = checks.samples(array, parameter, owner)
        if array.shape[1] != self.features:
            height, width, channels = self.image_shape
            requirement = (
                f"have rows of {self.features} numbers: images of {height} × {width} pixels and "
                f"{channels} channels, flattened in this order"
            )
            remedy = "Give the image_shape that fits; (height, width) means one channel."
            raise checks.invalid(parameter, owner, requirement, array.shape[1], remedy)
        return array

    def images(self, rows: FloatArray) -> FloatArray:
        """Turn rows into images of shape (n, height, width, channels)."""
        return rows.reshape(-1, *self.image_shape)

    def pixel_scale(self, rows: FloatArray) -> float:
        """Return the root mean squared norm of a pixel of images, given as rows."""
        pixels = self.image_shape[0] * self.image_shape[1]
        return math.sqrt(np.einsum("ij,ij->", rows, rows) / (len(rows) * pixels))

    def _store(
        self,
        cell: tuple[Convolution, ...],
        image_shape: object,
        pooling: object,
        padding: str,
        stride: object,
    ) -> None:
        """Check and store everything: what `__init__` of both kinds of models does."""
        owner = type(self).__name__
        checks.known_name(padding, get_args(Padding), f"padding of {owner}")
        values = {
            "cell": cell,
            "image_shape": _image_shape(image_shape, owner),
            "padding": padding,
            "stride": checks.positive_integer(stride, "stride", owner),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        smallest = min(self.grid)
        object.__setattr__(self, "pooling", _pooling(pooling, smallest, owner))
        most = smallest if padding == "zero" else 2 * smallest + 1
        largest = max(layer.size for layer in cell)
        if largest > most:
            grid = f"{self.grid[0]} × {self.grid[1]} pixels with {padding} padding"
            raise checks.invalid(
                "size", f"a layer of {owner}", f"be at most {most}, on {grid}", largest
            )

    def _describe(self) -> str:
        height, width, channels = self.image_shape
        pooling = self.pooling if isinstance(self.pooling, str) else f"{self.pooling} × pooled"
        border = ", zeros beyond the border" if self.padding == "zero" else ""
        stride = f", stride {self.stride}" if self.stride > 1 else ""
        return f"{height} × {width} × {channels}, {pooling}{border}{stride}"


@dataclass(frozen=True, init=False, repr=False)
class ConvolutionalEquilibrium(ConvolutionalModel):
    """A convolutional deep equilibrium model: z_s = φ(h_s)/√m at every pixel s, m channels.

    h is that of `Convolution`, with z at equilibrium; several layers make a ring, whose first
    layer reads the last.  See `ConvolutionalModel` for images, borders and read-outs.

    Parameters
    ----------
    cell : sequence of Convolution
    image_shape : tuple of int
        (height, width, channels), or (height, width) for one channel.
    pooling : {"flatten", "average"} or int, default "flatten"
    padding : {"circular", "zero"}, default "circular"
    stride : int, default 1

    Examples
    --------
    >>> layer = Convolution("relu", weight=0.2, inject=0.8, size=3)
    >>> model = ConvolutionalEquilibrium(cell=[layer], image_shape=(8, 8), pooling=3)
    >>> print(model)
    convolutional DEQ(relu(0.2, 0.8) on 3 × 3; 8 × 8 × 1, 3 × pooled)
    >>> model.features, model.grid
    (64, (8, 8))
    >>> ConvolutionalEquilibrium.from_dict(model.to_dict()) == model
    True
    """

    kind: ClassVar[str] = "convolutional_equilibrium"

    def __init__(
        self,
        cell: Sequence[Convolution],
        image_shape: Sequence[int],
        pooling: Pooling = "flatten",
        *,
        padding: Padding = "circular",
        stride: int = 1,
    ) -> None:
        owner = "ConvolutionalEquilibrium"
        layers = checked_cell(cell, Convolution, owner)
        if layers[0].weight == 0.0:
            requirement = "have a first layer that reads the last: weight > 0"
            remedy = "Without it the network is explicit: use ConvolutionalNetwork."
            raise checks.invalid("cell", owner, requirement, 0.0, remedy)
        self._store(layers, image_shape, pooling, padding, stride)

    @property
    def dense(self) -> DeepEquilibrium:
        """The dense DEQ of the same variances: what a pixel of a constant image sees.

        Whatever bounds its equilibrium bounds that of the convolution, whose windows average.
        """
        return DeepEquilibrium(
            cell=[
                Dense(layer.activation, layer.weight, inject=layer.inject, bias=layer.bias)
                for layer in self.cell
            ]
        )

    def __str__(self) -> str:
        return f"convolutional DEQ({', '.join(map(str, self.cell))}; {self._describe()})"


@dataclass(frozen=True, init=False, repr=False)
class ConvolutionalNetwork(ConvolutionalModel):
    """An explicit convolutional network, x_l = σ_l(W_l ∗ x_{l−1}/k)/√m_l, l = 1 … L.

    ∗ is the convolution over k × k windows, without division by their number: with the factor 1/k a
    pre-activation has the mean variance of the pixels that it reads.  It is a ring that is not
    closed: the first layer reads the image alone.

    Parameters
    ----------
    activations : sequence of (str or Activation)
        σ_1, …, σ_L.
    image_shape, pooling, padding, stride
        As for `ConvolutionalEquilibrium`; the stride is that of the first layer.
    size : int, default 3

    Examples
    --------
    >>> print(ConvolutionalNetwork(["relu", "tanh"], image_shape=(8, 8, 3), pooling="average"))
    convolutional network(relu, tanh on 3 × 3; 8 × 8 × 3, average)
    """

    kind: ClassVar[str] = "convolutional_network"

    def __init__(
        self,
        activations: Sequence[str | Activation] | None = None,
        image_shape: Sequence[int] = (),
        pooling: Pooling = "flatten",
        *,
        size: int = 3,
        padding: Padding = "circular",
        stride: int = 1,
        cell: Sequence[Convolution] | None = None,
    ) -> None:
        owner = "ConvolutionalNetwork"
        if cell is None:
            assert activations is not None
            first, *others = checked_activations(activations, owner)
            cell = [
                Convolution(first, weight=0.0, inject=1.0, size=size),
                *(Convolution(activation, weight=1.0, size=size) for activation in others),
            ]
        self._store(checked_cell(cell, Convolution, owner), image_shape, pooling, padding, stride)

    @property
    def activations(self) -> tuple[Activation, ...]:
        """σ_1, …, σ_L."""
        return tuple(layer.activation for layer in self.cell)

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.cell)

    @property
    def size(self) -> int:
        """Side of the windows."""
        return self.cell[0].size

    def __str__(self) -> str:
        names = ", ".join(map(str, self.activations))
        window = f"{self.size} × {self.size}"
        return f"convolutional network({names} on {window}; {self._describe()})"


def _image_shape(value: object, owner: str) -> tuple[int, int, int]:
    sides = tuple(value) if isinstance(value, Sequence | np.ndarray) else ()
    whole = all(isinstance(side, int | np.integer) and side >= 1 for side in sides)
    if len(sides) not in (2, 3) or not whole or isinstance(value, str):
        requirement = "be (height, width, channels), or (height, width) for one channel"
        raise checks.invalid("image_shape", owner, requirement, repr(value))
    height, width, channels = (*sides, 1)[:3]
    return int(height), int(width), int(channels)


def _pooling(value: object, smallest: int, owner: str) -> Pooling:
    if value == "flatten" or value == "average":
        return value
    if isinstance(value, bool | str) or not isinstance(value, int) or not 1 <= value <= smallest:
        requirement = (
            "be 'flatten', 'average', or the side of a window of at most "
            f"{smallest} pixels, the smaller side of the states"
        )
        raise checks.invalid("pooling", owner, requirement, repr(value))
    return "flatten" if value == 1 else int(value)
