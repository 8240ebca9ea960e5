"""Leading eigenpairs and the density of all eigenvalues, against dense algebra and the law."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.kernel_solvers import spectral_density, top_eigenpairs
from problems import digits, positive_matrix


@pytest.mark.parametrize("count", [1, 5, 20])
def test_leading_eigenpairs_of_a_kernel(count: int) -> None:
    problem = digits()
    values, axes = np.linalg.eigh(problem.K)
    pairs = top_eigenpairs(problem.operator(cache="float64"), count, tolerance=1e-10)
    assert pairs.converged
    np.testing.assert_allclose(pairs.values, values[::-1][:count], rtol=1e-9)
    np.testing.assert_allclose(pairs.vectors.T @ pairs.vectors, np.eye(count), atol=1e-12)
    images = problem.K @ pairs.vectors - pairs.vectors * pairs.values
    np.testing.assert_allclose(np.linalg.norm(images, axis=0), pairs.residuals, atol=1e-9)
    overlaps = np.abs((axes[:, ::-1][:, :count] * pairs.vectors).sum(axis=0))
    np.testing.assert_allclose(overlaps, 1.0, atol=1e-6)


def test_repeated_eigenvalues_and_restarts() -> None:
    values = np.concatenate([np.linspace(0.0, 0.99, 797), [1.0, 1.0, 1.0]])
    pairs = top_eigenpairs(np.diag(values), 3, tolerance=1e-6)
    np.testing.assert_allclose(pairs.values, 1.0, atol=1e-6)
    assert pairs.steps > 13  # longer than a basis without a restart


def test_all_eigenpairs_of_a_small_matrix() -> None:
    K = positive_matrix(12)
    pairs = top_eigenpairs(K, 12)
    np.testing.assert_allclose(pairs.values, np.linalg.eigvalsh(K)[::-1], atol=1e-12)


def test_eigenpairs_that_are_not_found() -> None:
    K = np.diag(np.linspace(0.0, 1.0, 2000))
    with pytest.raises(NotConverged, match="no convergence in 3 steps") as info:
        top_eigenpairs(K, 5, max_steps=3)
    assert not info.value.record.converged
    assert not top_eigenpairs(K, 5, max_steps=3, raises=False).converged
    with pytest.raises(InvalidInput, match="count must be at most 2000"):
        top_eigenpairs(K, 2001)
    with pytest.raises(InvalidInput, match="operator must be square"):
        top_eigenpairs(K[:5], 1)


def test_averages_over_the_spectrum() -> None:
    problem = digits()
    values = np.linalg.eigvalsh(problem.K)
    density = spectral_density(problem.K, probes=12, steps=60)
    for function in (np.sqrt, np.log1p, lambda w: w / (w + 0.1), np.square):
        mean, error = density.average(function)
        assert error > 0.0
        assert abs(mean - function(np.maximum(values, 0.0)).mean()) < 5.0 * error


def test_share_below_a_point_and_density() -> None:
    values = np.sort(np.random.default_rng(0).uniform(0.0, 1.0, 2000))
    density = spectral_density(np.diag(values), probes=8, steps=60)
    points = np.array([[-1.0, 0.2], [0.5, 2.0]])
    share, error = density.cdf(points)
    # A node stands for the eigenvalues half-way to its neighbours: 1/60 at most.
    assert (np.abs(share - np.array([[0.0, 0.2], [0.5, 1.0]])) <= 5.0 * error + 1.0 / 60).all()
    assert share[1, 1] == pytest.approx(1.0, abs=1e-12)
    height, spread = density.density([0.3, 0.5, 0.7], width=0.06)
    assert (np.abs(height - 1.0) <= 5.0 * spread + 0.02).all()


def test_density_of_a_kernel_is_near_its_limiting_law() -> None:
    X = nsd.data.sphere(1000, 1500, rng=0)
    deq = nsd.DeepEquilibrium("normalized_relu", 0.2)
    law = nsd.limiting_spectrum(nsd.sphere_equivalent(deq, X, convention="preactivation"))
    density = spectral_density(
        nsd.KernelOperator(deq, X, cache="float64", convention="preactivation"), probes=4, steps=40
    )
    points = np.linspace(*law.support[0], 30)
    share, error = density.cdf(points)
    assert (np.abs(share - law.cdf(points)) <= 5.0 * error + 1.0 / 40).all()
    other = nsd.limiting_spectrum(
        nsd.sphere_equivalent(deq, X, kind="ntk", convention="preactivation")
    )
    assert np.abs(share - other.cdf(points)).max() > 0.1


def test_spaces_that_are_exhausted() -> None:
    K = np.diag(np.repeat([1.0, 3.0], 20))
    density = spectral_density(K, probes=3, steps=40)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1.0)
    mean, error = density.average(lambda w: (w - 1.0) * (w - 3.0))
    assert abs(mean) < 1e-12
    assert error < 1e-12


def test_bad_probes_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"probes of spectral_density must .* at least 2"):
        spectral_density(np.eye(3), probes=1)
    with pytest.raises(InvalidInput, match="width of density must be positive"):
        spectral_density(np.eye(3)).density([0.0], width=0.0)
