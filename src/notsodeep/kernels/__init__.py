"""Exact kernels at infinite width, of deep equilibrium models and explicit networks."""

from notsodeep.kernels.exact import KernelPair, kernel
from notsodeep.kernels.operator import KernelOperator
from notsodeep.kernels.store import KernelStore, store_kernel

__all__ = ["KernelOperator", "KernelPair", "KernelStore", "kernel", "store_kernel"]
