"""The exact kernel of a DEQ as scikit-learn's own kind of kernel."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.kernels import KernelOperator
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, DeepEquilibrium, KernelName, kernel_name

POINTS = 7
"""Chebyshev points of the derivative in θ = log σa²."""

HALF_WIDTH = 0.05
"""Of the points in θ, where σa² is small; less towards σa² = 1, which has to stay out of reach."""


class EquilibriumKernel(Kernel):  # type: ignore[misc]  # scikit-learn has no types
    """The exact kernel of a DEQ, for every place where scikit-learn takes a kernel.

    In ``GaussianProcessRegressor(kernel=…)`` it can be added to and multiplied with other kernels,
    and σa² is found with the other hyper-parameters; like all of them it is searched for on a
    logarithmic scale, θ = log σa².  As ``kernel=`` of `SVC`, `KernelRidge`, `KernelPCA` and all
    others that take a callable, it is given whole matrices.  (A function or a lambda is not:
    `KernelRidge` and `KernelPCA` call those once for every *pair of rows*.  Two single rows give
    one number here, so that such code is right, but each takes about ten milliseconds.)

    Parameters
    ----------
    activation : str or Activation, default "relu"
        φ; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float, default 0.2
        σa², the share of variance that comes back through the recurrent weights.
    kind : {"ntk", "ck"}
    convention : {"feature", "preactivation"}
    sigma_a2_bounds : pair of float, or "fixed"
        Between which σa² is searched for; "fixed" leaves it alone.

    Notes
    -----
    The kernel is computed on the data as it is given.  The theory is about centred data of norm
    about one: put a `TheoryScaler` before the estimator.

    Examples
    --------
    >>> from sklearn.svm import SVC
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.pipeline import make_pipeline
    >>> from notsodeep.estimators import EquilibriumKernel, TheoryScaler
    >>> X, y = load_digits(return_X_y=True)
    >>> svc = make_pipeline(TheoryScaler(), SVC(kernel=EquilibriumKernel("tanh"), C=10.0))
    >>> svc.fit(X[:600], y[:600]).score(X[600:], y[600:]) > 0.92
    True
    """

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        kind: KernelName = "ntk",
        convention: Convention = "feature",
        sigma_a2_bounds: tuple[float, float] | str = (1e-5, 0.9),
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.kind = kind
        self.convention = convention
        self.sigma_a2_bounds = sigma_a2_bounds

    @property
    def hyperparameter_sigma_a2(self) -> Hyperparameter:
        """What scikit-learn's optimiser knows about σa²."""
        return Hyperparameter("sigma_a2", "numeric", self.sigma_a2_bounds)

    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: bool = False
    ) -> Any:
        """Compute the kernel, and its gradient in θ = log σa².

        Parameters
        ----------
        X : array_like of shape (n, p), or one row (p,)
        Y : array_like of shape (m, p), or one row (p,), optional
        eval_gradient : bool
            Only without Y, as scikit-learn wants it.

        Returns
        -------
        ndarray of shape (n, n) or (n, m), or a number for two rows
        ndarray of shape (n, n, 1) or (n, n, 0)
            With `eval_gradient`; empty along the last axis where σa² is fixed.
        """
        owner = type(self).__name__
        if eval_gradient and Y is not None:
            raise InvalidInput("Y must be None with eval_gradient=True.")
        if Y is not None and np.ndim(X) == 1 and np.ndim(Y) == 1:
            left = checks.plain_array(X, "X", owner)
            right = checks.plain_array(Y, "Y", owner)
            return float(self(left[None, :], right[None, :])[0, 0])
        rows, others = checks.samples(X, "X", owner), None
        if Y is not None and Y is not X:
            others = checks.samples(Y, "Y", owner)
        matrix = self._kernel(self.sigma_a2, rows, others)
        if not eval_gradient:
            return matrix
        if self.hyperparameter_sigma_a2.fixed:
            return matrix, np.empty((*matrix.shape, 0))
        return matrix, self._derivative(rows)[:, :, None]

    def diag(self, X: ArrayLike) -> FloatArray:
        """Compute the diagonal of ``self(X)``, shape (n,), and nothing else of it."""
        rows = checks.samples(X, "X", type(self).__name__)
        model = DeepEquilibrium(self.activation, self.sigma_a2)
        kind, convention = kernel_name(self.kind, "kind"), self.convention
        return KernelOperator(model, rows, kind=kind, convention=convention).diagonal()

    def is_stationary(self) -> bool:
        """Whether the kernel depends on differences only: no, on norms and inner products."""
        return False

    def _kernel(self, sigma_a2: float, X: FloatArray, Y: FloatArray | None = None) -> FloatArray:
        model, kind = DeepEquilibrium(self.activation, sigma_a2), kernel_name(self.kind, "kind")
        return np.asarray(exact_kernel(model, X, Y, kind=kind, convention=self.convention))

    def _derivative(self, X: FloatArray) -> FloatArray:
        """Compute σa² ∂K/∂σa², shape (n, n).

        σb² = 1 − σa² changes along, and so do the variances q of the samples.
        """
        sigma_a2 = float(self.sigma_a2)
        if not sigma_a2 > 0.0:
            raise InvalidInput(
                f"sigma_a2 must be positive for a gradient, got {sigma_a2:g}. At 0 set "
                "sigma_a2_bounds='fixed': it has no logarithm to search in."
            )
        points, weights = _differentiation_rule()
        half = HALF_WIDTH * (1.0 - sigma_a2)
        total = np.zeros((len(X), len(X)))
        for node, weight in zip(sigma_a2 * np.exp(half * points), weights / half, strict=True):
            total += weight * self._kernel(float(node), X)
        return total

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.activation}, sigma_a2={self.sigma_a2:.3g}, {self.kind})"


@functools.cache
def _differentiation_rule() -> tuple[FloatArray, FloatArray]:
    """Return points x_k in (−1, 1) and weights w_k with f′(0) ≈ Σ w_k f(x_k), without x = 0.

    Exact for polynomials of degree six; Σ w_k T_j(x_k) = T_j′(0) for the Chebyshev polynomials.
    """
    points = chebyshev.chebpts1(POINTS)
    slopes = [chebyshev.chebval(0.0, chebyshev.chebder(unit)) for unit in np.eye(POINTS)]
    weights = np.linalg.solve(chebyshev.chebvander(points, POINTS - 1).T, np.array(slopes))
    used = points != points[POINTS // 2]  # the middle one has no weight, by symmetry
    return points[used], np.asarray(weights[used], dtype=np.float64)
