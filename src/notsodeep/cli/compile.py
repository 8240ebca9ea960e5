"""`notsodeep compile` and `notsodeep report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep import extras
from notsodeep.cli.model_options import (
    OF_IMAGES,
    ConvolutionOption,
    ImageShapeOption,
    ModelOption,
    PaddingOption,
    PoolingOption,
    ScaleOption,
    ShiftOption,
    YesOption,
    ZooOption,
    given_network,
    load_images,
    matching_work,
    reject_ignored,
    reject_options,
    require_patience,
    rows_for,
)
from notsodeep.cli.options import (
    CellOption,
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
    from notsodeep.compilation.record import Compilation
    from notsodeep.compilation.trained_record import TrainedCompilation

OF_GIVEN_NETWORKS = ("input_shift", "input_scale", "layers")
RULE = ("family", "kind", "convention", "refine", "width", "train", "epochs", "seeds", "ridge")
OF_RANDOM_DEQS = (
    *("sigma_a2", "kink", "layer", "cell", "convolution", "gap_limit"),
    *(*OF_IMAGES, *RULE),
)

_MANY_ROWS = 10_000  # unlabelled, for explicit layers of a few hundred units


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
    padding: PaddingOption = "circular",
    model: ModelOption = None,
    zoo: ZooOption = None,
    input_shift: ShiftOption = None,
    input_scale: ScaleOption = None,
    layers: Annotated[
        int | None, typer.Option(help="Explicit layers for a trained network; by the rule.")
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
    width: Annotated[
        int | None, typer.Option(help="Of the finite networks: 1024, or 32 channels, by default.")
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
    """Find the shallow network for a deep equilibrium model, with the evidence for it.

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
    from notsodeep.compilation.compile import compile as compile_model
    from notsodeep.compilation.random_deq import CERTIFIED
    from notsodeep.data import load

    common: dict[str, Any] = {"random_state": seed, "out": out, "force": force}
    common["accuracy_limit"] = accuracy_limit
    common |= {} if tolerance is None else {"tolerance": tolerance}
    if given:
        reject_options(context, OF_RANDOM_DEQS, "describe a random DEQ, and not a trained network")
        network = given_network(model, zoo, activation, input_shift, input_scale)
        say(f"loading {data}")
        count = _MANY_ROWS if samples is None and _is_image_set(data) else samples
        rows = rows_for(network, data, count, test_samples, seed)
        held = (rows.X_test, rows.y_test) if len(rows.X_test) else (None, None)
        with resumable(out), counted() as progress:
            compiled: Compilation | TrainedCompilation = compile_model(
                network, rows.X, rows.y, *held, layers=layers, progress=progress, **common
            )
        _print(compiled, out, as_json)
        return
    reject_options(context, OF_GIVEN_NETWORKS, "go with --model or --zoo")
    reject_ignored(context, layer, cell, convolution)
    if convolution:
        described = convolution, image_shape, pooling, padding
        deq, rows = load_images(*described, data, samples, test_samples, seed)
        require_patience(deq, [matching_work(rows), (rows.X_test[:CERTIFIED], 1.0)], yes)
    else:
        deq = equilibrium(activation or "relu", sigma_a2, kink, layer, cell)  # type: ignore[assignment]
        say(f"loading {data}")
        rows = load(data, samples=samples, test_samples=test_samples, rng=seed)
    options: dict[str, Any] = {
        "family": family,
        "kind": kind,
        "convention": convention,
        "refine": refine,
        "train": train,
        "epochs": epochs,
        "seeds": seeds,
        "ridge": ridge,
        "gap_limit": gap_limit,
    }
    options |= {} if width is None else {"width": width}
    with resumable(out), counted() as progress:
        compiled = compile_model(deq, rows, progress=progress, **common, **options)
    _print(compiled, out, as_json)


def _is_image_set(data: str) -> bool:
    from notsodeep.data import is_image_set

    return is_image_set(data) and data != "digits"


def _print(compiled: Compilation | TrainedCompilation, out: Path, as_json: bool) -> None:
    """Write the report, and print the verdict, the evidence and what was written."""
    page = compiled.report(out / "report.html")
    if as_json:
        print_json({**compiled.to_dict(), "report": str(page)})
        return
    typer.echo(str(compiled))
    absent = [package for package in ("torch", "onnx") if not extras.is_installed(package)]
    for name in ("network.safetensors", "network.onnx"):
        if (out / name).exists():
            typer.echo(f"network: {out / name}")
        elif absent:
            typer.echo(f"{out / name}: not written. {extras.missing('It', *absent)}")
    typer.echo(f"report:  {page}")


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
    from notsodeep.compilation.compile import load_compilation

    check_new(out, force)
    compiled = load_compilation(directory)
    page = compiled.report(directory / "report.html" if out is None else out)
    if as_json:
        print_json({**compiled.to_dict(), "report": str(page)})
    else:
        typer.echo(f"report:  {page}")
