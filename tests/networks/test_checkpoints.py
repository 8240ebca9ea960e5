"""A run that is stopped in any way goes on to the same weights, to the last bit."""

from __future__ import annotations

import dataclasses
import json
import os
import runpy
import signal
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
from notsodeep.errors import DataCorrupted, InvalidInput, LockTimeout
from notsodeep.files import Manifest, sha256_of_bytes
from notsodeep.networks.build import build
from notsodeep.networks.checkpoints import (
    Checkpoint,
    checkpoint_lock,
    deferred_interrupt,
    read_checkpoint,
    write_checkpoint,
)
from notsodeep.networks.training import train
from notsodeep.networks.training_records import Training, TrainingSettings

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 6)), RNG.integers(0, 3, 50)
BESIDE = RNG.normal(size=(20, 6)), RNG.integers(0, 3, 20)
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
NET = nsd.ExplicitNetwork(["relu", "tanh"])


class Stop(Exception):
    """Stands for whatever ends a run."""


def network(model: Any = NET, trainable: Any = "all") -> Any:
    return build(model, 6, 16, 3, rng=0, trainable=trainable)


def settings(**options: Any) -> TrainingSettings:
    return TrainingSettings(
        **{"epochs": 4, "batch_size": 8, "learning_rate": 0.1, "patience": 3, **options}
    )


def after_calls(module: nn.Module, count: int, action: Any) -> None:
    """Do something in the middle of the step with that number of calls of the module."""
    calls = iter(range(1_000_000))

    def hook(*_: Any) -> None:
        if next(calls) == count:
            action()

    module.register_forward_hook(hook)


def stop() -> None:
    raise Stop


def timeless(run: Training) -> Training:
    history = tuple(dataclasses.replace(record, seconds=0.0) for record in run.history)
    return dataclasses.replace(run, history=history)


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 2), "n": torch.tensor(4.0), "i": torch.arange(3)}
    for epoch in (1, 2):
        tensors["n"] = torch.tensor(float(epoch))
        write_checkpoint(tmp_path, Checkpoint(tensors, {"epoch": epoch, "x": 0.1}))
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.facts == {"epoch": 2, "x": 0.1}
    assert {k: v.tolist() for k, v in found.tensors.items()} == {
        k: v.tolist() for k, v in tensors.items()
    }
    assert len(list(tmp_path.iterdir())) == 2  # the manifest and one state


def test_nothing_is_found_where_nothing_was_finished(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    (tmp_path / "state-1.safetensors").write_bytes(b"half of it")
    assert read_checkpoint(tmp_path) is None


def test_the_old_state_is_there_until_the_manifest_names_the_new_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Checkpoint({"a": torch.ones(2)}, {"epoch": 1}))
    content = b"killed before the manifest was written"
    name = f"state-{sha256_of_bytes(content)[:16]}.safetensors"
    (tmp_path / name).write_bytes(content)
    (tmp_path / f".{name}.99.0badcafe.tmp").write_bytes(b"killed while writing")
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.facts["epoch"] == 1
    write_checkpoint(tmp_path, Checkpoint({"a": torch.zeros(2)}, {"epoch": 4}))
    assert len(list(tmp_path.iterdir())) == 2
    assert (found := read_checkpoint(tmp_path)) is not None
    assert found.facts["epoch"] == 4


def test_damage_is_found(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Checkpoint({"a": torch.ones(20)}, {}))
    (path,) = tmp_path.glob("state-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataCorrupted, match=r"damaged.*SHA-256.*start again"):
        read_checkpoint(tmp_path)
    path.unlink()
    with pytest.raises(DataCorrupted, match="is missing"):
        read_checkpoint(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataCorrupted, match="not a readable manifest"):
        read_checkpoint(tmp_path)


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    Manifest("image set", {}, {}).write(tmp_path)
    with pytest.raises(InvalidInput, match=r"image set.*Choose another directory"):
        train(network(), X, Y, settings(patience=None), checkpoint=tmp_path)


def test_two_runs_do_not_share_a_directory(tmp_path: Path) -> None:
    with checkpoint_lock(tmp_path), pytest.raises(LockTimeout, match=f"process {os.getpid()}"):
        train(network(), X, Y, settings(patience=None), checkpoint=tmp_path)


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 15, 27])
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_a_stopped_run_goes_on_bit_by_bit(tmp_path: Path, optimiser: Any, count: int) -> None:
    how = settings(optimiser=optimiser, schedule="cosine")
    whole, broken, again = network(), network(), network()
    expected = train(whole, X, Y, how, validation=BESIDE, progress=False)
    after_calls(broken, count, stop)
    with pytest.raises(Stop):
        train(broken, X, Y, how, validation=BESIDE, checkpoint=tmp_path, checkpoint_seconds=0.0)
    run = train(again, X, Y, how, validation=BESIDE, checkpoint=tmp_path)
    assert same_weights(whole, again)
    assert timeless(run) == timeless(expected)


