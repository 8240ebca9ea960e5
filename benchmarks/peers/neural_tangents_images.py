"""Kernels of convolutional DEQs in neural-tangents, unrolled with untied weights.

Runs in the environment that `make_environment.py` makes, and writes the numbers that the tests of
convolutions compare with; with --time the seconds, of the clock and of the processors, of both
kernels on n images of some shape, the best of some runs; `bench.py` calls that.

    PYTHON=benchmarks/peers/.venv-neural-tangents/bin/python
    $PYTHON benchmarks/peers/neural_tangents_images.py > neural_tangents_images.json
    $PYTHON benchmarks/peers/neural_tangents_images.py --time 200 8 8 1 3
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
LAYERS = 14  # of the timed network: w = 0.2 and relu, whose change from layer to layer is below w/2
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
        n, *shape, repeats = map(int, sys.argv[2:])
        X = np.random.default_rng(0).normal(size=(n, math.prod(shape))) / shape[2] ** 0.5
        X = X.reshape(n, *shape)
        case = {"activation": "relu", "padding": "circular", "pooling": "flatten"}
        compiled = jax.jit(unrolled(case, 0.2, 0.8, 0.0, LAYERS, True))
        jax.block_until_ready(compiled(X))
        runs = []
        for _ in range(repeats):
            start, busy = time.perf_counter(), time.process_time()
            jax.block_until_ready(compiled(X))
            runs.append((time.perf_counter() - start, time.process_time() - busy))
        seconds, processor = (min(each) for each in zip(*runs, strict=True))
        print(json.dumps({"seconds": seconds, "processor": processor, "layers": LAYERS}))
        return
    record: dict[str, Any] = {"weight": WEIGHT, "inject": INJECT, "bias": BIAS, "shape": SHAPE}
    record["cases"] = {}
    for name, case in CASES.items():
        conjugate, tangent = unrolled(case, WEIGHT, INJECT, BIAS, TURNS, False)(images(SHAPE))
        found = {"ck": conjugate.tolist(), "ntk": tangent.tolist()}
        record["cases"][name] = {**case, **found}
    json.dump(record, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
