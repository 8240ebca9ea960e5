"""`notsodeep match`, `notsodeep kernel` and `notsodeep spectrum`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep.cli.model_options import (
    ConvolutionOption,
    ImageShapeOption,
    PoolingOption,
    YesOption,
    load_images,
    matching_work,
    require_patience,
)
from notsodeep.cli.options import (
    ActivationOption,
    CellOption,
    ClusterOption,
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
    equilibrium,
    new_file,
    print_json,
    resumable,
    say,
)
from notsodeep.errors import InvalidInput

if TYPE_CHECKING:
    from notsodeep.data import Dataset
    from notsodeep.models import ConvolutionalEquilibrium, DeepEquilibrium, KernelModel

SamplesOption = Annotated[int | None, typer.Option(help="Training samples to use.")]


def match_command(
    activation: ActivationOption = "relu",
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    layer: LayerOption = None,
    cell: CellOption = None,
    convolution: ConvolutionOption = None,
    image_shape: ImageShapeOption = None,
    pooling: PoolingOption = "flatten",
    tau0: Annotated[float | None, typer.Option(help="Scale of the data; 1 by default.")] = None,
    data: Annotated[str | None, typer.Option(help="Match on a data set instead.")] = None,
    samples: SamplesOption = 600,
    family: FamilyOption = "auto",
    kernel: KernelOption = "conjugate",
    convention: ConventionOption = "feature",
    layers: Annotated[int | None, typer.Option(help="Hidden layers, 1 or 2.")] = None,
    refine: Annotated[bool, typer.Option(help="Refine on the data; needs --data.")] = False,
    yes: YesOption = False,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="A .json file for the record.")] = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the parameters of the shallow network that matches a deep equilibrium model.

    Example: notsodeep match --activation tanh --sigma-a2 0.2 --family hard_tanh
    """
    from notsodeep.data import load
    from notsodeep.files.atomic_files import write_json
    from notsodeep.matching import match, named

    if layers is not None and family == "auto":
        raise InvalidInput(
            "layers of match must come with a family: auto compares families by their own numbers "
            f"of layers. Got --layers {layers} with --family auto. Use --family leaky_relu, for "
            "instance, or leave --layers out."
        )
    place: dict[str, Any] = {"tau0": 1.0 if tau0 is None else tau0}
    deq: DeepEquilibrium | ConvolutionalEquilibrium
    with new_file(out, force):
        if convolution:
            if data is None or tau0 is not None:
                raise InvalidInput("A --convolution is matched on images: give --data, not --tau0.")
            described = convolution, image_shape, pooling
            deq, rows = load_images(*described, data, samples, None, seed)
            require_patience(deq, [matching_work(rows)], yes)
            place = {"X": rows.X}
        else:
            deq = equilibrium(activation, sigma_a2, kink, layer, cell)
        if data is not None and not convolution:
            if tau0 is not None:
                raise InvalidInput("tau0 of match must be left out with --data, which has its own.")
            say(f"loading {data}")
            place = {"X": load(data, samples=samples, rng=seed).X}
        say("matching")
        found = match(
            deq,
            family=family if family == "auto" else named(family, layers=layers),
            kernel=kernel,  # type: ignore[arg-type]  # checked inside
            convention=convention,  # type: ignore[arg-type]
            refine=refine,
            rng=seed,
            **place,
        )
        if out is not None:
            write_json(out, found.to_dict())
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))
    if found.fitted is None:
        raise typer.Exit(1)


