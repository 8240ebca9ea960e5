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
from notsodeep.networks.training import TrainingSettings

SHORT = TrainingSettings(20, optimiser="adam", learning_rate=0.03)

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
    CompiledClassifier(width=32, family="leaky_relu", train="all", settings=SHORT),
    RandomEquilibriumFeatures("tanh"),
]

pytestmark = pytest.mark.filterwarnings(f"ignore::{SkipTestWarning.__module__}.SkipTestWarning")


WEIGHTED = (
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
    "check_sample_weight_equivalence_on_dense_data",
    "check_class_weight_classifiers",
)


def expected_to_fail(estimator: Any) -> dict[str, str]:
    """Weights are rejected by name where they have no meaning, and rows are not weights."""
    if getattr(estimator, "train", None) == "all":
        return dict.fromkeys(WEIGHTED, "weights are for read-outs")
    if isinstance(estimator, CompiledClassifier):
        check = "check_sample_weight_equivalence_on_dense_data"
        return {check: "the network is matched on rows without weights"}
    return {}


@parametrize_with_checks(QUICK, expected_failed_checks=expected_to_fail)
def test_quick(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(SLOW, expected_failed_checks=expected_to_fail)
def test_slow(estimator: Any, check: Any) -> None:
    check(estimator)
