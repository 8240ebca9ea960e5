"""What does not fit is rejected before any work, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput, UnknownName
from risk_cases import CONJUGATE, mixture

DEQ = nsd.DeepEquilibrium("relu", 0.2)
WEAK = mixture("weak", 64)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"counts": (30, 30, 30)}, "one number of training samples for each of the 2 classes"),
        ({"counts": (30, 0)}, "integers of at least 1"),
        ({"counts": (30.5, 20)}, "integers of at least 1"),
        ({"counts": (10**7, 10**7)}, r"n/p lie between 0\.0001 and 10000"),
        ({"targets": (1.0, 1.0)}, "differ between classes"),
        ({"targets": (1.0,)}, "for each of the 2 classes"),
        ({"ridge": 0.0}, "positive number or a list"),
        ({"ridge": 1e-30}, "within a factor of 1e"),
        ({"ridge": None, "time": 1e30}, "within a factor of 1e"),
        ({"ridge": None}, "One of ridge and time must be given to predict_risk. Got neither"),
        ({"time": 1.0}, "Got both"),
        ({"ridge": None, "time": 1.0, "rate": 0.3}, "whole numbers of steps"),
        ({"ridge": None, "time": 30.0, "rate": 10.0}, "gradient descent may diverge"),
        ({"ridge": None, "time": 3.0, "momentum": 0.9}, "come with a rate"),
        ({"width": 0}, "at least 1"),
        ({"width": 100, "kernel": "tangent"}, "conjugate kernel in the feature convention"),
        ({"ridge": None, "time": 1.0, "width": 100}, "come with a ridge"),
        ({"test_weights": (0.5, 0.6)}, "sum to 1"),
        ({"noise": -1.0}, "not be negative"),
        ({"flips": 1.5}, "probability below 1"),
        ({"flips": [[1.0, 0.2], [0.0, 1.0]]}, "rows that sum to 1"),
        ({"coefficients": (1.0, 2.0)}, "be the numbers"),
        ({"model": None}, "or the coefficients. Got neither"),
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


def test_unknown_names() -> None:
    for name in ("kernel", "convention", "tables"):
        with pytest.raises(UnknownName, match=name):
            nsd.predict_risk(DEQ, WEAK, (30, 30), ridge=0.1, **{name: "resolve"})
    with pytest.raises(UnknownName, match="goal"):
        nsd.best_ridge(None, WEAK, (30, 30), coefficients=CONJUGATE, goal="error")


def test_estimated_statistics_are_rejected_with_the_way_out() -> None:
    X, y = WEAK.sample(200, rng=0)
    stats = nsd.data.MixtureStatistics.estimate(X, y)
    with pytest.raises(InvalidInput, match="estimated_mixture"):
        nsd.predict_risk(DEQ, stats, (30, 30), ridge=0.1)


def test_exact_statistics_are_the_mixture() -> None:
    X, y = WEAK.sample(60, rng=0)
    one = nsd.predict_risk(DEQ, WEAK.statistics(X, y), (30, 30), ridge=0.1)
    two = nsd.predict_risk(DEQ, WEAK, (30, 30), ridge=0.1)
    np.testing.assert_allclose(one.test_mse, two.test_mse, rtol=1e-12)
