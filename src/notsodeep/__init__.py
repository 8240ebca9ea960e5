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
    from notsodeep import activations, data, errors
    from notsodeep.architectures import DeepEquilibrium, ExplicitNetwork, conditions
    from notsodeep.kernels import (
        KernelOperator,
        KernelPair,
        conjugate_kernel,
        kernel_pair,
        monte_carlo,
        tangent_kernel,
    )

__version__ = "0.1.0"

# Each public name and the module that defines it.  They are imported when first used, so that
# `import notsodeep` and `notsodeep --help` stay instant.
_HOMES = {
    "DeepEquilibrium": "notsodeep.architectures",
    "ExplicitNetwork": "notsodeep.architectures",
    "KernelOperator": "notsodeep.kernels",
    "KernelPair": "notsodeep.kernels",
    "conditions": "notsodeep.architectures",
    "conjugate_kernel": "notsodeep.kernels",
    "kernel_pair": "notsodeep.kernels",
    "monte_carlo": "notsodeep.kernels",
    "tangent_kernel": "notsodeep.kernels",
}
_MODULES = ("activations", "data", "errors")

__all__ = [
    "DeepEquilibrium",
    "ExplicitNetwork",
    "KernelOperator",
    "KernelPair",
    "__version__",
    "activations",
    "conditions",
    "conjugate_kernel",
    "data",
    "errors",
    "kernel_pair",
    "monte_carlo",
    "tangent_kernel",
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
