"""Frozen descriptions of the networks, read by kernels, equivalents, matching and torch alike."""

from notsodeep.architectures.deep_equilibrium import DeepEquilibrium
from notsodeep.architectures.explicit_network import ExplicitNetwork
from notsodeep.architectures.kernel_choice import Convention, KernelName, Model, checked_choice
from notsodeep.architectures.varying_activations import require_varying
from notsodeep.architectures.verdicts import Conditions, Verdict, conditions
from notsodeep.architectures.weight_analysis import WeightAnalysis, analyse_weights

__all__ = [
    "Conditions",
    "Convention",
    "DeepEquilibrium",
    "ExplicitNetwork",
    "KernelName",
    "Model",
    "Verdict",
    "WeightAnalysis",
    "analyse_weights",
    "checked_choice",
    "conditions",
    "require_varying",
]
