"""A DEQ's shallow twin as a classifier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from notsodeep import checks, extras
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data.preprocessing import Preprocessing, PreprocessingKind
from notsodeep.estimators.kernel_ridge import encode_classes
from notsodeep.estimators.random_features import generator_from, match_on_data
from notsodeep.estimators.scaler import preprocessed_rows, validated_training_data
from notsodeep.models import DeepEquilibrium

if TYPE_CHECKING:
    from notsodeep.networks.training import TrainingSettings

Train = Literal["readout", "all"]


def _learns_probabilities(estimator: Any) -> bool:
    return bool(estimator.train == "all")


class CompiledClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The shallow explicit network that is matched with a DEQ, trained on labelled data.

    ``fit`` finds the network on the training rows (see `notsodeep.match`), draws it at a finite
    width, and trains its read-out in closed form ("readout") or all of its weights by gradient
    descent ("all").  No fixed point is solved at any time.

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
    refine : bool, default False
        Refine its parameters on the training rows; takes some seconds.
    train : {"readout", "all"}
        Random features and a ridge regression of one-hot labels, matched by the conjugate kernel;
        or a trained network, matched by the tangent kernel.
    ridge : float, default 1e-3
        "readout": the penalty on its squared weights.
    settings : TrainingSettings, optional
        "all": how to train; 30 epochs of Adam at rate 0.01, batches of 128, if left out.  Its
        seed is replaced by one from `random_state`.
    preprocessing : {"theory", "unit_norm", "none"}
        Fixed on the training data; see `TheoryScaler`.
    random_state : int, RandomState or None
    class_weight : dict, "balanced" or None
        "readout": weights of the classes, by their names; "balanced" gives all the same sum.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    match_ : Match
        The network's description, `match_.network`, and how it was found; ``match_.certify(
        preprocessing_.apply(X))`` compares its kernel with the DEQ's on other data.
    module_ : torch.nn.Module
        To be written with ``notsodeep.save(module_, path, preprocessing=preprocessing_,
        classes=classes_.tolist())``, or in the same way with `notsodeep.export_onnx`.
    fit_record_ : ReadoutFit or Training
    preprocessing_ : Preprocessing
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

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
        refine: bool = False,
        train: Train = "readout",
        ridge: float = 1e-3,
        settings: TrainingSettings | None = None,
        preprocessing: PreprocessingKind = "theory",
        random_state: Any = None,
        class_weight: dict[Any, float] | str | None = None,
    ) -> None:
        self.activation = activation
        self.sigma_a2 = sigma_a2
        self.width = width
        self.family = family
        self.refine = refine
        self.train = train
        self.ridge = ridge
        self.settings = settings
        self.preprocessing = preprocessing
        self.random_state = random_state
        self.class_weight = class_weight

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Match and train, on rows X, shape (n, p), and labels y, shape (n,), numbers or names.

        Weights of samples, shape (n,), are for the read-out; the network is matched on all rows.
        """
        owner = type(self).__name__
        extras.require(owner, "torch")
        import torch

        from notsodeep.networks.random import build

        checks.known_name(self.train, get_args(Train), f"train of {owner}")
        checks.positive_number(self.ridge, "ridge", owner)
        refine = checks.flag(self.refine, "refine", owner)
        width = checks.positive_integer(self.width, "width", owner)
        deq = DeepEquilibrium(self.activation, self.sigma_a2)
        rows, given = validated_training_data(self, X, y, self.preprocessing)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
            counted = weights > 0.0
            if not counted.any():
                raise checks.invalid("sample_weight", owner, "have an entry above zero", "zeros")
            rows, given, weights = rows[counted], given[counted], weights[counted]
        labels = encode_classes(self, given)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, given)
            weights = by_class if weights is None else by_class * weights
        if weights is not None and self.train == "all":
            requirement = "be None, as class_weight, for train='all', whose loss has no weights"
            raise checks.invalid("sample_weight", owner, requirement, "weights")
        self.preprocessing_ = Preprocessing.fit(rows, self.preprocessing, weights=weights)
        scaled = self.preprocessing_.apply(rows)
        rng = generator_from(self.random_state)
        self.match_ = match_on_data(
            deq,
            scaled,
            family=self.family,
            refine=refine,
            kind="ck" if self.train == "readout" else "ntk",
            rng=rng,
        )
        self.module_ = build(
            self.match_.network,
            scaled.shape[1],
            width,
            len(self.classes_),
            rng,
            trainable=self.train,
            bias=True,
            dtype=torch.float64,
        )
        torch.nn.init.zeros_(self.module_.readout)
        self._train(scaled, labels, weights, rng)
        self.module_.eval()
        return self

    def _train(
        self,
        rows: FloatArray,
        labels: IntArray,
        weights: FloatArray | None,
        rng: np.random.Generator,
    ) -> None:
        from notsodeep.networks.readout import fit_readout
        from notsodeep.networks.training import TrainingSettings, train

        self.fit_record_: Any
        if self.train == "readout":
            self.fit_record_ = fit_readout(self.module_, rows, labels, self.ridge, weights=weights)
            return
        settings = self.settings or TrainingSettings(30, optimiser="adam", learning_rate=0.01)
        if not isinstance(settings, TrainingSettings):
            requirement = "be a notsodeep.networks.TrainingSettings or None"
            raise checks.invalid("settings", type(self).__name__, requirement, repr(settings))
        settings = replace(settings, seed=int(rng.integers(2**31 - 1)))
        self.fit_record_ = train(self.module_, rows, labels, settings, progress=False)

    def _logits(self, X: ArrayLike) -> FloatArray:
        """Return the network's outputs, shape (n, n_classes)."""
        check_is_fitted(self)
        import torch

        from notsodeep.networks.readout import features_of, tensor_rows

        rows = tensor_rows(preprocessed_rows(self, X), self.module_, type(self).__name__)
        features = features_of(self.module_, rows)
        with torch.no_grad():
            outputs = torch.nn.functional.linear(
                features, self.module_.readout, self.module_.readout_bias
            )
        return np.asarray(outputs.numpy())

    def decision_function(self, X: ArrayLike) -> FloatArray:
        """Return the outputs, shape (n, n_classes); their difference, (n,), for two classes."""
        outputs = self._logits(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict labels, shape (n,)."""
        best = self._logits(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(_learns_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: ArrayLike) -> FloatArray:
        """Return softmax of the outputs, shape (n, n_classes); if trained by cross-entropy."""
        return np.asarray(softmax(self._logits(X), axis=1))
