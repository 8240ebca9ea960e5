"""Deep equilibrium models, their exact kernels, and the shallow networks that behave the same.

>>> import notsodeep as nsd
>>> deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
>>> round(deq.centred(tau0=1.0).tau_star, 6)
0.934872
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from notsodeep import (
        activations,
        collapse,
        data,
        equivalents,
        errors,
        estimators,
        kernel_solvers,
        kernels,
        matching,
        models,
        networks,
        plotting,
        prediction,
        trained,
        zoo,
    )
    from notsodeep.compilation.compile import compile, load
    from notsodeep.compilation.record import Compilation
    from notsodeep.equivalents import (
        compare,
        limiting_spectrum,
        sphere_equivalent,
    )
    from notsodeep.equivalents.equivalent import equivalent
    from notsodeep.kernels import (
        KernelOperator,
        KernelPair,
        kernel,
        store_kernel,
    )
    from notsodeep.matching.match import match
    from notsodeep.models import (
        Convolution,
        ConvolutionalEquilibrium,
        ConvolutionalNetwork,
        DeepEquilibrium,
        Dense,
        ExplicitNetwork,
        MonotoneEquilibrium,
    )
    from notsodeep.models.conditions import conditions
    from notsodeep.networks.cell import EquilibriumCell
    from notsodeep.networks.empirical import empirical_kernels
    from notsodeep.networks.files import save
    from notsodeep.networks.implicit import implicit_layer
    from notsodeep.networks.onnx import export_onnx
    from notsodeep.networks.random import build
    from notsodeep.networks.sampling import monte_carlo
    from notsodeep.prediction import predict_risk
    from notsodeep.trained.certificate import certify_states
    from notsodeep.trained.diagnosis import Diagnosis, diagnose
    from notsodeep.trained.regions import certified_radius, certify

__version__ = "0.3.0.dev0"

# Each public name and the module that defines it.  They are imported when first used, so that
# `import notsodeep` and `notsodeep --help` stay instant.
_HOMES = {
    "Compilation": "notsodeep.compilation.record",
    "Convolution": "notsodeep.models",
    "ConvolutionalEquilibrium": "notsodeep.models",
    "ConvolutionalNetwork": "notsodeep.models",
    "DeepEquilibrium": "notsodeep.models",
    "Dense": "notsodeep.models",
    "Diagnosis": "notsodeep.trained.diagnosis",
    "EquilibriumCell": "notsodeep.networks.cell",
    "ExplicitNetwork": "notsodeep.models",
    "KernelOperator": "notsodeep.kernels",
    "KernelPair": "notsodeep.kernels",
    "MonotoneEquilibrium": "notsodeep.models",
    "build": "notsodeep.networks",
    "certified_radius": "notsodeep.trained.regions",
    "certify": "notsodeep.trained.regions",
    "certify_states": "notsodeep.trained.certificate",
    "compare": "notsodeep.equivalents",
    "compile": "notsodeep.compilation.compile",
    "conditions": "notsodeep.models",
    "diagnose": "notsodeep.trained.diagnosis",
    "empirical_kernels": "notsodeep.networks",
    "equivalent": "notsodeep.equivalents",
    "export_onnx": "notsodeep.networks",
    "implicit_layer": "notsodeep.networks",
    "kernel": "notsodeep.kernels",
    "limiting_spectrum": "notsodeep.equivalents",
    "load": "notsodeep.compilation.compile",
    "match": "notsodeep.matching",
    "monte_carlo": "notsodeep.networks.sampling",
    "predict_risk": "notsodeep.prediction",
    "save": "notsodeep.networks",
    "sphere_equivalent": "notsodeep.equivalents",
    "store_kernel": "notsodeep.kernels",
}
_MODULES = (
    "activations",
    "collapse",
    "data",
    "equivalents",
    "errors",
    "estimators",
    "kernel_solvers",
    "kernels",
    "matching",
    "models",
    "networks",
    "plotting",
    "prediction",
    "trained",
    "zoo",
)

__all__ = [
    "Compilation",
    "Convolution",
    "ConvolutionalEquilibrium",
    "ConvolutionalNetwork",
    "DeepEquilibrium",
    "Dense",
    "Diagnosis",
    "EquilibriumCell",
    "ExplicitNetwork",
    "KernelOperator",
    "KernelPair",
    "MonotoneEquilibrium",
    "__version__",
    "activations",
    "build",
    "certified_radius",
    "certify",
    "certify_states",
    "collapse",
    "compare",
    "compile",
    "conditions",
    "data",
    "diagnose",
    "empirical_kernels",
    "equivalent",
    "equivalents",
    "errors",
    "estimators",
    "export_onnx",
    "implicit_layer",
    "kernel",
    "kernel_solvers",
    "kernels",
    "limiting_spectrum",
    "load",
    "match",
    "matching",
    "models",
    "monte_carlo",
    "networks",
    "plotting",
    "predict_risk",
    "prediction",
    "save",
    "sphere_equivalent",
    "store_kernel",
    "trained",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"notsodeep.{name}")
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'notsodeep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
