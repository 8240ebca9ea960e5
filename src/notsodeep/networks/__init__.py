"""Finite networks in PyTorch."""

from notsodeep.networks.build import build
from notsodeep.networks.empirical_kernels import EmpiricalKernels, empirical_kernels
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.modules import EquilibriumNetwork, ExplicitModule, FeatureNetwork
from notsodeep.networks.torch_draws import torch_draw

__all__ = [
    "EmpiricalKernels",
    "EquilibriumNetwork",
    "ExplicitModule",
    "FeatureNetwork",
    "build",
    "empirical_kernels",
    "implicit_layer",
    "torch_draw",
]
