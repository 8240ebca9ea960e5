"""`notsodeep kernel`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep.cli.model_options import (
    ConvolutionOption,
    ImageShapeOption,
    PaddingOption,
    PoolingOption,
    YesOption,
    load_images,
    reject_ignored,
    require_patience,
)
from notsodeep.cli.options import (
    ActivationOption,
    CellOption,
    ConfigOption,
    ConventionOption,
    DataOption,
    ForceOption,
    JsonOption,
    KernelOption,
    KinkOption,
    LayerOption,
    SeedOption,
    SigmaOption,
    check_new,
    equilibrium,
    print_json,
    resumable,
    say,
)
from notsodeep.errors import InvalidInput

if TYPE_CHECKING:
    from notsodeep.models import ConvolutionalEquilibrium, DeepEquilibrium


def kernel_command(
    context: typer.Context,
    activation: ActivationOption = "relu",
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    layer: LayerOption = None,
    cell: CellOption = None,
    convolution: ConvolutionOption = None,
    image_shape: ImageShapeOption = None,
    pooling: PoolingOption = "flatten",
    padding: PaddingOption = "circular",
    data: DataOption = "digits",
    samples: Annotated[int | None, typer.Option(help="Training samples to use.")] = None,
    kind: KernelOption = "ck",
    convention: ConventionOption = "feature",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="A .npy file or a .zarr store.")] = Path("kernel.npy"),
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    yes: YesOption = False,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the exact kernel of a deep equilibrium model and write it to disk.

    A .npy file is written at the end. A .zarr store, which may be larger than memory, holds the
    upper triangle in blocks with checksums: if the command is stopped, the same command resumes.

    Example: notsodeep kernel --activation tanh --data digits --samples 200 --out kernel.npy

    For images: notsodeep kernel --convolution "relu weight=.2 inject=.8" --data mnist --samples 200
    """
    from notsodeep import checks
    from notsodeep._files import write_array
    from notsodeep.data import load
    from notsodeep.kernels import kernel, store_kernel

    if out.suffix not in (".npy", ".zarr"):
        raise InvalidInput(f"out must end with .npy or .zarr, got {out}.")
    checks.known_name(dtype, ("float64", "float32"), "dtype")
    reject_ignored(context, layer, cell, convolution)
    stored = out.suffix == ".zarr"
    if stored and force:
        raise InvalidInput("force must be left out for a .zarr store: it resumes. Remove it first.")
    model: DeepEquilibrium | ConvolutionalEquilibrium
    check_new(None if stored else out, force)
    if convolution:
        model, rows = load_images(
            convolution, image_shape, pooling, padding, data, samples, None, seed
        )
        require_patience(model, [(rows.X, 1.0)], yes)
    else:
        model = equilibrium(activation, sigma_a2, kink, layer, cell)
        say(f"loading {data}")
        rows = load(data, samples=samples, rng=seed)
    choice: Any = {"kind": kind, "convention": convention, "dtype": dtype}
    if stored:
        with resumable(out):
            store_kernel(out, model, rows.X, **choice)
    else:
        write_array(out, kernel(model, rows.X, **choice))
    n = len(rows.X)
    if as_json:
        print_json({**choice, "model": model.to_dict(), "shape": [n, n], "file": str(out)})
    else:
        typer.echo(f"{kind} ({convention}) of {model}, {n} × {n}: {out}")
