"""Exact kernels at infinite width, of deep equilibrium models and explicit networks."""

from notsodeep.kernels.evaluation import Explanation
from notsodeep.kernels.exact import KernelPair, conjugate_kernel, kernel_pair, tangent_kernel

__all__ = ["Explanation", "KernelPair", "conjugate_kernel", "kernel_pair", "tangent_kernel"]
