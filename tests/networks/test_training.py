"""The training loop does what its settings say, and stops loudly when it cannot."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged, TrainingDiverged, UnknownName
from notsodeep.networks.build import build
from notsodeep.networks.readout import fit_readout
from notsodeep.networks.training import train
from notsodeep.networks.training_records import EpochRecord, TrainingSettings

P, M, K, N = 12, 40, 3, 90
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
NET = nsd.ExplicitNetwork(["relu"])


def data(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes around different means, mixed up a little."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    centres = np.random.default_rng(99).normal(size=(K, P))
    return (1.5 * centres[y] + rng.normal(size=(n, P))) / math.sqrt(P), y


def network(model: Any = NET, **options: Any) -> Any:
    return build(model, P, M, K, rng=7, **{"trainable": "readout", **options})


def quick(**options: Any) -> TrainingSettings:
    return TrainingSettings(**{"epochs": 3, "batch_size": 16, **options})


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_one_step_on_the_whole_set_is_the_gradient_step() -> None:
    X, y = data()
    net = network(dtype=torch.float64)
    F = net.features(torch.as_tensor(X)).detach()
    start = net.readout.detach().clone()
    share = torch.softmax(F @ start.T, dim=1) - nn.functional.one_hot(torch.as_tensor(y), K)
    run = train(net, X, y, quick(epochs=1, batch_size=N, learning_rate=0.7), progress=False)
    expected = start - 0.7 * share.T @ F / N
    torch.testing.assert_close(net.readout.detach(), expected, rtol=1e-12, atol=1e-14)
    loss = nn.functional.cross_entropy(F @ start.T, torch.as_tensor(y))
    assert run.history[0].loss == pytest.approx(float(loss), rel=1e-12)


def test_squared_error_with_weight_decay_ends_at_the_ridge_solution() -> None:
    X, y = data()
    net, exact = network(dtype=torch.float64), network(dtype=torch.float64)
    decay = 0.05
    settings = quick(
        epochs=1000, batch_size=N, learning_rate=1.0, loss="squared_error", weight_decay=decay
    )
    train(net, X, y, settings, progress=False)
    fit_readout(exact, X, y, ridge=N * decay)
    torch.testing.assert_close(net.readout, exact.readout, rtol=1e-8, atol=1e-9)


def test_real_targets_are_one_hot_labels_without_an_accuracy() -> None:
    X, y = data()
    by_label, by_target = network(), network()
    settings = quick(loss="squared_error", learning_rate=0.1)
    first = train(by_label, X, y, settings, progress=False)
    second = train(by_target, X, np.eye(K)[y], settings, progress=False)
    assert equal(weights(by_label), weights(by_target))
    assert first.history[-1].accuracy is not None
    assert second.history[-1].accuracy is None


@pytest.mark.parametrize("model", [NET, DEQ], ids=str)
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_cached_features_train_as_the_whole_network_does(model: Any, optimiser: Any) -> None:
    X, y = data()
    settings = quick(optimiser=optimiser, learning_rate=0.02, patience=2)
    cached, whole = network(model, bias=True), network(model, bias=True)
    runs = [
        train(net, X, y, s, validation=data(30, seed=1), progress=False)
        for net, s in (
            (cached, settings),
            (whole, dataclasses.replace(settings, cache_features=False)),
        )
    ]
    torch.testing.assert_close(cached.readout, whole.readout, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cached.readout_bias, whole.readout_bias, rtol=1e-5, atol=1e-5)
    for one, other in zip(runs[0].history, runs[1].history, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.validation_loss == pytest.approx(other.validation_loss, rel=1e-5)


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    X, y = data()
    results = []
    for seed in (0, 0, 1):
        net = network(trainable="all")
        torch.manual_seed(np.random.default_rng().integers(1000))
        train(net, X, y, quick(seed=seed), progress=False)
        results.append(weights(net))
    assert equal(results[0], results[1])
    assert not equal(results[0], results[2])


def test_rates_follow_the_schedule() -> None:
    X, y = data()
    step = quick(epochs=5, learning_rate=0.8, schedule="step", step_epochs=2, step_factor=0.5)
    run = train(network(), X, y, step, progress=False)
    assert [record.learning_rate for record in run.history] == [0.8, 0.8, 0.4, 0.4, 0.2]
    cosine = quick(epochs=4, schedule="cosine")
    assert cosine.rate(0) == 1.0
    assert cosine.rate(2) == pytest.approx(0.5)
    assert 0.0 < cosine.rate(3) < 0.2


def test_a_smaller_rate_moves_less() -> None:
    X, y = data()
    moves = []
    for schedule in ("constant", "cosine"):
        net = network()
        start = net.readout.detach().clone()
        train(net, X, y, quick(epochs=6, learning_rate=0.01, schedule=schedule), progress=False)
        moves.append(float((net.readout.detach() - start).norm()))
    assert moves[1] < 0.7 * moves[0]


def test_patience_stops_and_takes_the_best_weights() -> None:
    X, y = data()
    beside = data(40, seed=1)
    wrong = (beside[0], (beside[1] + 1) % K)  # gets worse and worse while the training set improves
    net = network(dtype=torch.float64)
    settings = quick(epochs=50, patience=4)
    run = train(net, X, y, settings, validation=wrong, progress=False)
    losses = [record.validation_loss for record in run.history]
    assert run.best_epoch == int(np.argmin(losses))
    assert len(run.history) == run.best_epoch + 5
    assert run.reason == "no smaller validation loss in 4 epochs"
    outputs = net(torch.as_tensor(wrong[0]))
    now = float(nn.functional.cross_entropy(outputs, torch.as_tensor(wrong[1])).detach())
    assert now == pytest.approx(min(losses), rel=1e-12)


def test_without_patience_the_last_weights_stay() -> None:
    X, y = data()
    beside = data(40, seed=1)
    net, alone = network(), network()
    run = train(net, X, y, quick(epochs=8), validation=beside, progress=False)
    train(alone, X, y, quick(epochs=8), progress=False)
    assert equal(weights(net), weights(alone))
    assert run.best_epoch is not None
    assert run.reason == "all 8 epochs done"
    assert "8 epochs" in str(run)


@pytest.mark.parametrize("cache", [True, False])
def test_only_what_requires_a_gradient_changes(cache: bool) -> None:
    X, y = data()
    net = network(DEQ)
    before = weights(net)
    train(net, X, y, quick(cache_features=cache), progress=False)
    changed = {name for name, value in weights(net).items() if not torch.equal(value, before[name])}
    assert changed == {"readout"}
    net = network(trainable="all")
    net.readout.requires_grad_(False)
    before = weights(net)
    train(net, X, y, quick(cache_features=cache), progress=False)
    changed = {name for name, value in weights(net).items() if not torch.equal(value, before[name])}
    assert changed == {"weight_1"}


@pytest.mark.parametrize("model", [NET, DEQ], ids=str)
def test_every_weight_learns(model: Any) -> None:
    X, y = data()
    net = network(model, trainable="all")
    before = weights(net)
    run = train(net, X, y, quick(epochs=30), progress=False)
    assert not any(torch.equal(value, before[name]) for name, value in weights(net).items())
    assert run.history[-1].accuracy > 0.9 > run.history[0].accuracy


def test_solver_behaviour_is_in_the_history() -> None:
    X, y = data()
    run = train(network(DEQ, trainable="all"), X, y, quick(), progress=False)
    for record in run.history:
        for summary in (record.forward, record.backward):
            assert summary.solves == math.ceil(N / 16)
            assert summary.failures == 0
            assert 1 < summary.mean_steps <= summary.most_steps < 50
            assert 0.0 < summary.largest_residual <= 1e-6
    cached = train(network(DEQ), X, y, quick(), progress=False)
    assert cached.features.solves == 1
    assert cached.history[0].forward is None
    explicit = train(network(trainable="all"), X, y, quick(), progress=False)
    assert explicit.history[0].forward is None


def test_solves_that_fail_are_counted() -> None:
    X, y = data()
    tight = {"name": "fixed_point", "max_steps": 3}
    net = network(DEQ, trainable="all", solver=tight, on_failure="ignore")
    run = train(net, X, y, quick(epochs=1), progress=False)
    assert run.history[0].forward.failures == run.history[0].forward.solves
    assert run.history[0].forward.largest_residual > 1e-6
    with pytest.raises(NotConverged):
        train(network(DEQ, solver=tight), X, y, quick(epochs=1), progress=False)


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    X, y = data()
    net = network()
    settings = quick(epochs=60, learning_rate=1e5, loss="squared_error")
    with pytest.raises(TrainingDiverged, match=r"epoch \d+, step \d+ .* smaller learning rate"):
        train(net, X, y, settings, progress=False)


def test_a_validation_loss_that_is_not_finite_does_too() -> None:
    X, y = data()
    beside = data(20, seed=1)
    huge = (beside[0] * 1e30, beside[1])
    settings = quick(loss="squared_error", learning_rate=0.1)
    with pytest.raises(TrainingDiverged, match="The validation loss is inf in epoch 0"):
        train(network(), X, y, settings, validation=huge, progress=False)


class Other(nn.Module):
    """Any module will do, also one with layers that behave otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(P, 20, generator=generator) / 4)
        self.normalise = nn.BatchNorm1d(20)
        self.last = nn.Parameter(torch.randn(20, K, generator=generator) / 4)

    def forward(self, X: Tensor) -> Tensor:
        return self.normalise(torch.relu(X @ self.first)) @ self.last


