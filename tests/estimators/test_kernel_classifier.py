"""The kernel classifier: accuracy, scores, calibration."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from digit_split import Split
from notsodeep.errors import InvalidInput
from notsodeep.estimators import EquilibriumKernelClassifier, EquilibriumKernelRidge


@pytest.mark.parametrize("ridge", ["gcv", "loo", 0.01])
def test_digits(ridge: float | str, digits: Split) -> None:
    classifier = EquilibriumKernelClassifier(
        activation="relu",
        sigma_a2=0.2,
        kind="ntk",
        ridge=ridge,
        preprocessing="theory",
        convention="preactivation",
    ).fit(digits.X, digits.y)
    assert classifier.score(digits.X_test, digits.y_test) > 0.93
    assert classifier.decision_function(digits.X_test).shape == (300, 10)


def test_scores_are_regressions_of_signs(digits: Split) -> None:
    names = np.where(digits.y % 2 == 0, "even", "odd")
    classifier = EquilibriumKernelClassifier(ridge=0.01, convention="preactivation").fit(
        digits.X, names
    )
    regression = EquilibriumKernelRidge(ridge=0.01, convention="preactivation").fit(
        digits.X, np.where(digits.y % 2, 1.0, -1.0)
    )
    scores = classifier.decision_function(digits.X_test)
    np.testing.assert_allclose(scores, regression.predict(digits.X_test), atol=1e-10)
    predicted = classifier.predict(digits.X_test)
    np.testing.assert_array_equal(predicted, np.where(scores > 0, "odd", "even"))


@pytest.mark.parametrize("classes", [2, 10])
def test_calibrated_probabilities(classes: int, digits: Split) -> None:
    rng = np.random.default_rng(0)
    # A tenth of wrong labels: there is uncertainty to be right about.
    y, y_test = (
        np.where(rng.random(len(y)) < 0.1, rng.integers(0, classes, len(y)), y % classes)
        for y in (digits.y, digits.y_test)
    )
    classifier = EquilibriumKernelClassifier(
        ridge=1.0, calibrated=True, convention="preactivation"
    ).fit(digits.X, y)
    probabilities = classifier.predict_proba(digits.X_test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    best = classifier.classes_[probabilities.argmax(axis=1)]
    np.testing.assert_array_equal(best, classifier.predict(digits.X_test))
    # The slope that left-out scores ask for is about the one that new samples would ask for.
    loss = log_loss(y_test, probabilities)
    slope = classifier.slope_
    for factor in (0.25, 4.0):
        classifier.slope_ = factor * slope
        assert log_loss(y_test, classifier.predict_proba(digits.X_test)) > loss
    assert loss < 0.8 * np.log(classes)


def test_probabilities_only_if_asked_for(digits: Split) -> None:
    assert not hasattr(EquilibriumKernelClassifier(convention="preactivation"), "predict_proba")
    assert hasattr(
        EquilibriumKernelClassifier(calibrated=True, convention="preactivation"), "predict_proba"
    )
    with pytest.raises(InvalidInput, match=r"calibrated .* must be False for the solver cg"):
        EquilibriumKernelClassifier(
            ridge=0.1, calibrated=True, solver="cg", convention="preactivation"
        ).fit(digits.X, digits.y)


def test_iteration_gives_the_same_predictions(digits: Split) -> None:
    dense, cg = (
        EquilibriumKernelClassifier(ridge=0.01, solver=solver, convention="preactivation").fit(
            digits.X, digits.y
        )
        for solver in ("dense", "cg")
    )
    difference = dense.decision_function(digits.X_test) - cg.decision_function(digits.X_test)
    assert np.abs(difference).max() < 1e-6
    np.testing.assert_array_equal(dense.predict(digits.X_test), cg.predict(digits.X_test))


def test_one_class_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"at least two classes\. Got 1 class"):
        EquilibriumKernelClassifier(convention="preactivation").fit(np.eye(4), np.zeros(4))


def test_in_a_pipeline_with_rescaled_pixels(digits: Split) -> None:
    pipeline = make_pipeline(
        MinMaxScaler(), EquilibriumKernelClassifier("tanh", ridge=0.01, convention="preactivation")
    )
    assert pipeline.fit(digits.X, digits.y).score(digits.X_test, digits.y_test) > 0.9


def test_class_weights_help_the_rare_class() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(["often", "seldom"], [180, 20])
    X = rng.normal(size=(200, 10)) + 0.8 * (y == "seldom")[:, None]
    new = rng.normal(size=(400, 10)) + 0.8
    plain = EquilibriumKernelClassifier(ridge=1.0, convention="preactivation").fit(X, y)
    balanced = EquilibriumKernelClassifier(
        ridge=1.0, class_weight="balanced", convention="preactivation"
    ).fit(X, y)
    assert (balanced.predict(new) == "seldom").mean() > (plain.predict(new) == "seldom").mean()
    by_hand = np.where(y == "seldom", 5.0, 200 / 360)
    weighted = EquilibriumKernelClassifier(ridge=1.0, convention="preactivation").fit(
        X, y, sample_weight=by_hand
    )
    np.testing.assert_allclose(weighted.decision_function(new), balanced.decision_function(new))
