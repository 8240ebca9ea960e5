"""Predicted risks beside simulations with exact kernels, random features and trained networks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.prediction.risk_simulations import (
    QUANTITIES,
    Draws,
    Network,
    exact_gram,
    flow_response,
    mixture,
    random_gram,
    ridge_response,
)
from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import expansion
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium
from notsodeep.prediction import RiskCurve, predict_risk

_RIDGES = (1e-3, 1e-2, 0.1, 1.0, 10.0)
_FLOW = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_FINE = tuple(np.logspace(-2.5, 1.5, 41).tolist())  # ten to a decade, to find optima on
_GRID = (
    ("paper", "relu"), ("paper", "tanh"), ("trace", "relu"), ("halves", "relu"),
    ("aniso", "relu"), ("aniso", "tanh"),
)  # fmt: skip
_CK, _NTK = ("conjugate", "feature"), ("tangent", "preactivation")
_FEATURE_NTK = ("tangent", "feature")


def _cells(profile: Profile) -> list[Cell]:
    if profile == "smoke":
        return [
            _cell("ridge", "trace", "relu", 64, draws=3),
            _cell("flow", "weak", "relu", 64, _NTK, times=_FLOW, draws=2),
            _cell("width", "weak", "tanh", 64, sigma_a2=0.8, width=96, ridges=(0.01,), draws=2),
            _cell("optimum", "weak", "tanh", 64, draws=2, ridges=_FINE[::8]),
            _cell("training", "weak", "relu", 32, rate=0.5, times=(1.0, 2.0), width=64,
                  trainable="readout", draws=2),
        ]  # fmt: skip
    return [*_grid(profile), *_curves(profile), *_optima(profile), *_networks(profile)]


def _grid(profile: Profile) -> Iterator[Cell]:
    """Everything over n/p, ridge, kernel and σa²; then n = p over the dimension."""
    sizes: dict[int, tuple[float, ...]] = {256: (0.25, 0.5, 1.0, 2.0, 4.0)}
    if profile == "paper":
        sizes |= {512: sizes[256], 1024: (0.5, 1.0, 2.0)}
    for data, activation in _GRID:
        for p, ratios in sizes.items():
            for ratio in ratios:
                for sigma_a2 in (0.1, 0.2, 0.5) if p == 256 and profile == "paper" else (0.2,):
                    for kind in (_CK, _NTK):
                        yield _cell(
                            "ridge", data, activation, p, kind, sigma_a2=sigma_a2,
                            samples=round(ratio * p), draws=3 if p > 512 else 5,
                        )  # fmt: skip
    draws = {64: 200, 128: 100, 256: 50, 512: 20, 1024: 6}
    for data, activation in (("trace", "relu"), ("paper", "tanh")):
        for p, count in draws.items():
            if profile == "paper" or p <= 256:
                yield _cell("size", data, activation, p, ridges=(0.1,), draws=count)


def _curves(profile: Profile) -> Iterator[Cell]:
    """Gradient flow and three classes."""
    p = 512 if profile == "paper" else 256
    yield _cell("flow", "weak", "relu", p, _NTK, times=_FLOW, draws=5)
    yield _cell("classes", "three", "relu", p, samples=3 * (p // 3), draws=5)
    yield _cell("classes", "imbalanced", "relu", p, _NTK, samples=2 * p, draws=5)


def _optima(profile: Profile) -> Iterator[Cell]:
    """Find the best ridge and time, then the best σa², of 512 samples in 256 dimensions."""
    common: Any = {"samples": 512, "draws": 4, "p": 256}
    for data, activation, kind, noise in (
        ("weak", "relu", _NTK, 0.0), ("weak", "tanh", _FEATURE_NTK, 0.0),
        ("aniso", "relu", _NTK, 0.0), ("paper", "relu", _CK, 0.0),
        ("weak", "tanh", _FEATURE_NTK, 1.0), ("aniso", "relu", _NTK, 1.0),
    ):  # fmt: skip
        choice = {"data": data, "activation": activation, "kind": kind, "noise": noise, **common}
        yield _cell("optimum", ridges=_FINE, **choice)
        if not noise:
            yield _cell("optimum", times=_FINE, **choice)
    if profile == "paper":
        for data in ("trace", "aniso"):
            for sigma_a2 in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9):
                yield _cell("recurrence", data, "normalized_relu", kind=_FEATURE_NTK,
                            sigma_a2=sigma_a2, ridges=_FINE, **common)  # fmt: skip


def _networks(profile: Profile) -> Iterator[Cell]:
    """Finite widths, where matching matters, and networks trained for real."""
    for data, activation, sigma_a2, ridge, widths in (
        ("weak", "relu", 0.2, 1e-3, (256, 512, 1024)),
        ("weak", "relu", 0.8, 1e-3, (512, 1024, 2048)),
        ("weak", "tanh", 0.95, 1e-2, (512, 1024)),
        ("weak", "tanh", 0.8, 0.1, (256, 512, 1024, 2048)),
        ("halves", "relu", 0.8, 1e-2, (512, 1024, 2048)),
    ):
        for width in widths:
            if profile == "paper" or width <= 1024:
                yield _cell("width", data, activation, 256, sigma_a2=sigma_a2, width=width,
                            samples=512, ridges=(ridge,), draws=8)  # fmt: skip
    skip = ("conjugate", "preactivation")
    stop: Any
    for data, activation, sigma_a2, kind, stop in (
        ("halves", "relu", 0.2, skip, {"ridges": (1e-3,)}),
        ("halves", "relu", 0.2, _NTK, {"ridges": (1e-3,)}),
        ("trace", "relu", 0.2, _NTK, {"ridges": (1e-3,)}),
        ("aniso", "relu", 0.2, _NTK, {"ridges": (1e-3,)}),
        ("aniso", "normalized_relu", 0.8, _FEATURE_NTK, {"ridges": (0.1,)}),
        ("halves", "swish", 0.9, _CK, {"ridges": (1e-3,)}),
        ("aniso", "relu", 0.8, _CK, {"ridges": (0.1,)}),
        ("aniso", "relu", 0.8, _CK, {"times": (3.0,)}),
        ("weak", "relu", 0.2, _CK, {"ridges": (0.1,)}),
    ):
        yield _cell("matching", data, activation, 256, kind, sigma_a2=sigma_a2, samples=512,
                    draws=16 if profile == "paper" else 4, **stop)  # fmt: skip
    for trainable, rate, times in (
        ("all", 0.05, (0.25, 0.5, 1.0, 2.0)), ("readout", 0.25, (1.0, 2.0, 4.0, 8.0)),
    ):  # fmt: skip
        yield _cell("training", "weak", "relu", 128, _FEATURE_NTK if trainable == "all" else _CK,
                    rate=rate, times=times, width=1024 if profile == "paper" else 256,
                    trainable=trainable, draws=6 if profile == "paper" else 2)  # fmt: skip


def _cell(
    part: str, data: str, activation: str, p: int, kind: tuple[str, str] = _CK, *, draws: int,
    sigma_a2: float = 0.2, samples: int | None = None, noise: float = 0.0,
    ridges: tuple[float, ...] = _RIDGES, times: tuple[float, ...] | None = None, **more: Any,
) -> Cell:  # fmt: skip
    stop = {"ridges": list(ridges)} if times is None else {"times": list(times)}
    return {
        "part": part, "data": data, "activation": activation, "dimension": p,
        "samples": p if samples is None else samples, "sigma_a2": sigma_a2, "kernel": kind[0],
        "convention": kind[1], "draws": draws, "noise": noise, **stop, **more,
    }  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Simulate and predict every network of a cell, on the same draws."""
    data, part = mixture(cell["data"], cell["dimension"]), cell["part"]
    draws = Draws(data, cell["samples"], cell["draws"], seed, noise=cell["noise"])
    counts = data.class_counts(cell["samples"])
    tau0 = data.tau0(counts)
    deq = DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(tau0)
    networks: Record = {}
    for name, model in _models(deq, tau0, cell).items():
        predicted = _predicted(model, draws, cell)
        found = _simulated(model, draws, cell)
        networks[name] = {**found, "predicted": {k: _numbers(r) for k, r in predicted.items()}}
        if part == "width":
            limit = _predicted(model, draws, {**cell, "width": None})["resolved"]
            networks[name]["limit"] = _numbers(limit)
    if part == "training":  # the infinitely wide network on the same draws
        times = flow_response(np.array(cell["times"]))
        exact = draws.fits(exact_gram(deq, cell["kernel"], cell["convention"]), times)
        networks["exact kernel"] = {**exact, "predicted": networks["DEQ"]["predicted"]}
    record: Record = {"networks": networks}
    if part == "optimum":
        record["optimum"] = _optimum(deq, draws, cell, networks["DEQ"]["measured"]["test_mse"])
    return record