def test_any_module_trains_and_is_left_in_its_mode() -> None:
    X, y = data()
    net = Other().eval()
    run = train(net, X, y, quick(epochs=5, learning_rate=0.1), validation=data(30), progress=False)
    assert run.history[-1].accuracy > 0.8
    assert int(net.normalise.num_batches_tracked) == 5 * math.ceil(N / 16)
    assert not net.training
    with torch.no_grad():
        outputs = net(torch.as_tensor(data(30)[0], dtype=torch.float32))
    accuracy = float((outputs.argmax(dim=1) == torch.as_tensor(data(30)[1])).float().mean())
    assert run.history[-1].validation_accuracy == pytest.approx(accuracy)


def test_tensors_and_arrays_are_the_same_data() -> None:
    X, y = data()
    first, second = network(), network()
    train(first, X, y, quick(), progress=False)
    train(second, torch.as_tensor(X), torch.as_tensor(y), quick(), progress=False)
    assert equal(weights(first), weights(second))


def test_numbers_of_numpy_become_plain() -> None:
    given = TrainingSettings(epochs=np.int64(3), learning_rate=np.float32(0.5), seed=np.int8(1))
    assert given == TrainingSettings(epochs=3, learning_rate=0.5, seed=1)
    assert json.loads(json.dumps(given.to_dict()))["epochs"] == 3


