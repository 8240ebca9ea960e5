"""Best parameters lie where a fine grid says; curves are their points; figures are drawn."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.networks.sampling import random_network
from notsodeep.prediction import best_sigma_a2, learning_curve, width_curve
from notsodeep.prediction.risk import make_task
from risk_cases import CONJUGATE, TANGENT, limit, mixture


@pytest.mark.parametrize(
    ("stop", "goal"), [("ridge", "test_mse"), ("ridge", "accuracy"), ("time", "test_mse")]
)
def test_best_is_that_of_a_fine_grid(stop: str, goal: str) -> None:
    data, counts = mixture("weak", 128), (128, 128)
    default = None if stop == "ridge" else np.geomspace(0.01, 10.0, 9)
    best = nsd.predict_risk(limit(TANGENT), data, counts, **{stop: default}).best(goal)
    grid = np.geomspace(best.value / 3.0, best.value * 3.0, 101)
    fine = getattr(nsd.predict_risk(limit(TANGENT), data, counts, **{stop: grid}), goal)
    assert best.inside
    if goal == "accuracy":
        assert best.score >= fine.max() - 1e-9
    else:
        assert best.score <= fine.min() + 1e-9
        assert grid[fine.argmin()] == pytest.approx(best.value, rel=0.03)


def test_label_noise_asks_for_a_larger_ridge() -> None:
    clean, noisy = (
        nsd.predict_risk(limit(CONJUGATE), mixture("weak", 128), (128, 128), noise=noise).best()
        for noise in (0.0, 1.0)
    )
    assert noisy.value > 1.5 * clean.value


def test_best_sigma_a2_reads_the_table() -> None:
    best = best_sigma_a2(
        "normalized_relu", mixture("trace", 128), (256, 256), sigma_a2=[0.0, 0.4, 0.9],
        ridge=[0.1, 1.0], kind="ntk",
    )  # fmt: skip
    assert best.score == best.scores.min()
    deq = nsd.DeepEquilibrium("normalized_relu", best.value).centred(1.0)
    again = nsd.predict_risk(deq, mixture("trace", 128), (256, 256), ridge=best.ridge, kind="ntk")
    assert again.test_mse[0] == pytest.approx(best.score, rel=1e-8)


def test_a_learning_curve_has_its_points_and_a_double_descent() -> None:
    data, deq = mixture("halves", 128), nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    choice = {"kind": "ntk", "convention": "preactivation"}
    curve = learning_curve(deq, data, [32, 128, 512], ridge=1e-3, **choice)
    single = nsd.predict_risk(deq, data, (64, 64), ridge=1e-3, **choice)
    assert curve.test_mse[1, 0] == pytest.approx(single.test_mse[0], rel=1e-12)
    assert curve.test_mse[1, 0] > curve.test_mse[0, 0] > curve.test_mse[2, 0]


def test_widths_of_a_deq_and_its_networks() -> None:
    # Of two networks, one meets what this data depends on and one (leaky_relu) does not: its limit
    # is not that of the DEQ.  The one that does is nearer to the limit at every width.
    deq = nsd.DeepEquilibrium("relu", 0.8).centred(1.0)
    models = {"DEQ": deq} | {
        family: nsd.match(deq, tau0=1.0, family=family, convention="feature").network
        for family in ("leaky_relu", "piecewise_linear")
    }
    curve = width_curve(models, mixture("halves", 256), [512, 2048], ridge=0.01, counts=(256, 256))
    np.testing.assert_allclose(curve.accuracy["DEQ"], [0.644, 0.751], atol=0.002)
    np.testing.assert_allclose(curve.accuracy["leaky_relu"], [0.669, 0.809], atol=0.002)
    assert curve.limit_accuracy["DEQ"] == pytest.approx(0.861, abs=0.002)
    assert curve.limit_accuracy["piecewise_linear"] == pytest.approx(0.861, abs=0.003)
    assert curve.limit_accuracy["leaky_relu"] > 0.9
    assert (curve.accuracy["piecewise_linear"] > curve.accuracy["DEQ"]).all()
    np.testing.assert_allclose(curve.effective_width["leaky_relu"], curve.widths, rtol=1e-9)
    assert (curve.effective_width["DEQ"] < curve.widths).all()


@pytest.mark.parametrize("sigma_a2", [0.0, 0.8])
def test_widths_on_rows_are_those_of_drawn_networks(sigma_a2: float) -> None:
    # Rows that are no mixture: what is random is the network.
    data = nsd.data.load("digits", classes=(3, 8), samples=100, test_samples=60, rng=0)
    deq = nsd.DeepEquilibrium("relu", sigma_a2).centred(1.0)
    model = deq if sigma_a2 else nsd.ExplicitNetwork([deq.activation])
    split = (data.X, data.y, data.X_test, data.y_test)
    curve = width_curve({"a": model}, split, [60, 200, 10**7], ridge=0.01)
    rows, n = np.concatenate([data.X, data.X_test]), len(data.X)
    for place, width in enumerate((60, 200)):
        errors = []
        for seed in range(20):
            network = random_network(model, rows.shape[1], width, np.random.default_rng(seed))
            Z = network.features(rows).astype(np.float64)
            K = Z @ Z.T
            alpha = np.linalg.solve(K[:n, :n] + 0.01 * np.eye(n), 2.0 * data.y - 1.0)
            errors.append(np.square(K[n:, :n] @ alpha - (2.0 * data.y_test - 1.0)).mean())
        error = np.std(errors, ddof=1) / np.sqrt(20.0)
        assert abs(curve.test_mse["a"][place] - np.mean(errors)) < 4.0 * error + 0.03 * errors[0]
    assert curve.test_mse["a"][2] == pytest.approx(curve.limit_mse["a"], rel=1e-4)
    deep = nsd.ExplicitNetwork(["relu", "relu"])
    with pytest.raises(InvalidInput, match="one hidden layer"):
        width_curve({"a": deep}, split, [60], ridge=0.01)


def test_tiny_ridges_at_the_hard_edge() -> None:
    # Γ = 0 and n = p: the interpolation threshold, where q grows like λ^{-1/2}.
    data = nsd.data.GaussianMixture(np.zeros((2, 128)), 1.0)
    task = make_task(limit((1.0, 0.0, 0.0, 1.0)), data, (64, 64))
    q = task.ensemble.resolvent(-np.array([1e-10, 1e-8])).q
    ratio = q[0] / q[1]
    np.testing.assert_allclose(ratio, 10.0, rtol=1e-3)


def test_records_go_through_json_and_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    data = mixture("weak", 64)
    deq = nsd.DeepEquilibrium("relu", 0.2)
    risk = nsd.predict_risk(deq, data, (30, 30), ridge=[0.1, 1.0])
    records = [
        risk,
        nsd.predict_risk(deq, data, (30, 30), time=[0.1, 1.0]),
        best_sigma_a2("relu", data, (30, 30), sigma_a2=[0.1, 0.2], ridge=[0.1, 1.0]),
        learning_curve(deq, data, [40, 80], ridge=[0.1, 1.0]),
        width_curve({"DEQ": deq}, data, [64, 128], ridge=0.1, counts=(30, 30)),
    ]
    for record in records:
        again = type(record).from_dict(json.loads(json.dumps(record.to_dict())))
        assert again.to_dict() == record.to_dict()
        axes = record.plot(nsd.plotting.new_figure()[1][0])
        assert axes.get_xlabel()
    drawn = nsd.plotting.predicted_scores(risk, nsd.plotting.new_figure()[1][0])
    assert len(drawn.lines) == 2


@pytest.mark.slow
def test_costs() -> None:
    deq = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    data = mixture("weak", 512)
    ridges = np.logspace(-3, 1, 30)

    def seconds(call: object) -> float:
        call()  # compiled loops
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    four = limit(CONJUGATE)
    assert seconds(lambda: nsd.predict_risk(four, data, (256, 256), ridge=ridges)) / 30 < 0.02
    assert seconds(lambda: nsd.predict_risk(deq, data, (256, 256), ridge=0.1)) < 1.0
    sizes = np.unique((np.geomspace(0.1, 8.0, 30) * 512).astype(int))
    assert seconds(lambda: learning_curve(deq, data, sizes, ridge=0.1)) < 2.0
    ten = nsd.data.GaussianMixture(3.0 * np.eye(10, 300), np.linspace(0.9, 1.1, 10))
    once = seconds(lambda: nsd.predict_risk(deq, ten, [60] * 10, ridge=0.1))
    many = seconds(lambda: nsd.predict_risk(deq, ten, [60] * 10, ridge=ridges))
    assert once < 4.0
    assert (many - once) / 29 < 0.1
