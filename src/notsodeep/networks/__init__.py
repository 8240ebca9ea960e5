"""Finite networks in PyTorch, imported when they are first used; `sampling` needs no torch."""

from __future__ import annotations

import importlib
from typing import Any

from notsodeep import extras

_HOMES = {
    "Anderson": "implicit",
    "Broyden": "implicit",
    "EmpiricalKernels": "empirical",
    "Network": "random",
    "ReadoutFit": "readout",
    "SolveRecord": "implicit",
    "Solver": "implicit",
    "Training": "training",
    "TrainingSettings": "training",
    "build": "random",
    "empirical_kernels": "empirical",
    "export_onnx": "onnx",
    "fit_readout": "readout",
    "implicit_layer": "implicit",
    "load": "files",
    "save": "files",
    "train": "training",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    extras.require("notsodeep.networks", "torch")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
