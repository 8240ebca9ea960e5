"""Exact kernels at infinite width, of deep equilibrium models and explicit networks."""

from notsodeep.kernels.distributed_operator import DistributedKernelOperator
from notsodeep.kernels.exact import (
    KernelPair,
    conjugate_kernel,
    kernel,
    kernel_pair,
    tangent_kernel,
)
from notsodeep.kernels.kernel_store import KernelStore, StoredKernelOperator
from notsodeep.kernels.operator import KernelOperator
from notsodeep.kernels.plan import Explanation
from notsodeep.kernels.store_writing import store_kernel

__all__ = [
    "DistributedKernelOperator",
    "Explanation",
    "KernelOperator",
    "KernelPair",
    "KernelStore",
    "StoredKernelOperator",
    "conjugate_kernel",
    "kernel",
    "kernel_pair",
    "store_kernel",
    "tangent_kernel",
]
