"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep.errors import InvalidInput

if TYPE_CHECKING:
    from notsodeep.compilation.record import Step
    from notsodeep.models import DeepEquilibrium

ActivationOption = Annotated[
    str,
    typer.Option(
        help="A name (relu, tanh, swish, …) or a formula in x, like 'x*sigmoid(x)'.",
        autocompletion=lambda: _activations(),
    ),
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
CentredOption = Annotated[
    bool | None,
    typer.Option(
        "--centred/--no-centred",
        help="Match the DEQ with its mean taken off, or as it is; as it is by default, where the "
        "family can.",
    ),
]
KernelOption = Annotated[
    str,
    typer.Option(
        help="conjugate (ck, nngp) or tangent (ntk).",
        callback=lambda value: _kernel(value),
        autocompletion=lambda: ["ck", "ntk"],
    ),
]
ConventionOption = Annotated[
    str,
    typer.Option(
        help="feature or preactivation.", autocompletion=lambda: ["feature", "preactivation"]
    ),
]
FamilyOption = Annotated[
    str,
    typer.Option(
        help="auto, plain, leaky_relu, hard_tanh, scaled, piecewise_linear, two_kinks, "
        "quadratic or dual.",
        autocompletion=lambda: _families(),
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ForceOption = Annotated[bool, typer.Option(help="Replace what is there.")]


def _activations() -> list[str]:
    from notsodeep.activations import names

    return names()


def _kernel(value: str) -> str:
    from notsodeep.models import kernel_name

    return kernel_name(value, "kernel")


def _families() -> list[str]:
    from notsodeep.matching import FAMILIES

    return list(FAMILIES)


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
        return DeepEquilibrium(cell=[Dense.from_options(**form) for form in _layers_in(cell)])
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


def check_new(out: Path | None, force: bool) -> None:
    """Require that the file that a command writes is not there, unless it may be replaced."""
    if out is None:
        return
    if out.is_dir():
        raise InvalidInput(f"out must be a file, got the directory {out}.")
    if out.exists() and not force:
        raise InvalidInput(f"out must not exist, got {out}. Use --force to replace it.")


def print_json(record: Any) -> None:
    """Print a record as JSON."""
    typer.echo(json.dumps(record, indent=2, allow_nan=False))


def say(message: str) -> None:
    """Report what is being done, in a log with the time."""
    # Not typer.echo: it would write across a progress bar, which redirects only sys.stderr.
    mark = "·" if sys.stderr.isatty() else time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stderr.write(f"{mark} {message}\n")


@contextlib.contextmanager
def counted(bar: bool = True) -> Iterator[Callable[[Step], None]]:
    """Show steps as `say` does; of those that count, the time that is left.

    On a terminal they move one bar.  In a log, where each would be a line, there is one every ten
    seconds.

    Parameters
    ----------
    bar : bool
        Whether a terminal may show a bar; not if the work has bars of its own.
    """
    with contextlib.ExitStack() as bars:
        yield _Counter(bars, bar and sys.stderr.isatty())


class _Counter:
    """What `counted` yields."""

    def __init__(self, bars: contextlib.ExitStack, bar: bool) -> None:
        self._bars, self._bar = bars, bar
        self._advance: Any = None
        self._begun: tuple[int, float] | None = None  # first count, and when it was called
        self._shown = -math.inf
        self._announced = False

    def __call__(self, step: Step) -> None:
        if not step.total:
            self._bars.close()
            self._advance = None
            say(step.message)
            return
        now = time.monotonic()
        self._begun = self._begun or (step.done, now)
        begun, since = self._begun
        known = step.done > begun
        left = (now - since) / max(step.done - begun, 1) * (step.total - step.done)
        if known and left > _LONG and not self._announced:
            self._announced = True
            say(f"about {_duration(left)} left; after Ctrl-C the same command resumes")
        if self._bar:
            from notsodeep.progress import progress_bar

            if self._advance is None:
                self._advance = self._bars.enter_context(progress_bar(step.message, unit="work"))
            self._advance(step.done, step.total)
        elif now - self._shown >= _EVERY:
            self._shown = now
            say(f"{step}; about {_duration(left)} left" if known else str(step))


_LONG = 120.0  # seconds of work that are announced
_EVERY = 10.0  # seconds between lines that count, in a log


def _duration(seconds: float) -> str:
    """Return a time as people say it.

    Examples
    --------
    >>> _duration(42.3), _duration(601), _duration(4000)
    ('42 s', '10 min', '1 h 7 min')
    """
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60.0), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class Interrupted(Exception):
    """Ctrl-C, with words on how to resume; Typer would end a KeyboardInterrupt in silence."""


@contextlib.contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Let Ctrl-C say how the work is resumed."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"interrupted. What is done is kept in {out}; the same command resumes there."
        ) from error
