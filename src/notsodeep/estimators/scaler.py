"""The library's preprocessing as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind


class TheoryScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Bring data to the convention of the theory, with the training data's statistics.

    "theory" is x ↦ (x − mean)/√(mean ‖x − mean‖²): centred, and of norm one in the mean square.
    Unlike scikit-learn's `StandardScaler` it divides by one number, which keeps all angles.

    Parameters
    ----------
    preprocessing : {"theory", "pixels", "unit_norm", "none"}
        See `notsodeep.data.Preprocessing`; the fitted one is `preprocessing_`.

    Examples
    --------
    >>> from notsodeep.estimators import TheoryScaler
    >>> TheoryScaler().fit_transform([[0.0, 1.0], [2.0, 3.0]]).round(4)
    array([[-0.7071, -0.7071],
           [ 0.7071,  0.7071]])
    """

    def __init__(self, preprocessing: PreprocessingKind = "theory") -> None:
        self.preprocessing = preprocessing

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Take mean and scale from X of shape (n, p); y is ignored."""
        rows = validated_training_data(self, X, "no_validation", self.preprocessing)
        self.preprocessing_ = Preprocessing.fit(rows, self.preprocessing)
        return self

    def transform(self, X: ArrayLike) -> FloatArray:
        """Apply the map to X of shape (n, p), in float64."""
        check_is_fitted(self)
        return preprocessed_rows(self, X)


def validated_training_data(
    estimator: Any, X: ArrayLike, y: Any, preprocessing: str, **options: Any
) -> Any:
    """Validate training data as scikit-learn does, which knows nothing of masks.

    Returns X and y, or X alone if y is "no_validation"; `options` are those of `validate_data`.
    """
    checks.unmasked(X, "X", type(estimator).__name__)
    checks.unmasked(y, "y", type(estimator).__name__)
    least = 2 if preprocessing in ("theory", "pixels") else 1  # one row has no scale
    return validate_data(estimator, X, y, dtype=np.float64, ensure_min_samples=least, **options)


def preprocessed_rows(estimator: Any, X: ArrayLike) -> FloatArray:
    """Validate new rows against the training data's features, and apply its preprocessing."""
    checks.unmasked(X, "X", type(estimator).__name__)
    rows = validate_data(estimator, X, dtype=np.float64, reset=False)
    return np.asarray(estimator.preprocessing_.apply(rows))
