"""Kernels of general cells in neural-tangents, unrolled with untied weights until they settle.

Runs in the environment that `make_environment.py` makes, and writes the numbers that the tests of
cells compare with:

    benchmarks/peers/.venv-neural-tangents/bin/python benchmarks/peers/neural_tangents_cells.py \
        > tests/references/neural_tangents_cells.json

A layer h = √w A z + √u U x + √b β is two dense layers and a sum; in front of the activation a
normalised one has their layer normalisation.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import jax
import numpy as np
from neural_tangents import stax

jax.config.update("jax_enable_x64", True)

ROWS = [[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.9]]
CELLS: dict[str, list[dict[str, Any]]] = {
    "relu with bias": [{"activation": "relu", "weight": 0.6, "inject": 0.9, "bias": 0.15}],
    "erf above one": [{"activation": "erf", "weight": 1.1, "inject": 0.9, "bias": 0.15}],
    "ring of two": [
        {"activation": "erf", "weight": 0.5, "inject": 0.6, "bias": 0.1},
        {"activation": "relu", "weight": 0.8, "inject": 0.3, "bias": 0.05},
    ],
    "ring of three": [
        {"activation": "erf", "weight": 0.7, "inject": 0.5, "bias": 0.0},
        {"activation": "relu", "weight": 0.9, "inject": 0.0, "bias": 0.2},
        {"activation": "erf", "weight": 0.8, "inject": 0.4, "bias": 0.0},
    ],
    "normalised": [
        {
            "activation": "relu",
            "weight": 0.6,
            "inject": 0.9,
            "bias": 0.1,
            "normalise": "preactivation",
        }
    ],
}
ACTIVATIONS = {"relu": stax.Relu, "erf": stax.Erf}
TURNS = 150


def layer_map(layer: dict[str, Any]) -> Any:
    """Return the map of kernel objects that one layer is: (state, inputs) ↦ (fields, features)."""
    bias = math.sqrt(layer["bias"]) or None
    recurrent = stax.Dense(1, W_std=math.sqrt(layer["weight"]), b_std=bias)[2]
    inject = stax.Dense(1, W_std=math.sqrt(layer["inject"]))[2]
    normalised = stax.LayerNorm(eps=0.0)[2] if layer.get("normalise") else None
    activation = ACTIVATIONS[layer["activation"]]()[2]
    add = stax.FanInSum()[2]

    def apply(state: Any, inputs: Any) -> tuple[Any, Any]:
        field = recurrent(state)
        if layer["inject"] > 0.0:
            field = add([field, inject(inputs)])
        if normalised is not None:
            field = normalised(field)
        return field, activation(field)

    return apply


def kernels(cell: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """CK and NTK of the last layer's fields, of the deep network that the cell unrolls to."""
    X = math.sqrt(len(ROWS[0])) * np.array(ROWS)  # a dense layer divides by its inputs
    inputs = stax.Identity()[2](stax.serial(stax.Identity())[2](X, None))
    maps = [layer_map(layer) for layer in cell]
    # The first state is zero: a dense layer of variance zero on x.
    state = ACTIVATIONS[cell[-1]["activation"]]()[2](stax.Dense(1, W_std=0.0)[2](inputs))

    def turn(carried: tuple[Any, Any]) -> tuple[Any, Any]:
        field, state = carried
        for each in maps:
            field, state = each(state, inputs)
        return field, state

    # The first turns make kernels of the kind that a compiled loop carries.
    carried = turn(turn((None, state)))
    field, _ = jax.jit(lambda c: jax.lax.fori_loop(0, TURNS, lambda _, k: turn(k), c))(carried)
    return {
        "ck": np.asarray(field.nngp).tolist(),
        "ntk": np.asarray(field.ntk).tolist(),
    }


def main() -> None:
    """Write rows, cells and kernels as JSON."""
    found = {name: {"cell": cell, **kernels(cell)} for name, cell in CELLS.items()}
    json.dump({"rows": ROWS, "cells": found}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
