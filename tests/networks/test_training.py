"""Training takes the steps it says, and a stopped run goes on to the same weights."""

from __future__ import annotations

import dataclasses
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import notsodeep as nsd
from notsodeep._files import lock
from notsodeep.errors import (
    DataCorrupted,
    InvalidInput,
    NotConvergedWarning,
    RunInUse,
    TrainingDiverged,
    UnknownName,
)
from notsodeep.networks import Network, Solver, TrainingSettings, train

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 6)), RNG.integers(0, 3, 50)
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
NET = nsd.ExplicitNetwork(["relu", "tanh"])
models = pytest.mark.parametrize("model", [DEQ, NET], ids=str)
optimisers = pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])


class Stop(Exception):
    """Stands for whatever ends a run."""


def network(model: Any = NET, **options: Any) -> Network:
    return nsd.build(model, 6, 16, 3, rng=0, **{"dtype": torch.float64, **options})


def settings(**options: Any) -> TrainingSettings:
    return TrainingSettings(**{"epochs": 4, "batch_size": 8, "learning_rate": 0.1, **options})


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@models
@pytest.mark.parametrize("labelled", [True, False])
def test_one_step_on_the_whole_set_is_the_gradient_step(model: Any, labelled: bool) -> None:
    net, other = network(model), network(model)
    y = Y if labelled else np.eye(3)[Y]
    run = train(net, X, y, settings(epochs=1, batch_size=50, weight_decay=0.02))
    outputs = other(torch.as_tensor(X))
    if labelled:
        loss = nn.functional.cross_entropy(outputs, torch.as_tensor(Y))
        right = float((outputs.argmax(dim=1).numpy() == Y).mean())
        assert run.history[0]["accuracy"] == pytest.approx(right)
    else:
        loss = 0.5 * (outputs - torch.as_tensor(y)).square().sum(dim=1).mean()
        assert run.history[0]["accuracy"] is None
    assert run.history[0]["loss"] == pytest.approx(float(loss.detach()), rel=1e-12)
    loss.backward()
    for old, new in zip(other.parameters(), net.parameters(), strict=True):
        assert old.grad is not None
        expected = old - 0.1 * (old.grad + 0.02 * old)
        torch.testing.assert_close(new, expected, rtol=1e-10, atol=1e-12)


def test_squared_error_with_weight_decay_ends_at_the_ridge_solution() -> None:
    net, T = network(trainable="readout"), np.eye(3)[Y]
    F = net.features(torch.as_tensor(X)).detach().numpy()
    train(net, X, T, settings(epochs=3000, batch_size=50, learning_rate=0.5, weight_decay=0.02))
    expected = np.linalg.solve(F.T @ F + 50 * 0.02 * np.eye(16), F.T @ T).T
    np.testing.assert_allclose(net.readout.detach(), expected, rtol=1e-6, atol=1e-8)


