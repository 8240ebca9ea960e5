"""`notsodeep compile` and `notsodeep report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep import extras
from notsodeep.cli.model_options import (
    OF_IMAGES,
    ConvolutionOption,
    FetchOption,
    ImageShapeOption,
    ModelOption,
    PoolingOption,
    ScaleOption,
    ShiftOption,
    YesOption,
    ZooOption,
    compile_given,
    load_images,
    matching_work,
    reject_ignored,
    reject_options,
    require_patience,
)
from notsodeep.cli.options import (
    CellOption,
    CentredOption,
    ConfigOption,
    ConventionOption,
    DataOption,
    FamilyOption,
    ForceOption,
    JsonOption,
    KernelOption,
    KinkOption,
    LayerOption,
    SeedOption,
    SigmaOption,
    check_new,
    counted,
    equilibrium,
    print_json,
    resumable,
    say,
)

if TYPE_CHECKING:
    from notsodeep.models import ConvolutionalEquilibrium, DeepEquilibrium

OF_GIVEN_NETWORKS = ("input_shift", "input_scale", "fetch", "layers")
OF_RANDOM_DEQS = (
    "sigma_a2",
    "kink",
    "layer",
    "cell",
    "convolution",
    *OF_IMAGES,
    "family",
    "kernel",
    "convention",
    "refine",
    "centred",
    "train",
    "epochs",
    "seeds",
    "ridge",
    "gap_limit",
    "accuracy_limit",
)


def compile_command(
    context: typer.Context,
    activation: Annotated[
        str | None,
        typer.Option(help="A name or a formula in x; relu, or what the file of --model says."),
    ] = None,
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    layer: LayerOption = None,
    cell: CellOption = None,
    convolution: ConvolutionOption = None,
    image_shape: ImageShapeOption = None,
    pooling: PoolingOption = "flatten",
    model: ModelOption = None,
    zoo: ZooOption = None,
    input_shift: ShiftOption = None,
    input_scale: ScaleOption = None,
    fetch: FetchOption = False,
    layers: Annotated[
        int | None, typer.Option(help="Explicit layers for a trained network; found by default.")
    ] = None,
    data: DataOption = "digits",
    samples: Annotated[
        int | None,
        typer.Option(help="Training samples; all by default, 10,000 for a trained network."),
    ] = None,
    test_samples: Annotated[
        int | None, typer.Option(help="Test samples; all by default, if the data have a test part.")
    ] = None,
    family: FamilyOption = "auto",
    kind: KernelOption = "ck",
    convention: ConventionOption = "feature",
    refine: Annotated[bool, typer.Option(help="Refine the match on data.")] = True,
    centred: CentredOption = None,
    width: Annotated[
        int | None,
        typer.Option(help="Of the finite networks: 1024, or that of a trained one, by default."),
    ] = None,
    train: Annotated[
        str, typer.Option(help="readout (random features) or all weights.")
    ] = "readout",
    epochs: Annotated[int, typer.Option(help="Epochs, with --train all.")] = 10,
    seeds: Annotated[int, typer.Option(help="Random draws of each network, at least 2.")] = 30,
    seed: SeedOption = 0,
    ridge: Annotated[float, typer.Option(help="Ridge, relative to the features' size.")] = 1e-2,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Relative, of the DEQ's solver: 1e-5, or 1e-10 for a trained one."),
    ] = None,
    gap_limit: Annotated[float, typer.Option(help="Largest kernel gap to pass.")] = 0.05,
    accuracy_limit: Annotated[float, typer.Option(help="Largest accuracy loss, in points.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Directory of the results.")] = Path("runs/compile"),
    yes: YesOption = False,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the shallow network for a deep equilibrium model, with the evidence that it will do.

    Matches the kernels, certifies them on held-out rows, trains and times both networks, exports
    the shallow one and writes a report.  Stopped runs are resumed.  For a network that was
    trained, --model or --zoo, explicit layers are fitted to its own states instead.

    Example: notsodeep compile --activation relu --sigma-a2 0.2 --data digits --out runs/relu

    Of a cell: notsodeep compile --layer "tanh weight=.5 inject=.6 bias=.1" --layer "relu weight=.8"

    For images: notsodeep compile --convolution "relu weight=.2 inject=.8 size=3" --data digits
    """
    given = model is not None or zoo is not None
    needed = ["torch"] if given or train == "all" else []
    extras.require("notsodeep compile", "jinja2", "matplotlib", *needed)
    from notsodeep.compilation.dispatch import compile as compile_model
    from notsodeep.compilation.random_deq import CERTIFIED
    from notsodeep.compilation.record import Compilation
    from notsodeep.compilation.verdict import certified_rows
    from notsodeep.data import load

    if given:
        reject_options(context, OF_RANDOM_DEQS, "describe a random DEQ, and not a trained network")
        compile_given(
            (model, zoo, activation, input_shift, input_scale, fetch),
            data,
            samples,
            test_samples,
            seed,
            out,
            as_json,
            layers=layers,
            width=width,
            tolerance=tolerance,
            force=force,
        )
        return
    reject_options(context, OF_GIVEN_NETWORKS, "go with --model or --zoo")
    deq: DeepEquilibrium | ConvolutionalEquilibrium
    reject_ignored(context, layer, cell, convolution)
    if convolution:
        described = convolution, image_shape, pooling
        deq, rows = load_images(*described, data, samples, test_samples, seed)
        # Certificates compare kernels of the DEQ with and without its mean.
        require_patience(deq, [matching_work(rows), (rows.X_test[:CERTIFIED], 2.0)], yes)
    else:
        deq = equilibrium(activation or "relu", sigma_a2, kink, layer, cell)
        say(f"loading {data}")
        rows = load(data, samples=samples, test_samples=test_samples, rng=seed)
    # Training of all weights has bars of its own.
    with resumable(out), counted(bar=train == "readout") as progress:
        compiled = compile_model(
            deq,
            rows,
            family=family,
            kind=kind,  # type: ignore[arg-type]
            convention=convention,  # type: ignore[arg-type]
            refine=refine,
            centre=centred,
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
            progress=progress,
        )
    assert isinstance(compiled, Compilation)  # of a random DEQ
    page = compiled.report(out / "report.html")
    summary, verdict = compiled.records["summary"], compiled.verdict
    if as_json:
        print_json({**summary, "report": str(page)})
        return
    typer.echo(verdict.headline)
    _print_summary(summary)
    typer.echo(f"The kernel gap is that on {certified_rows(summary)}.")
    for reason in verdict.reasons:
        if "as asked" in reason or "constant part" in reason:
            typer.echo(reason)
    typer.echo(verdict.rule)
    typer.echo(f"network: {out / 'network.safetensors'}")
    onnx = compiled.records["export"]["onnx"]
    if onnx != "written":
        typer.echo(f"{out / 'network.onnx'}: not written. {onnx}")
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
        "kernel gap, rescaled",
        "–",
        f"{summary['scaled_gap']:.2%}",
        f"{summary['unmatched_scaled_gap']:.2%}",
    )
    table.add_row(
        "kernel gap, as it is",
        "–",
        f"{summary['relative_gap']:.2%}",
        f"{summary['unmatched_relative_gap']:.2%}",
    )
    table.add_row(
        "test accuracy",
        *(f"{100 * accuracy[r]:.2f} ± {100 * deviation[r]:.2f} %" for r in roles),
    )
    table.add_row(
        f"inference at {summary['tolerance']:g}",
        f"{summary['inference_ratio']:.1f} × slower",
        "1",
        "",
    )
    if summary["training_ratio"] is not None:
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
    from notsodeep.compilation.dispatch import load
    from notsodeep.compilation.record import Compilation
    from notsodeep.compilation.trained_record import TrainedCompilation

    check_new(out, force)
    compiled = load(directory) if directory.is_dir() else Compilation.load(directory)
    assert isinstance(compiled, Compilation | TrainedCompilation)  # it is a directory
    page = compiled.report(directory / "report.html" if out is None else out)
    if as_json:
        if isinstance(compiled, TrainedCompilation):
            summary = compiled.to_dict()
        else:
            summary = compiled.records["summary"]
        print_json({**summary, "report": str(page)})
    else:
        typer.echo(f"report:  {page}")
