"""Options by which a command is given a trained network or images, and the rows that they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from notsodeep import checks
from notsodeep.cli.options import say
from notsodeep.errors import InvalidInput

if TYPE_CHECKING:
    from notsodeep.activations import Activation
    from notsodeep.arrays import FloatArray
    from notsodeep.data import Dataset
    from notsodeep.models import ConvolutionalEquilibrium
    from notsodeep.networks.affine import AffineDEQ

ConvolutionOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A convolution of the cell, like 'relu weight=.2 inject=.8 size=3'; "
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
PaddingOption = Annotated[
    str, typer.Option(help="What is beyond the border of images: circular or zero.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Start even if it will take hours.")]

OF_IMAGES = ("image_shape", "pooling", "padding", "yes")
"""Options that go with --convolution alone."""

_HOURS = 3600.0


def load_images(
    convolution: Sequence[str],
    image_shape: str | None,
    pooling: str,
    padding: str,
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
    shape = sides or rows.image_shape
    if shape is None:
        raise InvalidInput(f"image_shape must be given: the rows of {data} are not images.")
    window = int(pooling) if pooling.isdigit() else pooling
    model = ConvolutionalEquilibrium(cell, shape, window, padding=padding)  # type: ignore[arg-type]
    if rows.image_shape is not None and rows.image_shape != model.image_shape:
        raise InvalidInput(
            f"image_shape must be that of {data}, {rows.image_shape}. Got {model.image_shape}."
        )
    return model, rows


def require_patience(
    model: ConvolutionalEquilibrium, parts: Sequence[tuple[FloatArray, float]], yes: bool
) -> None:
    """Estimate the time of kernels from some pairs; without --yes reject hours of it.

    The parts are images, and how many times the DEQ's kernel on them is computed.
    """
    from notsodeep.kernels.images import ImagePlan, duration
    from notsodeep.kernels.ring import ring_of

    ring = ring_of(model, "feature")
    seconds = sum(
        times * ImagePlan(ring, model, X, None, (0, 1)).estimated_seconds() for X, times in parts
    )
    say(f"the exact kernels will take about {duration(seconds)}")
    if seconds > _HOURS and not yes:
        images = " and ".join(str(len(X)) for X, _ in parts)
        raise InvalidInput(
            f"The kernels of the {model} on {images} images will take about {duration(seconds)}. "
            "Start with --yes if that is meant. Fewer images (--samples, --test-samples) or a "
            "smaller --pooling take less."
        )


def matching_work(rows: Dataset) -> tuple[FloatArray, float]:
    """Return the images that a match draws, and what its refinement costs in the DEQ's kernels.

    Measured on digits: 1.1 to 4.6 such kernels where they, and not the rest, take the time.
    """
    return rows.X[:300], 5.0


def _sides(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not re.fullmatch(r"\d+([x×]\d+){1,2}", text):
        raise InvalidInput(f"image_shape must be like 28x28 or 32x32x3. Got {text!r}.")
    return tuple(map(int, re.split("[x×]", text)))


ModelOption = Annotated[
    Path | None,
    typer.Option(help="A trained network: safetensors or .pt with arrays W, U, b, C, c."),
]
ZooOption = Annotated[
    str | None, typer.Option(help="A trained network by its name; see notsodeep.zoo.names().")
]
ShiftOption = Annotated[
    float | None, typer.Option(help="Inputs are (pixel/255 − shift)/scale; if the file is silent.")
]
ScaleOption = Annotated[float | None, typer.Option(help="The scale of the inputs, likewise.")]


def given_network(
    model: Path | None,
    zoo: str | None,
    activation: str | None,
    shift: float | None,
    scale: float | None,
) -> AffineDEQ:
    """Read the network that the options name.

    Raises
    ------
    InvalidInput
        Both a file and a name are given, or neither; or a network of the zoo is to be altered.
    """
    if (model is None) == (zoo is None):
        raise InvalidInput("Give one of --model, a file, and --zoo, a name; not both.")
    if zoo is not None:
        if (activation, shift, scale) != (None, None, None):
            raise InvalidInput(
                "--activation, --input-shift and --input-scale go with --model; a network of the "
                "zoo has its own."
            )
        from notsodeep.zoo import load

        return load(zoo)
    from notsodeep.networks.weights import load_cell

    known = None if activation is None else chosen_activation(activation)
    return load_cell(model or Path(), activation=known, shift=shift, scale=scale)


def reject_options(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Reject options that were given, on the command line or in a file, and would be ignored."""
    given = [name for name in names if _is_given(context, name)]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidInput(f"{options} must be left out here: such options {why}.")


def reject_ignored(
    context: typer.Context,
    layer: Sequence[str] | None,
    cell: Path | None,
    convolution: Sequence[str] | None,
) -> None:
    """Reject options of another kind of model than the one that is described."""
    vanilla = ("activation", "sigma_a2", "kink")
    if convolution:
        names: tuple[str, ...] = (*vanilla, "layer", "cell")
        reject_options(context, names, "describe a dense DEQ, and not --convolution")
        return
    reject_options(context, OF_IMAGES, "go with --convolution")
    if layer or cell is not None:
        reject_options(context, vanilla, "are left out beside --layer or --cell")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def chosen_activation(text: str) -> str | Activation:
    """Return a name as it is, and a formula in x as an activation."""
    from notsodeep.activations import from_formula

    return text if text.isidentifier() and text != "x" else from_formula(text)


def rows_for(
    network: AffineDEQ, data: str, samples: int | None, test_samples: int | None, seed: int
) -> Dataset:
    """Load rows in the units of the network's training.

    Raises
    ------
    InvalidInput
        The set is one of images, and nobody says how the network scales them; or the rows have
        another length than the network's.
    """
    from notsodeep.data import is_image_set, load

    if is_image_set(data) and not {"input_shift", "input_scale"} <= network.metadata.keys():
        raise InvalidInput(
            f"The network's input scaling must be known for images such as {data}: a network "
            "answers nonsense on inputs of another scale. Give --input-shift and --input-scale, by "
            "which its inputs are (pixel/255 − shift)/scale (0.1307 and 0.3081 in much code for "
            "mnist, 0 and 1 for plain pixels), or store input_shift and input_scale in the file's "
            "metadata."
        )
    rows = load(
        data, preprocessing="unit_range", samples=samples, test_samples=test_samples, rng=seed
    )
    found, wanted = rows.X.shape[1], network.inputs
    if found != wanted:
        requirement = f"have rows of {wanted} numbers, as the network takes"
        raise checks.invalid("data", "the network", requirement, f"{data} with {found}")
    return rows
