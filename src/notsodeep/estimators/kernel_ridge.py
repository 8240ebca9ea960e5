"""Ridge regression with the exact kernel of a DEQ."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin

from notsodeep.arrays import FloatArray
from notsodeep.estimators.kernel_model import EquilibriumKernelModel, positive_weights
from notsodeep.estimators.theory_scaler import validated_training_data


class EquilibriumKernelRidge(MultiOutputMixin, RegressorMixin, EquilibriumKernelModel):  # type: ignore[misc]
    """Kernel ridge regression with the exact conjugate or tangent kernel of a DEQ.

    f(x) = K(x, X) (K(X, X) + λI)⁻¹ Y: what an infinitely wide DEQ learns by ridge regression of
    its read-out (conjugate kernel) or of all its weights, linearised where training starts
    (tangent kernel).  The numbers are those of `sklearn.kernel_ridge.KernelRidge(alpha=λ,
    kernel="precomputed")`.

    Parameters
    ----------
    activation : str or Activation, default "relu"
        φ; a name (see `notsodeep.activations.names`) or an activation.
    sigma_a2 : float, default 0.2
        σa² in [0, 1), the share of variance that comes back through the recurrent weights.
    kernel : {"tangent", "conjugate"}
    convention : {"preactivation", "feature"}
        See `notsodeep.tangent_kernel`.
    centred : bool, default False
        Replace φ by φ − E φ(τ*ξ), with τ* for the root mean squared norm of the training rows: the
        model that the random-matrix theory and `notsodeep.match` are about.
    ridge : float, "gcv" or "loo", default "loo"
        λ, or the rule that chooses it: generalised cross-validation or leave-one-out, both in
        closed form from one eigendecomposition, for 61 values at once (see
        `notsodeep.kernel_solvers.ridge_path`).  Beyond 2000 samples it looks at 2000 of them, drawn
        by their values: λ, the variance of noise over that of the model, does not depend on their
        number.
    preprocessing : {"theory", "unit_norm", "none"}
        Fixed on the training data and applied to whatever is predicted; see `TheoryScaler`.
    solver : {"auto", "dense", "cg"}
        "dense" factorises the kernel matrix.  "cg" iterates with preconditioned conjugate
        gradients and never holds it in float64; it takes no weights.  "auto" is dense up to 10,000
        samples if that takes at most half of the free memory, and otherwise cg.
    tolerance : float, default 1e-8
        cg: relative residual at which it stops.
    rank : int, optional
        cg: columns of the kernel that its Nyström preconditioner is made of; one for every twenty
        samples, and at least 200, if left out.  More of them mean fewer iterations and 8·n·rank
        bytes of memory.
    memory : int, default 4 GiB
        cg: bytes that the upper triangle of the kernel may take.  It is kept in float64 if that
        fits, else in float32 if that fits (the solution is then corrected to that of the exact
        kernel), and else computed again in every iteration.
    model : DeepEquilibrium, ExplicitNetwork or convolutional model, optional
        Instead of activation and sigma_a2.  Rows of a convolutional model are images, flattened in
        the order (height, width, channels), and preprocessing="theory" means "pixels".
    fit_intercept : bool, default False
        Fit a constant too, which is not penalised: for targets that are far from zero on average.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n,) or (n, n_targets)
        α.
    intercept_ : float or ndarray of shape (n_targets,)
        0 without one.
    X_fit_ : ndarray of shape (n, p)
        The training rows after preprocessing.
    model_ : DeepEquilibrium
    preprocessing_ : Preprocessing
    ridge_ : float
        λ.
    ridges_, ridge_scores_ : ndarray of shape (61,) or None
        Where `ridge` was a rule: what was tried, and its score, a mean squared error.
    solver_ : {"dense", "cg"}
    n_iter_ : int or None
        Iterations of cg.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from notsodeep.estimators import EquilibriumKernelRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> fitted = EquilibriumKernelRidge("tanh", fit_intercept=True).fit(X[:300], y[:300])
    >>> fitted.score(X[300:], y[300:]) > 0.4
    True
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to rows X, shape (n, p), and targets y, shape (n,) or (n, n_targets).

        A sample of weight 2 counts as two samples; weights have shape (n,).
        """
        rows, targets = validated_training_data(
            self, X, y, self.preprocessing, y_numeric=True, multi_output=True
        )
        weights, (rows, targets) = positive_weights(self, sample_weight, rows, targets)
        columns = np.asarray(targets, dtype=np.float64).reshape(len(rows), -1)
        self._fit_dual(rows, columns, weights)
        if targets.ndim == 1:
            self.dual_coef_ = self.dual_coef_[:, 0]
            self.intercept_ = np.ravel(self.intercept_)[0]
        return self

    def predict(self, X: ArrayLike) -> FloatArray:
        """Predict targets for rows X, shape (m, p); shape (m,) or (m, n_targets)."""
        return self._outputs(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags
