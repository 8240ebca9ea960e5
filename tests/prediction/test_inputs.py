"""What does not fit is rejected before any work, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.prediction import learning_curve, pilot_curve, transfer, width_curve
from risk_cases import mixture

DEQ = nsd.DeepEquilibrium("relu", 0.2)
WEAK = mixture("weak", 64)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"counts": (30, 30, 30)}, "one number for each of the 2 classes"),
        ({"counts": (30, 0)}, "integers of at least 1"),
        ({"counts": (30.5, 20)}, "integers of at least 1"),
        ({"counts": (10**7, 10**7)}, r"n/p lie between 0\.0001 and 10000"),
        ({"targets": (1.0, 1.0)}, "differ between classes"),
        ({"targets": (1.0,)}, "for each of 2 classes"),
        ({"ridge": 0.0}, "positive number or a list"),
        ({"ridge": -0.1}, "positive number or a list"),
        ({"ridge": [[0.1]]}, "positive number or a list"),
        ({"ridge": 1e-30}, "within a factor of 1e"),
        ({"ridge": None, "time": 1e30}, "within a factor of 1e"),
        ({"time": 1.0}, "not both"),
        ({"width": 0}, "at least 1"),
        ({"width": 100, "kind": "ntk"}, "conjugate kernel"),
        ({"ridge": None, "time": 1.0, "width": 100}, "come with a ridge"),
        ({"test_weights": (0.5, 0.6)}, "sum to 1"),
        ({"noise": -1.0}, "not be negative"),
        ({"model": None}, "norms and inner products"),
        ({"mixture": np.zeros((2, 3))}, "be a GaussianMixture"),
        ({"mixture": nsd.data.GaussianMixture(np.zeros((1, 40)), 1.0)}, "at least two classes"),
        ({"mixture": nsd.data.GaussianMixture(np.eye(2, 5), 1.0)}, "stay clear of zero"),
        ({"width": 100, "model": nsd.ExplicitNetwork(["relu", "relu"])}, "one hidden layer"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {"model": DEQ, "mixture": WEAK, "counts": (30, 30), "ridge": 0.1}
    call = {**good, **options}
    model, data, counts = (call.pop(name) for name in ("model", "mixture", "counts"))
    with pytest.raises(InvalidInput, match=words):
        nsd.predict_risk(model, data, counts, **call)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: learning_curve(DEQ, WEAK, [64.7]), "samples must be whole numbers"),
        (lambda: learning_curve(DEQ, "weak", [64]), "mixture must be a GaussianMixture"),
        (lambda: width_curve({}, WEAK, [64], ridge=0.1, counts=(9, 9)), "at least one model"),
        (lambda: width_curve({"a": DEQ}, WEAK, [64], ridge=0.1), "counts must be given"),
        (lambda: width_curve({"a": DEQ}, rows(0), [64], ridge=0.1), "at least two classes"),
        (lambda: transfer({"a": DEQ}, *rows(1)), "at least two networks"),
        (lambda: transfer({"a": DEQ, "b": DEQ}, *rows(0)), "at least two classes"),
        (lambda: pilot_curve(np.eye(20), np.arange(20) % 2, [0.1]), "four samples of each class"),
        (lambda: pilot_curve(np.ones((3, 2)), [0, 1, 0], [0.1]), "square"),
        (lambda: pilot_curve(np.eye(20), np.zeros(20, int), [0.1]), "two classes"),
        (lambda: pilot_curve(np.eye(20), np.arange(20) % 2, [0.0], sizes=1), "positive"),
    ],
)
def test_bad_calls(call: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()


def rows(step: int) -> tuple[Any, ...]:
    X = np.random.default_rng(0).standard_normal((20, 30)) / np.sqrt(30.0)
    return X, step * np.arange(20) % 2, X, step * np.arange(20) % 2


def test_unknown_names() -> None:
    for name in ("kind", "convention"):
        with pytest.raises(UnknownName, match=name):
            nsd.predict_risk(DEQ, WEAK, (30, 30), ridge=0.1, **{name: "resolve"})
    with pytest.raises(UnknownName, match="goal"):
        nsd.predict_risk(DEQ, WEAK, (30, 30), ridge=[0.1, 1.0]).best("error")
