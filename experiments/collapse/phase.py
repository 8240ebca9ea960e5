"""When minority classifiers merge: a phase diagram over imbalance and gain."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.collapse.heads import LABELS
from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.arrays import FloatArray
from notsodeep.collapse import LayerPeeledOptimum, layer_peeled, minority_collapse_threshold

_BUDGET = 2.0  # √(E_W E_H)
_SPECTRAL_BUDGET = 0.5  # of every head that has one
_MATCHED_GAIN = 1.0 / (1.0 - _SPECTRAL_BUDGET)  # of the DEQ, for the explicit head beside it
_MERGED = 1.0 - 1e-6  # cosine from which on two classifiers count as one

HEADS: dict[str, dict[str, Any]] = {
    "explicit": {"head": "explicit", "spectral_budget": _SPECTRAL_BUDGET},
    "plain": {"head": "plain"},
    "residual": {"head": "residual", "spectral_budget": _SPECTRAL_BUDGET},
    "deq_truncated": {"head": "deq", "spectral_budget": _SPECTRAL_BUDGET, "solver_steps": 3},
    "deq": {"head": "deq", "spectral_budget": _SPECTRAL_BUDGET},
    "explicit_matched": {"head": "explicit", "spectral_budget": _MATCHED_GAIN},
}
"""The heads that are compared, as arguments of `layer_peeled`."""

_SPLITS = {"smoke": [(2, 2)], "quick": [(2, 2), (5, 5)], "paper": [(2, 2), (3, 7), (5, 5), (7, 3)]}
_SIZES = {"smoke": (5, 7), "quick": (25, 37), "paper": (41, 61)}  # gains, ratios


def _cells(profile: Profile) -> list[Cell]:
    """List a row of the diagram for every gain, and a row for every head."""
    num_gains, num_ratios = _SIZES[profile]
    gains = [float(f"{gain:.6g}") for gain in np.geomspace(0.25, 4.0, num_gains)]
    ratios = sorted({10.0, 50.0, 100.0} | {
        float(f"{ratio:.6g}") for ratio in np.geomspace(1.1, 1e4, num_ratios)
    })  # fmt: skip
    rows = [{"row": "gain", "head": "explicit", "spectral_budget": gain} for gain in gains]
    rows += [{"row": name, **options} for name, options in HEADS.items()]
    return [
        {"majority": K_A, "minority": K_B, "feature_budget": feature_budget, "budget": _BUDGET,
         **row, "ratios": ratios}
        for K_A, K_B in _SPLITS[profile]
        for feature_budget in ("class", "sample")
        for row in rows
    ]  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Solve the layer-peeled model for every ratio, and find the threshold.

    A cosine of null means that the minority classifiers are zero: beyond merging, they vanish.
    The optimum is a function of the gain; `attainment_error` is what comes of sending its
    features through an actual head within the budget.
    """
    K_A, K_B = cell["majority"], cell["minority"]
    names = ("budget", "feature_budget", "head", "spectral_budget", "solver_steps")
    problem = {name: cell[name] for name in names if name in cell}
    threshold = minority_collapse_threshold(num_majority=K_A, num_minority=K_B, **problem)
    # `layer_peeled` raises if an optimum is not certified.
    optima = [layer_peeled([ratio] * K_A + [1.0] * K_B, **problem) for ratio in cell["ratios"]]
    return {
        "gain": optima[0].gain,
        "threshold": threshold.ratio,
        "cosines": [_known(optimum.minority_cosine) for optimum in optima],
        "log_losses": [optimum.log_loss for optimum in optima],
        "ranks": [optimum.rank for optimum in optima],
        "attainment_error": max(_attainment_error(optimum) for optimum in optima),
        "seed_of_cell": seed,
    }


def _known(cosine: float) -> float | None:
    return None if np.isnan(cosine) else cosine


