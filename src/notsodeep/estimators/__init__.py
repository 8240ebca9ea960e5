"""Doors into scikit-learn: NumPy in, NumPy out."""

from __future__ import annotations

from notsodeep.estimators.compiled_classifier import CompiledClassifier
from notsodeep.estimators.equilibrium_kernel import EquilibriumKernel
from notsodeep.estimators.kernel_estimators import (
    EquilibriumKernelClassifier,
    EquilibriumKernelRidge,
)
from notsodeep.estimators.random_features import RandomEquilibriumFeatures
from notsodeep.estimators.theory_scaler import TheoryScaler

__all__ = [
    "CompiledClassifier",
    "EquilibriumKernel",
    "EquilibriumKernelClassifier",
    "EquilibriumKernelRidge",
    "RandomEquilibriumFeatures",
    "TheoryScaler",
]
