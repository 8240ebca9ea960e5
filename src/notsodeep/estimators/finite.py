"""Networks of finite width: random features, and the shallow network that stands for a DEQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from notsodeep import checks, extras
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.errors import InvalidInput
from notsodeep.estimators.kernel_ridge import encode_classes
from notsodeep.estimators.scaler import preprocessed_rows, validated_training_data
from notsodeep.matching import Match, match
from notsodeep.models import DeepEquilibrium, KernelName, require_varying
from notsodeep.networks.sampling import RandomNetwork, random_network

if TYPE_CHECKING:
    from torch import nn

MATCHED_ROWS, MIN_MATCHED_ROWS = 1000, 8
"""Rows on which families are compared by their exact kernels, at most and at least."""


FEATURE_TOL = 1e-10


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
    network_, model_, match_
        The drawn network, its description, and how that was found if it is matched.
    preprocessing_ : Preprocessing

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
        network: Literal["equilibrium", "matched"] = "equilibrium",
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
        checks.known_name(self.network, ("equilibrium", "matched"), "network")
        width = checks.positive_integer(self.width, "width", type(self).__name__)
        deq = DeepEquilibrium(self.activation, self.sigma_a2)
        rows = validated_training_data(self, X, "no_validation", self.preprocessing)
        self.preprocessing_ = Preprocessing.fit(rows, self.preprocessing)
        scaled = self.preprocessing_.apply(rows)
        require_varying(deq.activation, _scale(scaled), type(self).__name__)
        rng = np.random.default_rng(_seed(self.random_state))
        self.match_ = None
        if self.network == "matched":
            self.match_ = _match_on_rows(deq, scaled, self.family, "ck", rng)
        self.model_ = deq if self.match_ is None else self.match_.network
        self.network_ = random_network(self.model_, rows.shape[1], width, rng)
        self._n_features_out = width
        return self

    def transform(self, X: ArrayLike) -> FloatArray:
        """Return the features of rows X, shape (n, width)."""
        check_is_fitted(self)
        return _features(self.network_, preprocessed_rows(self, X))


class CompiledClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The shallow explicit network that is matched with a DEQ, trained on labelled data.

    ``fit`` finds the network on the training rows (see `notsodeep.match`), draws it at a finite
    width, and trains its read-out by `RidgeClassifierCV` ("readout") or all of its weights by
    gradient descent ("all", which needs torch).  No fixed point is solved at any time.

    Parameters
    ----------
    activation : str or Activation, default "relu"
        φ of the DEQ.
    sigma_a2 : float, default 0.2
    width : int, default 1024
        Of every hidden layer.
    family : str, default "auto"
        Family of activations of the network; "auto" takes the one whose exact kernel is nearest
        to the DEQ's on the training rows.
    train : {"readout", "all"}
        A read-out of random features, matched by the conjugate kernel; or a trained network,
        matched by the tangent kernel: 30 epochs of Adam, with cross-entropy.
    ridge : float or "loo"
        "readout": the penalty on its squared weights, by default the best by leave-one-out.
    preprocessing : {"theory", "unit_norm", "none"}
        Fixed on the training data; see `TheoryScaler`.
    random_state : int, RandomState or None

    Attributes
    ----------
    classes_, match_, preprocessing_
        The labels, how the network was found (``match_.certify(preprocessing_.apply(X))`` compares
        its kernel with the DEQ's), and the preprocessing.
    ridge_ : float
        "readout": the penalty.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from notsodeep.estimators import CompiledClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> compiled = CompiledClassifier("tanh", family="hard_tanh", random_state=0)
    >>> compiled.fit(X[:800], y[:800]).score(X[800:], y[800:]) > 0.9
    True
    """

    def __init__(
        self,
        activation: str | Activation = "relu",
        sigma_a2: float = 0.2,
        width: int = 1024,
        family: str = "auto",
        train: Literal["readout", "all"] = "readout",
        ridge: float | Literal["loo"] = "loo",
        preprocessing: PreprocessingKind = "theory",
        random_state: Any = None,
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.width = width
        self.family = family
        self.train = train
        self.ridge = ridge
        self.preprocessing = preprocessing
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Match and train, on rows X, shape (n, p), and labels y, shape (n,), numbers or names."""
        checks.known_name(self.train, ("readout", "all"), "train")
        if self.ridge != "loo":
            checks.positive_number(self.ridge, "ridge", "CompiledClassifier")
        checks.positive_integer(self.width, "width", "CompiledClassifier")
        deq = DeepEquilibrium(self.activation, self.sigma_a2)
        rows, given = validated_training_data(self, X, y, self.preprocessing)
        labels = encode_classes(self, given)
        self.preprocessing_ = Preprocessing.fit(rows, self.preprocessing)
        scaled = self.preprocessing_.apply(rows)
        self._seed = _seed(self.random_state)
        kind: KernelName = "ck" if self.train == "readout" else "ntk"
        self.match_ = _match_on_rows(
            deq, scaled, self.family, kind, np.random.default_rng(self._seed)
        )
        if self.train == "all":
            self._train_all(scaled, labels)
            return self
        network = random_network(
            self.match_.network, scaled.shape[1], self.width, np.random.default_rng(self._seed)
        )
        self._network, F = network, _features(network, scaled)
        if self.ridge == "loo":
            size = float(np.square(F - F.mean(axis=0)).sum(axis=1).mean())
            readout: Any = RidgeClassifierCV(size * np.logspace(-6, 3, 37)).fit(F, labels)
            self.ridge_ = float(readout.alpha_)
        else:
            readout = RidgeClassifier(self.ridge).fit(F, labels)
            self.ridge_ = float(self.ridge)
        W, b = readout.coef_, readout.intercept_
        if len(self.classes_) == 2:
            W, b = np.vstack([-W, W]), np.concatenate([-b, b])
        self._readout = W, b
        return self

    def _train_all(self, rows: FloatArray, labels: NDArray[Any]) -> None:
        extras.require("CompiledClassifier(train='all')", "torch")
        from notsodeep.networks.training import TrainingSettings, train

        settings = TrainingSettings(30, optimiser="adam", learning_rate=0.01, seed=self._seed)
        self._module = self._built(rows.shape[1], "all")
        self.fit_record_ = train(self._module, rows, labels, settings, progress=False)
        self._module.eval()

    def _built(self, features: int, trainable: Literal["all", "readout"]) -> Any:
        import torch

        from notsodeep.networks.random import build

        module = build(
            self.match_.network, features, self.width, len(self.classes_),
            np.random.default_rng(self._seed), trainable=trainable, bias=True,
        )  # fmt: skip
        torch.nn.init.zeros_(module.readout)
        return module

    def module(self) -> nn.Module:
        """Return the network as a torch module, for `notsodeep.save` and `notsodeep.export_onnx`.

        Its rows are ``preprocessing_.apply(X)``, its logits in the order of `classes_`.
        """
        check_is_fitted(self)
        extras.require("CompiledClassifier.module", "torch")
        import torch

        if self.train == "all":
            return self._module  # type: ignore[no-any-return]
        module = self._built(self.n_features_in_, "readout")
        with torch.no_grad():
            for parameter, value in zip(
                (module.readout, module.readout_bias), self._readout, strict=True
            ):
                parameter.copy_(torch.from_numpy(value))
        return module.eval()  # type: ignore[no-any-return]

    def _logits(self, X: ArrayLike) -> FloatArray:
        """Return the network's outputs, shape (n, n_classes)."""
        check_is_fitted(self)
        rows = preprocessed_rows(self, X)
        if self.train == "readout":
            W, b = self._readout
            return np.asarray(_features(self._network, rows) @ W.T + b)
        import torch

        with torch.no_grad():
            outputs = self._module(torch.from_numpy(rows).float())
        return np.asarray(outputs.numpy(), dtype=np.float64)

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return the outputs, shape (n, n_classes); their difference, (n,), for two classes."""
        outputs = self._logits(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels, shape (n,)."""
        best = self._logits(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(lambda estimator: estimator.train == "all")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return softmax of the outputs, shape (n, n_classes); with train="all"."""
        return np.asarray(softmax(self._logits(X), axis=1))


def _match_on_rows(
    deq: DeepEquilibrium, X: FloatArray, family: str, kind: KernelName, rng: np.random.Generator
) -> Match:
    """Match on at most 1000 of the rows; with fewer than eight by their scale alone."""
    if len(X) < MIN_MATCHED_ROWS:
        found = match(deq, tau0=_scale(X), family=family, kind=kind)
    else:
        rows = X[np.sort(rng.permutation(len(X))[:MATCHED_ROWS])]
        found = match(deq, rows, family=family, kind=kind, refine=False)
    if found.network is None:
        raise InvalidInput(f"family must have a network for this DEQ, got none: {found.reason}")
    return found


def _features(network: RandomNetwork, rows: FloatArray) -> FloatArray:
    # So precise that they do not depend on which other rows are in the batch.
    return network.features(rows, FEATURE_TOL, double=True)


def _scale(X: FloatArray) -> float:
    """Return √(mean ‖x_i‖²), the scale τ0 of centred data."""
    return float(np.sqrt(np.einsum("ij,ij->", X, X) / len(X)))


def _seed(random_state: Any) -> int:
    """Turn scikit-learn's random_state (None, a seed or a RandomState) into a seed."""
    return int(check_random_state(random_state).randint(2**31 - 1))
