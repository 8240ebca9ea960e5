"""Pilots: what is said about data that are no mixture."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.prediction import PilotCurve, pilot_curve
from risk_cases import mixture


def test_leave_one_out_is_what_it_says() -> None:
    data = mixture("three", 60)
    X, y = data.sample(48, rng=0)
    K = nsd.kernel(nsd.DeepEquilibrium("relu", 0.2), X, convention="preactivation")
    curve = pilot_curve(K, y, [0.1], sizes=1)
    targets, errors, wrong = np.eye(3) - 1.0 / 3.0, [], []
    for i in range(48):
        kept = np.arange(48) != i
        alpha = np.linalg.solve(K[np.ix_(kept, kept)] + 0.1 * np.eye(47), targets[y[kept]])
        score = K[i, kept] @ alpha
        errors.append(np.square(score - targets[y[i]]).sum())
        wrong.append(score.argmax() != y[i])
    assert curve.mse[0, 0] == pytest.approx(np.mean(errors), rel=1e-9)
    assert curve.error[0, 0] == pytest.approx(np.mean(wrong))
    inverse = np.diag(np.linalg.inv(K + 0.1 * np.eye(48)))
    assert curve.leverage_spread[0] == pytest.approx(inverse.std() / inverse.mean(), rel=1e-6)


def test_a_pilot_of_a_mixture_agrees_with_its_prediction() -> None:
    data = mixture("weak", 100)
    X, y = data.sample(800, rng=1)
    deq = nsd.DeepEquilibrium("relu", 0.2)
    K = nsd.kernel(deq, X, convention="feature")
    curve = pilot_curve(K, y, [1.0])
    predicted = nsd.predict_risk(deq, data, (400, 400), ridge=1.0)
    assert curve.mse[-1, 0] == pytest.approx(predicted.test_mse[0], rel=0.1)
    assert "can be trusted" in curve.verdict
    again = PilotCurve.from_dict(json.loads(json.dumps(curve.to_dict())))
    assert again.to_dict() == curve.to_dict()
    pytest.importorskip("matplotlib")
    assert curve.plot(nsd.plotting.new_figure()[1][0]).get_xlabel() == "samples n"


def test_a_power_of_n_is_continued() -> None:
    samples, power = np.array([50.0, 100.0, 200.0]), np.array([[8.0], [4.0], [2.0]])
    both = np.array([[[0.01, 0.008, 0.006], [0.008, 0.02, 0.01], [0.006, 0.01, 0.03]]])
    curve = PilotCurve(samples, np.ones(1), power, power / 10.0, power, np.ones(1), both, both)
    mse, error = curve.extrapolated(800)
    np.testing.assert_allclose([mse[0], error[0]], [0.5, 0.05])
    # log f = 3 log e₂₀₀ − 2 log e₁₀₀
    scatter = math.sqrt(9.0 * 0.03 + 4.0 * 0.02 - 12.0 * 0.01)
    np.testing.assert_allclose(curve.standard_errors(800)[0], 0.5 * scatter)
    few = dataclasses.replace(curve, error=power / 100.0)  # four mistakes of 200
    assert np.isnan(few.extrapolated(800)[1]).all()
    assert np.isnan(few.standard_errors(800)[1]).all()
    with pytest.raises(InvalidInput, match="at least 2"):
        pilot_curve(np.eye(20), np.arange(20) % 2, [0.1], sizes=1).extrapolated(40)


def test_standard_errors_are_those_of_other_pilots() -> None:
    data, deq = mixture("weak", 60), nsd.DeepEquilibrium("relu", 0.2)
    found, said = [], []
    for seed in range(24):
        X, y = data.sample(160, rng=seed)
        curve = pilot_curve(nsd.kernel(deq, X, convention="feature"), y, [1.0], sizes=2)
        found.append(curve.extrapolated(320)[0][0])
        said.append(curve.standard_errors(320)[0][0])
    assert 0.6 < np.std(found, ddof=1) / np.mean(said) < 1.6


@pytest.mark.slow
def test_digits_are_extrapolated_and_distrusted() -> None:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = (X[order] - X.mean(axis=0)) / 30.0, y[order]
    K = nsd.kernel(nsd.DeepEquilibrium("relu", 0.2), X, kind="ntk", convention="preactivation")
    pilot = pilot_curve(K[:800, :800], y[:800], [1e-2])
    (mse, _), (scatter, _) = pilot.extrapolated(1600), pilot.standard_errors(1600)
    whole = pilot_curve(K[:1600, :1600], y[:1600], [1e-2], sizes=1)
    assert abs(mse[0] - whole.mse[-1, 0]) < 3.0 * scatter[0]
    assert scatter[0] < 0.15 * mse[0]
    assert "leave-one-out" in pilot.verdict
    assert pilot.cross_validation[-1, 0] < pilot.mse[-1, 0]  # as on other images
