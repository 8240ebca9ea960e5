"""Timing compares like with like, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import polynomial
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.networks.build import build
from notsodeep.networks.timing import time_against

X = np.random.default_rng(0).normal(size=(64, 30)) / np.sqrt(30)
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
NET = nsd.ExplicitNetwork(["hard_tanh"])


def pair(width: int = 128, **options: Any) -> tuple[Any, Any]:
    return tuple(build(m, 30, width, 5, rng=0, **options) for m in (DEQ, NET))


def test_the_record_states_what_was_measured() -> None:
    deq, net = pair()
    table = time_against(deq, net, X, tolerance=1e-4, repeats=5)
    assert (table.batch, table.in_features, table.width) == (64, 30, 128)
    assert (table.tolerance, table.repeats, table.trainable) == (1e-4, 5, "all")
    assert table.threads == torch.get_num_threads()
    assert (table.deq, table.explicit) == (str(DEQ), str(NET))
    for timing in (table.inference, table.training_step):
        low, high = timing.quartiles
        assert low <= timing.ratio <= high
        assert timing.ratio_of_fastest > 1.0
        assert timing.solver in {"fixed_point", "anderson", "broyden"}
        assert timing.steps > 1
        assert min(timing.explicit_seconds, timing.deq_seconds) > 0.0
    assert table.inference.backward_steps == 0
    assert table.training_step.backward_steps > 1
    assert json.loads(json.dumps(table.to_dict()))["inference"]["steps"] == table.inference.steps
    assert str(table).count("ms") == 4
    assert "tolerance 0.0001" in str(table)


def test_a_tighter_tolerance_takes_more_steps() -> None:
    deq, net = pair()
    loose, tight = (time_against(deq, net, X, tolerance=t, repeats=3) for t in (1e-2, 1e-6))
    assert loose.inference.steps < tight.inference.steps
    assert time_against(deq, net, X, repeats=1).tolerance == 1e-6


@pytest.mark.parametrize("trainable", ["all", "readout"])
def test_networks_stay_as_they_are(trainable: Any) -> None:
    deq, net = pair(40, trainable=trainable, bias=True)
    before = [{k: v.clone() for k, v in module.state_dict().items()} for module in (deq, net)]
    solver, gradient = deq.solver, deq.gradient
    table = time_against(deq, net, X, repeats=2)
    assert table.trainable == trainable
    for module, weights in zip((deq, net), before, strict=True):
        assert all(torch.equal(v, weights[k]) for k, v in module.state_dict().items())
        assert all(p.grad is None for p in module.parameters())
    assert (deq.solver, deq.gradient, deq.last_record) == (solver, gradient, None)


def test_only_networks_that_can_be_compared_are() -> None:
    deq, _ = pair()
    for options, message in (
        ({"width": 64}, "in width. Got 128 and 64"),
        ({"width": 128, "trainable": "readout"}, "in trainable"),
        ({"width": 128, "dtype": torch.float64}, "in dtype"),
    ):
        with pytest.raises(InvalidInput, match=message):
            time_against(deq, pair(**options)[1], X)
    with pytest.raises(InvalidInput, match="repeats"):
        time_against(deq, pair()[1], X, repeats=0)


def test_a_fixed_point_that_no_solver_finds_is_an_error() -> None:
    wild = build(nsd.DeepEquilibrium(polynomial((1.0, 0.0, 5.0)), 0.9), 30, 128, 5, rng=0)
    with pytest.raises(NotConverged):
        time_against(wild, pair()[1], X, repeats=1)
