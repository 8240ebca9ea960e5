"""A ridge below the rounding errors of its kernel is an error, at every door."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import aslinearoperator

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.estimators import EquilibriumKernelRidge
from notsodeep.kernel_solvers import ridge_path
from notsodeep.networks import fit_readout

Array = NDArray[np.floating[Any]]

RNG = np.random.default_rng(0)
HALF = RNG.normal(size=(30, 6))
EQUAL = np.vstack([HALF, HALF])
NEARLY = np.vstack([HALF, HALF + 1e-6 * RNG.normal(size=HALF.shape)])
APART = RNG.normal(size=(60, 40))
TARGETS = RNG.normal(size=60)
TINY = (1e-16, 1e-15, 1e-13, 1e-12)
DEQ = nsd.DeepEquilibrium("tanh", 0.3)
ROUNDED = 1e-6


def kernel(X: Array) -> Array:
    return nsd.kernel(DEQ, nsd.data.Preprocessing.fit(X).apply(X), convention="feature", kind="ntk")


def missing(K: Array, ridge: float, alpha: Array, targets: Array) -> float:
    gap = K @ alpha + ridge * alpha - targets
    return float(np.linalg.norm(gap) / np.linalg.norm(targets))


def estimator(X: Array, ridge: Any, **options: Any) -> float:
    fitted = EquilibriumKernelRidge("tanh", 0.3, ridge=ridge, solver="dense", **options)
    fitted.fit(X, TARGETS)
    left = TARGETS - fitted.intercept_
    return missing(kernel(X), fitted.ridge_, fitted.dual_coef_, left)


def path(X: Array, ridge: float) -> float:
    K = kernel(X)
    return missing(K, ridge, ridge_path(K, TARGETS, [ridge]).coefficients(ridge), TARGETS)


def later_ridge(X: Array, ridge: float) -> float:
    K = kernel(X)
    return missing(K, ridge, ridge_path(K, TARGETS, [1.0]).coefficients(ridge), TARGETS)


def krylov(X: Array, ridge: float) -> float:
    K = kernel(X)
    found = ridge_path(aslinearoperator(K), TARGETS, [ridge])
    return missing(K, ridge, found.coefficients(ridge), TARGETS)


def readout(X: Array, ridge: float) -> float:
    net = nsd.build(nsd.ExplicitNetwork(["tanh"]), X.shape[1], 200, 1, rng=0, dtype=torch.float64)
    rows = nsd.data.Preprocessing.fit(X).apply(X)
    fit_readout(net, rows, TARGETS[:, None], ridge)
    F, a = net.features(torch.as_tensor(rows)).detach().numpy(), net.readout.detach().numpy()[0]
    gap = F.T @ (F @ a) + ridge * a - F.T @ TARGETS  # of the normal equations
    return float(np.linalg.norm(gap) / np.linalg.norm(F.T @ TARGETS))


DOORS: dict[str, Callable[[Array, float], float]] = {
    "estimator": estimator,
    "path": path,
    "another ridge of a path": later_ridge,
    "path of an operator": krylov,
    "read-out": readout,
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("X", [EQUAL, NEARLY], ids=["equal rows", "nearly equal rows"])
def test_solved_or_an_error(X: Array, door: Callable[[Array, float], float]) -> None:
    refused = 0
    for ridge in TINY:
        try:
            assert door(X, ridge) <= ROUNDED
        except (NotConverged, InvalidInput):
            refused += 1
    assert refused >= 3


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_rows_that_are_apart_take_any_ridge(door: Callable[[Array, float], float]) -> None:
    for ridge in TINY:
        assert door(APART, ridge) <= ROUNDED


@pytest.mark.parametrize("X", [EQUAL, NEARLY], ids=["equal rows", "nearly equal rows"])
def test_leave_one_out_chooses_what_can_be_solved(X: Array) -> None:
    assert estimator(X, "loo") <= ROUNDED


def test_equal_rows_of_one_mind_take_any_ridge() -> None:
    targets = np.concatenate([TARGETS[:30], TARGETS[:30]])
    fitted = EquilibriumKernelRidge("tanh", 0.3, ridge=1e-12).fit(EQUAL, targets)
    assert np.abs(fitted.predict(EQUAL) - targets).max() < 1e-6


@pytest.mark.parametrize("door", [estimator, path, later_ridge, krylov])
def test_the_ridge_that_the_message_names_will_do(door: Callable[[Array, float], float]) -> None:
    with pytest.raises(NotConverged, match=r"residual") as caught:
        door(EQUAL, 1e-12)
    number = re.search(r"(\S+) (?:is enough|on they are sure)", str(caught.value))
    assert number is not None
    enough = float(number.group(1))
    assert enough < 1e-6  # of a kernel with a diagonal of about one
    assert door(EQUAL, enough) <= ROUNDED


def test_the_message_names_ridge_and_residual() -> None:
    message = r"at λ = 1e-15: rounding errors leave a relative residual of \d.*larger ridge.*loo"
    with pytest.raises(NotConverged, match=message):
        estimator(EQUAL, 1e-15)


def test_residuals_of_a_path_are_the_true_ones() -> None:
    K = kernel(EQUAL)
    found = ridge_path(K, TARGETS, [1e-10, 1e-8, 1e-6], raises=False)
    for ridge, residual in zip(found.values, found.residual, strict=True):
        true = missing(K, ridge, found.coefficients(ridge, raises=False), TARGETS)
        assert true / 3.0 < residual < 30.0 * true


def test_a_path_chooses_among_what_it_solved() -> None:
    K = kernel(EQUAL)
    found = ridge_path(K, TARGETS, [1e-13, 1e-12], raises=False)
    assert (found.residual > found.tolerance).all()
    with pytest.raises(NotConverged, match=r"2 of 2 ridges.*because of rounding errors") as caught:
        found.best()
    assert caught.value.record is found


def test_flows_that_run_too_long() -> None:
    """Eigenvalues of −1e-15 that should be 0 grow like exp(1e-15·t)."""
    K = kernel(EQUAL)
    with pytest.raises(NotConverged, match=r"times, 1e\+17 to 1e\+17.*Stop earlier"):
        ridge_path(K, TARGETS, times=[1.0, 1e17])
    found = ridge_path(K, TARGETS, times=[1.0, 1e17], raises=False)
    assert found.best() == 1.0
    with pytest.raises(NotConverged, match="were not solved"):
        found.coefficients(1e17)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_the_unit_of_the_targets_does_not_hide_it(unit: float) -> None:
    with pytest.raises(NotConverged, match="rounding errors"):
        EquilibriumKernelRidge("tanh", 0.3, ridge=1e-13).fit(EQUAL, unit * TARGETS)
    # Squared errors in this unit are zero or infinite, and cannot choose a ridge.
    with pytest.raises(InvalidInput, match="Y of ridge_path must"):
        EquilibriumKernelRidge("tanh", 0.3).fit(EQUAL, unit * TARGETS)
