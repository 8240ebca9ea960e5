"""Linear systems, spectra and regularisation paths of kernels too large for dense algebra."""

from notsodeep.kernel_solvers.early_stopping import EarlyStoppingPath, early_stopping_path
from notsodeep.kernel_solvers.eigenpairs import Eigenpairs, top_eigenpairs
from notsodeep.kernel_solvers.linear_solve import Solution, solve
from notsodeep.kernel_solvers.preconditioners import (
    combined_preconditioner,
    equivalent_preconditioner,
    nystrom_preconditioner,
)
from notsodeep.kernel_solvers.ridge_paths import (
    RidgePath,
    predicted_effective_dimension,
    ridge_path,
)
from notsodeep.kernel_solvers.spectral_density import SpectralDensity, spectral_density

__all__ = [
    "EarlyStoppingPath",
    "Eigenpairs",
    "RidgePath",
    "Solution",
    "SpectralDensity",
    "combined_preconditioner",
    "early_stopping_path",
    "equivalent_preconditioner",
    "nystrom_preconditioner",
    "predicted_effective_dimension",
    "ridge_path",
    "solve",
    "spectral_density",
    "top_eigenpairs",
]
