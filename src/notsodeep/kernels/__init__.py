"""Exact kernels at infinite width, of deep equilibrium models and explicit networks."""

from notsodeep.kernels.exact import (
    KernelPair,
    conjugate_kernel,
    kernel,
    kernel_pair,
    tangent_kernel,
)
from notsodeep.kernels.operator import KernelOperator
from notsodeep.kernels.plan import Explanation
from notsodeep.kernels.store import KernelStore, store_kernel

__all__ = [
    "Explanation",
    "KernelOperator",
    "KernelPair",
    "KernelStore",
    "conjugate_kernel",
    "kernel",
    "kernel_pair",
    "store_kernel",
    "tangent_kernel",
]