def _models(deq: DeepEquilibrium, tau0: float, cell: Cell) -> dict[str, Network]:
    """Return the DEQ of a cell, and the networks that its part sets beside it."""
    if cell["part"] not in ("width", "matching", "training"):
        return {"DEQ": deq}
    choice: Any = {"kind": cell["kernel"], "convention": cell["convention"]}
    family = "hard_tanh" if cell["activation"] == "tanh" else "piecewise_linear"
    found = match(deq, tau0=tau0, family=family, **choice)
    models: dict[str, Network] = {"DEQ": deq, "matched": found.network}
    if cell["part"] == "width" and cell["activation"] == "relu":
        models["leaky_relu"] = match(deq, tau0=tau0, family="leaky_relu", **choice).network
    if cell["part"] == "matching":
        models["plain"] = found.unmatched
    return models


def _predicted(model: Network, draws: Draws, cell: Cell) -> dict[str, RiskCurve]:
    """Predict with either kind of tables; errors of new samples are those of balanced classes."""
    K = draws.data.num_classes
    choice: Any = {
        "kind": cell["kernel"], "convention": cell["convention"], "noise": draws.noise,
        "test_weights": np.full(K, 1.0 / K),
    }  # fmt: skip
    stop = {"ridge": cell["ridges"]} if "ridges" in cell else {"time": cell["times"]}
    counts = draws.data.class_counts(draws.samples)
    tau0 = draws.data.tau0(counts)
    width = cell.get("width") if cell["part"] == "width" else None  # trained: no law of widths
    curve = predict_risk(model, draws.data, counts, width=width, **stop, **choice)
    limit = expansion(model, tau0, kind=cell["kernel"], convention=cell["convention"])
    if width is not None:  # which the limit has none of
        return {"resolved": curve}
    return {"limit": predict_risk(limit, draws.data, counts, **stop, **choice), "resolved": curve}


