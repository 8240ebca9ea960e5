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

__version__ = "0.1.0"

# Each public name and the module that defines it.  They are imported when first used, so that
# `import notsodeep` and `notsodeep --help` stay instant.
_HOMES = {
    "DeepEquilibrium": "notsodeep.architectures",
    "ExplicitNetwork": "notsodeep.architectures",
    "conditions": "notsodeep.architectures",
}
_MODULES = ("activations", "data", "errors")

__all__ = [
    "DeepEquilibrium",
    "ExplicitNetwork",
    "__version__",
    "activations",
    "conditions",
    "data",
    "errors",
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
