"""Gradient flow with a kernel, stopped at many times at the price of one decomposition."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.kernel_solvers import requirements
from notsodeep.kernel_solvers.spectral_basis import SpectralBasis, kept_basis, spectral_basis
from notsodeep.records import NOT_STORED, Plotted


@dataclass(frozen=True, eq=False, repr=False)
class EarlyStoppingPath(Plotted):
    """Fits Kα(t) of the flow dα/dt = Y − Kα from α = 0; squared errors are means over entries.

    Attributes
    ----------
    times : ndarray of shape (m,)
        t; 1/t plays the part of a ridge.
    training_error : ndarray of shape (m,)
        Mean of (Y − Kα)².
    effective_dimension : ndarray of shape (m,)
        tr(I − exp(−tK)).
    effective_dimension_error : ndarray of shape (m,)
        Its standard error; 0 for a matrix.
    generalised_cross_validation : ndarray of shape (m,)
        training_error/(1 − effective_dimension/n)².
    residual : ndarray of shape (m,)
        How far Kα leaves the Krylov space, over ‖Y‖, worst column, and rounding errors of K.
    tolerance : float
        Above which residual an α is not called a solution.

    Examples
    --------
    >>> path = early_stopping_path(np.diag([1.0, 0.01]), [1.0, 1.0], [0.1, 1.0, 10.0])
    >>> path.training_error.round(3), path.effective_dimension.round(3)
    (array([0.908, 0.558, 0.409]), array([0.096, 0.642, 1.095]))
    """

    _drawing = "early_stopping"

    times: FloatArray
    training_error: FloatArray
    effective_dimension: FloatArray
    effective_dimension_error: FloatArray
    generalised_cross_validation: FloatArray
    residual: FloatArray
    tolerance: float
    _shape: tuple[int, ...]
    _spectral_basis: SpectralBasis | None = field(default=None, repr=False, metadata=NOT_STORED)

    @property
    def _basis(self) -> SpectralBasis:
        return kept_basis(self._spectral_basis, "EarlyStoppingPath", "early_stopping_path")

    def best(self) -> float:
        """Return the time with the lowest score (GCV), of those followed to the tolerance."""
        followed = self.residual <= self.tolerance
        if not followed.any():
            self._require(self.times)
        return float(self.times[followed][np.argmin(self.generalised_cross_validation[followed])])

    def coefficients(self, time: float, *, raises: bool = True) -> FloatArray:
        """Return α(t) = K⁻¹(I − exp(−tK)) Y, shaped as Y.

        Raises
        ------
        NotConverged
            Its residual is above the tolerance of the path; not with ``raises=False``.
        """
        t = checks.positive_number(time, "time", "EarlyStoppingPath.coefficients")
        if raises:
            self._require(np.array([t]))
        return self._basis.combine(_flow(self._basis.values, t)).reshape(self._shape)

    def _require(self, times: FloatArray) -> None:
        """Raise `NotConverged` unless the flow is known at these times, shape (m,)."""
        residual = max(self._basis.residual(_flow(self._basis.values, t)) for t in times)
        if not residual <= self.tolerance:
            raise NotConverged(
                f"The flow up to time {times.max():g} was not followed to a relative "
                f"{self.tolerance:g} (residual {residual:.3g}, of the Krylov space and of rounding "
                "errors). Stop earlier, or allow more steps if K is an operator.",
                self,
            )


def _exponent(values: FloatArray, time: float) -> FloatArray:
    """−tw, cut off at 100: eigenvalues that are rounding errors below zero grow without bound."""
    return np.asarray(np.minimum(-time * values, 100.0))


def _flow(values: FloatArray, time: float) -> FloatArray:
    """(1 − exp(−tw))/w, and its limit t at w = 0."""
    exponent = _exponent(values, time)
    # The next term of the limit's series, tw/2, is below rounding; expm1 is exact for all others.
    small = np.abs(exponent) < 1e-16
    safe = np.where(small, 1.0, values)
    return np.where(small, time, -np.expm1(exponent) / safe)


def early_stopping_path(
    K: FloatArray | LinearOperator,
    Y: ArrayLike,
    times: ArrayLike,
    *,
    tolerance: float = 1e-6,
    max_steps: int = 200,
    probes: int = 10,
    rng: int | np.random.Generator = 0,
    raises: bool = True,
) -> EarlyStoppingPath:
    """Follow gradient flow on ½‖Y − Kα‖² in the kernel's metric and score each time.

    dα/dt = Y − Kα, so that Kα(t) = (I − exp(−tK)) Y: the training of an infinitely wide network
    (tangent kernel) by small steps of gradient descent, t = number of steps × learning rate.

    Parameters
    ----------
    K, Y, tolerance, max_steps, probes, rng, raises
        As for `ridge_path`.
    times : array_like of shape (m,)
        t > 0.

    Examples
    --------
    >>> path = early_stopping_path(np.diag([1.0, 2.0]), [1.0, 1.0], [0.5, 50.0])
    >>> path.coefficients(50.0)
    array([1. , 0.5])
    """
    owner = "early_stopping_path"
    given = requirements.regression_targets(
        Y, requirements.symmetric_matrix(K, owner).shape[0], owner
    )
    moments = requirements.ridges(times, owner, "times")
    rtol = checks.positive_number(tolerance, "tolerance", owner)
    basis, residual = spectral_basis(
        K, given.reshape(len(given), -1), lambda w: np.array([_flow(w, t) for t in moments]),
        tolerance=rtol, max_steps=max_steps, probes=probes, rng=rng, owner=owner,
    )  # fmt: skip
    entries, lowest = given.size, basis.lowest()
    training = (
        np.array([basis.squared(np.exp(_exponent(basis.values, t))) for t in moments]) / entries
    )
    traces = [basis.trace(lambda w, t=t: -np.expm1(_exponent(w, t))) for t in moments]  # type: ignore[misc]
    dimension, error = np.array(traces).T
    # The score does not feel a factor common to all of the filter, and this one keeps late times
    # from underflow.
    scores = [basis.score(lambda w, t=t: np.exp(-t * (w - lowest)), entries) for t in moments]  # type: ignore[misc]
    path = EarlyStoppingPath(
        moments, training, dimension, error, np.array(scores), residual, rtol, given.shape, basis
    )
    if raises:
        path._require(moments)
    return path
