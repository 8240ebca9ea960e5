"""Kernel ridge regression and classification: the numbers of scikit-learn, ridge, solvers."""

from __future__ import annotations

from io import BytesIO

import joblib
import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import notsodeep as nsd
from digit_split import Split
from notsodeep.data import draw_rows
from notsodeep.errors import InvalidInput, NotEnoughMemory
from notsodeep.estimators import (
    EquilibriumKernelClassifier,
    EquilibriumKernelRidge,
    kernel_ridge,
)


def curve(n: int, p: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, p))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)


@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_same_as_scikit_learn(activation: str, kind: str, convention: str, digits: Split) -> None:
    # With a constant of large variance in its kernel, scikit-learn's has an intercept too.
    choice = {"kind": kind, "convention": convention}
    ours = EquilibriumKernelRidge(activation, 0.15, ridge=0.02, **choice).fit(digits.X, digits.y)
    mean = digits.X.mean(axis=0)
    scale = np.sqrt(np.square(digits.X - mean).sum(axis=1).mean())
    X, X_test = ((rows - mean) / scale for rows in (digits.X, digits.X_test))
    deq = nsd.DeepEquilibrium(activation, 0.15)
    theirs = KernelRidge(alpha=0.02, kernel="precomputed")
    theirs.fit(nsd.kernel(deq, X, **choice) + 1e6, digits.y)
    expected = theirs.predict(nsd.kernel(deq, X_test, X, **choice) + 1e6)
    np.testing.assert_allclose(ours.predict(digits.X_test), expected, rtol=1e-4, atol=1e-4)


def test_several_targets_and_one_are_shaped_as_given() -> None:
    X, y = curve(40)
    both = EquilibriumKernelRidge(ridge=0.1).fit(X, np.stack([y, -y], axis=1)).predict(X)
    one = EquilibriumKernelRidge(ridge=0.1).fit(X, y)
    assert one.predict(X).shape == (40,)
    assert np.ndim(one.intercept_) == 0
    np.testing.assert_allclose(both, np.stack([one.predict(X), -one.predict(X)], 1), atol=1e-12)


def test_leave_one_out_is_what_it_says() -> None:
    """By fitting to all others, intercept included: targets may lie anywhere."""
    X, y = curve(40)
    fitted = EquilibriumKernelRidge("relu", preprocessing="none").fit(X, y)
    assert fitted.ridge_ == fitted.ridges_[fitted.ridge_scores_.argmin()]
    far = clone(fitted).fit(X, y + 1e4)
    assert far.ridge_ == pytest.approx(fitted.ridge_, rel=1e-6)
    for j in (20, 40, 55):
        one = clone(fitted).set_params(ridge=fitted.ridges_[j])
        errors = []
        for i in range(len(X)):
            others = np.arange(len(X)) != i
            errors.append(y[i] - one.fit(X[others], y[others]).predict(X[i : i + 1])[0])
        assert fitted.ridge_scores_[j] == pytest.approx(np.mean(np.square(errors)), rel=0.06)


def test_shifted_targets_and_the_default_ridge() -> None:
    X, y = curve(400)
    X_train, y_train, X_test, y_test = X[:200], y[:200], X[200:], y[200:]
    chosen = EquilibriumKernelRidge().fit(X_train, y_train)
    scores = [
        EquilibriumKernelRidge(ridge=ridge).fit(X_train, y_train).score(X_test, y_test)
        for ridge in (1e-6, 1e-3, 1e-1, 1.0, 100.0)
    ]
    assert chosen.score(X_test, y_test) > max(scores) - 0.02
    assert max(scores) - min(scores) > 0.1
    shifted = EquilibriumKernelRidge().fit(X_train, y_train + 50.0)
    assert shifted.score(X_test, y_test + 50.0) == pytest.approx(chosen.score(X_test, y_test))


@pytest.mark.parametrize("solver", ["dense", "cg"])
def test_an_intercept_minimises_what_it_says(solver: str) -> None:
    """Σ (f + c − y)² + λ‖f‖² over f and c, here by the optimality conditions."""
    X, y = curve(80)
    y = np.column_stack([y + 50.0, y - 3.0])
    fitted = EquilibriumKernelRidge("tanh", ridge=0.1, solver=solver).fit(X, y)
    residual = y - fitted.predict(X)
    np.testing.assert_allclose(residual.sum(axis=0), 0.0, atol=1e-6)  # in c
    np.testing.assert_allclose(residual, 0.1 * fitted.dual_coef_, atol=1e-6)  # in f


def test_iteration_and_factorisation_agree(digits: Split) -> None:
    dense, cg = (
        EquilibriumKernelRidge("tanh", ridge=0.01, solver=solver).fit(digits.X, digits.y)
        for solver in ("dense", "cg")
    )
    assert (dense.solver_, dense.n_iter_, cg.solver_) == ("dense", None, "cg")
    assert 1 < cg.n_iter_ < 100
    gap = np.abs(dense.predict(digits.X_test) - cg.predict(digits.X_test)).max()
    assert gap < 1e-6 * np.abs(digits.y).max()


def test_auto_switches_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = curve(60)
    assert EquilibriumKernelRidge(ridge=0.1).fit(X, y).solver_ == "dense"
    monkeypatch.setattr(kernel_ridge, "DENSE_ROWS", 59)
    assert EquilibriumKernelRidge(ridge=0.1).fit(X, y).solver_ == "cg"
    monkeypatch.setattr(kernel_ridge.checks, "available_memory", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match="Use solver='cg'"):
        EquilibriumKernelRidge(ridge=0.1, solver="dense").fit(X, y)


