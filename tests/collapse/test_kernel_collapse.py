"""Collapse from a Gram matrix: the same numbers as from its features."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.collapse import CollapseMetrics, kernel_collapse, simplex_etf
from notsodeep.errors import InvalidInput

FIELDS = [
    "nc1",
    "nc1_trace_ratio",
    "nc1_cdnv",
    "nc2_features",
    "equinorm_features",
    "equiangular_features",
    "maximal_angle_features",
    "cosine_features",
]


def cloud(seed: int = 0, d: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(4), (30, 25, 10, 5)))
    means = rng.normal(size=(4, d))
    return means[y] + 0.5 * rng.normal(size=(len(y), d)) + 0.7, y


@pytest.mark.parametrize("d", [2, 20, 200])
def test_kernel_and_features_agree(d: int) -> None:
    H, y = cloud(d=d)
    metrics = CollapseMetrics(4)
    metrics.update(H, y)
    by_features = metrics.compute()
    by_kernel = kernel_collapse(H @ H.T, y)
    summaries = [(by_features.overall, by_kernel.overall)]
    summaries += [(by_features.groups[g], by_kernel.groups[g]) for g in ("majority", "minority")]
    for expected, found in summaries:
        for name in FIELDS:
            assert found[name] == pytest.approx(expected[name], rel=1e-9), name
    np.testing.assert_allclose(by_kernel.variances, by_features.variances, rtol=1e-10)
    np.testing.assert_allclose(by_kernel.cdnv, by_features.cdnv, rtol=1e-9)
    assert by_kernel.between_rank == by_features.between_rank == min(d, 3)
    assert "no classifier was given" in by_kernel.notes


def test_collapsed_kernel_is_zero_up_to_rounding() -> None:
    E = simplex_etf(5, 9, rng=0)
    y = np.repeat(np.arange(5), 8)
    H = E[y] + 0.3
    report = kernel_collapse(H @ H.T, y)
    assert report.overall["nc1_trace_ratio"] == pytest.approx(0.0, abs=1e-14)
    assert report.overall["nc2_features"] == pytest.approx(0.0, abs=1e-13)
    assert "variance zero up to rounding: classes 0, 1, 2, 3, 4" in report.notes


def test_a_kernel_that_does_not_see_the_classes() -> None:
    y = np.repeat([0, 1], 20)
    report = kernel_collapse(np.eye(40), y)
    # independent features: means of length 1/√20 each, variance 19/20
    assert report.overall["nc1_trace_ratio"] == pytest.approx((19 / 20) / (1 / 40))
    constant = kernel_collapse(np.ones((40, 40)), y)
    assert constant.overall["nc1_trace_ratio"] == np.inf
    assert constant.between_rank == 0


def test_refusals() -> None:
    y = np.array([0, 0, 1])
    with pytest.raises(InvalidInput, match="be square"):
        kernel_collapse(np.ones((3, 2)), y)
    with pytest.raises(InvalidInput, match="symmetric, got an asymmetry of 1"):
        kernel_collapse(np.triu(np.ones((3, 3))), y)
    with pytest.raises(InvalidInput, match="class 1 empty"):
        kernel_collapse(np.eye(3), np.array([0, 0, 2]))
    with pytest.raises(InvalidInput, match="at least 2"):
        kernel_collapse(np.eye(3), np.array([0, 0, 0]))
    with pytest.raises(InvalidInput, match="a label -1"):
        kernel_collapse(np.eye(3), np.array([0, 1, -1]))
