"""Every estimator passes scikit-learn's own checks, the default ones all of them."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from notsodeep.estimators import (
    CompiledClassifier,
    EquilibriumKernelClassifier,
    EquilibriumKernelRidge,
    RandomEquilibriumFeatures,
    TheoryScaler,
)

QUICK = [
    TheoryScaler(),
    TheoryScaler("none"),
    EquilibriumKernelRidge(),
    EquilibriumKernelClassifier(),
    EquilibriumKernelRidge(ridge=0.01, solver="cg"),
    RandomEquilibriumFeatures(width=32),
    RandomEquilibriumFeatures(width=32, network="matched", family="leaky_relu"),
    CompiledClassifier(width=32, family="leaky_relu"),
]

SLOW = [
    EquilibriumKernelClassifier(kind="ck", convention="preactivation"),
    CompiledClassifier(),
    CompiledClassifier(width=32, family="leaky_relu", train="all"),
    RandomEquilibriumFeatures("tanh"),
]

pytestmark = pytest.mark.filterwarnings(f"ignore::{SkipTestWarning.__module__}.SkipTestWarning")


@parametrize_with_checks(QUICK)
def test_quick(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(SLOW)
def test_slow(estimator: Any, check: Any) -> None:
    check(estimator)
