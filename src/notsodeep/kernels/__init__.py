"""Exact kernels at infinite width, of deep equilibrium models and explicit networks."""

from notsodeep.kernels.evaluation import Explanation
from notsodeep.kernels.exact import KernelPair, conjugate_kernel, kernel_pair, tangent_kernel
from notsodeep.kernels.operator import KernelOperator
from notsodeep.kernels.random_networks import (
    MonteCarloEstimate,
    equilibrium_draw,
    explicit_draw,
    monte_carlo,
)

__all__ = [
    "Explanation",
    "KernelOperator",
    "KernelPair",
    "MonteCarloEstimate",
    "conjugate_kernel",
    "equilibrium_draw",
    "explicit_draw",
    "kernel_pair",
    "monte_carlo",
    "tangent_kernel",
]
