"""The numbers of the page "Neural collapse and the layer-peeled model", K_A = K_B = 2.

Run ``python -m experiments.theory.collapse``; takes a minute, NumPy and SciPy only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax, softmax

Array = NDArray[np.float64]
K = 4
SIDE = np.array([1.0, 1.0, -1.0, -1.0]) / 2
MAJORITY, MINORITY = np.array([[1, 1, 0, 0], [0, 0, 1, 1]]) / np.sqrt(2)
DIFFERENCES = [np.outer(v, v) / 2 for v in ([1, -1, 0, 0], [0, 0, 1, -1])]


def weights(R: float) -> Array:
    """Share of each class."""
    return np.array([R, R, 1.0, 1.0]) / (2 * R + 2)


def budget_weights(R: float, budget: str) -> Array:
    """Diagonal of D: ones for the class budget."""
    return np.ones(K) if budget == "class" else np.sqrt(K * weights(R))


def loss(L: Array, R: float) -> float:
    """Mean cross-entropy of class logits (columns)."""
    return float(-weights(R) @ np.diag(log_softmax(L, axis=0)))


def optimum(R: float, C: float, budget: str, collapsed: bool) -> tuple[Array, float]:
    """Best logits with the symmetry of the problem, ‖L D‖_* = KC."""
    D = budget_weights(R, budget)

    def logits(x: Array) -> Array:
        s_a, s_b, u, v = np.abs(x) if len(x) == 4 else np.abs([x[0], 0.0, x[1], x[2]])
        nuclear = s_a * D[0] + s_b * D[-1] + np.hypot(u * D[0], v * D[-1])
        sides = np.outer(SIDE, u * MAJORITY - v * MINORITY)
        return K * C / nuclear * (s_a * DIFFERENCES[0] + s_b * DIFFERENCES[1] + sides)

    options = {"xatol": 1e-13, "fatol": 1e-16, "maxiter": 20000, "maxfev": 20000}
    starts = ([1.0, 1.0, 1.0], [1.0, 1.0, 0.5]) if collapsed else ([1.0] * 4, [1, 0.3, 1, 0.5])
    results = [
        minimize(lambda x: loss(logits(x), R), start, method="Nelder-Mead", options=options)
        for start in starts
    ]
    best = min(results, key=lambda result: result.fun)
    return logits(best.x), float(best.fun)


def threshold(C: float, budget: str) -> float:
    """R* with R = 1/(1 − P_own + P_other), squared for the sample budget."""

    def gap(R: float) -> float:
        p = softmax(optimum(R, C, budget, collapsed=True)[0][:, 0])
        bound = 1 / (1 - p[0] + p[1])
        return R - (bound if budget == "class" else bound**2)

    return float(brentq(gap, 1.01, 2000.0, xtol=1e-7))


def feature_simplex_errors(R: float, C: float) -> list[float]:
    """NC2 of the features with the class-balanced and with the sample mean (class budget)."""
    L, _ = optimum(R, C, "class", collapsed=False)
    _, s, Vt = np.linalg.svd(L)
    H = np.sqrt(s)[:, None] * Vt
    T = (np.eye(K) - 1 / K) / np.sqrt(K - 1)
    errors = []
    for mean in (H.mean(axis=1), H @ weights(R)):
        gram = (H - mean[:, None]).T @ (H - mean[:, None])
        errors.append(float(np.linalg.norm(gram / np.linalg.norm(gram) - T)))
    return errors


def direct_cosine(R: float, C: float) -> float:
    """Cosine of the two minority classifiers, minimising over W and H without symmetry."""

    def objective(x: Array) -> tuple[float, Array]:
        W, H = x.reshape(2, K, K)
        nw, nh = np.linalg.norm(W), np.linalg.norm(H)
        L = K * C * W @ H / (nw * nh)
        slope = (softmax(L, axis=0) - np.eye(K)) * weights(R)
        radial = (slope * L).sum()
        gw = K * C / (nw * nh) * slope @ H.T - radial * W / nw**2
        gh = K * C / (nw * nh) * W.T @ slope - radial * H / nh**2
        return loss(L, R), np.concatenate([gw.ravel(), gh.ravel()])

    start = np.random.default_rng(0).standard_normal(2 * K * K)
    options = {"gtol": 1e-10, "maxiter": 5000}
    W = minimize(objective, start, jac=True, method="BFGS", options=options).x[: K * K]
    rows = W.reshape(K, K) - W.reshape(K, K).mean(axis=0)
    return float(rows[2] @ rows[3] / (np.linalg.norm(rows[2]) * np.linalg.norm(rows[3])))


if __name__ == "__main__":
    closed = np.log(1 + (K - 1) * np.exp(-K * 1.3 / (K - 1)))
    found = optimum(1.0, 1.3, "class", collapsed=False)[1]
    print(f"balanced loss, C = 1.3: found {found:.12f}, closed form {closed:.12f}")
    for C in (1.0, 1.5, 2.0, 3.0):
        print(f"class budget, C = {C}: R* {threshold(C, 'class'):.5g}")
    for C in (1.0, 1.5, 2.0):
        print(f"sample budget, C = {C}: R* {threshold(C, 'sample'):.5g}")
    balanced, sample = feature_simplex_errors(10.0, 4.0)
    print(f"NC2 with the class-balanced mean {balanced:.3f}, with the sample mean {sample:.3f}")
    for R in (3.2, 3.37, 3.39, 3.6):
        print(f"C = 1, R = {R}: cosine {direct_cosine(R, 1.0):.3f}")
