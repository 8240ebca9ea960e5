"""Convolutional networks: the equilibrium model, its explicit siblings, and their images."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast, get_args

import numpy as np

from notsodeep import checks
from notsodeep.activations import Activation, as_activation, from_dict
from notsodeep.arrays import FloatArray
from notsodeep.models.cell import Dense, checked_cell
from notsodeep.models.equilibrium import DeepEquilibrium

Padding = Literal["circular", "zero"]
Pooling = Literal["flatten", "average"] | int

LEAST_PIXEL = 0.05
"""Mean squared norm of a pixel below which a saturating activation is as good as linear."""


@dataclass(frozen=True)
class Convolution(Dense):
    """One convolutional layer of a cell, on k × k windows around every pixel s.

    h_s = √(weight/k²) Σ_δ A_δ z_{s+δ} + √(inject/k²) Σ_δ U_δ x_{s+δ} + √bias·β.

    Parameters
    ----------
    activation, weight, inject, bias
        As for `Dense`; the bias is that of a channel, the same at every pixel.
    normalise : {"none"}
        Convolutions are not normalised.
    size : int, default 3
        k, odd.
    padding : {"circular", "zero"}
        What is beyond the border: the opposite side, or zeros, as in
        ``torch.nn.Conv2d(..., k, padding=k // 2, padding_mode=...)``.

    Examples
    --------
    >>> print(Convolution("relu", weight=0.2, inject=0.8, size=5))
    relu(0.2, 0.8) on 5 × 5
    """

    kind: ClassVar[str] = "convolution"

    size: int = 3
    padding: Padding = "circular"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise != "none":
            requirement = "be 'none' for a convolution"
            raise checks.invalid("normalise", self._owner, requirement, repr(self.normalise))
        _odd_size(self.size, self._owner)
        checks.known_name(self.padding, get_args(Padding), f"padding of {self._owner}")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Make a layer from options by name, numbers being numbers or their text."""
        values = dict(options)
        if isinstance(size := values.get("size"), str):
            values["size"] = int(size) if size.isdigit() else size
        return super().from_options(values)

    def __str__(self) -> str:
        border = "" if self.padding == "circular" else ", zeros beyond the border"
        return f"{super().__str__()} on {self.size} × {self.size}{border}"


@dataclass(frozen=True)
class ConvolutionalModel(ABC):
    """What convolutional models share: a cell of convolutions, images, and a read-out.

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
    stride : int
        The injection reads windows around every stride-th pixel: rows and columns 0, stride, …, as
        ``torch.nn.Conv2d(..., stride=stride, padding=k // 2)``.  States have as many pixels.
    input_pooling : int
        Before all else images are averaged over blocks of this side, as ``torch.nn.AvgPool2d``;
        rows and columns that do not fill a block are left out.
    """

    cell: tuple[Convolution, ...]
    image_shape: tuple[int, int, int]
    pooling: Pooling
    stride: int
    input_pooling: int

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""

    @property
    def features(self) -> int:
        """Length of a row of data: height × width × channels."""
        return int(np.prod(self.image_shape))

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the states."""
        height, width, _ = self.image_shape
        b, stride = self.input_pooling, self.stride
        return -(-(height // b) // stride), -(-(width // b) // stride)

    @property
    def activation(self) -> Activation:
        """That of the last layer, which makes the features."""
        return self.cell[-1].activation

    @property
    def padding(self) -> Padding:
        """What is beyond the border of every layer."""
        return self.cell[0].padding

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
        """Turn rows into the images that are convolved, shape (n, height, width, channels)."""
        height, width, channels = self.image_shape
        images = rows.reshape(-1, height, width, channels)
        b = self.input_pooling
        if b > 1:
            height, width = height // b, width // b
            blocks = images[:, : height * b, : width * b]
            images = blocks.reshape(-1, height, b, width, b, channels).mean(axis=(2, 4))
        return images

    def pixel_scale(self, rows: FloatArray) -> float:
        """Return the root mean squared norm of a pixel of images, given as rows."""
        pixels = self.image_shape[0] * self.image_shape[1]
        return math.sqrt(np.einsum("ij,ij->", rows, rows) / (len(rows) * pixels))

    def _store(
        self,
        cell: tuple[Convolution, ...],
        image_shape: object,
        pooling: object,
        stride: object,
        input_pooling: object,
    ) -> None:
        """Check and store everything: what `__init__` of both kinds of models does."""
        owner = type(self).__name__
        object.__setattr__(self, "cell", cell)
        object.__setattr__(self, "image_shape", _image_shape(image_shape, owner))
        for name, value in (("stride", stride), ("input_pooling", input_pooling)):
            object.__setattr__(self, name, checks.positive_integer(value, name, owner))
        if len({layer.padding for layer in self.cell}) > 1:
            raise checks.invalid("cell", owner, "have one padding in all layers", "both")
        if min(self.grid) < 1:
            requirement = f"be at most {min(self.image_shape[:2])}, the smaller side of an image"
            raise checks.invalid("input_pooling", owner, requirement, self.input_pooling)
        object.__setattr__(self, "pooling", _pooling(pooling, self.grid, owner))
        smallest = min(self.grid)
        most = smallest if self.padding == "zero" else 2 * smallest + 1
        for layer in self.cell:
            if layer.size > most:
                requirement = (
                    f"be at most {most}, on {self.grid[0]} × {self.grid[1]} pixels with "
                    f"{self.padding} padding"
                )
                raise checks.invalid("size", f"a layer of {owner}", requirement, layer.size)

    def _geometry(self) -> dict[str, Any]:
        return {
            "image_shape": list(self.image_shape),
            "pooling": self.pooling,
            "stride": self.stride,
            "input_pooling": self.input_pooling,
        }

    def _describe_geometry(self) -> str:
        height, width, channels = self.image_shape
        pooling = self.pooling if isinstance(self.pooling, str) else f"{self.pooling} × pooled"
        parts = [f"{height} × {width} × {channels}", pooling]
        if self.stride > 1:
            parts.append(f"stride {self.stride}")
        if self.input_pooling > 1:
            parts.append(f"input pooled by {self.input_pooling}")
        return ", ".join(parts)


@dataclass(frozen=True, init=False)
class ConvolutionalEquilibrium(ConvolutionalModel):
    """A convolutional deep equilibrium model: z_s = φ(h_s)/√m at every pixel s, m channels.

    h is that of `Convolution`, with z at equilibrium; several layers make a ring, whose first
    layer reads the last.  See `ConvolutionalModel` for images and read-outs.

    Parameters
    ----------
    cell : sequence of Convolution
    image_shape : tuple of int
        (height, width, channels), or (height, width) for one channel.
    pooling : {"flatten", "average"} or int, default "flatten"
    stride, input_pooling : int, default 1

    Examples
    --------
    >>> layer = Convolution("relu", weight=0.2, inject=0.8, size=3, padding="circular")
    >>> model = ConvolutionalEquilibrium(cell=[layer], image_shape=(8, 8), pooling=3)
    >>> print(model)
    convolutional DEQ(relu(0.2, 0.8) on 3 × 3; 8 × 8 × 1, 3 × pooled)
    >>> model.features, model.grid
    (64, (8, 8))
    >>> ConvolutionalEquilibrium.from_dict(model.to_dict()) == model
    True
    """

    def __init__(
        self,
        cell: Sequence[Convolution],
        image_shape: Sequence[int],
        pooling: Pooling = "flatten",
        *,
        stride: int = 1,
        input_pooling: int = 1,
    ) -> None:
        owner = "ConvolutionalEquilibrium"
        layers = cast(tuple[Convolution, ...], checked_cell(cell, Convolution, owner))
        if layers[0].weight == 0.0:
            requirement = "have a first layer that reads the last: weight > 0"
            remedy = "Without it the network is explicit: use ConvolutionalNetwork."
            raise checks.invalid("cell", owner, requirement, 0.0, remedy)
        self._store(layers, image_shape, pooling, stride, input_pooling)

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

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` turns it back."""
        cell = [layer.to_dict() for layer in self.cell]
        return {"kind": "convolutional_equilibrium", "cell": cell, **self._geometry()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvolutionalEquilibrium:
        """Turn the form made by `to_dict` back into a model."""
        checks.stored_form(data, "convolutional_equilibrium", {"cell", *_GEOMETRY})
        return cls([Convolution.from_dict(layer) for layer in data["cell"]], **_geometry_of(data))

    def __str__(self) -> str:
        layers = ", ".join(map(str, self.cell))
        return f"convolutional DEQ({layers}; {self._describe_geometry()})"


@dataclass(frozen=True, init=False)
class ConvolutionalNetwork(ConvolutionalModel):
    """An explicit convolutional network, x_l = σ_l(W_l ∗ x_{l−1}/k)/√m_l, l = 1 … L.

    ∗ is the convolution over k × k windows, without division by their number: with the factor 1/k a
    pre-activation has the mean variance of the pixels that it reads.

    Parameters
    ----------
    activations : sequence of (str or Activation)
        σ_1, …, σ_L.
    image_shape, pooling, stride, input_pooling
        As for `ConvolutionalEquilibrium`; the stride is that of the first layer.
    size : int, default 3
    padding : {"circular", "zero"}

    Examples
    --------
    >>> print(ConvolutionalNetwork(["relu", "tanh"], image_shape=(8, 8, 3), pooling="average"))
    convolutional network(relu, tanh on 3 × 3; 8 × 8 × 3, average)
    """

    def __init__(
        self,
        activations: Sequence[str | Activation],
        image_shape: Sequence[int],
        pooling: Pooling = "flatten",
        *,
        size: int = 3,
        padding: Padding = "circular",
        stride: int = 1,
        input_pooling: int = 1,
    ) -> None:
        owner = "ConvolutionalNetwork"
        if isinstance(activations, str | Activation) or not isinstance(activations, Sequence):
            requirement = "be a list with one activation for each hidden layer"
            raise checks.invalid("activations", owner, requirement, repr(activations))
        if not activations:
            raise checks.invalid("activations", owner, "have at least one entry", "none")
        # A ring that is not closed: the first layer reads the image alone.
        cell = tuple(
            Convolution(
                as_activation(activation),
                weight=0.0 if index == 0 else 1.0,
                inject=1.0 if index == 0 else 0.0,
                size=size,
                padding=padding,
            )
            for index, activation in enumerate(activations)
        )
        self._store(cell, image_shape, pooling, stride, input_pooling)

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

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; `from_dict` turns it back."""
        return {
            "kind": "convolutional_network",
            "activations": [activation.to_dict() for activation in self.activations],
            "size": self.size,
            "padding": self.padding,
            **self._geometry(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ConvolutionalNetwork:
        """Turn the form made by `to_dict` back into a network."""
        keys = {"activations", "size", "padding", *_GEOMETRY}
        checks.stored_form(data, "convolutional_network", keys)
        activations = [from_dict(activation) for activation in data["activations"]]
        own = {"size": data["size"], "padding": data["padding"]}
        return cls(activations, **_geometry_of(data), **own)

    def __str__(self) -> str:
        names = ", ".join(map(str, self.activations))
        border = "" if self.padding == "circular" else ", zeros beyond the border"
        window = f"{self.size} × {self.size}{border}"
        return f"convolutional network({names} on {window}; {self._describe_geometry()})"


CONVOLUTIONAL: dict[str, type[ConvolutionalEquilibrium] | type[ConvolutionalNetwork]] = {
    "convolutional_equilibrium": ConvolutionalEquilibrium,
    "convolutional_network": ConvolutionalNetwork,
}
"""The kinds of stored convolutional models."""

_GEOMETRY = ("image_shape", "pooling", "stride", "input_pooling")


def _geometry_of(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in _GEOMETRY}


def _image_shape(value: object, owner: str) -> tuple[int, int, int]:
    sides = tuple(value) if isinstance(value, Sequence | np.ndarray) else ()
    whole = all(isinstance(side, int | np.integer) and side >= 1 for side in sides)
    if len(sides) not in (2, 3) or not whole or isinstance(value, str):
        requirement = "be (height, width, channels), or (height, width) for one channel"
        raise checks.invalid("image_shape", owner, requirement, repr(value))
    height, width, channels = (*sides, 1)[:3]
    return int(height), int(width), int(channels)


def _odd_size(value: object, owner: str) -> int:
    size = checks.positive_integer(value, "size", owner)
    if size % 2 == 0:
        remedy = "A window around a pixel has an odd side."
        raise checks.invalid("size", owner, "be odd", size, remedy)
    return size


def _pooling(value: object, grid: tuple[int, int], owner: str) -> Pooling:
    if value in ("flatten", "average"):
        return cast(Pooling, value)
    smallest = min(grid)
    if isinstance(value, bool | str) or not isinstance(value, int) or not 1 <= value <= smallest:
        requirement = (
            "be 'flatten', 'average', or the side of a window of at most "
            f"{smallest} pixels, the smaller side of the states"
        )
        raise checks.invalid("pooling", owner, requirement, repr(value))
    return "flatten" if value == 1 else int(value)
