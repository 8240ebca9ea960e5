"""Points on the sphere."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.data import sphere
from notsodeep.errors import InvalidInput


def test_rows_are_unit_and_uniform() -> None:
    n, d = 20_000, 5
    X = sphere(n, d, rng=0)
    np.testing.assert_allclose((X**2).sum(axis=1), 1.0, rtol=1e-14)
    assert np.abs(X.mean(axis=0)).max() < 5.0 / np.sqrt(n * d)
    # E x xᵀ = I/d; the variance of x_i² is 2(d − 1)/(d²(d + 2))
    error = np.abs(X.T @ X / n - np.eye(d) / d)
    assert error.max() < 5.0 * np.sqrt(2.0 * (d - 1) / (d**2 * (d + 2)) / n)


def test_a_seed_fixes_the_points() -> None:
    np.testing.assert_array_equal(sphere(4, 3, rng=1), sphere(4, 3, rng=np.random.default_rng(1)))
    assert (np.abs(sphere(6, 1, rng=0)) == 1.0).all()


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (2.5, 3), (3, -1)])
def test_sizes_are_positive_integers(sizes: tuple) -> None:
    with pytest.raises(InvalidInput, match="of sphere must be an integer of at least 1"):
        sphere(*sizes, rng=0)
