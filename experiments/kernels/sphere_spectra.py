"""Spectra on the sphere: the sphere paper's figure 1 (arXiv 2308.16425)."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.runner import Cell, Experiment, Profile, Record
from notsodeep.data import sphere
from notsodeep.equivalents import compare, sphere_equivalent
from notsodeep.equivalents.distances import operator_norm
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching import match
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

_SIZES = {"smoke": (100, 120), "quick": (400, 480), "paper": (1000, 1200)}


def _cells(profile: Profile) -> list[Cell]:
    n, d = _SIZES[profile]
    return [
        {"samples": n, "dimension": d, "sigma_a2": 0.2, "kernel": kernel}
        for kernel in ("conjugate", "tangent")
    ]


def _compute(cell: Cell, seed: int) -> Record:
    """Compute the gaps of the equivalent, of two matched networks and of a plain one."""
    X = sphere(cell["samples"], cell["dimension"], rng=seed)
    deq = DeepEquilibrium("normalized_relu", cell["sigma_a2"])
    kernel: Any = cell["kernel"]
    exact = exact_kernel(deq, X, kind=kernel, convention="preactivation")
    eq = sphere_equivalent(deq, X, kind=kernel, convention="preactivation")
    comparison = compare(exact, eq)
    options: Any = {"kind": kernel, "convention": "preactivation"}
    networks = {
        "quadratic": match(deq, sphere=cell["dimension"], family="quadratic", **options).network,
        "dual": match(deq, family="dual", **options).network,
        "plain": ExplicitNetwork(["normalized_relu"]),
    }
    gaps, spectra = {}, {}
    for name, network in networks.items():
        other = exact_kernel(network, X, kind=kernel, convention="feature")
        gaps[name] = operator_norm(exact - other)
        spectra[name] = np.linalg.eigvalsh(other).tolist()
    return {
        "coefficients": eq.expansion.to_dict(),
        "equivalent": comparison.to_dict(arrays=False),
        "gaps": gaps,
        "norm": float(np.abs(comparison.eigenvalues).max()),
        "eigenvalues": comparison.eigenvalues.tolist(),
        "network_eigenvalues": spectra,
    }


EXPERIMENT = Experiment(
    "sphere-spectra",
    "Spectra of a ReLU DEQ and of explicit networks on the sphere",
    "sphere paper, arXiv 2308.16425, figure 1",
    _cells,
    _compute,
)
