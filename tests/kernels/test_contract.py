"""What holds for the kernels of every model, on every route."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from notsodeep import checks
from notsodeep.errors import InvalidInput, NotEnoughMemory, UnknownName
from notsodeep.kernels import plan

MODELS = [
    nsd.DeepEquilibrium("tanh", 0.2),
    nsd.DeepEquilibrium("relu", 0.2),
    nsd.DeepEquilibrium("relu", 0.2).centred(1.0),
    nsd.DeepEquilibrium("swish", 0.2).centred(1.0),
    nsd.DeepEquilibrium("hard_tanh", 0.4),
    nsd.DeepEquilibrium("elu", 0.1),
    nsd.DeepEquilibrium(nsd.activations.from_formula("x / (1 + abs(x))", kinks=(0.0,)), 0.3),
    nsd.DeepEquilibrium(nsd.activations.hermite((0.1, 0.5, 0.2)), 0.1),
    nsd.ExplicitNetwork(["relu"]),
    nsd.ExplicitNetwork(["tanh", "relu"]).centred(1.0),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=str)
both_inputs = pytest.mark.parametrize("unit", [False, True], ids=["spread", "unit"])


def inputs(n: int, unit: bool, seed: int = 0, p: int = 30) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) / np.sqrt(p)
    X *= np.exp(rng.uniform(-0.7, 0.7, size=(n, 1)))
    X = X / np.linalg.norm(X, axis=1, keepdims=True) if unit else X
    X.flags.writeable = False
    return X


@every_model
@both_inputs
def test_symmetric_equals_cross(model, unit: bool) -> None:
    X = inputs(150, unit)
    symmetric, cross = (
        nsd.kernel(model, X, convention="preactivation", kind="both"),
        nsd.kernel(model, X, X.copy(), convention="preactivation", kind="both"),
    )
    for name in ("ck", "ntk"):
        a, b = getattr(symmetric, name), getattr(cross, name)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
        assert np.array_equal(a, a.T)


@every_model
@both_inputs
def test_positive_semidefinite_and_cauchy_schwarz(model, unit: bool) -> None:
    X = inputs(80, unit)
    pair = nsd.kernel(model, X, convention="preactivation", kind="both")
    for kernel in (pair.ck, pair.ntk):
        assert np.linalg.eigvalsh(kernel).min() >= -1e-12 * np.trace(kernel)
        d = np.sqrt(np.diag(kernel))
        assert (np.abs(kernel) <= np.outer(d, d) * (1 + 1e-12)).all()


@every_model
@both_inputs
def test_permutation_and_rotation(model, unit: bool) -> None:
    X = inputs(70, unit)
    rng = np.random.default_rng(1)
    order = rng.permutation(70)
    rotation = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    base = nsd.kernel(model, X, convention="preactivation", kind="both")
    permuted, rotated = (
        nsd.kernel(model, X[order], convention="preactivation", kind="both"),
        nsd.kernel(model, X @ rotation, convention="preactivation", kind="both"),
    )
    for name in ("ck", "ntk"):
        kernel = getattr(base, name)
        np.testing.assert_allclose(
            getattr(permuted, name), kernel[np.ix_(order, order)], rtol=1e-11, atol=1e-13
        )
        np.testing.assert_allclose(getattr(rotated, name), kernel, rtol=1e-11, atol=1e-13)


@every_model
def test_blocks_equal_the_whole(model, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = inputs(100, False), inputs(37, False, seed=5)
    whole, cross = (
        nsd.kernel(model, X, convention="preactivation", kind="both"),
        nsd.kernel(model, X, Y, convention="preactivation", kind="both"),
    )
    monkeypatch.setattr(plan, "SIDE", 23)
    pieces, cross_pieces = (
        nsd.kernel(model, X, convention="preactivation", kind="both"),
        nsd.kernel(model, X, Y, convention="preactivation", kind="both"),
    )
    for name in ("ck", "ntk"):
        np.testing.assert_allclose(
            getattr(pieces, name), getattr(whole, name), rtol=1e-12, atol=1e-14
        )
        np.testing.assert_allclose(
            getattr(cross_pieces, name), getattr(cross, name), rtol=1e-12, atol=1e-14
        )


@every_model
def test_one_thread_equals_many(model, monkeypatch: pytest.MonkeyPatch) -> None:
    X = inputs(90, False)
    monkeypatch.setattr(plan, "SIDE", 23)
    many = nsd.kernel(model, X, convention="preactivation", kind="both")
    monkeypatch.setenv("NOTSODEEP_THREADS", "1")
    one = nsd.kernel(model, X, convention="preactivation", kind="both")
    assert np.array_equal(one.ck, many.ck)
    assert np.array_equal(one.ntk, many.ntk)


@every_model
def test_single_functions_equal_the_pair(model) -> None:
    X, Y = inputs(40, False), inputs(11, False, seed=3)
    for other in (None, Y):
        pair = nsd.kernel(model, X, other, convention="feature", kind="both")
        conjugate = nsd.kernel(model, X, other, convention="feature")
        tangent = nsd.kernel(model, X, other, convention="feature", kind="ntk")
        assert np.array_equal(pair.ck, conjugate)
        assert np.array_equal(pair.ntk, tangent)


@every_model
def test_float32_is_the_kernel_rounded(model) -> None:
    X = inputs(60, False)
    single = nsd.kernel(model, X, kind="both", dtype=np.float32)
    double = nsd.kernel(model, X, kind="both")
    for kind in ("ck", "ntk"):
        assert np.array_equal(getattr(single, kind), getattr(double, kind).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_result_can_go_to_a_memory_map(tmp_path: Path, dtype: type) -> None:
    X = inputs(50, False)
    model = MODELS[0]
    room = np.memmap(tmp_path / "k.bin", dtype=dtype, mode="w+", shape=(50, 50))
    returned = nsd.kernel(model, X, out=room, convention="preactivation", kind="ntk")
    assert returned is room
    np.testing.assert_allclose(
        room, nsd.kernel(model, X, convention="preactivation", kind="ntk"), rtol=2e-7
    )
    fortran = np.empty((50, 50), order="F")
    nsd.kernel(model, X, out=fortran, convention="preactivation")
    np.testing.assert_allclose(
        fortran, nsd.kernel(model, X, convention="preactivation"), rtol=1e-14
    )


def test_input_is_not_changed() -> None:
    X = inputs(20, False).copy()
    before = X.copy()
    nsd.kernel(MODELS[0], X, convention="preactivation", kind="both")
    assert np.array_equal(X, before)


def test_one_sample_and_one_feature() -> None:
    for model in MODELS:
        alone = nsd.kernel(model, [[0.5]], convention="preactivation", kind="both")
        assert alone.ck.shape == (1, 1)
        column = nsd.kernel(
            model, [[0.5], [-0.5], [2.0], [0.0]], convention="preactivation", kind="both"
        )
        assert np.isfinite(column.ntk).all()


def test_integers_and_lists_are_accepted() -> None:
    model = nsd.DeepEquilibrium("relu", 0.2)
    expected = nsd.kernel(model, np.eye(3), convention="preactivation")
    assert np.array_equal(
        nsd.kernel(model, [[1, 0, 0], [0, 1, 0], [0, 0, 1]], convention="preactivation"),
        expected,
    )
    assert np.array_equal(
        nsd.kernel(model, np.eye(3, dtype=np.float32), convention="preactivation"),
        expected,
    )


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(range(len(MODELS))),
    st.floats(-3, 2),
    st.integers(2, 12),
    st.integers(1, 9),
)
@settings(max_examples=40)
def test_random_inputs(seed: int, index: int, log_scale: float, n: int, p: int) -> None:
    X = np.random.default_rng(seed).normal(size=(n, p)) * 10.0**log_scale
    if isinstance(MODELS[index], nsd.DeepEquilibrium) and index == 7:
        X = X / max(1.0, np.abs(X).max())  # a quadratic has no fixed point at large norms
    pair = nsd.kernel(MODELS[index], X, convention="preactivation", kind="both")
    for kernel in (pair.ck, pair.ntk):
        assert np.isfinite(kernel).all()
        assert np.array_equal(kernel, kernel.T)
        d = np.sqrt(np.maximum(np.diag(kernel), 0))
        assert (np.abs(kernel) <= np.outer(d, d) * (1 + 1e-9) + 1e-14).all()


def test_routes_and_log(caplog: pytest.LogCaptureFixture) -> None:
    X, unit = inputs(50, False), inputs(50, True)
    tanh, relu = nsd.DeepEquilibrium("tanh", 0.2), nsd.DeepEquilibrium("relu", 0.2)
    cases = [(tanh, X, "series"), (tanh, unit, "univariate"), (relu, X, "univariate")]
    for model, rows, route in [*cases, (relu.centred(1.0), X, "hinge")]:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="notsodeep.kernels"):
            nsd.kernel(model, rows)
        assert f"{route} route" in caplog.text


BAD_INPUTS = [
    (
        np.array([[1.0, np.nan], [np.inf, 2.0]]),
        r"2 NaN or infinite entries, the first at index \(0, 1\)",
    ),
    (np.ones(3), "reshape"),
    (np.ones((2, 2, 2)), "matrix"),
    (np.ones((0, 3)), "at least one sample"),
    (np.ones((3, 0)), "at least one sample"),
    ([[1.0, 2.0], [3.0]], "rectangular"),
    (np.ones((2, 2)) + 1j, "real numbers"),
    ([["a", "b"]], "real numbers"),
    (None, "real numbers"),
]


@pytest.mark.parametrize(("X", "words"), BAD_INPUTS)
def test_bad_inputs_are_refused(X: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        nsd.kernel(MODELS[0], X, convention="preactivation")
    if isinstance(X, np.ndarray) and X.ndim == 2:
        with pytest.raises(InvalidInput, match="Y of"):
            nsd.kernel(MODELS[0], np.ones((2, 2)), X, convention="preactivation")


def test_bad_arguments_are_refused() -> None:
    X = np.eye(3)
    with pytest.raises(InvalidInput, match="as many features"):
        nsd.kernel(MODELS[0], X, np.eye(4), convention="preactivation")
    with pytest.raises(UnknownName, match="'feature'"):
        nsd.kernel(MODELS[0], X, convention="features")
    with pytest.raises(InvalidInput, match="float64 or float32"):
        nsd.kernel(MODELS[0], X, dtype=np.float16, convention="preactivation")
    with pytest.raises(InvalidInput, match="float64 or float32"):
        nsd.kernel(MODELS[0], X, dtype="nonsense", convention="preactivation")
    with pytest.raises(InvalidInput, match=r"shape \(3, 3\)"):
        nsd.kernel(MODELS[0], X, out=np.empty((2, 2)), convention="preactivation")
    read_only = np.empty((3, 3))
    read_only.flags.writeable = False
    with pytest.raises(InvalidInput, match="read-only"):
        nsd.kernel(MODELS[0], X, out=read_only, convention="preactivation")
    with pytest.raises(InvalidInput, match="DeepEquilibrium or an ExplicitNetwork"):
        nsd.kernel("relu", X, convention="preactivation")


def test_results_that_do_not_fit_are_refused_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "available_memory", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match=r"needs .* GiB.*KernelOperator"):
        nsd.kernel(MODELS[0], np.ones((100, 3)), convention="preactivation")
    room = np.empty((100, 100))
    assert nsd.kernel(MODELS[0], np.ones((100, 3)), out=room, convention="preactivation") is room
