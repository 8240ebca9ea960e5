"""Frozen descriptions of the networks, read by kernels, equivalents, matching and torch alike."""

from notsodeep.models.cell import Dense
from notsodeep.models.conditions import Conditions, Verdict, conditions
from notsodeep.models.convolutional import (
    Convolution,
    ConvolutionalEquilibrium,
    ConvolutionalModel,
    ConvolutionalNetwork,
)
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.models.explicit import ExplicitNetwork
from notsodeep.models.given_weights import WeightAnalysis, analyse_weights
from notsodeep.models.kernel_kind import (
    Convention,
    KernelModel,
    KernelName,
    Model,
    checked_choice,
    kernel_name,
)
from notsodeep.models.monotone import MonotoneEquilibrium
from notsodeep.models.varying_activations import require_varying

__all__ = [
    "Conditions",
    "Convention",
    "Convolution",
    "ConvolutionalEquilibrium",
    "ConvolutionalModel",
    "ConvolutionalNetwork",
    "DeepEquilibrium",
    "Dense",
    "ExplicitNetwork",
    "KernelModel",
    "KernelName",
    "Model",
    "MonotoneEquilibrium",
    "Verdict",
    "WeightAnalysis",
    "analyse_weights",
    "checked_choice",
    "conditions",
    "kernel_name",
    "require_varying",
]
