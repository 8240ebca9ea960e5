"""Equilibrium networks with given weights: solved, certified, and compiled into explicit layers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from notsodeep.trained.cell import AffineCell, EquilibriumCell, FunctionCell
from notsodeep.trained.margin import Margin, margin_of

if TYPE_CHECKING:
    from notsodeep.trained.certificate import Certifier
    from notsodeep.trained.equilibrium import GivenEquilibrium
    from notsodeep.trained.hybrid import HybridEquilibrium
    from notsodeep.trained.splittings import solve

__all__ = [
    "AffineCell",
    "Certifier",
    "EquilibriumCell",
    "FunctionCell",
    "GivenEquilibrium",
    "HybridEquilibrium",
    "Margin",
    "margin_of",
    "solve",
]

# What needs PyTorch is imported when it is first asked for: cells and margins do not.
_WITH_TORCH = {
    "Certifier": "certificate",
    "GivenEquilibrium": "equilibrium",
    "HybridEquilibrium": "hybrid",
    "solve": "splittings",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        home = importlib.import_module(f"notsodeep.trained.{_WITH_TORCH[name]}")
        return getattr(home, name)
    raise AttributeError(f"module 'notsodeep.trained' has no attribute {name!r}")
