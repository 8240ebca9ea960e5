"""The exact kernel of a DEQ as scikit-learn's own kind of kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.estimators.kernel_matrices import (
    checked_model,
    kernel_diagonal,
    kernel_matrix,
    log_sigma_derivative,
)
from notsodeep.models import Convention, DeepEquilibrium, KernelName, kernel_name


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
    convention : {"preactivation", "feature"}
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
            raise checks.invalid("Y", owner, "be left out with eval_gradient=True", "a Y")
        if Y is not None and np.ndim(X) == 1 and np.ndim(Y) == 1:
            left = checks.plain_array(X, "X", owner)
            right = checks.plain_array(Y, "Y", owner)
            return float(self(left[None, :], right[None, :])[0, 0])
        rows, others = checks.samples(X, "X", owner), None
        if Y is not None and Y is not X:
            others = checks.samples(Y, "Y", owner)
        model, choice = self._model(), self._choice()
        matrix = kernel_matrix(model, rows, others, **choice)
        if not eval_gradient:
            return matrix
        if self.hyperparameter_sigma_a2.fixed:
            return matrix, np.empty((*matrix.shape, 0))
        return matrix, log_sigma_derivative(model, rows, **choice)[:, :, None]

    def diag(self, X: ArrayLike) -> FloatArray:
        """Compute the diagonal of ``self(X)``, shape (n,), and nothing else of it."""
        rows = checks.samples(X, "X", type(self).__name__)
        return kernel_diagonal(self._model(), rows, **self._choice())

    def is_stationary(self) -> bool:
        """Whether the kernel depends on differences only: no, on norms and inner products."""
        return False

    def _model(self) -> DeepEquilibrium:
        owner = type(self).__name__
        return checked_model(self.activation, self.sigma_a2, self.kind, self.convention, owner)

    def _choice(self) -> dict[str, Any]:
        return {"kind": kernel_name(self.kind, "kernel"), "convention": self.convention}

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}({self.activation}, sigma_a2={self.sigma_a2:.3g}, kind={self.kind!r})"
