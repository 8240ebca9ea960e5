"""The kernel as an operator, against the kernel as a matrix."""

from __future__ import annotations

import logging
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg, eigsh

import notsodeep as nsd
from notsodeep import checks
from notsodeep.errors import InvalidInput, NotEnoughMemory, UnknownName
from notsodeep.kernels import plan

# A model, whether its inputs have unit norm, and the route that 300 of them take.
CASES = [
    pytest.param(nsd.DeepEquilibrium("tanh", 0.2), False, "series", id="tanh"),
    pytest.param(nsd.DeepEquilibrium("relu", 0.2), True, "univariate", id="relu-unit"),
    pytest.param(nsd.DeepEquilibrium("relu", 0.2).centred(1.0), False, "hinge", id="centred-relu"),
    pytest.param(nsd.DeepEquilibrium("elu", 0.4), False, "series", id="elu"),
    pytest.param(nsd.ExplicitNetwork(["tanh", "relu"]), False, "series", id="two-layer"),
]
every_case = pytest.mark.parametrize(("model", "unit", "route"), CASES)
both_kernels = pytest.mark.parametrize("kind", ["ck", "ntk"])

MODEL = nsd.DeepEquilibrium("tanh", 0.2)


def inputs(n: int, unit: bool = False, seed: int = 0, p: int = 30) -> np.ndarray:
    """Rows of spread-out or unit norm, with close ones and bit-equal ones far apart in order."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) / np.sqrt(p)
    X *= np.exp(rng.uniform(-0.7, 0.7, size=(n, 1)))
    if unit:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[-1] = X[0]
    X[-2] = -X[1]
    return X


def dense(model, X, Y=None, *, kind: str, **options: str) -> np.ndarray:
    choice = {"convention": "preactivation"} | options
    return np.asarray(nsd.kernel(model, X, Y, kind=kind, **choice))


def assert_product(result: np.ndarray, K: np.ndarray, V: np.ndarray, tolerance: float) -> None:
    """|result − K V| ≤ tolerance·|K| |V|, entry by entry."""
    assert result.shape == (K @ V).shape
    assert (np.abs(result - K @ V) <= tolerance * (np.abs(K) @ np.abs(V))).all()


@every_case
@both_kernels
@pytest.mark.parametrize("side", [64, 384], ids=["small-tiles", "one-tile"])
def test_product_is_that_of_the_matrix(
    model, unit, route, kind, side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SIDE", side)
    X = inputs(300, unit)
    rng = np.random.default_rng(1)
    K = dense(model, X, kind=kind)
    A = nsd.KernelOperator(model, X, kind=kind, convention="preactivation")
    assert isinstance(A, LinearOperator)
    assert (A.shape, A.dtype) == ((300, 300), np.float64)
    for V in (rng.normal(size=300), rng.normal(size=(300, 1)), rng.normal(size=(300, 7))):
        assert_product(A @ V, K, V, 1e-12)
        assert_product(A.T @ V, K, V, 1e-12)
        assert_product((V.T @ A).T, K, V, 1e-12)
    assert A._plan.route == route


@every_case
@both_kernels
@pytest.mark.parametrize("side", [64, 384], ids=["small-tiles", "one-tile"])
def test_cross_product_and_its_transpose(
    model, unit, route, kind, side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SIDE", side)
    X, Y = inputs(200, unit), inputs(131, unit, seed=4)
    Y[5] = X[7]
    rng = np.random.default_rng(1)
    K = dense(model, X, Y, kind=kind)
    A = nsd.KernelOperator(model, X, Y, kind=kind, convention="preactivation")
    assert A.shape == (200, 131)
    for k in ((), (1,), (5,)):
        V, U = rng.normal(size=(131, *k)), rng.normal(size=(200, *k))
        assert_product(A @ V, K, V, 1e-12)
        assert_product(A.T @ U, K.T, U, 1e-12)
        assert_product(A.H @ U, K.T, U, 1e-12)
    assert_product(A.rmatvec(U[:, 0]), K.T, U[:, 0], 1e-12)
    assert_product(A.T.T @ V, K, V, 1e-12)


def test_narrow_and_flat_cross_kernels() -> None:
    X, Y = inputs(700), inputs(3, seed=4)
    V = np.random.default_rng(1).normal(size=(700, 2))
    K = dense(MODEL, X, Y, kind="ck")
    A = nsd.KernelOperator(MODEL, X, Y, convention="preactivation")
    assert_product(A @ V[:3], K, V[:3], 1e-12)
    assert_product(
        nsd.KernelOperator(MODEL, Y, X, convention="preactivation") @ V,
        K.T,
        V,
        1e-12,
    )
    assert nsd.KernelOperator(MODEL, [[0.5]], convention="preactivation") @ [
        2.0
    ] == 2.0 * nsd.kernel(MODEL, [[0.5]], convention="preactivation")


@every_case
@both_kernels
def test_diagonal(model, unit, route, kind) -> None:
    X = inputs(100, unit)
    A = nsd.KernelOperator(model, X, kind=kind, convention="preactivation")
    diagonal = A.diagonal()
    assert np.array_equal(diagonal, np.diag(dense(model, X, kind=kind)))
    diagonal[:] = 0.0  # a copy: the operator must not feel it
    assert A.diagonal().min() > 0.0


@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@both_kernels
def test_conventions(convention, kind) -> None:
    X = inputs(90)
    V = np.random.default_rng(1).normal(size=(90, 2))
    K = dense(MODEL, X, kind=kind, convention=convention)
    A = nsd.KernelOperator(MODEL, X, kind=kind, convention=convention)
    assert_product(A @ V, K, V, 1e-12)
    assert np.array_equal(A.diagonal(), np.diag(K))


@every_case
@pytest.mark.parametrize("cross", [False, True], ids=["symmetric", "cross"])
def test_cached_tiles(model, unit, route, cross) -> None:
    X = inputs(200, unit)
    Y = inputs(150, unit, seed=2) if cross else None
    V = np.random.default_rng(1).normal(size=(150 if cross else 200, 3))
    K = dense(model, X, Y, kind="ntk")
    plain, exact, rounded = (
        nsd.KernelOperator(model, X, Y, kind="ntk", cache=cache, convention="preactivation")
        for cache in ("never", "float64", "float32")
    )
    first, again = rounded @ V, rounded @ V
    assert np.array_equal(first, again)
    assert_product(first, K, V, 1e-6)
    assert not np.array_equal(first, plain @ V)
    for _ in range(2):
        assert np.array_equal(exact @ V, plain @ V)


def test_cached_tiles_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    A = nsd.KernelOperator(nsd.DeepEquilibrium("elu", 0.4), inputs(200), cache="float32")
    first = A @ np.ones(200)
    monkeypatch.setattr(A._plan, "tile", None)
    assert np.array_equal(A @ np.ones(200), first)


@every_case
def test_results_are_equal_to_the_last_bit(model, unit, route, monkeypatch) -> None:
    X = inputs(400, unit)
    V = np.random.default_rng(1).normal(size=(400, 3))
    results = []
    for threads in ("1", "2", "2", "5"):
        monkeypatch.setenv("NOTSODEEP_THREADS", threads)
        A = nsd.KernelOperator(model, X, kind="ntk", convention="preactivation")
        results += [A @ V, A @ V]
    for result in results[1:]:
        assert np.array_equal(result, results[0])


def test_complex_vectors() -> None:
    X = inputs(80)
    rng = np.random.default_rng(1)
    v = rng.normal(size=80) + 1j * rng.normal(size=80)
    A = nsd.KernelOperator(MODEL, X, X[:50], convention="preactivation")
    K = dense(MODEL, X, X[:50], kind="ck")
    np.testing.assert_allclose(A.H @ v, K.T @ v, rtol=1e-12)
    np.testing.assert_allclose(A.T @ v, K.T @ v, rtol=1e-12)


def test_conjugate_gradients() -> None:
    X = inputs(250)
    b = np.random.default_rng(1).normal(size=250)
    A = nsd.KernelOperator(MODEL, X, kind="ntk", convention="preactivation")
    ridge = 0.1 * aslinearoperator(sparse.identity(250))
    x, info = cg(A + ridge, b, rtol=1e-12)
    assert info == 0
    K = dense(MODEL, X, kind="ntk")
    np.testing.assert_allclose(x, np.linalg.solve(K + 0.1 * np.eye(250), b), rtol=1e-8, atol=1e-9)


def test_leading_eigenvalues() -> None:
    X = inputs(250)
    A = nsd.KernelOperator(MODEL, X, convention="preactivation")
    found = eigsh(A, k=4, v0=np.ones(250), return_eigenvectors=False)
    expected = np.linalg.eigvalsh(dense(MODEL, X, kind="ck"))[-4:]
    np.testing.assert_allclose(np.sort(found), expected, rtol=1e-11)


def test_memory_stays_far_below_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 4000
    monkeypatch.setenv("NOTSODEEP_THREADS", "2")
    X = inputs(n + 2, p=200)[:n]
    V = np.ones((n, 4))
    A = nsd.KernelOperator(MODEL, X, kind="ntk")
    _ = A @ V  # what is known about the samples is worked out once, and kept
    tracemalloc.start()
    try:
        _ = A @ V
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * n**2 / 10


def test_route_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="notsodeep.kernels"):
        A = nsd.KernelOperator(MODEL, inputs(50), convention="preactivation")
        _, _ = A @ np.ones(50), A @ np.ones(50)
    assert [record.message.count("series route") for record in caplog.records] == [1]


def test_bad_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X = inputs(100)
    with pytest.raises(UnknownName, match="kind 'tangents'"):
        nsd.KernelOperator(MODEL, X, kind="tangents", convention="preactivation")
    with pytest.raises(UnknownName, match=r"cache of KernelOperator 'float16'.*'float"):
        nsd.KernelOperator(MODEL, X, cache="float16", convention="preactivation")
    with pytest.raises(UnknownName, match="'feature'"):
        nsd.KernelOperator(MODEL, X, convention="features")
    with pytest.raises(InvalidInput, match="DeepEquilibrium or an ExplicitNetwork"):
        nsd.KernelOperator("relu", X, convention="preactivation")
    with pytest.raises(InvalidInput, match="X of KernelOperator must be finite"):
        nsd.KernelOperator(MODEL, [[np.nan]], convention="preactivation")
    with pytest.raises(InvalidInput, match="as many features"):
        nsd.KernelOperator(MODEL, X, np.eye(3), convention="preactivation")
    with pytest.raises(InvalidInput, match=r"cross kernel of shape \(100, 100\).*Leave Y out"):
        nsd.KernelOperator(MODEL, X, X, convention="preactivation").diagonal()
    with pytest.raises(ValueError, match="dimension mismatch"):
        _ = nsd.KernelOperator(MODEL, X, convention="preactivation") @ np.ones(99)
    monkeypatch.setattr(checks, "available_memory", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match=r"0\.0 MiB are free"):
        nsd.KernelOperator(MODEL, X, cache="float32", convention="preactivation")


@pytest.mark.parametrize("columns", [1, 3, 32, 33])
@pytest.mark.parametrize("n", [65, 130, 307])
def test_rounded_tiles_are_multiplied_in_double_precision(columns: int, n: int) -> None:
    """Tiles of every shape, and both sides of the number of vectors where BLAS takes over."""
    X = inputs(n)
    A = nsd.KernelOperator(MODEL, X, cache="float32", convention="preactivation")
    rounded = A @ np.eye(n)
    assert np.array_equal(rounded, rounded.astype(np.float32))
    V = np.random.default_rng(1).normal(size=(n, columns))
    assert_product(A @ V, rounded, V, 1e-14)


def test_cached_products_do_not_depend_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    X = inputs(400)
    V = np.random.default_rng(1).normal(size=(400, 3))
    results = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("NOTSODEEP_THREADS", threads)
        A = nsd.KernelOperator(MODEL, X, cache="float32", convention="preactivation")
        results += [A @ V, A @ V]
    for result in results[1:]:
        assert np.array_equal(result, results[0])
