"""`notsodeep collapse`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from notsodeep.cli.options import (
    ConfigOption,
    DataOption,
    ForceOption,
    JsonOption,
    SeedOption,
    print_json,
    resumable,
    say,
)
from notsodeep.head_names import FIVE_HEADS, HEAD_ACTIVATIONS, HEAD_KINDS, HEAD_SOLVERS

_COLUMNS = {
    "NC1": "nc1",
    "NC2": "nc2_features",
    "NC3": "nc3_duality",
    "train": "accuracy",
    "test": "test_accuracy",
}
_GROUP_COLUMNS = {
    "large": "test_majority_accuracy",
    "small": "test_minority_accuracy",
    "cosine": "minority_cosine",
}


def collapse_command(
    data: DataOption = "digits",
    samples: Annotated[
        int | None, typer.Option(help="Training samples, before any are taken away.")
    ] = None,
    test_samples: Annotated[int | None, typer.Option(help="Test samples; all by default.")] = None,
    majority: Annotated[
        int | None, typer.Option(help="Number of large classes; needs --ratio.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Samples of a large class over those of a small one.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(HEAD_KINDS)}; may be repeated. {len(FIVE_HEADS)} of them by default."
        ),
    ] = None,
    spectral_budget: Annotated[
        float, typer.Option(help="Bound of the head's matrix, in (0, 1).")
    ] = 0.5,
    truncated_steps: Annotated[int, typer.Option(help="Steps of deq_truncated.")] = 3,
    activation: Annotated[
        str, typer.Option(help=f"φ of the heads: {', '.join(HEAD_ACTIVATIONS)}.")
    ] = "identity",
    solver: Annotated[
        str, typer.Option(help=f"{' or '.join(HEAD_SOLVERS)}: residual 1e-3 or 1e-6 of a DEQ head.")
    ] = "paper",
    backbone: Annotated[str, typer.Option(help="mlp, or resnet18 for 32 × 32 images.")] = "mlp",
    width: Annotated[
        int, typer.Option(help="Width of the mlp; channels at first of the resnet18 (8 on a CPU).")
    ] = 64,
    first_width: Annotated[
        int | None, typer.Option(help="Of the mlp's first layer, if it is another.")
    ] = None,
    feature_scale: Annotated[
        str,
        typer.Option(
            help="learned, or fixed: the mlp's features have no scales that weight decay could "
            "put out, as many classes need."
        ),
    ] = "learned",
    classifier: Annotated[str, typer.Option(help="learned or fixed_etf.")] = "learned",
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 40,
    batch_size: Annotated[int, typer.Option(help="Samples in a step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Of SGD with momentum 0.9.")] = 0.05,
    weight_decay: Annotated[float, typer.Option(help="Of all weights but the head's.")] = 5e-3,
    scale_free_decay: Annotated[
        float | None,
        typer.Option(
            help="Weight decay where a normalisation undoes the scale, if it is another; a "
            "hundredth of a large --weight-decay lets tens of thousands of samples be fitted."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Networks of each head; fewer than three decide little.")
    ] = 3,
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Directory of the results.")] = Path("runs/collapse"),
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train networks that differ in their head alone, and measure their neural collapse.

    The heads have as many parameters, and a matrix with the same bound on its spectral norm; those
    that begin with explicit_ may be as large as the DEQ's gain.  Stopped runs resume.

    Example: notsodeep collapse --samples 400 --majority 5 --ratio 10 --epochs 5 --seeds 1
    """
    from notsodeep import checks
    from notsodeep.papers.collapse_settings import CollapseSettings
    from notsodeep.papers.collapse_training import compare_heads

    heads: Any = list(dict.fromkeys(head or FIVE_HEADS))
    for each in heads:
        checks.known_name(each, HEAD_KINDS, "head")
    settings = CollapseSettings(
        heads[0],
        data=data,
        samples=samples,
        test_samples=test_samples,
        num_majority=majority,
        ratio=ratio,
        backbone=backbone,  # type: ignore[arg-type]  # checked inside
        width=width,
        first_width=first_width,
        feature_scale=feature_scale,  # type: ignore[arg-type]
        spectral_budget=spectral_budget,
        truncated_steps=truncated_steps,
        activation=activation,  # type: ignore[arg-type]
        solver=solver,  # type: ignore[arg-type]
        classifier=classifier,  # type: ignore[arg-type]
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        scale_free_decay=scale_free_decay,
        seed=seed,
    )
    with resumable(out):
        records = compare_heads(settings, heads, out, seeds=seeds, force=force, say=say)

    from notsodeep.report.collapse_page import write_collapse_page
    from notsodeep.report.page import NAME

    page = write_collapse_page(records, out / NAME)
    if as_json:
        print_json({"records": records})
    else:
        _print_table(records)
        typer.echo(f"records: {out / 'pieces'}")
        typer.echo(f"report:  {page}")


def _print_table(records: list[dict[str, Any]]) -> None:
    """Print means over seeds of what was measured after the last epoch."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    first = records[0]
    columns = _COLUMNS | (_GROUP_COLUMNS if first["groups"] else {}) | {"gain": "gain"}
    counts = first["counts"]
    sizes = f"{max(counts)}" if not first["groups"] else f"{max(counts)} or {min(counts)}"
    by_head: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_head.setdefault(record["settings"]["head"], []).append(record["epochs"][-1])
    seeds = len(records) // len(by_head)
    drawn = "1 seed" if seeds == 1 else f"mean of {seeds} seeds"
    table = Table(
        title=f"{first['settings']['data']}, {len(counts)} classes of {sizes} samples, {drawn}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("head", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    for head, ends in by_head.items():
        table.add_row(head, *(_mean([end[key] for end in ends]) for key in columns.values()))
    Console().print(table)
    typer.echo("NC1 tr(S_W S_B⁺)/K, NC2 of the means, NC3 classifier − means are 0 at collapse.")
    if first["groups"]:
        typer.echo("large, small: test accuracy by class size; cosine: of minority classifiers.")
    typer.echo("gain: ‖G‖₂ of the trained head.")


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.2g}" if len(known) == len(values) else "–"
