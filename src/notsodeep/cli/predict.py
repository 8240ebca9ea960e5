"""`notsodeep predict`: errors of a network before it is trained."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notsodeep.cli.options import (
    ActivationOption,
    ConventionOption,
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
from notsodeep.errors import InvalidInput

if TYPE_CHECKING:
    from notsodeep.data import GaussianMixture


def predict_command(
    mixture: Annotated[
        Path | None,
        typer.Argument(help="A TOML file with means, covariances and, if you like, weights."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set instead: leave-one-out errors of a pilot of it.")
    ] = None,
    activation: ActivationOption = "relu",
    sigma_a2: SigmaOption = 0.2,
    kink: KinkOption = None,
    samples: Annotated[int, typer.Option(help="Training samples n; of a pilot, its size.")] = 512,
    ridge: Annotated[
        list[float] | None, typer.Option(help="A ridge; may be repeated. Five by default.")
    ] = None,
    time: Annotated[
        list[float] | None, typer.Option(help="A training time instead; may be repeated.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="Width of a trained read-out.")] = None,
    kernel: KernelOption = "conjugate",
    convention: ConventionOption = "feature",
    noise: Annotated[float, typer.Option(help="Deviation of noise on training targets.")] = 0.0,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="A .json file for the record.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict errors and accuracies of a deep equilibrium model; nothing is trained.

    Example: notsodeep predict mixture.toml --activation relu --samples 400 --ridge 0.1
    """
    from notsodeep.files.atomic_files import write_json

    if (mixture is None) == (data is None):
        got = "neither" if mixture is None else "both"
        raise InvalidInput(f"predict needs a mixture file or --data. Got {got}.")
    deq = equilibrium(activation, sigma_a2, kink)
    choice: Any = {"convention": convention}
    record: Any
    with new_file(out, force):
        if data is not None:
            if time or width is not None or noise:
                raise InvalidInput("time, width and noise of predict must come with a mixture.")
            record = _pilot(deq, data, samples, ridge, kernel, seed, **choice)
        else:
            assert mixture is not None
            from notsodeep.prediction import predict_risk
            from notsodeep.prediction.classes import Classes

            known = read_mixture(mixture)
            counts = known.class_counts(samples)
            tau0 = Classes.of(known).scale(counts / counts.sum())
            if ridge and time:
                raise InvalidInput("One of ridge and time must be given to predict. Got both.")
            stop: Any = {"time": time} if time else {"ridge": ridge or _RIDGES}
            choice |= {"kind": kernel, "width": width, "noise": noise}
            record = predict_risk(deq.centred(tau0), known, counts, **stop, **choice)
        if out is not None:
            write_json(out, record.to_dict())
    if as_json:
        print_json(record.to_dict())
    else:
        typer.echo(_table(record))


_RIDGES = [1e-3, 1e-2, 0.1, 1.0, 10.0]


def read_mixture(path: Path) -> GaussianMixture:
    """Read a mixture from TOML: `means`, a list of rows or of one-entry tables, and `covariances`.

    A mean that is mostly zeros may be a table, ``{dimension = 512, at = [0], value = [2.0]}``.
    """
    from notsodeep import checks
    from notsodeep.data import GaussianMixture

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"mixture must name a readable file. Got {path}: {error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"mixture must be a TOML file. Got {path}: {error}.") from error
    for key in content:
        checks.known_name(key, ("means", "covariances", "weights"), f"key in {path}")
    missing = {"means", "covariances"} - set(content)
    if missing:
        raise InvalidInput(f"mixture must have means and covariances. {path} has no {missing}.")
    means = [_mean(row, path) for row in content["means"]]
    return GaussianMixture(means, content["covariances"], content.get("weights"))


def _mean(row: object, path: Path) -> list[float]:
    if isinstance(row, list):
        return row
    if isinstance(row, dict) and set(row) == {"dimension", "at", "value"}:
        places, values, size = row["at"], row["value"], row["dimension"]
        if len(places) == len(values) and all(0 <= place < size for place in places):
            mean = [0.0] * size
            for place, value in zip(places, values, strict=True):
                mean[place] = value
            return mean
    raise InvalidInput(
        f"means of {path} must be lists, or tables with dimension, at and value. Got {row!r}."
    )


def _pilot(
    deq: Any, data: str, samples: int, ridge: list[float] | None, kernel: str, seed: int,
    *, convention: str,
) -> Any:  # fmt: skip
    from notsodeep.data import load
    from notsodeep.kernels import kernel as exact_kernel
    from notsodeep.prediction import pilot_curve

    say(f"loading {data}")
    rows = load(data, samples=samples, rng=seed)
    choice: Any = {"kind": kernel, "convention": convention}
    say("computing the kernel")
    K = exact_kernel(deq, rows.X, **choice)
    return pilot_curve(K, rows.y, ridge or _RIDGES[:4], rng=seed)


def _table(record: Any) -> str:
    from notsodeep.prediction import RiskCurve

    if isinstance(record, RiskCurve):
        lines = [f"{record.axis:>10}  {'test mse':>10}  {'train mse':>10}  {'accuracy':>9}"]
        rows = zip(record.values, record.test_mse, record.train_mse, record.accuracy, strict=True)
        lines += [f"{v:>10.4g}  {t:>10.5f}  {r:>10.5f}  {a:>9.2%}" for v, t, r, a in rows]
        if record.effective_width is not None:
            neurons = ", ".join(f"{m:.0f}" for m in record.effective_width)
            lines.append(f"width {record.width} counts as {neurons} independent neurons")
        return "\n".join([*lines, *record.notes])
    ahead = 4.0 * record.samples[-1]
    lines = [f"{'ridge':>10}  {'samples':>8}  {'mse':>9}  {'error':>8}   (leave-one-out)"]
    mse, error = record.extrapolated(ahead)
    mse_scatter, error_scatter = record.standard_errors(ahead)
    for j, level in enumerate(record.ridges):
        for i, n in enumerate(record.samples):
            cells = f"{record.mse[i, j]:>9.4f}  {record.error[i, j]:>8.2%}"
            lines.append(f"{level:>10.4g}  {n:>8.0f}  {cells}")
        known = math.isfinite(error[j])
        share, scatter = (f"{error[j]:.2%}", f" and {error_scatter[j]:.2%}") if known else ("–", "")
        few = "" if known else "; too few mistakes for an error rate"
        lines.append(
            f"{level:>10.4g}  {ahead:>8.0f}  {mse[j]:>9.4f}  {share:>8}   extrapolated, "
            f"± {mse_scatter[j]:.4f}{scatter} for other pilots{few}"
        )
    return "\n".join([*lines, record.verdict])
