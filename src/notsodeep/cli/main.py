"""The command `notsodeep`: sub-commands, and what happens when something goes wrong.

Exit codes: 0 done, 1 the work failed, 2 the request could not be understood, 130 interrupted.
An error is one line on standard error; ``NOTSODEEP_TRACEBACK=1`` shows where it came from.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from notsodeep import __version__, extras
from notsodeep.cli import (
    compile,
    data,
    diagnose,
    explore,
    kernel,
)
from notsodeep.cli.options import Interrupted
from notsodeep.errors import InvalidInput, MissingPackage, NotSoDeepError

app = typer.Typer(
    name="notsodeep",
    help=(
        "Deep equilibrium models, their exact kernels, and the shallow networks that behave the "
        "same.\n\nExample: notsodeep compile --activation relu --sigma-a2 0.2 --data digits"
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("compile")(compile.compile_command)
app.command("report")(compile.report_command)
app.command("diagnose")(diagnose.diagnose_command)
app.command("kernel")(kernel.kernel_command)
app.command("explore")(explore.explore_command)
app.add_typer(data.app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"notsodeep {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line and turn failures into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Greek letters on a terminal that has none (the C locale) are no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        message = error.format_message()
        if message.lstrip().startswith("Usage:"):  # a group without a command: its help
            typer.echo(message)
            sys.exit(error.exit_code)
        _fail(message, error.exit_code)
    except Interrupted as error:
        _fail(str(error), 130)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except InvalidInput as error:
        _fail(str(error), 2)
    except (NotSoDeepError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError):  # the reader (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        _fail(str(error) or type(error).__name__, 1)
    except ModuleNotFoundError as error:
        if not isinstance(explanation := extras.explained(error), MissingPackage):
            raise
        _fail(str(explanation), 1)
    else:
        sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    if os.environ.get("NOTSODEEP_TRACEBACK") == "1":
        raise
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)
