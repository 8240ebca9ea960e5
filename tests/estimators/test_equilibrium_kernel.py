"""The kernel object: its gradient, and every place of scikit-learn that takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import KernelPCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import notsodeep as nsd
from digit_split import Split
from notsodeep.errors import InvalidInput, UnknownName
from notsodeep.estimators import EquilibriumKernel, TheoryScaler


def awkward_rows() -> np.ndarray:
    """Different norms, an equal pair, a close one, an opposite one and a zero row."""
    X = np.random.default_rng(0).standard_normal((12, 8)) / np.sqrt(8)
    X[1], X[2], X[3], X[4] = X[0], X[0] + 1e-4, -X[0], 0.0
    return X


def gradients() -> list[Any]:
    """List all; of hard tanh, whose close pairs take long, one runs every time."""
    models = (("relu", 1e-4), ("relu", 0.7), ("tanh", 0.2), ("hard_tanh", 0.2))
    cases = [
        (*model, kernel, convention)
        for model in models
        for kernel in ("ck", "ntk")
        for convention in ("preactivation", "feature")
    ]
    slow = [case[0] == "hard_tanh" and case != cases[-1] for case in cases]
    return [
        pytest.param(*case, marks=[pytest.mark.slow] * late)
        for case, late in zip(cases, slow, strict=True)
    ]


@pytest.mark.parametrize(("activation", "sigma_a2", "kernel", "convention"), gradients())
def test_gradient_against_differences(
    activation: str, sigma_a2: float, kernel: str, convention: str
) -> None:
    X = awkward_rows()
    k = EquilibriumKernel(activation, sigma_a2, kernel, convention)
    matrix, gradient = k(X, eval_gradient=True)
    np.testing.assert_array_equal(matrix, k(X))
    assert gradient.shape == (12, 12, 1)

    def at(shift: float) -> Any:
        return k.clone_with_theta(k.theta + shift)(X)

    step = 1e-3
    differences = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    np.testing.assert_allclose(gradient[:, :, 0], differences, atol=1e-6 * np.abs(matrix).max())
    assert np.abs(gradient).max() > 0.01 * sigma_a2


def relu_derivative(X: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray]:
    """s·∂G/∂s and s·∂K/∂s of a ReLU DEQ, by differentiating its fixed-point equations.

    G = sF(q, q', G) + (1 − s)x·y; homogeneity gives ∂F/∂q = (F − G·H)/(2q), ∂H/∂q = −G H_G/(2q)
    for F = E[φφ], H = E[φ′φ′] = (π − arccos ρ)/2π, H_G = 1/(2π√(qq' − G²)).
    """
    deq = nsd.DeepEquilibrium("relu", s)
    G = nsd.kernel(deq, X, convention="preactivation")
    S, q = X @ X.T, np.diag(G)
    dq = (0.5 * q - np.diag(S)) / (1.0 - 0.5 * s)
    relative = (dq / q)[:, None] + (dq / q)[None, :]
    F = (G - (1.0 - s) * S) / s
    off = ~np.eye(len(X), dtype=bool)
    rho = np.where(off, G / np.sqrt(np.outer(q, q)), 0.0)
    H = np.where(off, (np.pi - np.arccos(rho)) / (2.0 * np.pi), 0.5)
    H_G = 1.0 / (2.0 * np.pi * np.sqrt(np.outer(q, q) * (1.0 - rho**2)))
    dG = (F - S + 0.5 * s * (F - G * H) * relative) / (1.0 - s * H)
    dG = np.where(off, dG, np.diag(dq))
    dH = np.where(off, H_G * (dG - 0.5 * G * relative), 0.0)
    dK = dG / (1.0 - s * H) + G * (H + s * dH) / (1.0 - s * H) ** 2
    return s * dG, s * dK


@pytest.mark.parametrize("sigma_a2", [0.01, 0.2, 0.8])
def test_gradient_against_the_implicit_function_theorem(sigma_a2: float) -> None:
    X = np.random.default_rng(1).standard_normal((15, 6))
    for kernel, expected in zip(("ck", "ntk"), relu_derivative(X, sigma_a2), strict=True):
        _, gradient = EquilibriumKernel("relu", sigma_a2, kernel, "preactivation")(
            X, eval_gradient=True
        )
        np.testing.assert_allclose(gradient[:, :, 0], expected, rtol=1e-8, atol=1e-10)


def test_kernel_contract() -> None:
    X = awkward_rows()
    k = EquilibriumKernel("tanh", 0.3, "ck", "feature", (0.1, 0.5))
    assert k.theta == pytest.approx(np.log([0.3]))
    np.testing.assert_allclose(np.exp(k.bounds), [[0.1, 0.5]])
    assert clone(k) == k
    assert k.clone_with_theta(np.log([0.4])).sigma_a2 == pytest.approx(0.4)
    assert not k.is_stationary()
    np.testing.assert_allclose(k.diag(X), np.diag(k(X)), rtol=1e-12)
    np.testing.assert_allclose(k(X, X[:5]), k(X)[:, :5], rtol=1e-12, atol=1e-14)
    composed = 2.0 * k + WhiteKernel(0.1)
    matrix, gradient = composed(X, eval_gradient=True)
    assert gradient.shape == (12, 12, 3)
    np.testing.assert_allclose(matrix, 2.0 * k(X) + 0.1 * np.eye(12), atol=1e-14)
    assert "tanh, sigma_a2=0.3" in repr(k)


def test_a_fixed_sigma_has_no_gradient() -> None:
    k = EquilibriumKernel("relu", 0.0, sigma_a2_bounds="fixed")
    assert k.theta.size == 0
    assert k(np.eye(3), eval_gradient=True)[1].shape == (3, 3, 0)
    with pytest.raises(InvalidInput, match=r"sigma_a2 must be positive.*fixed"):
        EquilibriumKernel("relu", 0.0)(np.eye(3), eval_gradient=True)


def test_gaussian_process_finds_sigma() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 4))
    truth = EquilibriumKernel("relu", 0.6, "ck")
    y = rng.multivariate_normal(np.zeros(80), truth(X) + 1e-6 * np.eye(80), method="cholesky")
    start = ConstantKernel(1.0, "fixed") * EquilibriumKernel("relu", 0.05, "ck")
    process = GaussianProcessRegressor(start, alpha=1e-6).fit(X, y)
    found = process.kernel_.k2.sigma_a2
    assert abs(found - 0.6) < 0.15
    before = process.log_marginal_likelihood(start.theta)
    assert process.log_marginal_likelihood_value_ > before + 1.0
    at_optimum = process.log_marginal_likelihood(process.kernel_.theta, eval_gradient=True)[1]
    assert abs(at_optimum[0]) < 0.01


def test_support_vector_classifier(digits: Split) -> None:
    k = EquilibriumKernel("relu")
    svc = make_pipeline(TheoryScaler(), SVC(kernel=k, C=10.0)).fit(digits.X, digits.y)
    scaler = TheoryScaler().fit(digits.X)
    X, X_test = scaler.transform(digits.X), scaler.transform(digits.X_test)
    precomputed = SVC(kernel="precomputed", C=10.0).fit(k(X), digits.y)
    expected = precomputed.decision_function(k(X_test, X))
    np.testing.assert_allclose(svc.decision_function(digits.X_test), expected, atol=1e-8)
    assert svc.score(digits.X_test, digits.y_test) > 0.93


class Counting(EquilibriumKernel):
    """Counts its calls."""

    calls = 0

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        type(self).calls += 1
        return super().__call__(X, Y, eval_gradient)


def test_kernel_ridge_and_kernel_pca_get_whole_matrices() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    Counting.calls = 0
    ridge = KernelRidge(alpha=0.1, kernel=Counting("tanh")).fit(X[:20], y[:20])
    predicted = ridge.predict(X[20:])
    pca = KernelPCA(2, kernel=Counting("tanh")).fit(X[:20])
    projected = pca.transform(X[20:])
    assert Counting.calls == 4
    k = EquilibriumKernel("tanh")
    same = KernelRidge(alpha=0.1, kernel="precomputed").fit(k(X[:20]), y[:20])
    np.testing.assert_allclose(predicted, same.predict(k(X[20:], X[:20])), atol=1e-9)
    same_pca = KernelPCA(2, kernel="precomputed").fit(k(X[:20]))
    np.testing.assert_allclose(
        np.abs(projected), np.abs(same_pca.transform(k(X[20:], X[:20]))), atol=1e-9
    )


def test_a_pair_of_rows_gives_a_number() -> None:
    # A function, unlike a kernel object, is called by KernelRidge for every pair of rows.
    X = np.random.default_rng(0).standard_normal((5, 3))
    k = EquilibriumKernel("relu")
    value = k(X[0], X[1])
    assert isinstance(value, float)
    assert value == pytest.approx(k(X)[0, 1], rel=1e-12)
    by_pairs = KernelRidge(alpha=0.1, kernel=lambda x, y: k(x, y)).fit(X, np.arange(5.0))
    by_matrix = KernelRidge(alpha=0.1, kernel=k).fit(X, np.arange(5.0))
    np.testing.assert_allclose(by_pairs.dual_coef_, by_matrix.dual_coef_, rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda k, X: k(X[0]), InvalidInput, "X of EquilibriumKernel must be a matrix"),
        (lambda k, X: k(X, X[:, :2]), InvalidInput, "as many features as X"),
        (lambda k, X: k(X, X, eval_gradient=True), InvalidInput, "Y must be None"),
        (lambda k, X: clone(k).set_params(kind="cck")(X), UnknownName, "Unknown kind"),
    ],
)
def test_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(EquilibriumKernel(), np.eye(3))
