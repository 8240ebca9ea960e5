"""The torchmetrics door: same numbers, and torchmetrics' life cycle."""

from __future__ import annotations

import ast
import copy
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torchmetrics")

from notsodeep.collapse import CollapseMetrics
from notsodeep.collapse.torchmetrics_wrapper import NeuralCollapse, _merged
from notsodeep.errors import InvalidInput

K, D = 4, 6


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(K), (40, 30, 20, 10)))
    H = rng.normal(size=(K, D))[y] + 0.2 * rng.normal(size=(len(y), D))
    return [
        (torch.tensor(h, dtype=torch.float32), torch.tensor(labels))
        for h, labels in zip(np.split(H, 5), np.split(y, 5), strict=True)
    ]


def reference(linear: torch.nn.Linear) -> dict[str, float]:
    metrics = CollapseMetrics(K)
    for features, labels in batches():
        metrics.update(features, labels)
    report = metrics.compute(linear.weight, linear.bias)
    found = {}
    for prefix, summary in (("", report.overall), *report.groups.items()):
        values = {k: v for k, v in summary.items() if not math.isnan(v)}
        found |= {f"{prefix}/{k}".removeprefix("/"): v for k, v in values.items()}
    return found


@pytest.fixture
def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(D, K)


@pytest.fixture
def metric(linear: torch.nn.Linear) -> NeuralCollapse:
    return NeuralCollapse(K, D, classifier=lambda: (linear.weight, linear.bias))


def assert_reference(metric: NeuralCollapse, linear: torch.nn.Linear) -> None:
    found = {name: float(value) for name, value in metric.compute().items()}
    assert "minority/nc1" in found
    assert found == pytest.approx(reference(linear), rel=1e-10)


def test_updates_and_forward_calls_accumulate(metric, linear) -> None:
    for i, batch in enumerate(batches()):
        assert (metric(*batch) if i % 2 else metric.update(*batch)) is None
    assert_reference(metric, linear)
    assert metric.report.between_rank == K - 1
    metric.reset()
    assert metric.storage.abs().max() == 0.0
    for batch in batches():
        metric.update(*batch)
    assert_reference(metric, linear)


def test_states_of_processes_merge(metric, linear) -> None:
    other = NeuralCollapse(K, D)
    for i, batch in enumerate(batches()):
        (metric, other)[i % 2].update(*batch)
    metric.merge_state(other)
    assert_reference(metric, linear)


PROCESS = """
import sys
import torch
from notsodeep.collapse.torchmetrics_wrapper import NeuralCollapse

rank, rendezvous, data = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=2)
features, labels = torch.load(data, weights_only=True)
metric = NeuralCollapse(4, features.shape[1])
for i in range(rank, 5, 2):
    metric.update(features[20 * i : 20 * i + 20], labels[20 * i : 20 * i + 20])
print(repr({name: float(value) for name, value in metric.compute().items()}))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_agree_with_one(linear, tmp_path: Path) -> None:
    features, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    torch.save((features, labels), tmp_path / "data.pt")
    places = [str(tmp_path / "rendezvous"), str(tmp_path / "data.pt")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), *places], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    answers = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    for answer in answers:
        found = ast.literal_eval(answer.strip().splitlines()[-1])
        expected = {name: value for name, value in reference(linear).items() if name in found}
        assert "nc1" in found
        assert "minority/nc2_features" in found
        assert found == pytest.approx(expected, rel=1e-10)


def test_checkpoint_clone_and_dtype(metric, linear) -> None:
    for batch in batches():
        metric.update(*batch)
    copied = copy.deepcopy(metric).half()
    assert copied.storage.dtype == torch.float64
    assert_reference(copied, linear)
    restored = NeuralCollapse(K, D, classifier=metric.classifier)
    restored.load_state_dict(metric.state_dict())
    restored._update_count = 1
    assert_reference(restored, linear)


def test_merging_is_not_adding() -> None:
    """A sum of states would be wrong, which is why there is a reduction of its own."""
    first, second = NeuralCollapse(K, D), NeuralCollapse(K, D)
    (a, b, *_) = batches()
    first.update(*a)
    second.update(*b)
    stacked = torch.stack([first.storage, second.storage])
    merged = _merged(stacked, D, "full")
    both = NeuralCollapse(K, D)
    both.update(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]]))
    torch.testing.assert_close(merged, both.storage, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(stacked.sum(dim=0), both.storage)


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        NeuralCollapse(1, D)
    with pytest.raises(InvalidInput, match="num_features"):
        NeuralCollapse(K, 0)
