"""Training a head and measuring its collapse: records, fairness, resuming."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from experiments.collapse.head_names import HEAD_KINDS
from experiments.collapse.measurements import pass_through
from experiments.collapse.settings import CollapseSettings
from experiments.collapse.training import (
    collapse_data,
    collapse_network,
    fit,
    train_head,
)
from notsodeep.collapse import CollapseMetrics

SMALL: dict[str, Any] = {"samples": 300, "test_samples": 80, "width": 16, "epochs": 3}
STEP: dict[str, Any] = {**SMALL, "num_majority": 6, "ratio": 10.0}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return train_head(CollapseSettings("deq", **STEP, seed=1))


def test_the_record_is_plain_json(record: dict[str, Any]) -> None:
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_the_record_says_what_was_trained(record: dict[str, Any]) -> None:
    assert CollapseSettings.from_dict(record["settings"]) == CollapseSettings("deq", **STEP, seed=1)
    assert record["counts"] == [30] * 6 + [3] * 4
    assert record["groups"] == {"majority": [0, 1, 2, 3, 4, 5], "minority": [6, 7, 8, 9]}
    parameters = record["parameters"]
    assert parameters["head"] == 16 * 16
    assert parameters["classifier"] == 10 * 16
    assert parameters["backbone"] == 64 * 16 + 16 * 16 + 4 * 16
    assert record["gain_bound"] == 2.0


def test_the_first_layer_may_have_a_width_of_its_own() -> None:
    settings = CollapseSettings("deq", **SMALL, first_width=24)
    assert CollapseSettings.from_dict(settings.to_dict()) == settings
    assert "first_width" not in CollapseSettings("deq", **SMALL).to_dict()  # as it was before
    network = collapse_network(settings, collapse_data(settings))
    shapes = [tuple(part.shape) for part in network.backbone.parameters() if part.ndim == 2]
    assert shapes == [(24, 64), (16, 24)]
    assert network.head.num_features == 16


def test_features_may_have_a_fixed_scale() -> None:
    settings = CollapseSettings("deq", **SMALL, feature_scale="fixed")
    assert CollapseSettings.from_dict(settings.to_dict()) == settings
    assert "feature_scale" not in CollapseSettings("deq", **SMALL).to_dict()  # as it was before
    network = collapse_network(settings, collapse_data(settings))
    assert sum(part.ndim == 1 for part in network.backbone.parameters()) == 2  # of the first layer


def test_decay_of_parameters_without_a_scale_is_a_setting() -> None:
    settings = CollapseSettings("deq", **SMALL, scale_free_decay=1e-4)
    assert CollapseSettings.from_dict(settings.to_dict()) == settings
    assert "scale_free_decay" not in CollapseSettings("deq", **SMALL).to_dict()  # as it was before


def test_epochs_hold_finite_numbers(record: dict[str, Any]) -> None:
    assert [epoch["epoch"] for epoch in record["epochs"]] == [1, 2, 3]
    for epoch in record["epochs"]:
        solver = epoch["solver"]
        assert solver["failures"] == solver["backward_failures"] == 0
        assert 1 < solver["mean_steps"] <= solver["most_steps"] <= 20
        assert 0.0 < solver["largest_residual"] <= 1e-3
        numbers = {key: value for key, value in epoch.items() if key not in ("epoch", "solver")}
        assert all(isinstance(value, float) for value in numbers.values()), numbers
        assert 0.3 < epoch["gain_on_means"] <= epoch["gain"] * (1 + 1e-3)
        assert epoch["gain"] <= 2.0 + 1e-5
        assert epoch["spectral_norm"] <= 0.5 + 1e-6
        shares = (epoch["majority_accuracy"] * 180 + epoch["minority_accuracy"] * 12) / 192
        assert epoch["accuracy"] == pytest.approx(shares)
        test = (epoch["test_majority_accuracy"] * 48 + epoch["test_minority_accuracy"] * 32) / 80
        assert epoch["test_accuracy"] == pytest.approx(test)
    assert record["epochs"][-1]["loss"] < record["epochs"][0]["loss"]


def test_the_final_part_is_what_the_figures_need(record: dict[str, Any]) -> None:
    final, last = record["final"], record["epochs"][-1]
    report = final["report"]
    assert report["overall"]["nc1"] == last["nc1"]
    assert report["groups"]["minority"]["cosine_classifier"] == last["minority_cosine"]
    for name in ("feature_cosines", "classifier_cosines"):
        cosines = np.array(report[name])
        np.testing.assert_allclose(cosines, cosines.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(cosines), 1.0, rtol=1e-12)
    projection = final["projection"]
    assert np.shape(projection["points"]) == (6 * 30 + 4 * 3, 2)
    assert len(projection["labels"]) == 192
    means = np.array(projection["means"])
    assert means.shape == np.shape(projection["classifier"]) == (10, 2)
    np.testing.assert_allclose(means.mean(axis=0), 0.0, atol=1e-4 * np.abs(means).max())
    np.testing.assert_allclose(
        means[7], np.array(projection["points"])[np.array(projection["labels"]) == 7].mean(axis=0),
        rtol=1e-3, atol=1e-3 * np.abs(means).max(),
    )  # fmt: skip
    assert 0.0 < projection["share"][1] <= projection["share"][0] < 1.0
    three = final["three_classes"]
    assert three["classes"] == [0, 8, 9]
    assert sorted(set(three["labels"])) == [0, 8, 9]
    assert sum(three["share"]) == pytest.approx(1.0)  # three means lie in a plane
    sides = np.linalg.norm(np.array(three["means"])[[0, 1]] - np.array(three["means"])[2], axis=1)
    assert (sides > 0.0).all()
    assert set(final["entering"]) == {"nc1", "nc2_features", "nc3_alignment", "nc3_duality"}


def test_measurements_are_those_of_the_trained_network() -> None:
    settings = CollapseSettings("residual", **STEP, seed=2)
    record = train_head(settings)
    data = collapse_data(settings)
    network = collapse_network(settings, data)
    fit(network, data, settings, progress=False)
    network.eval()
    with torch.no_grad():
        z = network.features(torch.as_tensor(data.X))
        h = network.backbone(torch.as_tensor(data.X))
        logits = network(torch.as_tensor(data.X_test))
    metrics = CollapseMetrics(10)
    metrics.update(z, data.y)
    weight = network.classifier.weight
    total = metrics.mismatch(z, weight, labels=data.y)
    report = metrics.compute(weight, mismatch=total)
    last = record["epochs"][-1]
    for name in ("nc1", "nc1_cdnv", "nc2_features", "nc2_classifier", "nc3_duality", "nc4"):
        assert last[name] == pytest.approx(report.overall[name], rel=1e-6), name
    assert last["test_accuracy"] == float((logits.argmax(dim=1).numpy() == data.y_test).mean())
    means = [
        np.stack([f[data.y == k].mean(axis=0) for k in range(10)]) for f in (z.numpy(), h.numpy())
    ]
    sizes = [np.linalg.norm(m - m.mean(axis=0)) for m in means]
    assert last["gain_on_means"] == pytest.approx(sizes[0] / sizes[1], rel=1e-4)
    np.testing.assert_allclose(
        pass_through(network, data.X).features, z.numpy(), rtol=1e-5, atol=1e-6
    )


def test_heads_differ_in_nothing_else() -> None:
    networks = {}
    for kind in HEAD_KINDS:
        settings = CollapseSettings(kind, **SMALL, seed=4)
        networks[kind] = collapse_network(settings, collapse_data(settings))
    first = networks["explicit"]
    for network in networks.values():
        for name, value in network.state_dict().items():
            if name != "head.matrix":
                assert torch.equal(value, first.state_dict()[name])
        sizes = [sum(p.numel() for p in n.parameters()) for n in (network, first)]
        assert sizes[0] == sizes[1]
    other = CollapseSettings("explicit", **SMALL, seed=5)
    changed = collapse_network(other, collapse_data(other))
    assert not torch.equal(changed.classifier.weight, first.classifier.weight)


def test_balanced_classes_have_no_groups() -> None:
    record = train_head(CollapseSettings("explicit", **{**SMALL, "samples": 303}, measure_every=2))
    assert record["groups"] == {}
    assert [epoch["epoch"] for epoch in record["epochs"]] == [2, 3]
    last = record["epochs"][-1]
    assert last["solver"] is None
    for name in ("minority_cosine", "minority_accuracy", "test_majority_accuracy"):
        assert last[name] is None
    assert record["final"]["report"]["groups"] == {}


def test_a_fixed_classifier_stays_a_simplex() -> None:
    record = train_head(CollapseSettings("deq", **SMALL, classifier="fixed_etf"))
    assert record["parameters"]["classifier"] == 0
    assert record["epochs"][-1]["nc2_classifier"] < 1e-6
