"""Networks and estimators survive every way in which users' tools copy them, bit by bit."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pytest
import torch

import notsodeep as nsd
from cases import CONTRACT, identifier
from notsodeep import estimators
from notsodeep.activations import Activation

ROWS = np.random.default_rng(0).normal(size=(40, 5))
LABELS = np.arange(40) % 3


def through_torch(model: Any) -> Any:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def through_joblib(model: Any) -> Any:
    stream = io.BytesIO()
    joblib.dump(model, stream)
    stream.seek(0)
    return joblib.load(stream)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "deepcopy": copy.deepcopy,
    "torch": through_torch,
    "joblib": through_joblib,
}


def sign_root(x: Any) -> Any:
    """sign(x)(√(1 + |x|) − 1), in the functions of NumPy or torch."""
    library = torch if isinstance(x, torch.Tensor) else np
    return library.sign(x) * (library.sqrt(1.0 + abs(x)) - 1.0)


OWN = nsd.activations.from_function(sign_root, name="sign_root", kinks=(0.0,), torch=sign_root)
MATCHED = [
    nsd.match(nsd.DeepEquilibrium("swish", 0.2), tau0=1.0, family=family).network.activations[0]
    for family in ("leaky_relu", "hard_tanh", "piecewise_linear", "quadratic")
]


@pytest.mark.parametrize("activation", [*CONTRACT, *MATCHED, OWN], ids=identifier)
def test_networks(activation: Activation) -> None:
    X = torch.as_tensor(ROWS, dtype=torch.float32) / 10.0
    for model in (nsd.ExplicitNetwork([activation, "tanh"]), nsd.DeepEquilibrium(activation, 0.01)):
        module = nsd.build(model, 5, 16, 3, rng=0)
        outputs = module(X)
        outputs.square().sum().backward()  # records of the solves are copied along
        for copied in COPIES.values():
            again = copied(module)
            assert torch.equal(again(X), outputs)
            assert again.model == model


def test_networks_after_their_kernels() -> None:
    module = nsd.build(nsd.DeepEquilibrium(OWN, 0.1), 5, 16, 3, rng=0, dtype=torch.float64)
    kernels = nsd.empirical_kernels(module, ROWS)
    for copied in COPIES.values():
        again = nsd.empirical_kernels(copied(module), ROWS)
        assert np.array_equal(again.ntk, kernels.ntk)


FITTED: dict[str, Callable[[], Any]] = {
    "compiled": lambda: estimators.CompiledClassifier("tanh", width=16, random_state=0),
    "compiled, formula": lambda: estimators.CompiledClassifier(
        nsd.activations.from_formula("x / (1 + abs(x))", kinks=(0.0,)),
        width=16,
        family="scaled",
        train="all",
        random_state=0,
    ),
    "random features": lambda: estimators.RandomEquilibriumFeatures(OWN, width=16, random_state=0),
    "matched features": lambda: estimators.RandomEquilibriumFeatures(
        "swish", width=16, network="matched", random_state=0
    ),
    "classifier": lambda: estimators.EquilibriumKernelClassifier("tanh"),
    "ridge": lambda: estimators.EquilibriumKernelRidge("softplus"),
    "scaler": lambda: estimators.TheoryScaler(),
}


@pytest.mark.parametrize("make", FITTED.values(), ids=FITTED)
def test_estimators(make: Callable[[], Any]) -> None:
    estimator = make().fit(ROWS, LABELS)
    answer = "predict" if hasattr(estimator, "predict") else "transform"
    outputs = getattr(estimator, answer)(ROWS)
    for copied in COPIES.values():
        assert np.array_equal(getattr(copied(estimator), answer)(ROWS), outputs)


def test_kernels_of_scikit_learn() -> None:
    kernel = estimators.EquilibriumKernel("tanh", sigma_a2=0.1, convention="preactivation")
    for copied in COPIES.values():
        assert np.array_equal(copied(kernel)(ROWS), kernel(ROWS))
