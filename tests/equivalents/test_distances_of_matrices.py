"""Norms of matrices, operators and differences, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

import notsodeep as nsd
from notsodeep.equivalents.distances import difference_norms, operator_norm
from notsodeep.equivalents.structured_matrix import StructuredMatrix, row_blocks


def symmetric(n: int, seed: int = 0) -> np.ndarray:
    A = np.random.default_rng(seed).normal(size=(n, n))
    return A + A.T


@pytest.mark.parametrize("n", [1, 2, 50, 200, 201, 400])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_operator_norm(n: int, sign: float) -> None:
    A = sign * symmetric(n) + sign * 3.0 * np.eye(n)
    expected = np.linalg.norm(A, 2)
    assert operator_norm(A) == pytest.approx(expected, rel=1e-8)
    assert operator_norm(aslinearoperator(A)) == pytest.approx(expected, rel=1e-8)
    assert operator_norm(A) == operator_norm(A)  # a fixed start


def test_zero_matrix() -> None:
    assert operator_norm(np.zeros((300, 300))) == 0.0
    assert operator_norm(aslinearoperator(np.zeros((300, 300)))) == 0.0


def structured(n: int, p: int, linear: float, seed: int = 0) -> StructuredMatrix:
    rng = np.random.default_rng(seed)
    X = np.random.default_rng(7).normal(size=(n, p))
    return StructuredMatrix(X, linear, rng.normal(size=(n, 2)), np.diag([1.0, -0.5]), 0.4)


@pytest.mark.parametrize(("n", "p"), [(300, 20), (150, 20), (250, 600), (1100, 5)])
def test_differences(n: int, p: int) -> None:
    left, right = structured(n, p, 0.5), structured(n, p, 0.8, seed=1)
    A = left.to_dense() - right.to_dense()
    expected = np.abs(np.linalg.eigvalsh(A)).max()
    pairs = [
        (left, right),
        (right, left),
        (left.to_dense(), right),
        (left, right.to_dense()),
        (left.to_dense(), right.to_dense()),
    ]
    for pair in pairs:
        operator, frobenius = difference_norms(*pair)
        assert operator == pytest.approx(expected, rel=1e-8)
        assert frobenius == pytest.approx(np.linalg.norm(A), rel=1e-10)
    operator, frobenius = difference_norms(aslinearoperator(left.to_dense()), right)
    assert operator == pytest.approx(expected, rel=1e-8)
    assert frobenius is None  # it has no rows to offer


@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_kernel_operator_minus_equivalent(kind: str) -> None:
    mixture = nsd.data.paper_mixture(dimension=400)
    X, y = mixture.sample(320, rng=0)
    stats = mixture.statistics(X, y)
    deq = nsd.DeepEquilibrium("swish", sigma_a2=0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, y, mixture, kind=kind, convention="preactivation")
    exact = nsd.KernelOperator(deq, X, kind=kind, convention="preactivation")
    dense = np.linalg.norm(
        nsd.kernel(deq, X, kind=kind, convention="preactivation") - eq.to_dense(), 2
    )
    assert difference_norms(exact, eq)[0] == pytest.approx(dense, rel=1e-7)
    assert operator_norm(exact - eq) == pytest.approx(dense, rel=1e-7)


def test_blocks_cover_the_rows() -> None:
    for n in (1, 1023, 1024, 1025, 5000):
        rows = np.concatenate([np.arange(n)[block] for block in row_blocks(n)])
        assert np.array_equal(rows, np.arange(n))
