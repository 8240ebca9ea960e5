"""Errors of kernels against the slow reference of the tests, on a few rows.

The reference iterates the recursion layer by layer, with two-dimensional quadrature split at the
kinks: neither series nor closed forms nor Newton's method.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import notsodeep as nsd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from reference import equilibrium_kernels, explicit_kernels

SAMPLE = 6
"""Rows: 21 entries, the diagonal among them.  An entry takes the reference some milliseconds."""

_TOLERANCE = 2e-15  # of a step of the recursion; rounding keeps it from smaller ones


def reference_pair(
    model: nsd.DeepEquilibrium | nsd.ExplicitNetwork, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """CK and NTK of a few rows, with preactivations if it is a DEQ."""
    if isinstance(model, nsd.DeepEquilibrium):
        kernels = equilibrium_kernels(model, X, X, tolerance=_TOLERANCE)
        return kernels["preactivation ck"], kernels["preactivation ntk"]
    return explicit_kernels(model, X, X)


def relative_errors(
    found: tuple[np.ndarray, np.ndarray], reference: tuple[np.ndarray, np.ndarray]
) -> dict[str, float]:
    """Largest |K − K_ref|/max|K_ref| of both kernels, and of the tangent kernel's diagonal."""
    conjugate, tangent = (
        float(np.abs(ours - exact).max() / np.abs(exact).max())
        for ours, exact in zip(found, reference, strict=True)
    )
    own, exact = np.diag(found[1]), np.diag(reference[1])
    return {
        "error_conjugate": conjugate,
        "error_tangent": tangent,
        "error_tangent_diagonal": float(np.abs(own / exact - 1.0).max()),
    }
