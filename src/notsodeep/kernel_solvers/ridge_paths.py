"""Ridge regression with a kernel for many λ at the price of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import LimitingSpectrum
from notsodeep.errors import InvalidInput
from notsodeep.kernel_solvers import requirements
from notsodeep.kernel_solvers.spectral_basis import SpectralBasis, kept_basis, spectral_basis
from notsodeep.records import NOT_STORED, Plotted

Score = Literal["generalised_cross_validation", "leave_one_out"]


@dataclass(frozen=True, eq=False, repr=False)
class RidgePath(Plotted):
    """Fits Kα, (K + λI) α = Y, for many λ; squared errors are means over all entries of Y.

    Attributes
    ----------
    ridges : ndarray of shape (m,)
        λ, as given.
    training_error : ndarray of shape (m,)
        Mean of (Y − Kα)².
    effective_dimension : ndarray of shape (m,)
        tr K(K + λI)⁻¹.
    effective_dimension_error : ndarray of shape (m,)
        Its standard error; 0 for a matrix.
    generalised_cross_validation : ndarray of shape (m,)
        training_error/(1 − effective_dimension/n)².
    leave_one_out : ndarray of shape (m,) or None
        Mean squared error of each sample's prediction from all the others, in closed form: the
        residual α_i/[(K + λI)⁻¹]_ii.  None for an operator, whose inverse has no known diagonal.
    residual : ndarray of shape (m,)
        ‖Y − (K + λI) α‖/‖Y‖ of the worst column, rounding errors of K included.
    tolerance : float
        Above which residual an α is not called a solution.

    Examples
    --------
    >>> K, y = np.diag([4.0, 1.0, 0.1]), np.array([2.0, 1.0, 0.0])
    >>> path = ridge_path(K, y, [0.1, 1.0, 10.0])
    >>> path.training_error.round(4), path.effective_dimension.round(4)
    (array([0.0035, 0.1367, 0.9558]), array([2.3847, 1.3909, 0.3865]))
    >>> path.coefficients(1.0)
    array([0.4, 0.5, 0. ])
    """

    _drawing = "ridge_path"

    ridges: FloatArray
    training_error: FloatArray
    effective_dimension: FloatArray
    effective_dimension_error: FloatArray
    generalised_cross_validation: FloatArray
    leave_one_out: FloatArray | None
    residual: FloatArray
    tolerance: float
    _shape: tuple[int, ...]
    _spectral_basis: SpectralBasis | None = field(default=None, repr=False, metadata=NOT_STORED)

    @property
    def _basis(self) -> SpectralBasis:
        return kept_basis(self._spectral_basis, "RidgePath", "ridge_path")

    def best(self, score: Score = "generalised_cross_validation") -> float:
        """Return the λ of the path with the lowest score, of those solved to the tolerance."""
        known = ["generalised_cross_validation"]
        known += ["leave_one_out"] if self.leave_one_out is not None else []
        checks.known_name(score, known, "score of RidgePath.best")
        solved = self.residual <= self.tolerance
        if not solved.any():
            self._require(self.ridges)
        return float(self.ridges[solved][np.argmin(getattr(self, score)[solved])])

    def coefficients(self, ridge: float, *, raises: bool = True) -> FloatArray:
        """Return α = (K + λI)⁻¹ Y, shaped as Y, for any λ.

        Raises
        ------
        NotConverged
            Its residual is above the tolerance of the path; not with ``raises=False``.
        """
        level = checks.positive_number(ridge, "ridge", "RidgePath.coefficients")
        weights = self._weights(level, raises=raises)
        return self._basis.combine(weights).reshape(self._shape)

    def leave_one_out_residuals(self, ridge: float, *, raises: bool = True) -> FloatArray:
        """Return y_i minus its prediction from all other samples, shaped as Y; of a matrix only.

        Raises as `coefficients` does.
        """
        level = checks.positive_number(ridge, "ridge", "RidgePath.leave_one_out_residuals")
        _whole_spectrum(self.leave_one_out is not None, "leave_one_out_residuals")
        weights = self._weights(level, raises=raises)
        inverse = self._basis.diagonal(weights[:, None])
        return np.asarray((self._basis.combine(weights) / inverse).reshape(self._shape))

    def _weights(self, ridge: float, *, raises: bool) -> FloatArray:
        if raises:
            self._require(np.array([ridge]))
        return np.asarray(1.0 / (self._basis.values + ridge))

    def _require(self, ridges: FloatArray) -> None:
        """Raise `NotConverged` unless every α for these λ, shape (m,), is a solution."""
        values = self._basis.values
        weights = 1.0 / (values + ridges[:, None])
        residuals = np.array([self._basis.residual(row) for row in weights])
        # The smallest ridge is the hardest.
        rounding = self._basis.outside(weights[ridges.argmin()]) <= self.tolerance
        norm = float(np.abs(values).max())
        requirements.ridges_solved(ridges, residuals, self.tolerance, rounding, norm, self)

    def predicted_risk(self, law: LimitingSpectrum) -> FloatArray:
        """Return generalised cross-validation with the effective dimension that a law predicts.

        It needs no trace of the kernel: of use for an operator, and to see how far the limiting
        spectrum is right about the data.
        """
        share = predicted_effective_dimension(law, self.ridges) / self._shape[0]
        return np.asarray(self.training_error / (1.0 - share) ** 2)


def ridge_path(
    K: FloatArray | LinearOperator,
    Y: ArrayLike,
    ridges: ArrayLike,
    *,
    tolerance: float = 1e-6,
    max_steps: int = 200,
    probes: int = 10,
    rng: int | np.random.Generator = 0,
    raises: bool = True,
) -> RidgePath:
    """Solve (K + λI) α = Y for many λ and score each.

    A matrix is decomposed once.  An operator is multiplied with blocks of as many vectors as Y has
    until one Krylov space holds the solutions for every λ; traces are estimated with random probes.
    The smallest λ decides how large the space must be, and it cannot be preconditioned: for single
    small λ at large n use `solve`.

    Parameters
    ----------
    K : ndarray or LinearOperator of shape (n, n)
        Symmetric, positive semidefinite.
    Y : array_like of shape (n,) or (n, k)
        Targets; centre them if the fit is to have a mean.
    ridges : array_like of shape (m,)
        λ > 0, added to the diagonal of K as it is.
    tolerance : float
        Relative residual.  Rounding errors of a matrix leave one of 2.2e-16·‖K‖·‖α‖/‖Y‖.
    max_steps, probes, rng
        Concern operators only: most block products, random vectors for traces.
    raises : bool, default True
        Raise `NotConverged` if the residual of some λ stays above the tolerance.

    Raises
    ------
    NotConverged
        Its `record` is the path.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(60, 20, rng=0)
    >>> K = nsd.tangent_kernel(nsd.DeepEquilibrium("tanh", 0.2), X)
    >>> path = ridge_path(K, X[:, 0], [1e-3, 1e-2, 0.1, 1.0])
    >>> path.best("leave_one_out"), path.coefficients(0.1).shape
    (0.001, (60,))
    """
    owner = "ridge_path"
    given = requirements.regression_targets(
        Y, requirements.symmetric_matrix(K, owner).shape[0], owner
    )
    levels = requirements.ridges(ridges, owner)
    rtol = checks.positive_number(tolerance, "tolerance", owner)
    basis, residuals = spectral_basis(
        K, given.reshape(len(given), -1), lambda w: 1.0 / (w + levels[:, None]),
        tolerance=rtol, max_steps=max_steps, probes=probes, rng=rng, owner=owner,
    )  # fmt: skip
    _positive_spectrum(float(basis.values.min()), float(levels.min()), owner)
    path = _scored(basis, levels, residuals, rtol, given.shape)
    if raises:
        path._require(levels)
    return path


def _scored(
    basis: SpectralBasis,
    levels: FloatArray,
    residual: FloatArray,
    tolerance: float,
    shape: tuple[int, ...],
) -> RidgePath:
    entries = int(np.prod(shape))
    values = basis.values
    training = np.array([basis.squared(level / (values + level)) for level in levels]) / entries
    traces, scores = [], []
    for level in levels:
        traces.append(basis.trace(lambda w, level=level: w / (w + level)))  # type: ignore[misc]
        scores.append(basis.score(lambda w, level=level: level / (w + level), entries))  # type: ignore[misc]
    dimension, error = np.array(traces).T
    leave_one_out = None
    if basis.density is None:
        inverse = basis.diagonal(1.0 / (values[:, None] + levels))
        leave_one_out = np.array(
            [
                np.square(basis.combine(1.0 / (values + level)) / inverse[:, [j]]).mean()
                for j, level in enumerate(levels)
            ]
        )
    return RidgePath(
        levels,
        training,
        dimension,
        error,
        np.array(scores),
        leave_one_out,
        residual,
        tolerance,
        shape,
        basis,
    )


def _positive_spectrum(least: float, ridge: float, owner: str) -> None:
    """Require that the smallest ridge makes the kernel positive definite."""
    if not least + ridge > 0.0:
        requirement = f"exceed {-least:.3g}, so that K + λI is positive definite"
        raise checks.invalid("ridges", owner, requirement, ridge)


def _whole_spectrum(known: bool, wanted: str) -> None:
    """Require a path of a matrix, for what needs every eigenvector."""
    if not known:
        raise InvalidInput(
            f"{wanted} of RidgePath must be asked of the path of a matrix. Got that of an "
            "operator. Pass the kernel as an array, or use generalised_cross_validation."
        )


def predicted_effective_dimension(law: LimitingSpectrum, ridges: ArrayLike) -> FloatArray:
    """Return tr K(K + λI)⁻¹ for every λ, as the limiting spectrum predicts it.

    No kernel is evaluated.  `RidgePath.effective_dimension` is the same of the kernel itself.
    Nothing is integrated either: with the bulk at a·t + γ and s = (γ + λ)/a, the average over it
    follows from the equation at z = −s, where ∫ t/(t + s) dμ(t) = Σ_a (n_a/n) δ_a/(1 + δ_a).

    Parameters
    ----------
    law : LimitingSpectrum
        From `limiting_spectrum`.
    ridges : array_like of shape (m,)
        λ > 0.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(100, 400, rng=0)
    >>> eq = nsd.sphere_equivalent(nsd.ExplicitNetwork(["relu"]), X)
    >>> predicted_effective_dimension(nsd.limiting_spectrum(eq), [0.01, 1.0]).round(1)
    array([96.8, 25.5])
    """
    levels = requirements.ridges(ridges, "predicted_effective_dimension")
    linear = np.zeros(levels.shape)
    if law.bulk is not None:
        equation = law.bulk.equation
        delta = equation.solve(-(law.shift + levels) / law.scale).real
        linear = (delta / (1.0 + delta)) @ (equation.ratios / equation.ratios.sum())
    # (at + γ)/(at + γ + λ) averaged over t: with s = (γ + λ)/a it is (γ + λ·t/(t + s))/(γ + λ).
    bulk = (law.shift + levels * linear) / (law.shift + levels)
    spikes = np.array([spike.value for spike in law.spikes])
    beyond = (spikes / (spikes + levels[:, None])).sum(axis=1)
    return np.asarray((law.size - len(spikes)) * bulk + beyond)
