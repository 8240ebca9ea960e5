"""Does one designed activation replace the recurrence of a convolutional DEQ?  `compile` says.

For each DEQ: the kernel gap of its explicit twin on held-out images, matched and unmatched, the
accuracies of finite networks and the ratio of their times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import notsodeep as nsd
from experiments.convolutions.blocks import block_means
from experiments.runner import Cell, Experiment, Finding, Profile, Record

_SIZES: dict[str, dict[str, Any]] = {"digits": {}, "mnist": {"samples": 1000, "test_samples": 2000}}


def _twin(data: str, activation: str = "relu", sigma_a2: float = 0.2, **other: Any) -> Cell:
    """Return the cell of a convolutional DEQ of one layer on some data."""
    usual = {
        "size": 3, "padding": "circular", "pooling": "flatten", "input_pooling": 1,
        "kernel": "conjugate", "channels": 32, "seeds": 5, **_SIZES[data],
    }  # fmt: skip
    return {"data": data, "activation": activation, "sigma_a2": sigma_a2, **usual, **other}


_TWINS = (
    *(_twin("digits", "relu", s) for s in (0.1, 0.2, 0.4, 0.6, 0.8)),
    *(_twin("digits", "tanh", s) for s in (0.2, 0.4)),
    _twin("mnist", input_pooling=2),
    _twin("digits", "tanh", channels=128),
    _twin("digits", padding="zero"),
    _twin("digits", size=5),
    _twin("digits", pooling=3),
    _twin("mnist", "tanh", input_pooling=2),
    _twin("digits", kernel="tangent"),
    _twin("digits", pooling="average"),
    _twin("mnist", sigma_a2=0.6, input_pooling=2),
    # With 32 channels a draw of this one reaches its fixed point too slowly for the solver.
    _twin("digits", "tanh", 0.8, channels=128),
    _twin("mnist"),
)


def _cells(profile: Profile) -> list[Cell]:
    if profile == "smoke":
        small = {"samples": 60, "test_samples": 40, "channels": 4, "seeds": 2}
        return [_twin("digits", **small)]
    return list(_TWINS[:3] if profile == "quick" else _TWINS)


def _compute(cell: Cell, seed: int) -> Record:
    """Compile, and return the numbers of the summary."""
    sizes = {key: cell.get(key) for key in ("samples", "test_samples")}
    data = nsd.data.load(cell["data"], rng=0, **sizes)
    layer = nsd.Convolution(
        cell["activation"],
        weight=cell["sigma_a2"],
        inject=1.0 - cell["sigma_a2"],
        size=cell["size"],
    )
    pooled = (
        block_means(X, data.image_shape, cell["input_pooling"]) for X in (data.X, data.X_test)
    )
    (X, shape), (X_test, _) = pooled
    data = replace(data, X=X, X_test=X_test, image_shape=shape)
    deq = nsd.ConvolutionalEquilibrium([layer], shape, cell["pooling"], padding=cell["padding"])
    compiled = nsd.compile(
        deq, data, kind=cell["kernel"], width=cell["channels"], seeds=cell["seeds"]
    )
    matched, unmatched = compiled.certificate.matched, compiled.certificate.unmatched
    accuracy, loose = compiled.accuracy, compiled.front.chosen_point
    strict = compiled.front.of_kind("tolerance")[-1]
    refinement = compiled.match.refinement
    return {
        "relative_gap": matched.relative_gap,
        "scaled_gap": matched.scaled_gap,
        "unmatched_relative_gap": unmatched.relative_gap,
        "unmatched_scaled_gap": unmatched.scaled_gap,
        "family": compiled.match.family,
        "accuracy": accuracy.mean,
        "accuracy_deviation": accuracy.deviation,
        "accuracy_difference": list(accuracy.difference),
        "inference_ratio": loose.ratio,
        "inference_quartiles": list(loose.quartiles),
        "tolerance": loose.parameter,
        "strict_inference_ratio": strict.ratio,
        "unrefined_gap": refinement.before_relative if refinement else matched.relative_gap,
        "refined_gap": refinement.after_relative if refinement else matched.relative_gap,
        "parameters": compiled.match.parameters,
        "verdict": compiled.verdict.word,
        "seed_of_cell": seed,
    }


def _findings(records: list[Record]) -> list[Finding]:
    findings = []
    for record in records:
        cell = record["cell"]
        low, high = record["accuracy_difference"]
        findings.append(
            Finding(
                f"{cell['data']} over {cell['input_pooling']}, {cell['activation']} "
                f"{cell['sigma_a2']:g}, {cell['size']} × {cell['size']}, {cell['padding']}, "
                f"{cell['pooling']}, {cell['kernel']}, {cell['channels']} channels",
                "",
                f"gap {record['relative_gap']:.1%} ({record['unrefined_gap']:.1%} before refining, "
                f"unmatched {record['unmatched_relative_gap']:.1%}, rescaled "
                f"{record['unmatched_scaled_gap']:.1%}); DEQ {record['accuracy']['deq']:.1%}, twin "
                f"{record['accuracy']['matched']:.1%} ({low:+.1f} … {high:+.1f})",
                f"{record['inference_ratio']:.1f} times as fast at a loose tolerance, "
                f"{record['strict_inference_ratio']:.0f} at 1e-5",
            )
        )
    return findings


EXPERIMENT = Experiment(
    "convolution-twins",
    "Explicit twins of convolutional DEQs",
    "documentation page on convolutions",
    _cells,
    _compute,
    _findings,
)