def test_records_have_json_forms() -> None:
    X, y = data()
    run = train(network(DEQ, trainable="all"), X, y, quick(), validation=data(20), progress=False)
    form = json.loads(json.dumps(run.to_dict()))
    assert TrainingSettings(**form["settings"]) == run.settings
    assert tuple(EpochRecord.from_dict(record) for record in form["history"]) == run.history


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs of TrainingSettings must be an integer of at least 1"),
        ({"learning_rate": 0.0}, "learning_rate of TrainingSettings must be positive"),
        ({"momentum": 1.0}, "0 ≤ momentum < 1"),
        ({"weight_decay": -1.0}, "weight_decay of TrainingSettings must be at least 0"),
        ({"scale_free_decay": -1.0}, "scale_free_decay of TrainingSettings must be at least 0"),
        ({"patience": 0}, "patience"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TrainingSettings(**options)


def test_a_decay_without_parameters_for_it_is_rejected() -> None:
    X, y = data()
    with pytest.raises(InvalidInput, match="scale_free_decay of train must be left out"):
        train(network(DEQ), X, y, TrainingSettings(scale_free_decay=0.1), progress=False)


@pytest.mark.parametrize("name", ["optimiser", "schedule", "loss"])
def test_names_in_settings_are_checked(name: str) -> None:
    with pytest.raises(UnknownName, match=name):
        TrainingSettings(**{name: "nonsense"})


def test_data_is_checked_before_any_work() -> None:
    X, y = data()
    net = network()
    before = weights(net)
    with pytest.raises(InvalidInput, match="labels from 0 to 2"):
        train(net, X, y + 1, quick())
    with pytest.raises(InvalidInput, match="NaN"):
        train(net, np.where(X > 0.1, np.nan, X), y, quick())
    with pytest.raises(InvalidInput, match="one label for each"):
        train(net, X, y[1:], quick())
    with pytest.raises(InvalidInput, match="class labels for cross entropy"):
        train(net, X, np.eye(K)[y], quick())
    with pytest.raises(InvalidInput, match="validation of train must be given with patience"):
        train(net, X, y, quick(patience=2))
    assert equal(weights(net), before)
    with pytest.raises(InvalidInput, match="requires_grad"):
        train(net.requires_grad_(False), X, y, quick())
