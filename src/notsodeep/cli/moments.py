"""`notsodeep moments`: the Gaussian moments, τ* and conditions of a deep equilibrium model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep.cli.options import (
    ActivationOption,
    JsonOption,
    KinkOption,
    SigmaOption,
    equilibrium,
    print_json,
)

if TYPE_CHECKING:
    from notsodeep.activations import Moments
    from notsodeep.models import Conditions, DeepEquilibrium


def moments(
    activation: ActivationOption = "relu",
    sigma_a2: SigmaOption = 0.2,
    tau0: Annotated[float, typer.Option(help="Scale of the data: root mean squared norm.")] = 1.0,
    kink: KinkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the Gaussian moments, τ* and conditions of a deep equilibrium model.

    Example: notsodeep moments --activation relu --sigma-a2 0.2 --tau0 1
    """
    from notsodeep.models import conditions

    deq = equilibrium(activation, sigma_a2, kink)
    centred = deq.centred(tau0)
    at_data = deq.activation.moments(tau0)
    at_equilibrium = centred.activation.moments(centred.tau_star)
    verdicts = conditions(centred, tau0)
    if as_json:
        record = {
            "model": centred.to_dict(),
            "tau0": tau0,
            "tau_star": centred.tau_star,
            "moments_at_tau0": asdict(at_data),
            "centred_moments_at_tau_star": asdict(at_equilibrium),
            "conditions": verdicts.to_dict(),
        }
        print_json(record)
    else:
        _print_tables(deq, centred, at_data, at_equilibrium, verdicts)


def _print_tables(
    deq: DeepEquilibrium,
    centred: DeepEquilibrium,
    at_data: Moments,
    at_equilibrium: Moments,
    verdicts: Conditions,
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    facts = Table(title=f"{deq}, data of scale τ0 = {at_data.scale:g}", title_justify="left")
    facts.add_column("moment")
    facts.add_column("φ at τ0", justify="right")
    facts.add_column("φ − c at τ*", justify="right")
    rows = {
        "scale τ": "scale",
        "E φ": "mean",
        "E φ′": "slope",
        "E φ″ (weak)": "curvature",
        "E φ²": "square",
        "E φ′²": "slope_square",
        "E (φ²)″ (weak)": "square_curvature",
    }
    for label, name in rows.items():
        facts.add_row(label, *(_number(getattr(m, name)) for m in (at_data, at_equilibrium)))
    console.print(facts)
    constant = getattr(centred.activation, "constant", 0.0)
    console.print(
        f"τ* = {_number(centred.tau_star)} solves τ² = σa² Var φ(τξ) + σb² τ0²; "
        f"c = E φ(τ*ξ) = {_number(constant)}.\n"
    )
    table = Table(title="Conditions of the theory, for the centred model", title_justify="left")
    for column in ("condition", "requires", "value", "bound", "verdict"):
        table.add_column(column, justify="right" if column in ("value", "bound") else "left")
    words = {True: "holds", False: "fails", None: "undecided"}
    for verdict in verdicts:
        table.add_row(
            verdict.name,
            verdict.statement,
            f"{verdict.value:.4g}",
            f"{verdict.bound:.4g}",
            words[verdict.holds],
        )
    console.print(table)


def _number(value: Any) -> str:
    return f"{0.0 if abs(value) < 1e-14 else value:.10f}"
