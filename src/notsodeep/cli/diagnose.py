"""`notsodeep diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from notsodeep import extras
from notsodeep.cli.model_options import (
    ModelOption,
    ScaleOption,
    ShiftOption,
    ZooOption,
    given_network,
    rows_for,
)
from notsodeep.cli.options import (
    ConfigOption,
    DataOption,
    ForceOption,
    JsonOption,
    SeedOption,
    check_new,
    print_json,
    say,
)


def diagnose_command(
    model: ModelOption = None,
    zoo: ZooOption = None,
    activation: Annotated[
        str | None, typer.Option(help="Of the network, if its file does not say.")
    ] = None,
    input_shift: ShiftOption = None,
    input_scale: ScaleOption = None,
    data: DataOption = "digits",
    rows: Annotated[int, typer.Option(help="How many rows to look at.")] = 512,
    max_steps: Annotated[int, typer.Option(help="Budget of one start.")] = 300,
    tolerance: Annotated[float, typer.Option(help="Relative residual of a settled row.")] = 1e-6,
    seed: SeedOption = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw it into this file (.svg, .png, .pdf).")
    ] = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a trained equilibrium network settles, where, and after how many steps.

    Example: notsodeep diagnose --zoo tanh-digits-64 --data digits
    """
    extras.require("notsodeep diagnose", "torch", *(["matplotlib"] if figure else []))
    from notsodeep.data import is_image_set
    from notsodeep.trained.diagnosis import diagnose

    check_new(figure, force)
    network = given_network(model, zoo, activation, input_shift, input_scale)
    say(f"loading {data}")
    # Rows that it was not trained on, where there are some; image sets have them.
    training_rows = 100 if is_image_set(data) else None
    sets = rows_for(network, data, training_rows, None, seed)
    X = sets.X_test if len(sets.X_test) else sets.X
    found = diagnose(
        network,
        X,
        rows=rows,
        max_steps=max_steps,
        tolerance=tolerance,
        rng=seed,
    )
    if figure is not None:
        from notsodeep import plotting

        plotting.save_figure(plotting.diagnosis_figure(found), figure)
    if as_json:
        print_json(found.to_dict())
    else:
        typer.echo(str(found))