def _head_operator(head: str, matrix: FloatArray) -> FloatArray:
    """Return G for a matrix M or A; the equilibrium for a DEQ."""
    identity = np.eye(len(matrix))
    if head == "deq":
        return np.asarray(np.linalg.inv(identity - matrix))
    return identity + matrix if head == "residual" else matrix


def _attainment_error(optimum: LayerPeeledOptimum) -> float:
    """Return ‖W G h − L‖/‖L‖ over all classes for the head G of the optimum's own matrix."""
    operator = _head_operator(optimum.head, optimum.head_matrix)
    if optimum.solver_steps is not None:
        operator = _truncated(optimum.head_matrix, optimum.solver_steps)
    logits = optimum.features @ operator.T @ optimum.classifier.T
    error = np.linalg.norm(logits - optimum.logits) / np.linalg.norm(optimum.logits)
    return float(error)


def _truncated(A: FloatArray, steps: int) -> FloatArray:
    """Return I + A + … + A^{T−1}, what T steps from zero compute."""
    total = np.zeros_like(A)
    for _ in range(steps):
        total = A @ total + np.eye(len(A))
    return total


def merged(cosine: float | None) -> bool:
    """Whether the minority classifiers coincide; zero vectors do."""
    return cosine is None or cosine > _MERGED


def rows_of(records: list[Record], row: str) -> list[Record]:
    """Return the records of one head, or those of the diagram for ``"gain"``."""
    return [record for record in records if record["cell"]["row"] == row]


def cosine_at(record: Record, ratio: float) -> float | None:
    """Return the minority cosine of a row at one of its ratios."""
    found: float | None = record["cosines"][record["cell"]["ratios"].index(ratio)]
    return found


def _findings(records: list[Record]) -> list[Finding]:
    findings = []
    for name in HEADS:
        for record in rows_of(records, name):
            cell = record["cell"]
            if cell["feature_budget"] == "class":
                findings.append(
                    Finding(
                        f"minority cosine at R = 10, 50, 100; {LABELS[name]}, "
                        f"(K_A, K_B) = ({cell['majority']}, {cell['minority']})",
                        "",
                        ", ".join(_worded(cosine_at(record, R)) for R in (10.0, 50.0, 100.0)),
                        f"gain {record['gain']:.4g}, so that R* = {record['threshold']:.4g}",
                    )
                )
    return [*findings, _gain_finding(records), _threshold_finding(records)]


def _worded(cosine: float | None) -> str:
    return "zero" if cosine is None else f"{cosine:.3f}"


def _gain_finding(records: list[Record]) -> Finding:
    """Compare the DEQ with the explicit head of the same gain, over all cells."""
    pairs = zip(rows_of(records, "deq"), rows_of(records, "explicit_matched"), strict=True)
    difference = max(
        float(np.abs(np.subtract(deq["log_losses"], explicit["log_losses"])).max())
        for deq, explicit in pairs
    )
    attained = max(record["attainment_error"] for record in records)
    return Finding(
        "log loss, DEQ against an explicit head of the same gain: largest difference",
        "",
        f"{difference:.1e}",
        "in this model the whole advantage of the DEQ is gain; logits recomputed through the heads "
        f"differ from the optima by {attained:.0e} at most",
    )


def _threshold_finding(records: list[Record]) -> Finding:
    """Count on which side of its threshold every solved point lies."""
    wrong = points = 0
    for record in records:
        for ratio, cosine in zip(record["cell"]["ratios"], record["cosines"], strict=True):
            points += 1
            wrong += merged(cosine) != (ratio >= record["threshold"])
    return Finding(
        "points of the diagram on the wrong side of the threshold line",
        "",
        f"{wrong} of {points}",
        "the line comes from the collapsed problem alone, the points from the whole problem",
    )


EXPERIMENT = Experiment(
    "collapse-phase",
    "Minority collapse against imbalance and gain, in the layer-peeled model",
    "layer-peeled model, documentation page on collapse, sections 3 and 5",
    _cells,
    _compute,
    _findings,
)
