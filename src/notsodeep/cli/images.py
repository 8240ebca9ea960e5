"""Convolutional models on the command line: what several commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from notsodeep.cli.options import say
from notsodeep.errors import InvalidInput

if TYPE_CHECKING:
    from notsodeep.data import Dataset
    from notsodeep.models import ConvolutionalEquilibrium

ConvolutionOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A convolution of the cell, like 'relu weight=.2 inject=.8 size=3 padding=circular'; "
        "may be repeated. Instead of dense layers."
    ),
]
ImageShapeOption = Annotated[
    str | None,
    typer.Option(help="Height, width and channels, like 8x8x1; those of the data by default."),
]
PoolingOption = Annotated[
    str, typer.Option(help="What a convolution's read-out sees: flatten, average, or a side.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Start even if it will take hours.")]

OF_IMAGES = ("image_shape", "pooling", "yes")
"""Options that go with --convolution alone."""

_HOURS = 3600.0


def load_images(
    convolution: Sequence[str],
    image_shape: str | None,
    pooling: str,
    data: str,
    samples: int | None,
    test_samples: int | None,
    seed: int,
) -> tuple[ConvolutionalEquilibrium, Dataset]:
    """Make the model that the options describe, and load its images."""
    from notsodeep.data import load
    from notsodeep.models import Convolution, ConvolutionalEquilibrium

    cell = [Convolution.from_text(text) for text in convolution]
    sides = _sides(image_shape)
    say(f"loading {data}")
    rows = load(data, samples=samples, test_samples=test_samples, preprocessing="pixels", rng=seed)
    if sides is None or rows.image_shape is not None:
        rows = rows.images_last()  # or says that these are no images
    shape = sides or rows.image_shape
    assert shape is not None
    window = int(pooling) if pooling.isdigit() else pooling
    model = ConvolutionalEquilibrium(cell, shape, window)  # type: ignore[arg-type]
    if rows.image_shape is not None and rows.image_shape != model.image_shape:
        raise InvalidInput(
            f"image_shape must be that of {data}, {rows.image_shape}. Got {model.image_shape}."
        )
    return model, rows


def require_patience(
    model: ConvolutionalEquilibrium, rows: Dataset, certified: int | None, yes: bool
) -> None:
    """Estimate the time of the kernels from some pairs; without --yes reject hours of it.

    `certified` is None if the kernel of all training rows is asked for, otherwise the number of
    test rows on which kernels are compared: that of the DEQ, with and without its mean.
    """
    from notsodeep.kernels.convolution import ConvolutionPlan, duration

    X = rows.X if certified is None else rows.X_test[:certified]
    seconds = ConvolutionPlan(model, X, None, "feature").estimated_seconds()
    seconds *= 1.0 if certified is None else 2.0
    say(f"the exact kernels will take about {duration(seconds)}")
    if seconds > _HOURS and not yes:
        raise InvalidInput(
            f"The kernels of the {model} on {len(X)} images will take about {duration(seconds)}. "
            "Start with --yes if that is meant; fewer --samples or a smaller --pooling take less."
        )


def _sides(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+([x×]\d+){1,2}", text):
        raise InvalidInput(f"image_shape must be like 28x28 or 32x32x3. Got {text!r}.")
    return tuple(map(int, re.split("[x×]", text)))
