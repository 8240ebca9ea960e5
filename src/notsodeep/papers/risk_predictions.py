"""Predicted risks beside simulations with exact kernels and finite networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from notsodeep.checks import FloatArray, IntArray
from notsodeep.data import GaussianMixture, paper_mixture
from notsodeep.kernels import kernel
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.papers.reproduction import Cell, Experiment, Finding, Profile, Record
from notsodeep.prediction import RiskCurve, predict_risk

_RIDGES = (1e-3, 1e-2, 0.1, 1.0, 10.0)
_TIMES = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_TESTS = 1000  # new samples of each draw
_SETTINGS = (
    ("paper", "relu"), ("paper", "tanh"), ("trace", "relu"), ("halves", "relu"),
    ("aniso", "relu"), ("aniso", "tanh"),
)  # fmt: skip
_KERNELS = (("conjugate", "feature"), ("tangent", "preactivation"))


def mixture(name: str, p: int) -> GaussianMixture:
    """Return a mixture that is hard for one reason.

    "paper" and "weak" have means of norm 8 and 2 and traces that differ; "trace" has nothing but
    traces, "halves" nothing but covariances of equal trace; "aniso" has one spread covariance and
    means ±1.2 in a random direction; "three" has three classes.
    """
    root, means = math.sqrt(p), np.zeros((2, p))
    if name == "paper":
        return paper_mixture(p)
    if name == "weak":
        means[0, 0] = means[1, 8] = 2.0
        return GaussianMixture(means, [1.0, 1.0 + 2.0 / root])
    if name == "trace":
        return GaussianMixture(means, [1.0 - 2.5 / root, 1.0 + 2.5 / root])
    if name == "halves":
        first = np.where(np.arange(p) < p // 2, 1.9, 0.1)
        return GaussianMixture(means, [first, 2.0 - first])
    if name == "three":
        return GaussianMixture(3.0 * np.eye(3, p), [1.0 - 2.0 / root, 1.0, 1.0 + 2.0 / root])
    spread = np.geomspace(0.05, 5.0, p)
    direction = np.random.default_rng(0).standard_normal(p)
    direction *= 1.2 / np.linalg.norm(direction)
    return GaussianMixture([direction, -direction], [spread / spread.mean()] * 2)


def _cells(profile: Profile) -> list[Cell]:
    if profile == "smoke":
        cells = [_grid_cell("trace", "relu", 64, 1.0, 0.2, *_KERNELS[0], draws=3)]
        cells.append({**cells[0], "part": "flow", "data": "weak", "draws": 2})
        cells.append(_width_cell("relu", 0.8, 64, 96, 0.01, "halves", draws=2))
        return cells
    sizes: dict[int, tuple[float, ...]] = {256: (0.25, 0.5, 1.0, 2.0, 4.0)}
    if profile == "paper":
        sizes |= {512: sizes[256], 1024: (0.5, 1.0, 2.0)}
    cells = [
        _grid_cell(data, activation, p, ratio, sigma, *kind, draws=3 if p > 512 else 5)
        for data, activation in _SETTINGS
        for p, ratios in sizes.items()
        for ratio in ratios
        for sigma in ((0.1, 0.2, 0.5) if p == 256 and profile == "paper" else (0.2,))
        for kind in _KERNELS
    ]
    draws = {64: 200, 128: 100, 256: 50, 512: 20, 1024: 6}
    cells += [
        _grid_cell(data, activation, p, 1.0, 0.2, *_KERNELS[0], draws=count, part="size")
        for data, activation in (("trace", "relu"), ("paper", "tanh"))
        for p, count in draws.items()
        if profile == "paper" or p <= 256
    ]
    p = 512 if profile == "paper" else 256
    cells.append({**_grid_cell("weak", "relu", p, 1.0, 0.2, *_KERNELS[1], draws=5), "part": "flow"})
    cells.append(_grid_cell("three", "relu", p, 510 / 512, 0.2, *_KERNELS[0], draws=5))
    for activation, sigma, ridge, data in (
        ("relu", 0.8, 1e-3, "weak"), ("tanh", 0.95, 1e-2, "weak"), ("tanh", 0.8, 0.1, "weak"),
        ("relu", 0.8, 1e-2, "halves"),
    ):  # fmt: skip
        cells += [
            _width_cell(activation, sigma, 256, width, ridge, data, draws=5)
            for width in (512, 1024, 2048)
        ]
    return cells


def _grid_cell(
    data: str, activation: str, p: int, ratio: float, sigma: float, kind: str, convention: str,
    *, draws: int, part: str = "ridge",
) -> Cell:  # fmt: skip
    return {
        "part": part, "data": data, "activation": activation, "dimension": p, "ratio": ratio,
        "sigma_a2": sigma, "kernel": kind, "convention": convention, "draws": draws,
    }  # fmt: skip


def _width_cell(
    activation: str, sigma: float, p: int, width: int, ridge: float, data: str, *, draws: int
) -> Cell:
    return {
        "part": "width", "data": data, "activation": activation, "dimension": p, "ratio": 2.0,
        "sigma_a2": sigma, "width": width, "ridge": ridge, "draws": draws,
    }  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    data = mixture(cell["data"], cell["dimension"])
    n = round(cell["ratio"] * cell["dimension"])
    counts = data.class_counts(n)
    tau0 = math.sqrt(float(counts / n @ data._traces))
    deq = DeepEquilibrium(cell["activation"], cell["sigma_a2"]).centred(tau0)
    parts: dict[str, Callable[..., Record]] = {"flow": _flow, "width": _width}
    return parts.get(cell["part"], _ridge)(cell, seed, data, n, deq)


def _ridge(cell: Cell, seed: int, data: GaussianMixture, n: int, deq: DeepEquilibrium) -> Record:
    choice: Any = {"kernel": cell["kernel"], "convention": cell["convention"]}
    ridges = np.array(_RIDGES)
    predicted = {
        name: _numbers(
            predict_risk(deq, data, data.class_counts(n), ridge=ridges, tables=name, **choice)
        )
        for name in ("limit", "resolved")
    }

    def fits(K: FloatArray, Y: FloatArray) -> list[FloatArray]:
        values, vectors = np.linalg.eigh(K)
        turned = vectors.T @ Y
        return [vectors @ (turned / (values + level)[:, None]) for level in ridges]

    return {**_simulated(cell, seed, data, n, deq, fits), "predicted": predicted}


def _flow(cell: Cell, seed: int, data: GaussianMixture, n: int, deq: DeepEquilibrium) -> Record:
    choice: Any = {"kernel": cell["kernel"], "convention": cell["convention"]}
    curve = predict_risk(deq, data, data.class_counts(n), time=_TIMES, **choice)

    def fits(K: FloatArray, Y: FloatArray) -> list[FloatArray]:
        values, vectors = np.linalg.eigh(K)
        turned = vectors.T @ Y
        return [vectors @ (-np.expm1(-t * values)[:, None] / values[:, None] * turned)
                for t in _TIMES]  # fmt: skip

    found = _simulated(cell, seed, data, n, deq, fits)
    return {**found, "predicted": {"resolved": _numbers(curve)}}


def _simulated(
    cell: Cell, seed: int, data: GaussianMixture, n: int, deq: DeepEquilibrium,
    fits: Callable[[FloatArray, FloatArray], list[FloatArray]],
) -> Record:  # fmt: skip
    """Return means and standard errors over draws of train and test error and accuracy."""
    rng = np.random.default_rng(seed)
    K = data.num_classes
    targets = np.array([[-1.0], [1.0]]) if K == 2 else np.eye(K) - 1.0 / K
    rows = []
    for _ in range(cell["draws"]):
        (X, y), (Z, truth) = data.sample(n, rng), data.sample(_TESTS, rng)
        gram = np.asarray(
            kernel(deq, np.concatenate([X, Z]), X, kind=cell["kernel"],
                   convention=cell["convention"])
        )  # fmt: skip
        rows.append([
            _measured(gram @ alpha, targets, y, truth)
            for alpha in fits(gram[:n], targets[y])
        ])  # fmt: skip
    return _with_errors(np.array(rows))


def _measured(scores: FloatArray, targets: FloatArray, y: IntArray, truth: IntArray) -> list[float]:
    n = len(y)
    wanted = targets[np.concatenate([y, truth])]
    squares = np.square(scores - wanted).sum(axis=1)
    nearest = np.square(scores[n:, None] - targets).sum(axis=2).argmin(axis=1)
    return [squares[:n].mean(), squares[n:].mean(), (nearest == truth).mean()]


def _with_errors(table: FloatArray) -> Record:
    """Turn (draws, fits, quantities) into means and standard errors by name."""
    errors = table.std(axis=0, ddof=1) / math.sqrt(len(table))
    names = ("train_mse", "test_mse", "accuracy")
    return {
        "measured": {name: table.mean(axis=0)[:, i].tolist() for i, name in enumerate(names)},
        "errors": {name: errors[:, i].tolist() for i, name in enumerate(names)},
    }


def _numbers(curve: RiskCurve) -> Record:
    return {
        name: np.asarray(getattr(curve, name)).tolist()
        for name in ("train_mse", "test_mse", "accuracy")
    }


def _width(cell: Cell, seed: int, data: GaussianMixture, n: int, deq: DeepEquilibrium) -> Record:
    """Read-outs of finite networks, of the DEQ and of two networks made for it."""
    tau0 = math.sqrt(float(data.weights @ data._traces))
    families = (
        ("hard_tanh",) if cell["activation"] == "tanh" else ("leaky_relu", "piecewise_linear")
    )
    models: dict[str, DeepEquilibrium | ExplicitNetwork] = {"DEQ": deq} | {
        family: match(deq, tau0=tau0, family=family, convention="feature").network
        for family in families
    }
    rng = np.random.default_rng(seed)
    record: Record = {}
    for name, model in models.items():
        rows = []
        for _ in range(cell["draws"]):
            (X, y), (Z, truth) = data.sample(n, rng), data.sample(_TESTS, rng)
            draw = _feature_draw(model, cell["width"])
            F = draw(np.concatenate([X, Z]), rng)
            inner = F[:n].T @ F[:n] + cell["ridge"] * np.eye(F.shape[1])
            weights = np.linalg.solve(inner, F[:n].T @ (2.0 * y - 1.0)[:, None])
            rows.append([_measured(F @ weights, np.array([[-1.0], [1.0]]), y, truth)])
        curve, limit = (
            predict_risk(model, data, data.class_counts(n), ridge=cell["ridge"], width=width)
            for width in (cell["width"], None)
        )
        record[name] = {
            **_with_errors(np.array(rows)),
            "predicted": {"resolved": _numbers(curve)},
            "limit": float(limit.accuracy[0]),
        }
    return {"networks": record}


def _feature_draw(
    model: DeepEquilibrium | ExplicitNetwork, width: int
) -> Callable[[FloatArray, np.random.Generator], FloatArray]:
    """Return a function that draws a network and returns its features, shape (rows, width)."""
    if isinstance(model, DeepEquilibrium):
        return _EquilibriumFeatures(model, width)
    phi = model.activations[0]

    def features(X: FloatArray, rng: np.random.Generator) -> FloatArray:
        return np.asarray(phi.value(X @ rng.standard_normal((X.shape[1], width)))) / math.sqrt(
            width
        )

    return features


class _EquilibriumFeatures:
    """Fixed points z = φ(√σa² A z + √σb² B x)/√m of a drawn DEQ, by iteration."""

    def __init__(self, model: DeepEquilibrium, width: int) -> None:
        self.model, self.width = model, width

    def __call__(self, X: FloatArray, rng: np.random.Generator) -> FloatArray:
        model, m = self.model, self.width
        A = math.sqrt(model.sigma_a2) * rng.standard_normal((m, m))
        drive = math.sqrt(model.sigma_b2) * X @ rng.standard_normal((X.shape[1], m))
        z = np.zeros((len(X), m))
        for _ in range(500):
            new = np.asarray(model.activation.value(z @ A + drive)) / math.sqrt(m)
            gap = float(np.abs(new - z).max())
            z = new
            if gap < 1e-9:
                return z
        raise ArithmeticError(f"A drawn {model} of width {m} did not come to rest: {gap:.2g}.")


def deviations(records: list[Record]) -> dict[tuple[str, str, int], dict[str, float]]:
    """Return root mean squared deviations over cells of the grid, by data, activation and p."""
    result = {}
    grid = [r for r in records if r["cell"]["part"] == "ridge" and r["cell"]["data"] != "three"]
    keys = dict.fromkeys(
        (r["cell"]["data"], r["cell"]["activation"], r["cell"]["dimension"]) for r in grid
    )
    for key in keys:
        mine = [
            r for r in grid
            if key == (r["cell"]["data"], r["cell"]["activation"], r["cell"]["dimension"])
        ]  # fmt: skip
        row = {}
        for quantity in ("test_mse", "accuracy"):
            unit = np.array([r["measured"][quantity] for r in mine])
            scale = unit if quantity == "test_mse" else np.ones_like(unit)
            row[f"{quantity} sampling"] = _rms([r["errors"][quantity] for r in mine] / scale)
            for name in ("limit", "resolved"):
                gap = np.array([r["predicted"][name][quantity] for r in mine]) - unit
                row[f"{quantity} {name}"] = _rms(gap / scale)
        result[key] = row
    return result


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.square(values).mean()))


def _findings(records: list[Record]) -> list[Finding]:
    found = [
        Finding(
            f"{data}, {activation}, p = {p}: rms deviation of test error and accuracy",
            f"sampling {row['test_mse sampling']:.1%}, {100 * row['accuracy sampling']:.2f} points",
            f"limit {row['test_mse limit']:.1%}, {100 * row['accuracy limit']:.2f} points; "
            f"resolved {row['test_mse resolved']:.1%}, "
            f"{100 * row['accuracy resolved']:.2f} points",
        )
        for (data, activation, p), row in deviations(records).items()
    ]
    for record in records:
        cell = record["cell"]
        for name, row in record.get("networks", {}).items():
            measured, error = row["measured"]["accuracy"][0], row["errors"]["accuracy"][0]
            found.append(
                Finding(
                    f"{cell['data']}, {cell['activation']} {cell['sigma_a2']}, width "
                    f"{cell['width']}, {name}: accuracy (infinite width {row['limit']:.3f})",
                    f"{row['predicted']['resolved']['accuracy'][0]:.3f} predicted",
                    f"{measured:.3f} ± {error:.3f}",
                )
            )
    return found


def _cost(cell: Cell) -> int:
    n = cell["ratio"] * cell["dimension"] + _TESTS
    return int(cell["draws"] * (n**2 + cell.get("width", 0) ** 2) / 1e5) + 1


EXPERIMENT = Experiment(
    "risk-predictions",
    "Risks predicted from statistics against simulations",
    "notsodeep.prediction",
    _cells,
    _compute,
    _findings,
    _cost,
)
