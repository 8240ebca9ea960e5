"""Random features and compiled classifiers."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline

import notsodeep as nsd
from digit_split import Split
from notsodeep.errors import InvalidInput
from notsodeep.estimators import (
    CompiledClassifier,
    EquilibriumKernelClassifier,
    RandomEquilibriumFeatures,
    TheoryScaler,
)


def round_trip(estimator: Any) -> Any:
    stream = BytesIO()
    joblib.dump(estimator, stream)
    stream.seek(0)
    return joblib.load(stream)


@pytest.mark.parametrize("network", ["equilibrium", "matched"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_features_have_the_conjugate_kernel(activation: str, network: str, digits: Split) -> None:
    family = {"relu": "leaky_relu", "tanh": "hard_tanh"}[activation]
    X = digits.X[:40]
    features = RandomEquilibriumFeatures(
        activation,
        0.1,
        2000,
        network,
        family,
        random_state=0,
    ).fit(digits.X)
    Z = features.transform(X)
    assert Z.shape == (40, 2000)
    assert Z.dtype == np.float64
    exact = nsd.kernel(
        features.model_, TheoryScaler().fit(digits.X).transform(X), convention="feature"
    )
    terms = 2000 * Z[:, None, :] * Z[None, :, :]
    error = terms.std(axis=2) / np.sqrt(2000)
    assert (np.abs(Z @ Z.T - exact) < 5.0 * error).all()
    assert error.max() < 0.1 * exact.max()


def test_matched_features_stand_in_for_those_of_the_deq(digits: Split) -> None:
    scores = {}
    for network in ("equilibrium", "matched"):
        features = RandomEquilibriumFeatures(
            "tanh", width=400, network=network, family="hard_tanh", random_state=1
        )
        pipeline = make_pipeline(features, RidgeClassifier(alpha=0.01)).fit(digits.X, digits.y)
        scores[network] = pipeline.score(digits.X_test, digits.y_test)
    assert scores["equilibrium"] > 0.88
    assert abs(scores["matched"] - scores["equilibrium"]) < 0.04


def test_features_follow_the_seed_and_survive_joblib(digits: Split) -> None:
    def make(seed: int) -> RandomEquilibriumFeatures:
        return RandomEquilibriumFeatures("tanh", width=30, random_state=seed).fit(digits.X)

    fitted = make(0)
    Z = fitted.transform(digits.X_test)
    np.testing.assert_array_equal(make(0).transform(digits.X_test), Z)
    assert np.abs(make(1).transform(digits.X_test) - Z).max() > 0.01
    np.testing.assert_array_equal(round_trip(fitted).transform(digits.X_test), Z)
    assert fitted.get_feature_names_out()[2] == "randomequilibriumfeatures2"


def test_compiled_classifier_reaches_the_kernel_it_stands_for(digits: Split) -> None:
    compiled = CompiledClassifier("relu", width=1500, family="leaky_relu", random_state=0)
    compiled.fit(digits.X, digits.y)
    kernel = EquilibriumKernelClassifier(
        model=nsd.DeepEquilibrium("relu", 0.2).centred(1.0), kind="ck", ridge=1e-3
    ).fit(digits.X, digits.y)
    X, y = digits.X_test, digits.y_test
    assert compiled.score(X, y) > kernel.score(X, y) - 0.03
    assert compiled.score(X, y) > 0.9
    assert (compiled.predict(X) == kernel.predict(X)).mean() > 0.93
    assert compiled.match_.family == "leaky_relu"
    assert compiled.match_.certify(compiled.preprocessing_.apply(X)).matched.relative_gap < 0.1


def test_the_default_ridge_is_off_the_interpolation_peak(digits: Split) -> None:
    X, y = digits.X[:250], digits.y[:250]  # as many rows as features
    options = {"width": 250, "family": "leaky_relu", "random_state": 0}
    scores = {
        ridge: CompiledClassifier(ridge=ridge, **options).fit(X, y).score(*digits[2:])
        for ridge in ("loo", 1e-6, 1e-3, 0.1, 1.0)
    }
    assert scores["loo"] > max(scores.values()) - 0.02
    assert scores["loo"] > scores[1e-6] + 0.05


@pytest.mark.parametrize("train", ["readout", "all"])
def test_compiled_classifier_round_trips(train: str, digits: Split, tmp_path: Path) -> None:
    names = np.array(["even", "odd"])[digits.y % 2]
    options = {"width": 64, "family": "hard_tanh", "random_state": 0, "train": train}
    compiled = CompiledClassifier("tanh", **options).fit(digits.X, names)
    scores = compiled.decision_function(digits.X_test)
    assert scores.shape == (300,)
    np.testing.assert_array_equal(round_trip(compiled).decision_function(digits.X_test), scores)
    path = tmp_path / "net.safetensors"
    classes = compiled.classes_.tolist()
    nsd.save(compiled.module(), path, preprocessing=compiled.preprocessing_, classes=classes)
    net: Any = nsd.load(path)
    outputs = net(torch.as_tensor(net.preprocessing.apply(digits.X_test), dtype=torch.float32))
    gap = (outputs[:, 1] - outputs[:, 0]).detach().numpy() - scores
    assert np.abs(gap).max() < 1e-4 * np.abs(scores).max()


def test_trained_network(digits: Split) -> None:
    compiled = CompiledClassifier(
        "relu", width=64, family="leaky_relu", train="all", random_state=0
    ).fit(digits.X, digits.y)
    assert compiled.score(digits.X_test, digits.y_test) > 0.9
    assert compiled.match_.kind == "ntk"
    probabilities = compiled.predict_proba(digits.X_test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-6)
    assert compiled.fit_record_.history[-1]["loss"] < 0.5 * compiled.fit_record_.history[0]["loss"]


def test_probabilities_belong_to_cross_entropy() -> None:
    assert not hasattr(CompiledClassifier(), "predict_proba")
    assert hasattr(CompiledClassifier(train="all"), "predict_proba")


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (CompiledClassifier(train="some"), "Unknown train 'some'"),
        (CompiledClassifier(width=0), "width of CompiledClassifier must be an integer"),
        (CompiledClassifier(ridge=0.0), "ridge of CompiledClassifier must be positive"),
        (CompiledClassifier(family="relus"), "Unknown family 'relus'"),
        (RandomEquilibriumFeatures(network="deq"), "Unknown network"),
        (RandomEquilibriumFeatures(width=1.5), "width of RandomEquilibriumFeatures must be"),
    ],
)
def test_refusals(estimator: Any, message: str) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match=message):
        estimator.fit(rng.standard_normal((20, 3)), np.arange(20) % 2)


def test_torch_is_loaded_when_needed() -> None:
    script = (
        "import sys, numpy as np\n"
        "from notsodeep.estimators import CompiledClassifier, EquilibriumKernelRidge\n"
        "EquilibriumKernelRidge(ridge=0.1).fit(np.eye(3), np.arange(3.0))\n"
        "CompiledClassifier(width=8, family='leaky_relu').fit(np.eye(9), np.arange(9) % 2)\n"
        "assert not {'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