@pytest.mark.parametrize("trainable", ["all", "readout"])
def test_a_stopped_equilibrium_network_does_too(tmp_path: Path, trainable: Any) -> None:
    how = settings()
    whole, broken, again = (network(DEQ, trainable) for _ in range(3))
    expected = train(whole, X, Y, how, validation=BESIDE, progress=False)
    if trainable == "all":
        after_calls(broken, 12, stop)
        with pytest.raises(Stop):
            train(broken, X, Y, how, validation=BESIDE, checkpoint=tmp_path, checkpoint_seconds=0.0)
    else:  # steps on cached features do not call the module: stop when weights are read
        broken.readout.register_hook(_stop_at(12))
        with pytest.raises(Stop):
            train(broken, X, Y, how, validation=BESIDE, checkpoint=tmp_path, checkpoint_seconds=0.0)
    run = train(again, X, Y, how, validation=BESIDE, checkpoint=tmp_path)
    assert same_weights(whole, again)
    assert timeless(run) == timeless(expected)


def _stop_at(count: int) -> Any:
    calls = iter(range(1_000_000))

    def hook(gradient: torch.Tensor) -> None:
        if next(calls) == count:
            raise Stop

    return hook


def test_running_averages_are_part_of_the_state(tmp_path: Path) -> None:
    def normalised() -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        for parameter in net.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        return net

    whole, broken, again = normalised(), normalised(), normalised()
    train(whole, X, Y, settings(), validation=BESIDE, progress=False)
    after_calls(broken, 17, stop)
    with pytest.raises(Stop):
        train(
            broken, X, Y, settings(), validation=BESIDE, checkpoint=tmp_path, checkpoint_seconds=0
        )
    train(again, X, Y, settings(), validation=BESIDE, checkpoint=tmp_path)
    assert same_weights(whole, again)


def test_control_c_ends_the_step_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    how = settings(patience=None)
    whole, broken, again = network(), network(), network()
    train(whole, X, Y, how, progress=False)
    after_calls(broken, 9, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(broken, X, Y, how, checkpoint=tmp_path, checkpoint_seconds=1e9)
    facts = json.loads((tmp_path / "manifest.json").read_text())["facts"]
    assert (facts["state"]["epoch"], facts["state"]["batch"]) == (1, 3)  # ten steps of seven
    train(again, X, Y, how, checkpoint=tmp_path)
    assert same_weights(whole, again)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_control_c_in_the_last_step_is_not_lost(tmp_path: Path) -> None:
    net = network()
    after_calls(net, 27, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(net, X, Y, settings(patience=None), checkpoint=tmp_path)
    assert train(network(), X, Y, settings(patience=None), checkpoint=tmp_path).reason


def test_a_second_control_c_does_not_wait() -> None:
    with deferred_interrupt() as pressed:
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_finished_run_is_read_not_repeated(tmp_path: Path) -> None:
    first, second = network(DEQ, "readout"), network(DEQ, "readout")
    run = train(first, X, Y, settings(), validation=BESIDE, checkpoint=tmp_path)
    second.register_forward_hook(lambda *_: stop())
    vars(second)["features"] = stop
    assert train(second, X, Y, settings(), validation=BESIDE, checkpoint=tmp_path) == run
    assert same_weights(first, second)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    how = settings(patience=None)
    train(network(DEQ, "readout"), X, Y, how, checkpoint=tmp_path)
    cases = [
        (
            network(DEQ, "readout"),
            X,
            dataclasses.replace(how, epochs=9),
            "epochs = 4 there, 9 here",
        ),
        (network(DEQ, "readout"), X + 1.0, how, "other data"),
        (network(DEQ, "all"), X, how, "other trained weights"),
        (network(nsd.DeepEquilibrium("erf", 0.2), "readout"), X, how, "other architecture"),
        (build(DEQ, 6, 16, 3, rng=1, trainable="readout"), X, how, "other fixed weights"),
    ]
    for module, rows, wanted, message in cases:
        with pytest.raises(InvalidInput, match=f"{message}.*choose another directory"):
            train(module, rows, Y, wanted, checkpoint=tmp_path)


KILLED = Path(__file__).with_name("killed_training.py")


def killed_after(directory: Path, seconds: float) -> bool:
    """Start the run in another process and kill that; say whether it was still at work."""
    command = [sys.executable, str(KILLED), str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"ready"
        time.sleep(seconds)
        os.kill(child.pid, signal.SIGKILL)
    return child.returncode == -signal.SIGKILL and unfinished(directory)


def unfinished(directory: Path) -> bool:
    manifest = directory / "manifest.json"
    return not (manifest.exists() and json.loads(manifest.read_text())["facts"]["state"]["reason"])


@pytest.mark.parametrize(
    "moments", [(0.25,), pytest.param((0.0, 0.1, 0.2, 0.15, 0.12, 0.07), marks=pytest.mark.slow)]
)
def test_a_killed_process_goes_on_to_the_same_weights(
    tmp_path: Path, moments: tuple[float, ...]
) -> None:
    run = runpy.run_path(str(KILLED))["run"]
    whole = run(tmp_path / "whole", 1e9)
    begin = time.monotonic()
    run(tmp_path / "timed", 0.0)
    duration = time.monotonic() - begin
    for moment in moments:  # with a share of the work done each time
        assert killed_after(tmp_path / "broken", moment * duration)
    assert same_weights(whole, run(tmp_path / "broken", 0.0))
