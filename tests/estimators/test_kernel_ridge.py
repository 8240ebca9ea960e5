"""Kernel ridge regression: the numbers of scikit-learn, the ridge, the solvers."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import joblib
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import notsodeep as nsd
from digit_split import Split
from notsodeep.data import draw_rows
from notsodeep.errors import InvalidInput, NotEnoughMemory
from notsodeep.estimators import EquilibriumKernelRidge, kernel_model
from notsodeep.estimators.kernel_model import dense_bytes


def curve(n: int, p: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, p))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)


@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_same_as_scikit_learn(activation: str, kind: str, convention: str, digits: Split) -> None:
    ours = EquilibriumKernelRidge(activation, 0.15, kind, convention, ridge=0.02)
    ours.fit(digits.X, digits.y)

    mean = digits.X.mean(axis=0)
    scale = np.sqrt(np.square(digits.X - mean).sum(axis=1).mean())
    X, X_test = ((rows - mean) / scale for rows in (digits.X, digits.X_test))
    compute = nsd.tangent_kernel if kind == "ntk" else nsd.conjugate_kernel
    deq = nsd.DeepEquilibrium(activation, 0.15)
    theirs = KernelRidge(alpha=0.02, kernel="precomputed")
    theirs.fit(compute(deq, X, convention=convention), digits.y)
    expected = theirs.predict(compute(deq, X_test, X, convention=convention))
    np.testing.assert_allclose(ours.predict(digits.X_test), expected, rtol=1e-8, atol=1e-8)


def test_several_targets_and_one_are_shaped_as_given() -> None:
    X, y = curve(40)
    both = (
        EquilibriumKernelRidge(ridge=0.1, convention="preactivation")
        .fit(X, np.stack([y, -y], axis=1))
        .predict(X)
    )
    one = EquilibriumKernelRidge(ridge=0.1, convention="preactivation").fit(X, y).predict(X)
    assert one.shape == (40,)
    np.testing.assert_allclose(both, np.stack([one, -one], axis=1), atol=1e-12)


@pytest.mark.parametrize("rule", ["loo", "gcv"])
def test_rules_are_what_they_say(rule: str) -> None:
    X, y = curve(30)
    fitted = EquilibriumKernelRidge(
        ridge=rule, preprocessing="none", convention="preactivation"
    ).fit(X, y)
    assert fitted.ridges_ is not None
    assert fitted.ridge_ == fitted.ridges_[fitted.ridge_scores_.argmin()]
    K = nsd.tangent_kernel(fitted.model_, X, convention="preactivation")
    for index in (5, 30, 50):
        ridge, score = fitted.ridges_[index], fitted.ridge_scores_[index]
        if rule == "loo":
            errors = []
            for i in range(len(X)):
                rest = np.delete(np.arange(len(X)), i)
                part = KernelRidge(alpha=ridge, kernel="precomputed")
                part.fit(K[np.ix_(rest, rest)], y[rest])
                errors.append(part.predict(K[[i]][:, rest])[0] - y[i])
            expected = np.mean(np.square(errors))
        else:
            smoother = K @ np.linalg.inv(K + ridge * np.eye(len(X)))
            left = np.eye(len(X)) - smoother
            expected = np.mean(np.square(left @ y)) / np.mean(np.diag(left)) ** 2
        np.testing.assert_allclose(score, expected, rtol=1e-6)


def test_a_rule_finds_a_useful_ridge() -> None:
    X, y = curve(400)
    X_train, y_train, X_test, y_test = X[:200], y[:200], X[200:], y[200:]
    chosen = EquilibriumKernelRidge(convention="preactivation").fit(X_train, y_train)
    scores = [
        EquilibriumKernelRidge(ridge=ridge, convention="preactivation")
        .fit(X_train, y_train)
        .score(X_test, y_test)
        for ridge in (1e-6, 1e-3, 1e-1, 1.0, 100.0)
    ]
    assert chosen.score(X_test, y_test) > max(scores) - 0.02
    assert max(scores) - min(scores) > 0.1


@pytest.mark.parametrize("memory", [1 << 30, 5_600_000, 200_000])
def test_iteration_and_factorisation_agree(memory: int, digits: Split) -> None:
    # A tile in work takes 4.7 MB, the triangle 1.3 MB in float64 and half of it in float32: room
    # for the one, for the other, for neither.
    dense = EquilibriumKernelRidge(
        "tanh", ridge=0.01, solver="dense", convention="preactivation"
    ).fit(digits.X, digits.y)
    cg = EquilibriumKernelRidge(
        "tanh", ridge=0.01, solver="cg", rank=50, memory=memory, convention="preactivation"
    )
    cg.fit(digits.X, digits.y)
    assert (dense.solver_, dense.n_iter_, cg.solver_) == ("dense", None, "cg")
    assert cg.n_iter_ is not None
    assert 1 < cg.n_iter_ < 100
    gap = np.abs(dense.predict(digits.X_test) - cg.predict(digits.X_test)).max()
    assert gap < 1e-6 * np.abs(digits.y).max()


@pytest.mark.slow
def test_more_columns_mean_fewer_iterations(digits: Split) -> None:
    steps = [
        EquilibriumKernelRidge(ridge=0.001, solver="cg", rank=rank, convention="preactivation")
        .fit(digits.X, digits.y)
        .n_iter_
        for rank in (5, 400)
    ]
    assert steps[0] > 2 * steps[1]


def test_auto_switches_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = curve(60)
    assert (
        EquilibriumKernelRidge(ridge=0.1, convention="preactivation").fit(X, y).solver_ == "dense"
    )
    monkeypatch.setattr(kernel_model, "DENSE_UP_TO", 59)
    assert EquilibriumKernelRidge(ridge=0.1, convention="preactivation").fit(X, y).solver_ == "cg"
    ruled = EquilibriumKernelRidge(convention="preactivation").fit(
        X, y
    )  # the rule looks at some samples, here at all
    assert ruled.solver_ == "cg"
    monkeypatch.undo()
    assert ruled.ridge_ == pytest.approx(
        EquilibriumKernelRidge(convention="preactivation").fit(X, y).ridge_
    )


def test_preprocessing_is_that_of_the_training_data(digits: Split) -> None:
    fitted = EquilibriumKernelRidge(ridge=0.1, convention="preactivation").fit(digits.X, digits.y)
    assert fitted.preprocessing_ == nsd.data.Preprocessing.fit(digits.X)
    whole = fitted.predict(digits.X_test)
    np.testing.assert_allclose(fitted.predict(digits.X_test[:1]), whole[:1], rtol=1e-12)
    shifted = fitted.predict(digits.X_test + 1.0)
    assert np.abs(shifted - whole).max() > 0.01


def test_centred_model(digits: Split) -> None:
    fitted = EquilibriumKernelRidge(
        "relu", centred=True, ridge=0.1, convention="preactivation"
    ).fit(digits.X, digits.y)
    scale = float(np.sqrt(np.einsum("ij,ij->", fitted.X_fit_, fitted.X_fit_) / len(digits.X)))
    assert scale == pytest.approx(1.0, rel=1e-12)
    assert fitted.model_ == nsd.DeepEquilibrium("relu", 0.2).centred(scale)


def test_grid_search_pipeline_and_clone() -> None:
    X, y = curve(60)
    pipeline = make_pipeline(
        StandardScaler(), EquilibriumKernelRidge(ridge=0.1, convention="preactivation")
    )
    grid = {
        "equilibriumkernelridge__sigma_a2": [0.0, 0.3],
        "equilibriumkernelridge__activation": ["relu", nsd.activations.hard_tanh(1.0, 2.0)],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert set(search.best_params_) == set(grid)
    copy = clone(search.best_estimator_)
    assert copy[-1].get_params() == search.best_estimator_[-1].get_params()
    assert not hasattr(copy[-1], "dual_coef_")


def test_joblib_round_trip() -> None:
    X, y = curve(40)
    fitted = EquilibriumKernelRidge("tanh", centred=True, convention="preactivation").fit(X, y)
    stream = BytesIO()
    joblib.dump(fitted, stream)
    stream.seek(0)
    again = joblib.load(stream)
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ridge": -1.0}, "ridge of EquilibriumKernelRidge must be positive"),
        ({"ridge": "cv"}, "Unknown rule for the ridge .* 'cv'"),
        ({"sigma_a2": 1.5}, "sigma_a2 of DeepEquilibrium must satisfy"),
        ({"activation": "rellu"}, "Did you mean 'relu'"),
        ({"kind": "ntkk"}, "Unknown kernel of EquilibriumKernelRidge 'ntkk'"),
        ({"preprocessing": "standard"}, "Unknown preprocessing 'standard'"),
        ({"solver": "qr"}, "Unknown solver of EquilibriumKernelRidge 'qr'"),
        ({"centred": "yes"}, "centred of EquilibriumKernelRidge must be True or False"),
        ({"rank": 0}, "rank of EquilibriumKernelRidge must be an integer of at least 1"),
        ({"tolerance": 0.0}, "tolerance of EquilibriumKernelRidge must be positive"),
    ],
)
def test_refusals(parameters: dict[str, object], message: str) -> None:
    X, y = curve(20)
    with pytest.raises(InvalidInput, match=message):
        EquilibriumKernelRidge(**parameters).fit(X, y)


def test_too_small_a_ridge_is_named() -> None:
    X, y = np.repeat(curve(10)[0], 3, axis=0), np.arange(30.0)
    with pytest.raises(InvalidInput, match=r"ridge .* must make the kernel positive definite"):
        EquilibriumKernelRidge("identity", ridge=1e-18, convention="preactivation").fit(X, y)


def test_sparse_rows_are_refused() -> None:
    X, y = curve(10)
    with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
        EquilibriumKernelRidge(convention="preactivation").fit(csr_array(X), y)


def test_a_dense_solve_beyond_memory_is_refused_beforehand() -> None:
    from notsodeep.estimators import kernel_model

    with pytest.raises(NotEnoughMemory, match=r"dense solver of X needs .* Use solver='cg'"):
        kernel_model._dense_solver(dense_bytes(10**8, spectral=False), 10**8, "X")


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_weights_count_samples(intercept: bool, centred: bool) -> None:
    """Weight 2 is the same row twice, weight 0 no row; the mean and the scale of rows included."""
    X, y = curve(60)
    weights = np.random.default_rng(0).integers(0, 4, 60)
    options: dict[str, Any] = {"ridge": 0.01, "fit_intercept": intercept, "centred": centred}
    weighted = EquilibriumKernelRidge("tanh", **options).fit(X, y, sample_weight=weights)
    repeated = EquilibriumKernelRidge("tanh", **options).fit(
        np.repeat(X, weights, axis=0), np.repeat(y, weights)
    )
    new = curve(80)[0][60:]
    np.testing.assert_allclose(weighted.predict(new), repeated.predict(new), rtol=1e-8)


@pytest.mark.parametrize("rule", ["loo", "gcv"])
def test_rules_know_of_the_intercept(rule: str) -> None:
    """Leave-one-out, by fitting to all others: targets may lie anywhere."""
    X, y = curve(40)
    fitted = EquilibriumKernelRidge(
        "relu", ridge=rule, fit_intercept=True, preprocessing="none", convention="preactivation"
    )
    far = clone(fitted).fit(X, y + 1e4)
    fitted.fit(X, y)
    assert far.ridge_ == pytest.approx(fitted.ridge_, rel=1e-6)
    if rule == "gcv":
        return
    for j in (20, 40, 55):
        one = clone(fitted).set_params(ridge=fitted.ridges_[j])
        errors = []
        for i in range(len(X)):
            others = np.arange(len(X)) != i
            errors.append(y[i] - one.fit(X[others], y[others]).predict(X[i : i + 1])[0])
        assert fitted.ridge_scores_[j] == pytest.approx(np.mean(np.square(errors)), rel=0.06)


@pytest.mark.parametrize("solver", ["dense", "cg"])
def test_an_intercept_minimises_what_it_says(solver: str) -> None:
    """Σ (f + c − y)² + λ‖f‖² over f and c, here by the optimality conditions."""
    X, y = curve(80)
    y = np.column_stack([y + 50.0, y - 3.0])
    fitted = EquilibriumKernelRidge(
        "tanh",
        ridge=0.1,
        fit_intercept=True,
        solver=solver,
        tolerance=1e-12,
        convention="preactivation",
    ).fit(X, y)
    residual = y - fitted.predict(X)
    np.testing.assert_allclose(residual.sum(axis=0), 0.0, atol=1e-8)  # in c
    np.testing.assert_allclose(residual, 0.1 * fitted.dual_coef_, atol=1e-8)  # in f
    shifted = EquilibriumKernelRidge(
        "tanh", ridge=0.1, fit_intercept=True, convention="preactivation"
    ).fit(X, y + 1000.0)
    np.testing.assert_allclose(shifted.predict(X), fitted.predict(X) + 1000.0, rtol=1e-9)
    assert (
        np.ndim(
            EquilibriumKernelRidge(fit_intercept=True, convention="preactivation")
            .fit(X, y[:, 0])
            .intercept_
        )
        == 0
    )


def test_a_rule_looks_at_some_of_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds is what it finds on these alone; the fit is to all, by either solver."""
    monkeypatch.setattr("notsodeep.estimators.kernel_model.RULED", 50)
    X, y = curve(150)
    X = X / np.linalg.norm(X, axis=1).mean()
    many = EquilibriumKernelRidge("tanh", preprocessing="none", convention="preactivation").fit(
        X, y
    )
    some = draw_rows(X, 50)
    few = EquilibriumKernelRidge("tanh", preprocessing="none", convention="preactivation").fit(
        X[some], y[some]
    )
    assert many.ridge_ == few.ridge_
    assert len(many.ridges_) == len(many.ridge_scores_) == 61
    given = EquilibriumKernelRidge(
        "tanh", preprocessing="none", ridge=few.ridge_, convention="preactivation"
    ).fit(X, y)
    np.testing.assert_array_equal(many.predict(X), given.predict(X))
    iterated = EquilibriumKernelRidge(
        "tanh", preprocessing="none", solver="cg", convention="preactivation"
    ).fit(X, y)
    assert iterated.ridge_ == few.ridge_


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(20), "zero"),
        (-np.ones(20), "[Nn]egative"),
        (np.ones(19), "sample_weight"),
    ],
)
def test_wrong_weights_are_rejected(weights: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EquilibriumKernelRidge(ridge=0.1, convention="preactivation").fit(
            *curve(20), sample_weight=weights
        )


def test_iterations_take_no_weights() -> None:
    with pytest.raises(InvalidInput, match=r"sample_weight .* must be None for the solver cg"):
        EquilibriumKernelRidge(ridge=0.1, solver="cg", convention="preactivation").fit(
            *curve(20), sample_weight=np.ones(20)
        )
