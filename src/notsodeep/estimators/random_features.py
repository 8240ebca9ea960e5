"""The features of a random finite network, as a transformer."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from notsodeep import checks, extras
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.estimators.scaler import preprocessed_rows, validated_training_data
from notsodeep.matching import Match, match
from notsodeep.models import DeepEquilibrium, KernelName, require_varying

MATCHED_ROWS = 1000
"""Rows on which families are compared by their exact kernels."""

_FEWEST = 8  # rows from which an exact kernel says something about a family


def match_on_data(
    deq: DeepEquilibrium,
    X: FloatArray,
    *,
    family: str,
    refine: bool,
    kind: KernelName,
    rng: np.random.Generator,
) -> Match:
    """Find the shallow network for a DEQ on training rows (n, p), by at most 1000 of them.

    With fewer than eight rows only their scale is used.
    """
    options: dict[str, Any] = {"family": family, "kind": kind}
    if len(X) < _FEWEST:
        return match(deq, tau0=root_mean_square_norm(X), **options)
    rows = X[np.sort(rng.permutation(len(X))[:MATCHED_ROWS])]
    return match(deq, rows, refine=refine, **options)


def root_mean_square_norm(X: FloatArray) -> float:
    """Return √(mean ‖x_i‖²), the scale τ0 of centred data."""
    return float(np.sqrt(np.einsum("ij,ij->", X, X) / len(X)))


def generator_from(random_state: Any) -> np.random.Generator:
    """Turn scikit-learn's random_state (None, a seed or a RandomState) into a Generator."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))


NetworkName = Literal["equilibrium", "matched"]


class RandomEquilibriumFeatures(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no types
    TransformerMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Features of a random DEQ, or of the shallow random network that is matched with it.

    ``transform`` maps a row x to z* = φ(√σa² A z* + √σb² B x)/√m ("equilibrium"), or to the last
    layer of the matched network ("matched"), with random weights drawn once by ``fit``.  Inner
    products of features tend to the conjugate kernel as the width m grows, with an error of
    O(1/√m): a linear model on them approximates kernel ridge regression, at a cost linear in n.

    Parameters
    ----------
    activation : str or Activation, default "relu"
    sigma_a2 : float, default 0.2
    width : int, default 512
        m, the number of features.
    network : {"equilibrium", "matched"}
    family : str, default "auto"
        "matched": the family of activations; see `notsodeep.match`.
    preprocessing : {"theory", "unit_norm", "none"}
        Fixed on the training data; see `TheoryScaler`.
    random_state : int, RandomState or None

    Attributes
    ----------
    module_ : torch.nn.Module
        The network.
    model_ : DeepEquilibrium or ExplicitNetwork
        Its description.
    match_ : Match or None
        How the matched network was found.
    preprocessing_ : Preprocessing
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import RidgeClassifier
    >>> from sklearn.pipeline import make_pipeline
    >>> from notsodeep.estimators import RandomEquilibriumFeatures
    >>> X, y = load_digits(return_X_y=True)
    >>> features = RandomEquilibriumFeatures("tanh", width=600, random_state=0)
    >>> pipeline = make_pipeline(features, RidgeClassifier(alpha=0.01)).fit(X[:800], y[:800])
    >>> pipeline.score(X[800:], y[800:]) > 0.9
    True
    """

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        width: int = 512,
        network: NetworkName = "equilibrium",
        family: str = "auto",
        preprocessing: PreprocessingKind = "theory",
        random_state: Any = None,
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.width = width
        self.network = network
        self.family = family
        self.preprocessing = preprocessing
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Draw the weights, for rows X of shape (n, p); y is ignored."""
        owner = type(self).__name__
        extras.require(owner, "torch")
        import torch

        from notsodeep.networks.random import build

        checks.known_name(self.network, get_args(NetworkName), f"network of {owner}")
        width = checks.positive_integer(self.width, "width", owner)
        deq = DeepEquilibrium(self.activation, self.sigma_a2)
        rows = validated_training_data(self, X, "no_validation", self.preprocessing)
        self.preprocessing_ = Preprocessing.fit(rows, self.preprocessing)
        scaled = self.preprocessing_.apply(rows)
        require_varying(deq.activation, root_mean_square_norm(scaled), type(self).__name__)
        rng = generator_from(self.random_state)
        self.match_ = None
        if self.network == "matched":
            self.match_ = match_on_data(
                deq, scaled, family=self.family, refine=False, kind="ck", rng=rng
            )
        self.model_ = deq if self.match_ is None else self.match_.network
        self.module_ = build(
            self.model_, rows.shape[1], width, 1, rng, trainable="readout", dtype=torch.float64
        ).eval()
        self._n_features_out = width
        return self

    def transform(self, X: ArrayLike) -> FloatArray:
        """Return the features of rows X, shape (n, width).

        Raises
        ------
        NotConverged
            The fixed point of a row was not found; a smaller `sigma_a2` or a larger `width` helps.
        """
        check_is_fitted(self)
        from notsodeep.networks.readout import features_of, tensor_rows

        owner = type(self).__name__
        rows = tensor_rows(preprocessed_rows(self, X), self.module_, owner)
        return np.asarray(features_of(self.module_, rows).numpy())
