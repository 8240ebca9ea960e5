"""The closed-form read-out is ridge regression, whichever side it is solved on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.networks.random import build
from notsodeep.networks.readout import fit_readout

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 8)) / np.sqrt(8), RNG.integers(0, 3, 60)
T = np.eye(3)[Y]
DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)


def network(width: int, model: Any = DEQ, **options: Any) -> Any:
    return build(model, 8, width, 3, rng=0, **{"dtype": torch.float64, **options})


def features(module: Any) -> np.ndarray:
    return module.features(torch.as_tensor(X, dtype=module.readout.dtype)).detach().numpy()


@pytest.mark.parametrize("width", [20, 60, 90])
def test_both_forms_of_the_solution(width: int) -> None:
    net = network(width)
    fit = fit_readout(net, X, Y, ridge=0.3)
    F = features(net)
    primal = np.linalg.solve(F.T @ F + 0.3 * np.eye(width), F.T @ T).T
    dual = T.T @ np.linalg.solve(F @ F.T + 0.3 * np.eye(60), F)
    np.testing.assert_allclose(net.readout.detach(), primal, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(net.readout.detach(), dual, rtol=1e-9, atol=1e-10)
    gram = F.T @ F if width < 60 else F @ F.T
    exact = np.linalg.cond(gram + 0.3 * np.eye(len(gram)), 1)
    assert 0.1 * exact < fit.condition < 1.01 * exact
    outputs = F @ net.readout.detach().numpy().T
    assert fit.squared_error == pytest.approx(0.5 * ((outputs - T) ** 2).sum(axis=1).mean())
    assert fit.accuracy == pytest.approx((outputs.argmax(axis=1) == Y).mean())


@pytest.mark.parametrize("width", [20, 90])
def test_a_bias_is_not_penalised(width: int) -> None:
    net = network(width, bias=True)
    fit_readout(net, X, Y, ridge=0.1)
    expected = Ridge(alpha=0.1).fit(features(net), T)
    np.testing.assert_allclose(net.readout.detach(), expected.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(net.readout_bias.detach(), expected.intercept_, rtol=1e-7)


def test_long_data_goes_in_pieces() -> None:
    many = np.random.default_rng(1).normal(size=(2500, 8))
    targets = np.random.default_rng(2).normal(size=(2500, 3))
    net = network(12)
    fit = fit_readout(net, many, targets, ridge=1e-3)
    F = net.features(torch.as_tensor(many)).detach().numpy()
    expected = np.linalg.solve(F.T @ F + 1e-3 * np.eye(12), F.T @ targets).T
    np.testing.assert_allclose(net.readout.detach(), expected, rtol=1e-9)
    assert fit.accuracy is None


def test_single_precision_features_are_solved_in_double() -> None:
    net, exact = network(30, dtype=torch.float32), network(30)
    fit_readout(net, X, Y, ridge=1e-2)
    fit_readout(exact, X, Y, ridge=1e-2)
    assert net.readout.dtype == torch.float32
    np.testing.assert_allclose(net.readout.detach(), exact.readout.detach(), rtol=1e-3, atol=1e-3)


def test_a_singular_gram_matrix_is_refused() -> None:
    twice = np.vstack([X[:20], X[:20]])
    net = network(90)
    before = net.readout.detach().clone()
    with pytest.raises(InvalidInput, match=r"ridge of fit_readout must .* invertible .* would do"):
        fit_readout(net, twice, Y[:40], ridge=0.0)
    assert torch.equal(net.readout, before)
    fit = fit_readout(net, X[:20], Y[:20], ridge=0.0)
    assert fit.accuracy == 1.0


def test_input_is_checked() -> None:
    with pytest.raises(InvalidInput, match="ridge of fit_readout must be at least 0"):
        fit_readout(network(9), X, Y, ridge=-1.0)
    with pytest.raises(InvalidInput, match="labels from 0 to 2"):
        fit_readout(network(9), X, Y + 1, ridge=1.0)
    net = network(9, solver={"name": "plain", "max_steps": 2})
    with pytest.raises(NotConverged):
        fit_readout(net, X, Y, ridge=1.0)
    assert net.training
