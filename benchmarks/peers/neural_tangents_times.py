"""Kernels of neural-tangents at growing n, for `bench_peers`.

Runs in the environment that `make_environment.py` makes.  A DEQ is approximated by a deep network
whose layers have weights of their own and see the input again: h_0 = √σb² B x,
h_l = √σa² A_l φ(h_{l−1}) + √σb² B_l x.  Its kernels tend to those of the DEQ with the number
of layers, CK and NTK at the rates of the recursions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents
import numpy as np
from growing_sizes import answer, read_request
from neural_tangents import stax

jax.config.update("jax_enable_x64", True)

GAIN = {"normalized_relu": math.sqrt(2.0)}
"""Factors that an activation here has and theirs has not."""


def activation(name: str, degree: int) -> Any:
    """Return a layer: in closed form where the library has one, else by its quadrature."""
    closed = {
        "relu": stax.Relu,
        "normalized_relu": stax.Relu,
        "erf": stax.Erf,
        "gelu": stax.Gelu,
    }
    if name in closed:
        return closed[name]()
    return stax.ElementwiseNumerical(getattr(jnp, name), deg=degree)


Kernels = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _called(compiled: Any) -> Kernels:
    """Return a function that waits for the answer."""

    def kernels(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # A dense layer divides by the number of its inputs, the theory here does not.
        conjugate, tangent = jax.block_until_ready(compiled(math.sqrt(X.shape[1]) * X))
        return conjugate, tangent

    return kernels


def one_layer(name: str, degree: int) -> Kernels:
    """Kernels of one hidden layer with a read-out."""
    layers = [stax.Dense(1), activation(name, degree), stax.Dense(1, W_std=GAIN.get(name, 1.0))]
    kernel_of = stax.serial(*layers)[2]
    compiled = jax.jit(lambda X: tuple(kernel_of(X, None, ("nngp", "ntk"))))
    return _called(compiled)


def injected_layers(name: str, layers: int, sigma_a2: float, degree: int) -> Kernels:
    """Kernels of the deep network that approximates a DEQ.

    The layers are alike, so that one is compiled, inside a compiled loop: written out, sixteen
    take most of a minute to compile, and sixty exceed the interpreter's depth of recursion.
    """
    inject = stax.Dense(1, W_std=math.sqrt(1.0 - sigma_a2))[2]
    recurrent = stax.Dense(1, W_std=math.sqrt(sigma_a2) * GAIN.get(name, 1.0))
    through = stax.serial(activation(name, degree), recurrent)[2]
    add = stax.FanInSum()[2]

    @jax.jit
    def compiled(X: Any) -> Any:
        injected = inject(X)

        def step(kernel: Any) -> Any:
            return add([through(kernel), injected])

        # The first layer turns the input's kernel into one of the kind that the loop carries.
        first = step(injected)
        last = jax.lax.fori_loop(1, layers, lambda _, kernel: step(kernel), first)
        return last.nngp, last.ntk

    return _called(compiled)


def main() -> None:
    """Measure, and write the answer."""
    request = read_request()
    name, layers, degree = (request[key] for key in ("activation", "layers", "degree"))
    kernels = (
        one_layer(name, degree)
        if layers == 1
        else injected_layers(name, layers, request["sigma_a2"], degree)
    )
    versions = {
        "neural-tangents": neural_tangents.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
    }
    answer(request, kernels, versions)


if __name__ == "__main__":
    main()
