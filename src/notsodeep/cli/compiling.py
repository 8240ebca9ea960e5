"""`notsodeep compile` and `notsodeep report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from notsodeep import extras
from notsodeep.cli.options import (
    ActivationOption,
    ConfigOption,
    ConventionOption,
    DataOption,
    FamilyOption,
    ForceOption,
    JsonOption,
    KernelOption,
    KinkOption,
    SeedOption,
    SigmaOption,
    equilibrium,
    new_file,
    print_json,
    say,
)


def compile_command(
    activation: ActivationOption = "relu",
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    data: DataOption = "digits",
    samples: Annotated[int | None, typer.Option(help="Training samples; all by default.")] = None,
    test_samples: Annotated[
        int | None, typer.Option(help="Test samples; all by default, if the data have a test part.")
    ] = None,
    family: FamilyOption = "auto",
    kernel: KernelOption = "conjugate",
    convention: ConventionOption = "feature",
    refine: Annotated[bool, typer.Option(help="Refine the match on data.")] = True,
    width: Annotated[int, typer.Option(help="Width of the finite networks.")] = 1024,
    train: Annotated[
        str, typer.Option(help="readout (random features) or all weights.")
    ] = "readout",
    epochs: Annotated[int, typer.Option(help="Epochs, with --train all.")] = 10,
    seeds: Annotated[int, typer.Option(help="Random draws of each network, at least 2.")] = 30,
    seed: SeedOption = 0,
    ridge: Annotated[float, typer.Option(help="Ridge, relative to the features' size.")] = 1e-2,
    tolerance: Annotated[float, typer.Option(help="Relative, of the DEQ's solver.")] = 1e-5,
    gap_limit: Annotated[float, typer.Option(help="Largest kernel gap to pass.")] = 0.05,
    accuracy_limit: Annotated[float, typer.Option(help="Largest accuracy loss, in points.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Directory of the results.")] = Path("runs/compile"),
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the shallow network for a deep equilibrium model, with the evidence that it will do.

    Matches the kernels, certifies them on held-out rows, trains and times both networks, exports
    the shallow one and writes a report.  Stopped runs go on where they were.

    Example: notsodeep compile --activation relu --sigma-a2 0.2 --data digits --out runs/relu
    """
    extras.require("notsodeep compile", "jinja2", "matplotlib", "torch")
    from notsodeep.compilation.dispatch import compile as compile_model
    from notsodeep.compilation.verdict import certified_rows
    from notsodeep.data import load

    deq = equilibrium(activation, sigma_a2, kink)
    say(f"loading {data}")
    compiled = compile_model(
        deq,
        load(data, samples=samples, test_samples=test_samples, rng=seed),
        family=family,
        kernel=kernel,  # type: ignore[arg-type]
        convention=convention,  # type: ignore[arg-type]
        refine=refine,
        width=width,
        train=train,  # type: ignore[arg-type]
        epochs=epochs,
        seeds=seeds,
        random_state=seed,
        ridge=ridge,
        tolerance=tolerance,
        gap_limit=gap_limit,
        accuracy_limit=accuracy_limit,
        out=out,
        force=force,
        progress=say,
    )
    page = compiled.report(out / "report.html")
    summary, verdict = compiled.records["summary"], compiled.verdict
    if as_json:
        print_json({**summary, "report": str(page)})
        return
    typer.echo(verdict.headline)
    _print_summary(summary)
    typer.echo(f"The kernel gap is that on {certified_rows(summary)}.")
    typer.echo(verdict.rule)
    typer.echo(f"network: {out / 'network.safetensors'}")
    typer.echo(f"report:  {page}")


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("", "DEQ", "matched", "unmatched"):
        table.add_column(column, justify="left" if not column else "right")
    accuracy, deviation = summary["accuracy"], summary["accuracy_deviation"]
    roles = ("deq", "matched", "unmatched")
    table.add_row(
        "kernel gap",
        "–",
        f"{summary['relative_gap']:.2%}",
        f"{summary['unmatched_relative_gap']:.2%}",
    )
    table.add_row(
        "test accuracy",
        *(f"{100 * accuracy[r]:.2f} ± {100 * deviation[r]:.2f} %" for r in roles),
    )
    table.add_row("inference", f"{summary['inference_ratio']:.1f} × slower", "1", "")
    table.add_row("training step", f"{summary['training_ratio']:.1f} × slower", "1", "")
    Console().print(table)


def report_command(
    directory: Annotated[Path, typer.Argument(help="Directory of a compile run.")],
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; report.html in the directory by default.")
    ] = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a finished compile run again, from its stored results.

    Example: notsodeep report runs/relu
    """
    from notsodeep.compilation.record import Compilation

    with new_file(out, force):
        compiled = Compilation.load(directory)
        page = compiled.report(directory / "report.html" if out is None else out)
    if as_json:
        print_json({**compiled.records["summary"], "report": str(page)})
    else:
        typer.echo(f"report:  {page}")
