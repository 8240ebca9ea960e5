"""How far two kernel matrices are from one another."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.sparse.linalg import eigsh

from notsodeep.checks import FloatArray
from notsodeep.numerics.matrix_norms import difference_norms, operator_norm
from notsodeep.numerics.spectral_distances import wasserstein
from notsodeep.records import Record


@dataclass(frozen=True, eq=False, repr=False)
class KernelDistance(Record):
    """Distances of a kernel matrix from a reference.

    Attributes
    ----------
    gap : float
        ‖K − K′‖ in operator norm.
    relative_gap : float
        gap/‖K‖.
    frobenius : float
        ‖K − K′‖_F/‖K‖_F.
    scaled_gap : float
        ‖K − cK′‖/‖K‖ with the c that is best in Frobenius norm: what a change of scale, which a
        trained read-out undoes, does not remove.
    spectra : float
        Wasserstein distance of the eigenvalues.
    alignment : float
        ⟨K, K′⟩/(‖K‖_F‖K′‖_F); 1 for proportional kernels.
    eigenvector_overlap : float
        |⟨v, v′⟩| of the top eigenvectors.
    norm : float
        ‖K‖ of the reference.
    eigenvalues, other_eigenvalues : ndarray of shape (n,)
        Ascending.
    """

    gap: float
    relative_gap: float
    frobenius: float
    scaled_gap: float
    spectra: float
    alignment: float
    eigenvector_overlap: float
    norm: float
    eigenvalues: FloatArray = field(repr=False)
    other_eigenvalues: FloatArray = field(repr=False)


def kernel_distance(reference: FloatArray, other: FloatArray) -> KernelDistance:
    """Compare two symmetric kernel matrices of shape (n, n)."""
    gap, frobenius = difference_norms(reference, other)
    assert frobenius is not None  # both are arrays
    eigenvalues, other_eigenvalues = (
        np.asarray(np.linalg.eigvalsh(K), dtype=np.float64) for K in (reference, other)
    )
    norm = float(np.abs(eigenvalues).max())
    size, other_size = (float(np.linalg.norm(K)) for K in (reference, other))
    inner = float(np.vdot(reference, other))
    return KernelDistance(
        gap=gap,
        relative_gap=gap / norm,
        frobenius=frobenius / size,
        scaled_gap=operator_norm(reference - (inner / other_size**2) * other) / norm,
        spectra=wasserstein(eigenvalues, other_eigenvalues),
        alignment=inner / (size * other_size),
        eigenvector_overlap=abs(float(_top(reference) @ _top(other))),
        norm=norm,
        eigenvalues=eigenvalues,
        other_eigenvalues=other_eigenvalues,
    )


def _top(kernel: FloatArray) -> FloatArray:
    """Eigenvector of the largest eigenvalue."""
    n = len(kernel)
    if n < 50:
        return np.asarray(np.linalg.eigh(kernel)[1][:, -1])
    start = np.random.default_rng(0).standard_normal(n)
    return np.asarray(eigsh(kernel, k=1, which="LA", v0=start)[1][:, 0])
