"""scikit-learn estimators."""

from notsodeep.estimators.finite import CompiledClassifier, RandomEquilibriumFeatures
from notsodeep.estimators.kernel import EquilibriumKernel
from notsodeep.estimators.kernel_ridge import EquilibriumKernelClassifier, EquilibriumKernelRidge
from notsodeep.estimators.scaler import TheoryScaler

__all__ = [
    "CompiledClassifier",
    "EquilibriumKernel",
    "EquilibriumKernelClassifier",
    "EquilibriumKernelRidge",
    "RandomEquilibriumFeatures",
    "TheoryScaler",
]