def _simulated(model: Network, draws: Draws, cell: Cell) -> Record:
    if cell["part"] == "training":
        return draws.trained(model, cell["width"], cell["trainable"], cell["rate"], cell["times"])
    if cell["part"] == "width":
        gram = random_gram(model, cell["width"])
    else:
        gram = exact_gram(model, cell["kernel"], cell["convention"])
    if "times" in cell:
        return draws.fits(gram, flow_response(np.array(cell["times"])))
    return draws.fits(gram, ridge_response(np.array(cell["ridges"])))


def _numbers(curve: RiskCurve) -> Record:
    """Return what is measured of a fit, as predicted."""
    found = {"score": curve.means[:, 0, 0]} | {
        name: getattr(curve, name) for name in QUANTITIES if name != "score"
    }
    return {name: np.asarray(row).tolist() for name, row in found.items() if row is not None}


def _optimum(model: Network, draws: Draws, cell: Cell, errors: list[float]) -> Record:
    """Compare the predicted best ridge or time with that of the simulated errors on the grid."""
    axis = "times" if "times" in cell else "ridges"
    grid, measured = np.array(cell[axis]), np.array(errors)
    counts = draws.data.class_counts(draws.samples)
    choice: Any = {"kind": cell["kernel"], "convention": cell["convention"], axis[:-1]: grid}
    best = predict_risk(model, draws.data, counts, noise=draws.noise, **choice).best()
    reached = float(np.interp(math.log(best.value), np.log(grid), measured))
    return {
        "predicted": best.value,
        "measured": float(grid[measured.argmin()]),
        "loss": reached / float(measured.min()) - 1.0,
    }