def kernel_command(
    activation: ActivationOption = "relu",
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    layer: LayerOption = None,
    cell: CellOption = None,
    convolution: ConvolutionOption = None,
    image_shape: ImageShapeOption = None,
    pooling: PoolingOption = "flatten",
    data: DataOption = "digits",
    samples: SamplesOption = None,
    kernel: KernelOption = "conjugate",
    convention: ConventionOption = "feature",
    centred: Annotated[
        bool, typer.Option(help="Centre the activation, as the theory does.")
    ] = True,
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="A .npy file or a .zarr store.")] = Path("kernel.npy"),
    dtype: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    cluster: ClusterOption = None,
    verify: Annotated[
        bool, typer.Option(help="Check every stored block, and compute damaged ones again.")
    ] = False,
    yes: YesOption = False,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute an exact kernel of a deep equilibrium model and write it to disk.

    A .npy file is filled tile by tile in a memory map. A .zarr store holds the upper triangle in
    blocks with checksums: if the command is stopped, the same command resumes it. Either may be
    larger than memory.

    Example: notsodeep kernel --activation tanh --data digits --samples 200 --out kernel.npy

    For images: notsodeep kernel --convolution "relu weight=.2 inject=.8" --data mnist --samples 200
    """
    from notsodeep.models import checked_choice

    deq = equilibrium(activation, sigma_a2, kink, layer, cell)
    checked_choice(deq, kernel, convention, "kernel")
    model: DeepEquilibrium | ConvolutionalEquilibrium
    if out.suffix not in (".npy", ".zarr"):
        raise InvalidInput(f"out of kernel must end with .npy or .zarr. Got {out}.")
    stored = out.suffix == ".zarr"
    if not stored and (cluster is not None or verify):
        needed = "cluster" if cluster is not None else "verify"
        raise InvalidInput(f"{needed} of kernel must come with a .zarr store. Got --out {out}.")
    with new_file(None if stored else out, force):
        if convolution:
            described = convolution, image_shape, pooling
            model, rows = load_images(*described, data, samples, None, seed)
            require_patience(model, [(rows.X, 1.0)], yes)
        else:
            rows = _rows(data, samples, seed)
            # A cell is taken as it is described; it need not have a centred form.
            model = deq.centred(_scale(rows.X)) if centred and deq.is_vanilla else deq
        n = len(rows.X)
        chosen: dict[str, Any] = {"kernel": kernel, "convention": convention, "dtype": dtype}
        record = {**chosen, "model": model.to_dict(), "shape": [n, n], "file": str(out)}
        if stored:
            from notsodeep.cluster.executors import open_executor
            from notsodeep.kernels.store_writing import store_kernel

            chosen |= {"verify": verify, "force": force}
            with resumable(out):
                if cluster is None:
                    store = store_kernel(out, model, rows.X, **chosen)
                else:
                    with open_executor(cluster) as executor:
                        store = store_kernel(out, model, rows.X, **chosen, executor=executor)
            record["sha256"] = store.digest
        else:
            _write_npy(out, model, rows.X, **chosen)
    if as_json:
        print_json(record)
    else:
        typer.echo(f"{kernel} kernel ({convention}) of {model}, {n} × {n}: {out}")


def spectrum_command(
    activation: ActivationOption = "tanh",
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    layer: LayerOption = None,
    cell: CellOption = None,
    data: DataOption = "gaussian_mixture",
    samples: SamplesOption = None,
    kernel: KernelOption = "conjugate",
    convention: ConventionOption = "preactivation",
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="A .svg or .png of the spectrum.")] = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the spectrum of an exact kernel with random-matrix theory.

    Example: notsodeep spectrum --activation tanh --data gaussian_mixture --samples 400
    """
    from notsodeep.equivalents import compare, equivalent, limiting_spectrum
    from notsodeep.kernels import kernel as exact_kernel

    with new_file(out, force):
        rows = _rows(data, samples, seed)
        statistics, population = _statistics(rows)
        deq = equilibrium(activation, sigma_a2, kink, layer, cell)
        deq = deq.centred(statistics.tau0) if deq.is_vanilla else deq
        say("exact kernel")
        K = exact_kernel(deq, rows.X, kind=kernel, convention=convention)  # type: ignore[arg-type]
        say("random-matrix equivalent")
        choice: Any = {"kernel": kernel, "convention": convention}
        eq = equivalent(deq, rows.X, statistics, **choice, order="auto", exact=K)
        say("limiting law")
        law = limiting_spectrum(eq, population=population)
        result = compare(K, eq, law)
        if out is not None:
            from notsodeep.plotting.canvas import save_figure
            from notsodeep.plotting.spectra import spectrum_figure

            save_figure(spectrum_figure(result, f"{deq}, {kernel} kernel"), out)
    if as_json:
        print_json({**result.to_dict(arrays=False), "order": eq.order, "gaps": eq.gaps})
        return
    typer.echo(f"{deq}, {kernel} kernel ({convention}), {len(rows.X)} samples of {data}")
    typer.echo(str(result))
    assert eq.gaps is not None
    first, second = eq.gaps.values()
    typer.echo(f"order of the equivalent  {eq.order} (gap {first:.4g} at 1, {second:.4g} at 2)")
    typer.echo(str(law))


def _rows(data: str, samples: int | None, seed: int) -> Dataset:
    from notsodeep.data import load

    say(f"loading {data}")
    return load(data, samples=samples, rng=seed)


def _write_npy(
    out: Path, model: KernelModel, X: Any, *, kernel: str, convention: str, dtype: str
) -> None:
    from notsodeep import checks
    from notsodeep.files.atomic_files import atomic_memmap
    from notsodeep.kernels import conjugate_kernel, tangent_kernel

    function = conjugate_kernel if kernel == "conjugate" else tangent_kernel
    kind = checks.kernel_dtype(dtype, "kernel")
    with atomic_memmap(out, kind, (len(X), len(X))) as matrix:
        function(model, X, convention=convention, out=matrix)  # type: ignore[arg-type]


def _scale(X: Any) -> float:
    return math.sqrt(float((X**2).sum()) / len(X))


def _statistics(rows: Dataset) -> tuple[Any, Any]:
    """Statistics of the data, exact if its law is known, and where the population comes from."""
    from notsodeep.data import MixtureStatistics

    if rows.population is not None:
        return rows.population.statistics(rows.X, rows.y), None
    return MixtureStatistics.estimate(rows.X, rows.y), "deconvolved"
