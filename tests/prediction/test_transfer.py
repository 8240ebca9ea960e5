"""Hyper-parameters that are carried over: units of the kernel, closed forms, words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.prediction import Transfer
from notsodeep.prediction import transfer as transfer_of
from risk_cases import mixture

DATA = mixture("three", 40)
X, Y = DATA.sample(90, rng=0)
NEW, TRUTH = DATA.sample(400, rng=1)


def scaled(gain: float) -> nsd.ExplicitNetwork:
    return nsd.ExplicitNetwork([nsd.activations.scaled(nsd.activations.named("relu"), gain)])


def transfer(**networks: nsd.models.Model) -> Transfer:
    return transfer_of(networks, X, Y, NEW, TRUTH)


def test_units_of_the_kernel() -> None:
    seen = transfer(first=scaled(1.0), same=scaled(1.0), larger=scaled(3.0))
    assert seen.loss_gap("same") == seen.ridge_gap("same") == 0.0
    assert seen.holds("same")
    # Nine times the kernel: nine times the ridge, a ninth of the rate.
    assert seen.size["larger"] == pytest.approx(9.0 * seen.size["first"])
    assert seen.diverges("larger")
    assert not seen.holds("larger")
    own, first = seen.own["larger"], seen.first
    assert 1 / 18 < own.rate / first.rate < 1 / 4.5  # rates are powers of two
    assert 5.0 < own.ridge / first.ridge < 16.5  # ridges are four to a decade
    assert own.ridge_loss == pytest.approx(first.ridge_loss, rel=0.01)
    assert "diverges" in seen.verdict("larger")
    assert "Tuned for itself it is as accurate" in seen.verdict("larger")


def test_descent_and_ridge_are_what_they_say() -> None:
    seen = transfer(first=scaled(1.0), second=scaled(1.1))
    tuned, network = seen.fixed["second"], scaled(1.1)
    K = nsd.kernel(network, np.concatenate([X, NEW]), X, convention="preactivation")
    mean = K[:90].mean(axis=0)
    K = K - K.mean(axis=1, keepdims=True) - mean + mean.mean()
    targets = (np.eye(3) - 1.0 / 3.0)[Y]
    middle, alpha = targets.mean(axis=0), np.zeros((90, 3))
    for _ in range(tuned.epochs):
        alpha += tuned.rate * (targets - middle - K[:90] @ alpha)
    shrunk = np.linalg.solve(K[:90] + tuned.ridge * np.eye(90), targets - middle)
    for fit, loss, accuracy in (
        (alpha, tuned.loss, tuned.accuracy),
        (shrunk, tuned.ridge_loss, tuned.ridge_accuracy),
    ):
        scores, truth = (K[90:] @ fit + middle)[1::2], TRUTH[1::2]
        squares = np.square(scores - (np.eye(3) - 1.0 / 3.0)[truth]).sum(axis=1)
        assert squares.mean() == pytest.approx(loss)
        assert (scores.argmax(axis=1) == truth).mean() == accuracy


def test_tuning_is_on_other_rows() -> None:
    one = transfer(first=scaled(1.0), second=scaled(1.1))
    wrong = np.where(np.arange(400) % 2 == 1, (TRUTH + 1) % 3, TRUTH)
    two = transfer_of({"first": scaled(1.0), "second": scaled(1.1)}, X, Y, NEW, wrong)
    for name in ("rate", "epochs", "ridge"):
        assert getattr(one.first, name) == getattr(two.first, name)
    assert one.first.accuracy > two.first.accuracy


def test_a_matched_network_follows_and_a_plain_one_does_not() -> None:
    deq = nsd.DeepEquilibrium("relu", 0.9).centred(1.0)
    found = nsd.match(deq, tau0=1.0, convention="feature", family="piecewise_linear")
    seen = transfer(DEQ=deq, matched=found.network, plain=found.unmatched)
    assert seen.holds("matched")
    assert not seen.holds("plain")
    assert "transfer to matched: yes" in str(seen)
    assert "transfer to plain: no" in str(seen)
    assert seen.rule in str(seen)
    again = Transfer.from_dict(json.loads(json.dumps(seen.to_dict())))
    assert again.to_dict() == seen.to_dict()
    pytest.importorskip("matplotlib")
    for accuracy in (False, True):
        axes = seen.plot(nsd.plotting.new_figure()[1][0], accuracy=accuracy)
        assert [line.get_label() for line in axes.get_lines()[:3]] == list(seen.names)
    # The judgement is about the losses until the best epoch of the first, and no later.
    late = seen.seen > 5.0
    bent = np.where(late, 2.0, 1.0) * seen.loss["DEQ"]
    early = replace(seen.first, epochs=5)
    moved = replace(seen, loss={**seen.loss, "matched": bent}, own={**seen.own, "DEQ": early})
    assert moved.loss_gap("matched") == 0.0
