"""The equivalent as a matrix: its terms, what it offers, and whose statistics it accepts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

import notsodeep as nsd
from mixture_cases import KINDS, draw, mixture_of
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import Equivalent
from notsodeep.errors import InvalidInput, UnknownName

SAMPLE = draw(mixture_of("different", 60, classes=3), 50)
MODEL = nsd.DeepEquilibrium("swish", 0.2).centred(SAMPLE.stats.tau0)


@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@pytest.mark.parametrize("law", KINDS)
def test_matrix_is_that_of_the_theorem(law: str, kind: str, convention: str) -> None:
    X, y, stats, mixture = draw(mixture_of(law, 60, classes=3), 50)
    deq = nsd.DeepEquilibrium("swish", 0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, y, mixture, kind=kind, convention=convention, order=1)
    c = eq.expansion
    assert isinstance(eq, Equivalent)
    assert isinstance(eq, LinearOperator)
    assert (eq.model, eq.kind, eq.convention) == (deq, kind, convention)
    # χχᵀ with χ = ψ + Jt/√p, JTJᵀ/p, and the identity, written out.
    chi = stats.psi + stats.t[y] / np.sqrt(60)
    overlap = stats.T[np.ix_(y, y)] / 60
    expected = c.linear * X @ X.T + c.norm_fluctuation * np.outer(chi, chi)
    expected += c.covariance_overlap * overlap + c.diagonal * np.eye(50)
    np.testing.assert_allclose(eq.to_dense(), expected, atol=1e-13)
    assert eq.class_counts.tolist() == np.bincount(y).tolist()


def test_api_of_the_matrix() -> None:
    eq = nsd.equivalent(MODEL, SAMPLE.X, SAMPLE.y, SAMPLE.mixture)
    A = eq.to_dense()
    v = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_allclose(eq @ v, A @ v, atol=1e-12)
    ridge = A + 1e-2 * np.eye(50)
    np.testing.assert_allclose(eq.solve(v, ridge=1e-2), np.linalg.solve(ridge, v), rtol=1e-9)
    assert eq.logdet(ridge=1e-2) == pytest.approx(np.linalg.slogdet(ridge)[1], rel=1e-10)
    np.testing.assert_allclose(eq.eigvalsh(), np.linalg.eigvalsh(A), atol=1e-12)


def test_samples_are_not_copied() -> None:
    eq = nsd.equivalent(MODEL, SAMPLE.X, SAMPLE.y, SAMPLE.mixture, order=1)
    assert eq.X is SAMPLE.X
    assert nsd.equivalent(MODEL, SAMPLE.X, SAMPLE.y, SAMPLE.mixture).samples is SAMPLE.X


def test_explicit_networks_have_one_convention() -> None:
    network = nsd.ExplicitNetwork(["relu", "tanh"]).centred(SAMPLE.stats.tau0)
    dense = [
        nsd.equivalent(network, SAMPLE.X, SAMPLE.y, SAMPLE.mixture, convention=c).to_dense()
        for c in ("preactivation", "feature")
    ]
    assert np.array_equal(*dense)


def test_statistics_are_exact_or_estimated() -> None:
    X, y, stats, mixture = SAMPLE
    exact, estimated, alone = (
        nsd.equivalent(MODEL, X, *given).statistics for given in ((y, mixture), (y,), ())
    )
    np.testing.assert_array_equal(exact.T, stats.T)
    np.testing.assert_array_equal(estimated.T, MixtureStatistics.estimate(X, y).T)
    assert alone.counts.tolist() == [50]


@pytest.mark.parametrize("scale", [1e-8, 1e6])
def test_any_scale(scale: float) -> None:
    mixture = GaussianMixture(scale * np.eye(2, 40), scale**2 * np.ones(2))
    X, y, _, _ = draw(mixture, 30)
    eq = nsd.equivalent(nsd.DeepEquilibrium("tanh", 0.2), X, y, mixture)
    assert np.isfinite(eq.to_dense()).all()


def test_bad_input_is_refused() -> None:
    X, y = SAMPLE.X, SAMPLE.y
    with pytest.raises(InvalidInput, match="order of equivalent must be 1 or 2"):
        nsd.equivalent(MODEL, X, y, order=3)
    for few in (X[:1], X[:, :1]):
        with pytest.raises(InvalidInput, match="at least two rows and two columns"):
            nsd.equivalent(MODEL, few)
    with pytest.raises(UnknownName, match="ntk"):
        nsd.equivalent(MODEL, X, y, kind="ntkk")
    with pytest.raises(UnknownName, match=r"'preactivation'\?"):
        nsd.equivalent(MODEL, X, y, convention="preactivations")
    with pytest.raises(InvalidInput, match="model of equivalent must be a DeepEquilibrium"):
        nsd.equivalent("relu", X, y)
    with pytest.raises(InvalidInput, match="X of equivalent must be finite"):
        nsd.equivalent(MODEL, np.full((50, 60), np.nan), y)
