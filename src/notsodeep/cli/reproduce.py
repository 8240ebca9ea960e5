"""`notsodeep reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from notsodeep.cli.options import (
    ClusterOption,
    ConfigOption,
    ForceOption,
    JsonOption,
    print_json,
    resumable,
)
from notsodeep.errors import InvalidInput


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="An experiment; see --list.")] = None,
    profile: Annotated[
        str, typer.Option(help="smoke (seconds), quick (a minute) or paper (its sizes).")
    ] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Directory of the results; runs/NAME-PROFILE by default.")
    ] = None,
    cluster: ClusterOption = None,
    force: ForceOption = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reproduce a figure of the papers and set our numbers beside theirs.

    Example: notsodeep reproduce gap-versus-dimension --profile smoke
    """
    from notsodeep.cluster.executors import open_executor
    from notsodeep.papers.reproduction import NAMES, experiment, reproduce

    if list_all:
        known = {name: experiment(name) for name in NAMES}
        if as_json:
            print_json(
                [{"name": n, "title": e.title, "source": e.source} for n, e in known.items()]
            )
            return
        for each, found in known.items():
            typer.echo(f"{each:22} {found.title} ({found.source})")
        return
    if name is None:
        raise InvalidInput(f"name of reproduce must be given. Known: {', '.join(NAMES)}.")
    work = experiment(name)
    place = out if out is not None else Path("runs") / f"{name}-{profile}"
    with resumable(place), open_executor(cluster) as executor:
        records = reproduce(name, place, profile=profile, force=force, executor=executor)  # type: ignore[arg-type]

    from notsodeep.plotting.canvas import save_figure
    from notsodeep.report.reproduction_figures import reproduction_figure
    from notsodeep.report.reproduction_page import write_reproduction_page

    drawn = reproduction_figure(name, records)
    figure = save_figure(drawn, place / "figure.svg")
    page = write_reproduction_page(work, records, drawn, place, profile)
    findings = work.findings(records)
    if as_json:
        print_json({"name": name, "profile": profile, "findings": [vars(f) for f in findings]})
        return
    typer.echo(f"{work.title} ({work.source})")
    for finding in findings:
        paper = f"  paper: {finding.paper}" if finding.paper else ""
        typer.echo(f"- {finding.quantity}: {finding.ours}{paper}")
        if finding.why:
            typer.echo(f"    {finding.why}")
    typer.echo(f"figure:  {figure}")
    typer.echo(f"report:  {page}")