def test_the_ridge_is_searched_for_on_some_of_many_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_ridge, "RIDGE_SEARCH_ROWS", 50)
    X, y = curve(150)
    X = X / np.linalg.norm(X, axis=1).mean()
    many = EquilibriumKernelRidge("tanh", preprocessing="none").fit(X, y)
    some = draw_rows(X, 50)
    few = EquilibriumKernelRidge("tanh", preprocessing="none").fit(X[some], y[some])
    assert many.ridge_ == pytest.approx(few.ridge_)
    given = EquilibriumKernelRidge("tanh", preprocessing="none", ridge=many.ridge_).fit(X, y)
    np.testing.assert_array_equal(many.predict(X), given.predict(X))


def test_preprocessing_is_that_of_the_training_data(digits: Split) -> None:
    fitted = EquilibriumKernelRidge(ridge=0.1).fit(digits.X, digits.y)
    assert fitted.preprocessing_ == nsd.data.Preprocessing.fit(digits.X)
    whole = fitted.predict(digits.X_test)
    np.testing.assert_allclose(fitted.predict(digits.X_test[:1]), whole[:1], rtol=1e-12)
    assert np.abs(fitted.predict(digits.X_test + 1.0) - whole).max() > 0.01


def test_a_given_model(digits: Split) -> None:
    centred = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    fitted = EquilibriumKernelRidge(model=centred, ridge=0.1).fit(digits.X, digits.y)
    assert fitted.model_ == centred
    plain = EquilibriumKernelRidge("relu", ridge=0.1).fit(digits.X, digits.y)
    assert not np.allclose(fitted.predict(digits.X_test), plain.predict(digits.X_test))


def test_grid_search_pipeline_clone_and_joblib() -> None:
    X, y = curve(60)
    pipeline = make_pipeline(StandardScaler(), EquilibriumKernelRidge(ridge=0.1))
    grid = {
        "equilibriumkernelridge__sigma_a2": [0.0, 0.3],
        "equilibriumkernelridge__activation": ["relu", nsd.activations.hard_tanh(1.0, 2.0)],
    }
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y)
    assert set(search.best_params_) == set(grid)
    copy = clone(search.best_estimator_)
    assert copy[-1].get_params() == search.best_estimator_[-1].get_params()
    assert not hasattr(copy[-1], "dual_coef_")
    stream = BytesIO()
    joblib.dump(search.best_estimator_, stream)
    stream.seek(0)
    np.testing.assert_array_equal(joblib.load(stream).predict(X), search.predict(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ridge": -1.0}, "ridge of the estimator must be positive"),
        ({"ridge": "cv"}, "Unknown rule for the ridge 'cv'"),
        ({"sigma_a2": 1.5}, "sigma_a2 of DeepEquilibrium must satisfy"),
        ({"activation": "rellu"}, "Did you mean 'relu'"),
        ({"kind": "ntkk"}, "Unknown kind 'ntkk'"),
        ({"preprocessing": "standard"}, "Unknown preprocessing 'standard'"),
        ({"solver": "qr"}, "Unknown solver 'qr'"),
    ],
)
def test_refusals(parameters: dict[str, object], message: str) -> None:
    X, y = curve(20)
    with pytest.raises(InvalidInput, match=message):
        EquilibriumKernelRidge(**parameters).fit(X, y)


def test_too_small_a_ridge_and_sparse_rows_are_refused() -> None:
    X, y = np.repeat(curve(10)[0], 3, axis=0), np.arange(30.0)
    with pytest.raises(InvalidInput, match=r"ridge must make the kernel positive definite"):
        EquilibriumKernelRidge("identity", ridge=1e-18).fit(X, y)
    with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
        EquilibriumKernelRidge().fit(csr_array(X), y)


@pytest.mark.parametrize("ridge", ["loo", 0.01])
def test_classes_of_digits(ridge: float | str, digits: Split) -> None:
    classifier = EquilibriumKernelClassifier("relu", ridge=ridge).fit(digits.X, digits.y)
    assert classifier.score(digits.X_test, digits.y_test) > 0.93
    assert classifier.decision_function(digits.X_test).shape == (300, 10)


def test_scores_are_regressions_of_signs(digits: Split) -> None:
    names = np.where(digits.y % 2 == 0, "even", "odd")
    classifier = EquilibriumKernelClassifier(ridge=0.01).fit(digits.X, names)
    regression = EquilibriumKernelRidge(ridge=0.01).fit(digits.X, np.where(digits.y % 2, 1.0, -1.0))
    scores = classifier.decision_function(digits.X_test)
    np.testing.assert_allclose(scores, regression.predict(digits.X_test), atol=1e-10)
    predicted = classifier.predict(digits.X_test)
    np.testing.assert_array_equal(predicted, np.where(scores > 0, "odd", "even"))


def test_probabilities_are_those_of_scikit_learn(digits: Split) -> None:
    calibrated = CalibratedClassifierCV(EquilibriumKernelClassifier(ridge=0.1), cv=3)
    calibrated.fit(digits.X, digits.y)
    probabilities = calibrated.predict_proba(digits.X_test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert calibrated.score(digits.X_test, digits.y_test) > 0.93


def test_one_class_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"at least two classes, got 1 class"):
        EquilibriumKernelClassifier().fit(np.eye(4), np.zeros(4))
