"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep.errors import InvalidInput, LockTimeout, RunInUse

if TYPE_CHECKING:
    from notsodeep.models import DeepEquilibrium

ActivationOption = Annotated[
    str, typer.Option(help="A name (relu, tanh, swish, …) or a formula in x, like 'x*sigmoid(x)'.")
]
SigmaOption = Annotated[float, typer.Option(help="Variance of the recurrent weights, in [0, 1).")]
KinkOption = Annotated[
    list[float] | None, typer.Option(help="A kink of the formula; may be repeated.")
]
LayerOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A layer of the cell, like 'tanh weight=.5 inject=.6 bias=.1'; may be repeated. "
        "Instead of --activation and --sigma-a2."
    ),
]
CellOption = Annotated[
    Path | None, typer.Option(help="A TOML file with a [[layer]] table for each layer.")
]
DataOption = Annotated[
    str, typer.Option(help="A data set (notsodeep data list), or a .npz, .csv or directory.")
]
KernelOption = Annotated[str, typer.Option(help="conjugate or tangent.")]
ConventionOption = Annotated[str, typer.Option(help="feature or preactivation.")]
FamilyOption = Annotated[
    str,
    typer.Option(help="auto, leaky_relu, hard_tanh, piecewise_linear, quadratic, cubic or dual."),
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ForceOption = Annotated[bool, typer.Option(help="Replace what is there.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(help="Work on Dask: local, or the address of a scheduler (tcp://host:8786)."),
]


def _use_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options in a TOML file as defaults: what is typed wins; unknown keys are errors."""
    if path is None:
        return None
    from notsodeep import checks

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"config must name a readable file. Got {path}: {error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"config must be a TOML file. Got {path}: {error}.") from error
    options = {p.name for p in context.command.params if p.name} - _NOT_IN_FILES
    names = {name.replace("_", "-"): name for name in sorted(options)}
    chosen: dict[str, Any] = {}
    for key, value in content.items():
        name = names[checks.known_name(key.replace("_", "-"), names, f"key in {path}")]
        if name in chosen:
            raise InvalidInput(f"config must name each option once. Got {key} twice in {path}.")
        chosen[name] = value
    context.default_map = chosen
    return path


_NOT_IN_FILES = {"config", "force", "as_json", "help"}
ConfigOption = Annotated[
    Path | None,
    typer.Option(callback=_use_config, is_eager=True, help="A TOML file with these options."),
]


def equilibrium(
    activation: str,
    sigma_a2: float,
    kinks: Iterable[float] | None,
    layer: Iterable[str] | None = None,
    cell: Path | None = None,
) -> DeepEquilibrium:
    """Make the DEQ that the options describe; an activation is a name or else a formula."""
    from notsodeep.activations import from_formula, named
    from notsodeep.models import DeepEquilibrium, Dense

    if layer and cell is not None:
        raise InvalidInput("cell must be left out beside --layer: both describe the layers.")
    if layer:
        return DeepEquilibrium(cell=[Dense.from_text(text) for text in layer])
    if cell is not None:
        return DeepEquilibrium(cell=[Dense.from_options(form) for form in _layers_in(cell)])
    points = tuple(kinks or ())
    is_name = activation.isidentifier() and activation != "x" and not points
    phi = named(activation) if is_name else from_formula(activation, kinks=points)
    return DeepEquilibrium(phi, sigma_a2)


def _layers_in(path: Path) -> list[dict[str, Any]]:
    """Read the [[layer]] tables of a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"cell must name a TOML file. Got {path}: {error}.") from error
    layers = content.get("layer")
    tables = isinstance(layers, list) and all(isinstance(layer, dict) for layer in layers)
    if set(content) != {"layer"} or not tables:
        raise InvalidInput(f"cell must hold [[layer]] tables and nothing else. Got {path}.")
    return list(content["layer"])


@contextlib.contextmanager
def new_file(out: Path | None, force: bool) -> Iterator[None]:
    """Reserve the file that a command writes, if it writes one, until the command has ended.

    Raises
    ------
    InvalidInput
        It is there already, and was not to be replaced.
    RunInUse
        Another process is about to write it.
    """
    if out is None:
        yield
        return
    from notsodeep.files.atomic_files import remove_abandoned
    from notsodeep.files.locks import exclusive_lock

    if out.is_dir():
        raise InvalidInput(f"out must be a file. Got {out}, which is a directory.")
    try:
        with exclusive_lock(out.with_name(f".{out.name}.lock"), timeout=0.0, passing=True):
            if out.exists() and not force:
                raise InvalidInput(
                    f"out must not exist. Got {out}, which does. Use --force to replace it."
                )
            remove_abandoned(out.parent, re.escape(out.name))
            yield
    except LockTimeout as error:
        raise RunInUse(
            f"{out} is being written by another process. Wait for it to end, or choose another "
            "--out."
        ) from error


def print_json(record: Any) -> None:
    """Print a record as JSON."""
    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def say(message: str) -> None:
    """Tell a person at a terminal what is going on; files and pipes hear nothing."""
    if sys.stderr.isatty():
        typer.echo(f"· {message}", err=True)
