"""Finite networks in PyTorch."""

from notsodeep import extras

extras.require("notsodeep.networks", "torch")  # in words, before an import fails without

from notsodeep.networks.build import build
from notsodeep.networks.cell_module import CellNetwork, MonotoneNetwork
from notsodeep.networks.convolutional import ConvolutionalModule
from notsodeep.networks.empirical_kernels import EmpiricalKernels, empirical_kernels
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.modules import (
    EquilibriumNetwork,
    ExplicitModule,
    FeatureNetwork,
    ImplicitNetwork,
)
from notsodeep.networks.onnx_export import export_onnx
from notsodeep.networks.persistence import load, save
from notsodeep.networks.readout import ReadoutFit, fit_readout
from notsodeep.networks.training import train
from notsodeep.networks.training_records import (
    EpochRecord,
    SolverSummary,
    Training,
    TrainingSettings,
)

__all__ = [
    "CellNetwork",
    "ConvolutionalModule",
    "EmpiricalKernels",
    "EpochRecord",
    "EquilibriumNetwork",
    "ExplicitModule",
    "FeatureNetwork",
    "ImplicitNetwork",
    "MonotoneNetwork",
    "ReadoutFit",
    "SolverSummary",
    "Training",
    "TrainingSettings",
    "build",
    "empirical_kernels",
    "export_onnx",
    "fit_readout",
    "implicit_layer",
    "load",
    "save",
    "train",
]
