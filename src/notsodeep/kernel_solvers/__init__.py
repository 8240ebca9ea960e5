"""Linear systems, spectra and regularisation paths of kernels too large for dense algebra."""

from notsodeep.kernel_solvers.lanczos import (
    Eigenpairs,
    SpectralDensity,
    spectral_density,
    top_eigenpairs,
)
from notsodeep.kernel_solvers.paths import RidgePath, ridge_path
from notsodeep.kernel_solvers.preconditioners import preconditioner
from notsodeep.kernel_solvers.solve import Solution, solve

__all__ = [
    "Eigenpairs",
    "RidgePath",
    "Solution",
    "SpectralDensity",
    "preconditioner",
    "ridge_path",
    "solve",
    "spectral_density",
    "top_eigenpairs",
]
