"""Ridge regression of targets on features, by the smaller of the two Gram matrices."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpocon

from notsodeep import checks
from notsodeep.arrays import FloatArray

Side = Literal["samples", "features"]


class RidgeFit(NamedTuple):
    """Weights, and how well the system behind them was solved."""

    weights: FloatArray  # (K, m)
    intercept: FloatArray  # (K,)
    side: Side  # which Gram matrix was factorised, F Fᵀ or Fᵀ F
    condition: float  # estimate for that matrix with the ridge added, in the 1-norm
    residual: float  # ‖(G + ridge·I) S − R‖/‖R‖ of the linear system, Frobenius norms


def fit_ridge(
    F: NDArray[Any],
    T: FloatArray,
    ridge: float,
    *,
    intercept: bool,
    owner: str,
    weights: FloatArray | None = None,
) -> RidgeFit:
    """Minimise Σ_i w_i ‖a f_i + c − t_i‖² + ridge·‖a‖² over a, shape (K, m), and c.

    a = Tᵀ F (Fᵀ F + ridge·I)⁻¹ = Tᵀ (F Fᵀ + ridge·I)⁻¹ F, with rows times √w_i, in float64.

    Parameters
    ----------
    F, T : ndarray of shape (n, m), (n, K)
        Features and targets.
    ridge : float
    intercept : bool
        Fit c too, which is not penalised; it is zero otherwise.
    owner : str
        Whom messages name.
    weights : ndarray of shape (n,), optional
        w; ones by default.

    Examples
    --------
    >>> F = np.random.default_rng(0).normal(size=(50, 3))
    >>> fit = fit_ridge(F, F @ np.ones((3, 1)) + 2.0, 1e-9, intercept=True, owner="example")
    >>> fit.side, fit.weights.round(6).tolist(), fit.intercept.round(6).tolist()
    ('features', [[1.0, 1.0, 1.0]], [2.0])
    """
    n, m = F.shape
    w = np.ones(n) if weights is None else weights
    centre, level = np.zeros(m), np.zeros(T.shape[1])
    if intercept:  # minimising over c leaves a fit of centred targets on centred features
        centre, level = (w / w.sum()) @ F, (w / w.sum()) @ T
    A = F.astype(np.float64)
    A -= centre
    A *= np.sqrt(w)[:, None]
    R = np.sqrt(w)[:, None] * (T - level)
    side: Side = "samples" if n <= m else "features"
    gram, right = (A @ A.T, R) if side == "samples" else (A.T @ A, A.T @ R)
    gram[np.diag_indices_from(gram)] += ridge
    # dpocon estimates ‖G⁻¹‖₁ from the factor in O(n²), and needs ‖G‖₁ of before.
    norm = float(np.abs(gram).sum(axis=0).max())
    try:
        factor = cho_factor(gram, lower=True)
        reciprocal = float(dpocon(factor[0], norm, uplo="L")[0])
    except np.linalg.LinAlgError:
        reciprocal = 0.0
    if not reciprocal > 2.2e-16:
        # It makes a condition number of 1e9, which leaves seven digits.
        remedy = f"Features are dependent or nearly so; a ridge of {1e-9 * norm:.1e} would do."
        requirement = "make the Gram matrix of the features invertible in double precision"
        raise checks.invalid("ridge", owner, requirement, f"ridge = {ridge:g}", remedy)
    solution = cho_solve(factor, right)
    checks.resolved(gram, solution, right, ridge, owner)
    size = float(np.linalg.norm(right))
    residual = float(np.linalg.norm(gram @ solution - right)) / size if size else 0.0
    slopes = (solution.T @ A) if side == "samples" else solution.T
    return RidgeFit(slopes, level - slopes @ centre, side, 1.0 / reciprocal, residual)
