"""The covariances of the classes in one basis: what the limiting spectrum is computed from."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.data.mixture_statistics import ClassCovariances

P = 12
LEVELS = np.where(np.arange(P) < 4, 0.5, 2.0)
OTHER = np.where(np.arange(P) < 6, 1.0, 3.0)
BASIS = np.linalg.qr(np.random.default_rng(0).normal(size=(P, P)))[0]


def rotated(values: np.ndarray) -> np.ndarray:
    matrix = (BASIS * values) @ BASIS.T
    return 0.5 * (matrix + matrix.T)


def classes_of(covariances: object, means: np.ndarray | None = None) -> ClassCovariances:
    centres = np.random.default_rng(1).normal(size=(2, P)) if means is None else means
    mixture = GaussianMixture(centres, covariances)
    X, y = mixture.sample(40, rng=0)
    classes = mixture.statistics(X, y).covariance_spectrum.classes
    assert classes is not None
    assert classes.weights.sum() == pytest.approx(1.0)
    assert classes.means.shape == (P, 2)
    assert np.array_equal(np.bincount(classes.group) / P, classes.weights)
    return classes


def test_scalars_are_one_group() -> None:
    classes = classes_of([1.0, 1.5])
    np.testing.assert_array_equal(classes.eigenvalues, [[1.0, 1.5]])
    assert classes.shared_basis


def test_diagonals_are_grouped_by_their_pairs() -> None:
    classes = classes_of(np.stack([LEVELS, OTHER]))
    np.testing.assert_array_equal(classes.eigenvalues, [[0.5, 1.0], [2.0, 1.0], [2.0, 3.0]])
    np.testing.assert_allclose(classes.weights, np.array([4, 2, 6]) / P)


@pytest.mark.parametrize("second", [LEVELS, OTHER, LEVELS[::-1]], ids=["same", "other", "reversed"])
def test_full_matrices_that_commute_are_as_their_diagonals(second: np.ndarray) -> None:
    # "reversed": C° has coinciding eigenvalues where the classes have not; its basis will not do.
    means = np.random.default_rng(1).normal(size=(2, P))
    full = classes_of(np.stack([rotated(LEVELS), rotated(second)]), means)
    diagonal = classes_of(np.stack([LEVELS, second]), means @ BASIS)
    assert full.shared_basis
    np.testing.assert_allclose(full.eigenvalues, diagonal.eigenvalues, atol=1e-12)
    np.testing.assert_allclose(full.weights, diagonal.weights)
    # Within a group the basis is free; the means' part in the group is not.
    for k in range(len(full.weights)):
        inner = [c.means[c.group == k].T @ c.means[c.group == k] for c in (full, diagonal)]
        np.testing.assert_allclose(inner[0], inner[1], atol=1e-12)


def test_directions_without_variance_are_exactly_zero() -> None:
    singular = np.where(np.arange(P) < 5, 0.0, 2.0)
    classes = classes_of(np.stack([rotated(singular), rotated(singular)]))
    np.testing.assert_allclose(classes.eigenvalues, [[0.0, 0.0], [2.0, 2.0]], atol=1e-12)
    assert (classes.eigenvalues[0] == 0.0).all()


def test_matrices_that_do_not_commute_share_their_mean() -> None:
    covariances = np.stack([rotated(LEVELS), np.diag(OTHER)])
    classes = classes_of(covariances)
    assert not classes.shared_basis
    np.testing.assert_array_equal(classes.eigenvalues[:, 0], classes.eigenvalues[:, 1])
    mean = np.sort(classes.eigenvalues[classes.group][:, 0])
    np.testing.assert_allclose(mean, np.linalg.eigvalsh(covariances.mean(axis=0)), rtol=1e-10)


def test_mean_covariance_has_the_class_sizes_as_weights() -> None:
    mixture = GaussianMixture(np.eye(2, P), np.stack([LEVELS, OTHER]), [0.25, 0.75])
    X, y = mixture.sample(40, rng=0)
    spectrum = mixture.statistics(X, y).covariance_spectrum
    expected = np.unique(0.25 * LEVELS + 0.75 * OTHER)
    np.testing.assert_allclose(spectrum.eigenvalues, expected)
    assert spectrum.is_population


def test_estimates_know_nothing_of_single_classes() -> None:
    X, y = GaussianMixture(np.eye(2, P), 1.0).sample(40, rng=0)
    spectrum = MixtureStatistics.estimate(X, y).covariance_spectrum
    assert spectrum.classes is None
    assert not spectrum.is_population
