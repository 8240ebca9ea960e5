"""The equivalent as a matrix: its terms, what it offers, and whose statistics it accepts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

import notsodeep as nsd
from mixture_cases import KINDS, draw, mixture_of
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import Coefficients, Equivalent
from notsodeep.errors import InvalidInput, UnknownName

SAMPLE = draw(mixture_of("different", 60, classes=3), 50)
MODEL = nsd.DeepEquilibrium("swish", 0.2).centred(SAMPLE.stats.tau0)


@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@pytest.mark.parametrize("law", KINDS)
def test_matrix_is_that_of_the_theorem(law: str, kind: str, convention: str) -> None:
    X, y, stats, _ = draw(mixture_of(law, 60, classes=3), 50)
    deq = nsd.DeepEquilibrium("swish", 0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, stats, kind=kind, convention=convention, order=1)
    c = eq.coefficients
    assert isinstance(eq, Equivalent)
    assert isinstance(eq, LinearOperator)
    assert isinstance(c, Coefficients)
    assert (eq.model, eq.kind, eq.convention, eq.statistics) == (deq, kind, convention, stats)
    # χχᵀ with χ = ψ + Jt/√p, JTJᵀ/p, and the identity, written out.
    chi = stats.psi + stats.t[y] / np.sqrt(60)
    overlap = stats.T[np.ix_(y, y)] / 60
    expected = c.linear * X @ X.T + c.norm_fluctuation * np.outer(chi, chi)
    expected += c.covariance_overlap * overlap + c.diagonal * np.eye(50)
    np.testing.assert_allclose(eq.to_dense(), expected, atol=1e-13)
    assert eq.class_counts.tolist() == np.bincount(y).tolist()


def test_api_of_the_matrix() -> None:
    eq = nsd.equivalent(MODEL, SAMPLE.X, SAMPLE.stats, convention="preactivation")
    A = eq.to_dense()
    v = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_allclose(eq @ v, A @ v, atol=1e-12)
    ridge = A + 1e-2 * np.eye(50)
    np.testing.assert_allclose(eq.solve(v, ridge=1e-2), np.linalg.solve(ridge, v), rtol=1e-9)
    assert eq.logdet(ridge=1e-2) == pytest.approx(np.linalg.slogdet(ridge)[1], rel=1e-10)
    np.testing.assert_allclose(eq.eigvalsh(), np.linalg.eigvalsh(A), atol=1e-12)


def test_samples_are_not_copied() -> None:
    eq = nsd.equivalent(MODEL, SAMPLE.X, SAMPLE.stats, order=1, convention="preactivation")
    assert eq.X is SAMPLE.X
    assert (
        nsd.equivalent(MODEL, SAMPLE.X, SAMPLE.stats, convention="preactivation").samples
        is SAMPLE.X
    )


def test_explicit_networks_have_one_convention() -> None:
    network = nsd.ExplicitNetwork(["relu", "tanh"]).centred(SAMPLE.stats.tau0)
    dense = [
        nsd.equivalent(network, SAMPLE.X, SAMPLE.stats, convention=c).to_dense()
        for c in ("preactivation", "feature")
    ]
    assert np.array_equal(*dense)


def test_statistics_of_other_data_are_refused() -> None:
    X, y, stats, mixture = SAMPLE
    own = nsd.equivalent(MODEL, X, stats, convention="preactivation")
    assert own.shape == (50, 50)
    with pytest.raises(InvalidInput, match=r"be those of X, of shape \(49, 60\)"):
        nsd.equivalent(MODEL, X[:-1], stats, convention="preactivation")
    with pytest.raises(InvalidInput, match=r"be those of X, of shape \(50, 59\)"):
        nsd.equivalent(MODEL, X[:, 1:], stats, convention="preactivation")
    swapped = X.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    changed = X.copy()
    changed[7, 3] += 1e-3
    estimated = MixtureStatistics.estimate(X, y)
    for wrong in (X[::-1], swapped, changed, 1.0001 * X, X + 0.1, draw(mixture, 50, seed=1).X):
        for theirs in (stats, estimated):
            deq = nsd.DeepEquilibrium("swish", 0.2).centred(theirs.tau0)
            with pytest.raises(InvalidInput, match="changed, reordered or rescaled"):
                nsd.equivalent(deq, wrong, theirs, convention="preactivation")
    with pytest.raises(InvalidInput, match=r"y of MixtureStatistics\.estimate must be a vector"):
        nsd.equivalent(MODEL, X, "labels", convention="preactivation")


def test_labels_stand_for_the_statistics_estimated_from_them() -> None:
    X, y = nsd.data.paper_mixture(60).sample(50, rng=0)
    relu = nsd.DeepEquilibrium("relu", 0.2)
    given = nsd.equivalent(
        relu, X, MixtureStatistics.estimate(X, y), convention="preactivation"
    ).to_dense()
    np.testing.assert_array_equal(
        nsd.equivalent(relu, X, y, convention="preactivation").to_dense(), given
    )
    alone = nsd.equivalent(
        relu, X, MixtureStatistics.estimate(X, np.zeros(50, dtype=int)), convention="preactivation"
    )
    np.testing.assert_array_equal(
        nsd.equivalent(relu, X, convention="preactivation").to_dense(), alone.to_dense()
    )


def test_own_statistics_are_accepted_at_any_scale() -> None:
    for scale in (1e-8, 1e6):
        mixture = GaussianMixture(scale * np.eye(2, 40), scale**2 * np.ones(2))
        X, _, stats, _ = draw(mixture, 30)
        tanh = nsd.DeepEquilibrium("tanh", 0.2)
        assert nsd.equivalent(tanh, X, stats, convention="preactivation").shape == (30, 30)
        labels = np.arange(30) % 2
        far = 1e3 + X / scale  # data far from the origin: rounding must not look like a change
        assert nsd.equivalent(
            tanh, far, MixtureStatistics.estimate(far, labels), convention="preactivation"
        ).shape == (30, 30)


def test_bad_input_is_refused() -> None:
    X, _, stats, _ = SAMPLE
    with pytest.raises(InvalidInput, match="order of equivalent must be 1, 2 or"):
        nsd.equivalent(MODEL, X, stats, order=3, convention="preactivation")
    for few in (X[:1], X[:, :1]):
        with pytest.raises(InvalidInput, match="at least two rows and two columns"):
            nsd.equivalent(MODEL, few, stats, convention="preactivation")
    with pytest.raises(UnknownName, match="Did you mean 'ntk'"):
        nsd.equivalent(MODEL, X, stats, kind="ntkk", convention="preactivation")
    with pytest.raises(UnknownName, match=r"'preactivation'\?"):
        nsd.equivalent(MODEL, X, stats, convention="preactivations")
    with pytest.raises(InvalidInput, match="model of equivalent must be a DeepEquilibrium"):
        nsd.equivalent("relu", X, stats, convention="preactivation")
    with pytest.raises(InvalidInput, match="X of equivalent must be finite"):
        nsd.equivalent(MODEL, np.full((50, 60), np.nan), stats, convention="preactivation")
