"""scikit-learn estimators."""

from notsodeep.estimators.compiled_classifier import CompiledClassifier
from notsodeep.estimators.kernel import EquilibriumKernel
from notsodeep.estimators.kernel_ridge import EquilibriumKernelClassifier, EquilibriumKernelRidge
from notsodeep.estimators.random_features import RandomEquilibriumFeatures
from notsodeep.estimators.scaler import TheoryScaler

__all__ = [
    "CompiledClassifier",
    "EquilibriumKernel",
    "EquilibriumKernelClassifier",
    "EquilibriumKernelRidge",
    "RandomEquilibriumFeatures",
    "TheoryScaler",
]