@models
@optimisers
def test_cached_features_train_as_the_whole_network_does(model: Any, optimiser: Any) -> None:
    cached, whole = (network(model, trainable="readout", bias=True) for _ in range(2))
    chosen = settings(optimiser=optimiser, learning_rate=0.01, schedule="cosine")
    train(cached, X, Y, chosen)
    # Inside of another module it is no network whose features could be kept.
    train(nn.Sequential(whole), X, Y, chosen)
    for one, other in zip(cached.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_the_seed_decides_the_order_and_rates_follow_the_schedule() -> None:
    nets = [network() for _ in range(3)]
    for net, seed in zip(nets, (1, 1, 2), strict=True):
        run = train(net, X, Y, settings(seed=seed, schedule="cosine"))
        assert [e["learning_rate"] for e in run.history] == [run.settings.rate(e) for e in range(4)]
    assert same(nets[0], nets[1])
    assert not same(nets[0], nets[2])
    rates = [settings(schedule="cosine").rate(epoch) for epoch in range(4)]
    np.testing.assert_allclose(rates, 0.05 * (1 + np.cos(np.pi * np.arange(4) / 4)))


def test_decays_of_single_parameters_and_calls_after_steps_and_epochs() -> None:
    net, other = network(bias=True), network(bias=True)
    calls: list[int] = []
    chosen = settings(epochs=2, weight_decay=0.1)
    run = train(
        net, X, Y, chosen,
        decays={"readout": 0.0}, after_step=lambda: calls.append(1),
        after_epoch=lambda epoch: {"norm": float(net.readout.detach().norm()), "epoch": epoch},
    )  # fmt: skip
    assert len(calls) == 2 * 7
    assert [e["measured"]["epoch"] for e in run.history] == [0, 1]
    assert run.history[1]["measured"]["norm"] == pytest.approx(float(net.readout.detach().norm()))
    train(other, X, Y, chosen)
    assert net.readout.norm() > other.readout.norm()
    with pytest.raises(InvalidInput, match="decays must name trained parameters, got nonsense"):
        train(net, X, Y, chosen, decays={"nonsense": 0.0})


@models
def test_what_requires_gradients_learns_and_nothing_else(model: Any) -> None:
    net = network(model, bias=True)
    net.readout.requires_grad_(False)
    before = state(net)
    run = train(net.eval(), X, Y, settings(epochs=20))
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    changed = {name for name, value in net.state_dict().items() if (value != before[name]).any()}
    assert changed == {*before} - {"readout"}
    assert not net.training


def test_solver_behaviour_is_in_the_history() -> None:
    net = network(DEQ, solver=Solver(1e-5))
    solver, backward = (train(net, X, Y, settings()).history[0][k] for k in ("solver", "backward"))
    assert 3 < solver["mean_steps"] <= solver["most_steps"]
    assert backward["most_steps"] > 1
    assert solver["largest_residual"] <= 1e-5
    assert solver["failures"] == backward["failures"] == 0
    assert train(network(NET), X, Y, settings(epochs=1)).history[0]["solver"] is None
    net = network(DEQ, solver=Solver(max_steps=2))
    with pytest.warns(NotConvergedWarning):
        run = train(net, X, Y, settings(epochs=1))
    assert run.history[0]["solver"]["failures"] == 7


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    with pytest.raises(TrainingDiverged, match=r"epoch .* at learning rate 1e\+30"):
        train(network(), X, np.eye(3)[Y], settings(learning_rate=1e30))


def test_records_and_settings() -> None:
    run = train(network(DEQ), torch.as_tensor(X), torch.as_tensor(Y), settings(epochs=np.int64(2)))
    assert json.loads(json.dumps(run.to_dict()))["history"][1]["epoch"] == 1
    assert str(run).startswith("2 epochs in")
    for options, error, words in (
        ({"epochs": 0}, InvalidInput, "epochs"),
        ({"learning_rate": -1.0}, InvalidInput, "learning_rate"),
        ({"momentum": 1.5}, InvalidInput, "momentum"),
        ({"optimiser": "adamw"}, UnknownName, "optimiser"),
        ({"schedule": "step"}, UnknownName, "schedule"),
    ):
        with pytest.raises(error, match=words):
            settings(**options)
    for module, rows, labels, words in (
        (network(), X[:, :5], Y, "5|features"),
        (network(), X, Y + 1, "labels from 0 to 2"),
        (network(), X * np.nan, Y, "X"),
        (network().requires_grad_(False), X, Y, "requires_grad"),
    ):
        with pytest.raises(InvalidInput, match=words):
            train(module, rows, labels, settings())


@optimisers
@pytest.mark.parametrize(("model", "trainable"), [(NET, "all"), (DEQ, "all"), (DEQ, "readout")])
def test_a_stopped_run_goes_on_bit_by_bit(
    model: Any, trainable: Any, optimiser: Any, tmp_path: Path
) -> None:
    whole, stopped, resumed = (network(model, trainable=trainable) for _ in range(3))
    chosen = settings(optimiser=optimiser, learning_rate=0.01, schedule="cosine")
    expected = train(whole, X, Y, chosen)
    steps = iter(range(1000))

    def stop() -> None:
        if next(steps) == 2 * 7 + 3:  # in the middle of the third epoch
            raise Stop

    with pytest.raises(Stop):
        train(stopped, X, Y, chosen, after_step=stop, checkpoint=tmp_path / "c.safetensors")
    again = train(resumed, X, Y, chosen, checkpoint=tmp_path / "c.safetensors")
    assert same(whole, resumed)
    assert [e["loss"] for e in again.history] == [e["loss"] for e in expected.history]
    # A run that is complete is read, not repeated.
    fresh = network(model, trainable=trainable)
    assert train(fresh, X, Y, chosen, checkpoint=tmp_path / "c.safetensors") == again
    assert same(whole, fresh)


def test_running_averages_are_part_of_the_state(tmp_path: Path) -> None:
    def averaging() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    whole, stopped, resumed = averaging(), averaging(), averaging()
    train(whole, X, Y, settings())
    steps = iter(range(1000))
    with pytest.raises(StopIteration):
        train(
            stopped, X, Y, settings(), checkpoint=tmp_path / "c.safetensors",
            after_step=lambda: None if next(steps) < 16 else next(iter(())),
        )  # fmt: skip
    train(resumed, X, Y, settings(), checkpoint=tmp_path / "c.safetensors")
    assert same(whole, resumed)


def changed_solver(net: Network) -> None:
    net.solver = Solver(1e-3)


def changed_gradient(net: Network) -> None:
    net.backward = 1


def changed_weight(net: Network) -> None:
    net.injection_1.data[0, 0] += 1.0


@pytest.mark.parametrize(
    ("change", "options", "rows", "words"),
    [
        (changed_solver, {}, X, "solvers"),
        (changed_gradient, {}, X, "solvers"),
        (changed_weight, {}, X, "fixed weights"),
        (lambda net: None, {"seed": 1}, X, "settings"),
        (lambda net: None, {}, X[::-1], "data"),
        (lambda net: net.readout.requires_grad_(False), {}, X, "trained weights"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    change: Any, options: Any, rows: Any, words: str, tmp_path: Path
) -> None:
    train(
        network(DEQ, trainable="readout", bias=True),
        X,
        Y,
        settings(),
        checkpoint=tmp_path / "c.safetensors",
    )
    other = network(DEQ, trainable="readout", bias=True)
    change(other)
    with pytest.raises(InvalidInput, match=f"same run, got other .*{words}"):
        train(other, rows, Y, settings(**options), checkpoint=tmp_path / "c.safetensors")


def test_damage_and_other_writers_are_found(tmp_path: Path) -> None:
    train(network(), X, Y, settings(), checkpoint=tmp_path / "c.safetensors")
    path = tmp_path / "c.safetensors"
    with lock(tmp_path / ".c.safetensors.lock"), pytest.raises(RunInUse):
        train(network(), X, Y, settings(), checkpoint=tmp_path / "c.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataCorrupted, match="has changed since"):
        train(network(), X, Y, settings(), checkpoint=tmp_path / "c.safetensors")


def test_a_killed_process_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_training.py")
    run = runpy.run_path(str(script))["run"]
    expected, path = run(None), tmp_path / "c.safetensors"
    for delay in (0.05, 0.2, 0.5):
        process = subprocess.Popen(
            [sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.kill()
        process.communicate()
    assert same(run(path), expected)


def test_settings_are_equal_by_value() -> None:
    assert dataclasses.replace(settings(), epochs=5) == settings(epochs=5)
    assert TrainingSettings.from_dict(settings().to_dict()) == settings()
