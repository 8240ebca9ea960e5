"""Problems without a unique answer, and problems too large: each ends in an error with a remedy."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged, NotEnoughMemory, NotSoDeepError
from notsodeep.estimators import EquilibriumKernelClassifier, EquilibriumKernelRidge
from notsodeep.kernel_solvers.paths import dense_basis
from public_calls import BASE, DEQ

TWICE = np.repeat(BASE[:4], 2, axis=0)


@pytest.mark.parametrize(
    ("solver", "ridge", "message"),
    [
        ("dense", 0.0, "be positive"),
        ("cg", 0.0, "be positive"),
        ("dense", 1e-18, "make the kernel positive definite"),
        ("cg", 1e-18, "Make it with the ridge of the system"),
        ("cg", 1e-14, "was not solved|with the ridge of the system"),
    ],
)
def test_no_ridge_with_equal_rows(solver: str, ridge: float, message: str) -> None:
    """Equal rows with unequal targets: there is no function through both."""
    model = EquilibriumKernelRidge(
        ridge=ridge, solver=solver, preprocessing="none", convention="preactivation"
    )
    with pytest.raises(NotSoDeepError, match=message):
        model.fit(TWICE, np.arange(8.0))


def test_equal_rows_with_a_ridge_share_their_targets() -> None:
    model = EquilibriumKernelRidge(
        ridge=1e-6, preprocessing="none", convention="preactivation"
    ).fit(TWICE, np.arange(8.0))
    predicted = model.predict(TWICE)
    np.testing.assert_allclose(predicted[::2], predicted[1::2], rtol=1e-9)


def test_indefinite_kernels_are_noticed() -> None:
    lopsided = np.triu(np.ones((4, 4)))
    with pytest.raises(InvalidInput, match="be symmetric"):
        nsd.kernel_solvers.solve(lopsided, np.ones(4), ridge=0.1)
    with pytest.raises(NotSoDeepError, match="positive"):
        nsd.kernel_solvers.solve(np.diag([1.0, 1.0, -1.0, 1.0]), np.ones(4), ridge=0.1)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(8, dtype=int), "class"),
        (np.array([0, 0, 0, 0, 0, 0, 0, 1]), "at least 4 samples in every class"),
        (np.arange(8), "at least 4 samples in every class"),
        (np.full(8, np.nan), "integer class labels"),
        (np.arange(7) % 2, "one label for each of the 8 rows"),
        ((np.arange(8) % 2)[:, None], "vector"),
    ],
)
def test_degenerate_classes(labels: np.ndarray, message: str) -> None:
    if labels.ndim == 1 and len(labels) == 8 and not labels.any():
        with pytest.raises(ValueError, match=message):
            EquilibriumKernelClassifier(ridge=0.1, convention="preactivation").fit(BASE, labels)
        return
    with pytest.raises(InvalidInput, match=message):
        nsd.data.MixtureStatistics.estimate(BASE, labels)


def test_classes_that_coincide_have_no_between_class_geometry() -> None:
    metrics = nsd.collapse.CollapseMetrics(num_classes=2)
    metrics.update(TWICE, np.arange(8) % 2)
    assert metrics.compute().to_dict()["overall"]["nc1"] == "Infinity"


def test_a_repelling_fixed_point_is_an_error() -> None:
    """x + x³ grows faster than any σa² damps at this scale."""
    deq = nsd.DeepEquilibrium(nsd.activations.polynomial((0.0, 1.0, 0.0, 1.0)), 0.9)
    for call in (
        lambda: nsd.kernel(deq, BASE, convention="preactivation"),
        lambda: deq.centred(1.0),
    ):
        with pytest.raises(NotConverged, match="was not found"):
            call()
    assert not nsd.conditions(deq, tau0=1.0)["existence of τ*"].holds


@pytest.mark.parametrize("n", [400_000, 2**31])
def test_kernels_beyond_memory_are_refused_before_work(n: int) -> None:
    rows = np.broadcast_to(BASE[:1, :1], (n, 1)) if n < 2**20 else None
    if rows is not None:
        with pytest.raises(NotEnoughMemory, match="KernelOperator"):
            nsd.kernel(DEQ, rows, convention="preactivation")
    with pytest.raises(NotEnoughMemory, match="GiB"):
        nsd.build(DEQ, 1, n, 1, rng=0)


def test_eigenvectors_beyond_32_bit_lapack_are_refused() -> None:
    huge = np.broadcast_to(0.0, (32_767, 32_767))
    with pytest.raises(InvalidInput, match="LAPACK"):
        dense_basis(huge, np.ones((32_767, 1)))
