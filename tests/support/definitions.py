"""The textbook definitions of NC1 to NC4, on arrays held whole; nothing shared with the package."""

from __future__ import annotations

import itertools

import numpy as np


def frobenius_distance(A: np.ndarray, B: np.ndarray) -> float:
    return float(np.linalg.norm(A / np.linalg.norm(A) - B / np.linalg.norm(B)))


def definitions(H: np.ndarray, y: np.ndarray, W: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Class-balanced centre, class-balanced S_W and S_B."""
    K = len(W)
    mu = np.array([H[y == k].mean(axis=0) for k in range(K)])
    M = mu - mu.mean(axis=0)
    covariances = [np.cov(H[y == k].T, bias=True) for k in range(K)]
    S_W, S_B = sum(covariances) / K, M.T @ M / K
    v = [np.trace(C) for C in covariances]
    T = np.eye(K) - 1.0 / K
    cdnv = [
        (v[j] + v[k]) / (2 * np.sum((mu[j] - mu[k]) ** 2))
        for j, k in itertools.combinations(range(K), 2)
    ]
    result = {
        "nc1": np.trace(S_W @ np.linalg.pinv(S_B, rcond=1e-12, hermitian=True)) / K,
        "nc1_trace_ratio": np.trace(S_W) / np.trace(S_B),
        "nc1_cdnv": np.mean(cdnv),
        "nc3_alignment": frobenius_distance(W @ M.T, T),
        "nc3_duality": frobenius_distance(W, M),
        "nc4": np.mean(
            (H @ W.T + b).argmax(axis=1) != np.linalg.norm(H[:, None] - mu, axis=2).argmin(axis=1)
        ),
        "nc4_of_means": np.mean((mu @ W.T + b).argmax(axis=1) != np.arange(K)),
    }
    for name, A in (("features", M), ("classifier", W)):
        lengths = np.linalg.norm(A, axis=1)
        cosines = [
            A[j] @ A[k] / (lengths[j] * lengths[k]) for j, k in itertools.combinations(range(K), 2)
        ]
        result |= {
            f"nc2_{name}": frobenius_distance(A @ A.T, T),
            f"equinorm_{name}": np.std(lengths) / np.mean(lengths),
            f"equiangular_{name}": np.std(cosines),
            f"maximal_angle_{name}": np.mean(np.abs(np.array(cosines) + 1 / (K - 1))),
            f"cosine_{name}": np.mean(cosines),
        }
    return {name: float(value) for name, value in result.items()}
