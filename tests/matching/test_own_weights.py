"""From a user's own DEQ weights to a certified shallow network."""

from __future__ import annotations

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.networks import EquilibriumNetwork


def test_weights_to_certificate() -> None:
    rng = np.random.default_rng(0)
    m, p = 400, 40
    A = np.sqrt(0.2 / m) * rng.standard_normal((m, m))
    B = np.sqrt(0.8) * rng.standard_normal((m, p))
    C = rng.standard_normal((3, m))
    deq = nsd.DeepEquilibrium.from_weights(A, B, activation="tanh")
    assert abs(deq.sigma_a2 - 0.2) < 0.01

    module = EquilibriumNetwork.from_weights(A, B, C, "tanh", dtype=torch.float64)
    X = rng.standard_normal((24, p)) / np.sqrt(p)

    def measured(rows: np.ndarray) -> np.ndarray:
        return nsd.empirical_kernels(module, rows).conjugate

    # The description is about inputs multiplied by the module's input_scale.
    scaled = module.input_scale * X
    found = nsd.match(
        deq, scaled, family="hard_tanh",
        measured=lambda rows: measured(rows / module.input_scale),
    )  # fmt: skip
    certificate = found.certify(scaled)
    # A finite network's kernel is some way from the limit; the match is no further from it.
    exact = nsd.conjugate_kernel(deq, scaled, convention="feature")
    own = np.linalg.norm(measured(X) - exact, 2) / np.linalg.norm(exact, 2)
    assert certificate.matched.relative_gap < own + 0.02
    assert certificate.unmatched.gap > certificate.matched.gap
