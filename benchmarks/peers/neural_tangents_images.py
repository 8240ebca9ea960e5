"""Kernels of convolutional DEQs in neural-tangents, unrolled with untied weights.

Runs in the environment that `make_environment.py` makes, and writes the numbers that the tests of
convolutions compare with; with --time the processor time of both kernels on 8 × 8 pixels.

    PYTHON=benchmarks/peers/.venv-neural-tangents/bin/python
    $PYTHON benchmarks/peers/neural_tangents_images.py > neural_tangents_images.json
    $PYTHON benchmarks/peers/neural_tangents_images.py --time 200
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import jax
import numpy as np
from neural_tangents import stax

jax.config.update("jax_enable_x64", True)

CASES: dict[str, dict[str, Any]] = {
    "relu, circular, flatten": {"activation": "relu", "padding": "circular", "pooling": "flatten"},
    "relu, zero, flatten": {"activation": "relu", "padding": "zero", "pooling": "flatten"},
    "relu, circular, average": {"activation": "relu", "padding": "circular", "pooling": "average"},
    "erf, zero, average": {"activation": "erf", "padding": "zero", "pooling": "average"},
}
WEIGHT, INJECT, BIAS = 0.6, 0.9, 0.15
SHAPE = (2, 4, 4, 2)
TURNS = 120
PADDING = {"circular": "CIRCULAR", "zero": "SAME"}
ACTIVATIONS = {"relu": stax.Relu, "erf": stax.Erf}


def images(shape: tuple[int, ...]) -> np.ndarray:
    """Waves sin(1 + 3i + 2y + 5x + 7c)."""
    i, y, x, c = np.indices(shape)
    return np.sin(1.0 + 3.0 * i + 2.0 * y + 5.0 * x + 7.0 * c)


def unrolled(
    case: dict[str, Any], weight: float, inject: float, bias: float, turns: int, same: bool
) -> Any:
    """Return the map from images to both kernels; `same` keeps equal positions alone."""
    padding = PADDING[case["padding"]]
    first = stax.Conv(
        1, (3, 3), padding=padding, W_std=math.sqrt(inject), b_std=math.sqrt(bias) or None
    )[2]
    again = stax.Conv(1, (3, 3), padding=padding, W_std=math.sqrt(weight))
    through = stax.serial(ACTIVATIONS[case["activation"]](), again)[2]
    add = stax.FanInSum()[2]
    pool = stax.Flatten() if case["pooling"] == "flatten" else stax.GlobalAvgPool()
    read = pool[2]

    def kernels(X: Any) -> tuple[Any, Any]:
        # A convolution divides by its channels, the theory here does not.
        scaled = math.sqrt(X.shape[-1]) * X
        drive = first(scaled, None, diagonal_spatial=same)
        kernel = drive
        for _ in range(1) if same else range(turns):
            kernel = add([through(kernel), drive])
        if same:  # equal layers are one compiled loop
            kernel = jax.lax.fori_loop(
                1, turns, lambda _, state: add([through(state), drive]), kernel
            )
        last = read(kernel)
        return last.nngp, last.ntk

    return kernels


def main() -> None:
    """Write references, or print a time."""
    if sys.argv[1:2] == ["--time"]:
        n = int(sys.argv[2])
        X = np.random.default_rng(0).normal(size=(n, 8, 8, 1))
        case = {"activation": "relu", "padding": "circular", "pooling": "flatten"}
        compiled = jax.jit(unrolled(case, 0.2, 0.8, 0.0, 18, True))
        jax.block_until_ready(compiled(X))
        start = time.process_time()
        jax.block_until_ready(compiled(X))
        print(json.dumps({"n": n, "seconds": time.process_time() - start}))
        return
    record: dict[str, Any] = {"weight": WEIGHT, "inject": INJECT, "bias": BIAS, "shape": SHAPE}
    record["cases"] = {}
    for name, case in CASES.items():
        conjugate, tangent = unrolled(case, WEIGHT, INJECT, BIAS, TURNS, False)(images(SHAPE))
        found = {"conjugate": conjugate.tolist(), "tangent": tangent.tolist()}
        record["cases"][name] = {**case, **found}
    json.dump(record, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
