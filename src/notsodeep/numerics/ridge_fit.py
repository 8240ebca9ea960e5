"""Ridge regression of targets on features, by the smaller of the two Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpocon

from notsodeep import checks
from notsodeep.arrays import FloatArray

Side = Literal["samples", "features"]

_CHUNK = 1024  # rows, or columns, of which there is a copy in float64


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Weights, and how well the system behind them was solved.

    Attributes
    ----------
    weights : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
        Zero if none was asked for.
    side : {"samples", "features"}
        Which Gram matrix was factorised, F Fᵀ or Fᵀ F.
    condition : float
        Estimated condition number of that matrix with the ridge added, in the 1-norm.
    residual : float
        ‖(G + ridge·I) S − R‖/‖R‖ of the linear system, Frobenius norms.
    """

    weights: FloatArray
    intercept: FloatArray
    side: Side
    condition: float
    residual: float


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

    a = Tᵀ F (Fᵀ F + ridge·I)⁻¹ = Tᵀ (F Fᵀ + ridge·I)⁻¹ F, with rows times √w_i.  The system is set
    up and solved in float64, without a float64 copy of F.

    Parameters
    ----------
    F : ndarray of shape (n, m)
        Features, float32 or float64.
    T : ndarray of shape (n, K)
        Targets.
    ridge : float
    intercept : bool
        Fit c too, which is not penalised; it is zero otherwise.
    owner : str
        Whom messages name.
    weights : ndarray of shape (n,), optional
        w; ones if left out.

    Raises
    ------
    InvalidInput
        The Gram matrix is singular to double precision: the ridge is too small.
    NotConverged
        Rounding errors decide the solution: the ridge is too small for these targets.

    Examples
    --------
    >>> F = np.random.default_rng(0).normal(size=(50, 3))
    >>> fit = fit_ridge(F, F @ np.ones((3, 1)) + 2.0, 1e-9, intercept=True, owner="example")
    >>> fit.side, fit.weights.round(6).tolist(), fit.intercept.round(6).tolist()
    ('features', [[1.0, 1.0, 1.0]], [2.0])
    """
    centre, level = np.zeros(F.shape[1]), np.zeros(T.shape[1])
    if intercept:
        count = len(F) if weights is None else weights.sum()
        share = (np.ones(len(F)) if weights is None else weights) / count
        # Minimising over c leaves a fit of centred targets on centred features.  Centring is done
        # block by block below, so that F is never copied as a whole.
        centre, level = share @ F, share @ T
    roots = np.ones(len(F)) if weights is None else np.sqrt(weights)
    side: Side = "samples" if len(F) <= F.shape[1] else "features"
    gram, right = _system(F, roots[:, None] * (T - level), centre, roots, side)
    gram[np.diag_indices_from(gram)] += ridge
    # dpocon estimates ‖G⁻¹‖₁ from the factor in O(n²), and needs ‖G‖₁ of before.
    norm = np.abs(gram).sum(axis=0).max()
    try:
        factor = cho_factor(gram, lower=True)
        reciprocal = float(dpocon(factor[0], norm, uplo="L")[0])
    except np.linalg.LinAlgError:
        reciprocal = 0.0
    _invertible_gram(reciprocal, ridge, float(norm), owner)
    solution = cho_solve(factor, right)
    checks.resolved(gram, solution, right, ridge, owner)
    size = np.linalg.norm(right)
    residual = np.linalg.norm(gram @ solution - right) / size if size else 0.0
    found = solution.T
    if side == "samples":
        parts = _parts(F.shape[1])
        scaled = solution.T * roots
        found = np.hstack([scaled @ (F[:, p].astype(np.float64) - centre[p]) for p in parts])
    return RidgeFit(found, level - found @ centre, side, 1.0 / reciprocal, float(residual))


def _system(
    F: NDArray[Any], T: FloatArray, centre: FloatArray, roots: FloatArray, side: Side
) -> tuple[FloatArray, FloatArray]:
    """Return the Gram matrix and the right-hand side, in float64."""
    count = len(F) if side == "samples" else F.shape[1]
    # One triangle by dsyrk is half the work of a product; it is SciPy's, as the factorisation that
    # follows, whose threads would wait for those of NumPy's BLAS.
    gram = np.zeros((count, count), order="F")
    if side == "samples":
        for part in _parts(F.shape[1]):
            block = roots[:, None] * (F[:, part].astype(np.float64) - centre[part])
            # block.T is in Fortran order as it stands, so that BLAS reads it without a copy.
            gram = dsyrk(1.0, block.T, 1.0, gram, trans=1, lower=1, overwrite_c=1)
        return _both_triangles(gram), T
    right = np.zeros((F.shape[1], T.shape[1]))
    for part in _parts(len(F)):
        block = roots[part, None] * (F[part].astype(np.float64) - centre)
        gram = dsyrk(1.0, block.T, 1.0, gram, lower=1, overwrite_c=1)
        right += block.T @ T[part]
    return _both_triangles(gram), right


def _both_triangles(lower: FloatArray) -> FloatArray:
    """Fill in what a triangle leaves at zero."""
    return np.asarray(lower + np.tril(lower, -1).T)


def _parts(count: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, count, _CHUNK)]


def _invertible_gram(reciprocal: float, ridge: float, norm: float, owner: str) -> None:
    """Require a Gram matrix whose reciprocal condition number is above the rounding error."""
    if not reciprocal > 2.2e-16:
        # It makes a condition number of 1e9, which leaves seven digits.
        remedy = f"Features are dependent or nearly so; a ridge of {1e-9 * norm:.1e} would do."
        requirement = "make the Gram matrix of the features invertible in double precision"
        raise checks.invalid("ridge", owner, requirement, f"ridge = {ridge:g}", remedy)