def deviations(parts: list[Record], quantity: str, *, relative: bool = False) -> dict[str, float]:
    """Return root mean squares over networks and fits: sampling error, limit and resolved tables.

    `parts` are entries of ``record["networks"]``; `relative` divides by what was measured.
    """
    measured = np.concatenate([part["measured"][quantity] for part in parts])
    unit = measured if relative else np.ones_like(measured)
    sampling = np.concatenate([part["errors"][quantity] for part in parts])
    result = {"sampling": _rms(sampling / unit)}
    for tables in ("limit", "resolved"):
        predicted = np.concatenate([part["predicted"][tables][quantity] for part in parts])
        result[tables] = _rms((predicted - measured) / unit)
    return result


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def by_setting(records: list[Record]) -> dict[tuple[str, str, int], list[Record]]:
    """Return the DEQs of the grid, by data, activation and dimension."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        cell = record["cell"]
        if cell["part"] == "ridge":
            key = (cell["data"], cell["activation"], cell["dimension"])
            groups.setdefault(key, []).append(record["networks"]["DEQ"])
    return groups


def _findings(records: list[Record]) -> list[Finding]:
    found = []
    for (data, activation, p), parts in by_setting(records).items():
        mse, right = (deviations(parts, "test_mse", relative=True), deviations(parts, "accuracy"))
        ours = "; ".join(
            f"{tables} {mse[tables]:.1%}, {100 * right[tables]:.2f} points"
            for tables in ("limit", "resolved")
        )
        sampling = f"sampling {mse['sampling']:.1%}, {100 * right['sampling']:.2f} points"
        what = f"{data}, {activation}, p = {p}: rms deviation of test error and accuracy"
        found.append(Finding(what, sampling, ours))
    for record in records:
        cell = record["cell"]
        title = f"{cell['part']}: {cell['data']}, {cell['activation']} {cell['sigma_a2']}"
        title += f", p = {cell['dimension']}, n = {cell['samples']}, {cell['kernel']} kernel"
        if "width" in cell:
            title += f", width {cell['width']}"
        if "optimum" in record:
            best, axis = record["optimum"], "t" if "times" in cell else "λ"
            ours = f"{best['measured']:.3g}; the predicted one costs {best['loss']:.1%}"
            found.append(Finding(f"{title}: best {axis}", f"{best['predicted']:.3g}", ours))
        elif cell["part"] != "ridge":
            found += [_network_finding(title, name, part, "test_mse")
                      for name, part in record["networks"].items()]  # fmt: skip
    return found


def _network_finding(title: str, name: str, part: Record, quantity: str) -> Finding:
    predicted = ", ".join(f"{value:.4f}" for value in part["predicted"]["resolved"][quantity])
    pairs = zip(part["measured"][quantity], part["errors"][quantity], strict=True)
    ours = ", ".join(f"{value:.4f} ± {error:.4f}" for value, error in pairs)
    return Finding(f"{title}, {name}: {quantity.replace('_', ' ')}", f"predicted {predicted}", ours)


def _cost(cell: Cell) -> int:
    rows = cell["samples"] + 1000
    steps = 60 if cell["part"] == "width" else 1
    if cell["part"] == "training":
        steps = 40 * round(cell["times"][-1] / cell["rate"])
    return int(cell["draws"] * (rows**2 + steps * cell.get("width", 0) ** 2) / 1e5) + 1


EXPERIMENT = Experiment(
    "risk-predictions",
    "Risks predicted from statistics against simulations",
    "notsodeep.prediction",
    _cells,
    _compute,
    _findings,
    _cost,
)
