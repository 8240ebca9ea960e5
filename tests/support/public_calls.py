"""Public calls that take samples, each as a function of the samples alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import notsodeep as nsd
from notsodeep.estimators import EquilibriumKernelClassifier, EquilibriumKernelRidge

ROWS, FEATURES = 8, 5
BASE: NDArray[np.float64] = np.random.default_rng(0).normal(size=(ROWS, FEATURES)) / np.sqrt(5)
BASE.flags.writeable = False
DEQ = nsd.DeepEquilibrium("relu", 0.2)


def labels(X: Any) -> NDArray[np.int64]:
    return np.arange(len(X)) % 2 if hasattr(X, "__len__") else np.zeros(0, dtype=int)


def operator(X: Any) -> Any:
    return nsd.KernelOperator(DEQ, X, kind="ntk", convention="preactivation") @ np.eye(len(X))


def match(X: Any) -> Any:
    return list(nsd.match(DEQ, X, family="leaky_relu").parameters.values())


def statistics(X: Any) -> Any:
    found = nsd.data.MixtureStatistics.estimate(X, labels(X))
    return np.concatenate([[found.tau0], found.t, found.T.ravel(), found.psi])


def equivalent(X: Any) -> Any:
    found = nsd.data.MixtureStatistics.estimate(BASE, labels(BASE))
    return nsd.equivalent(
        DEQ.centred(found.tau0), X, labels(X), convention="preactivation"
    ).to_dense()


def collapse(X: Any) -> Any:
    metrics = nsd.collapse.CollapseMetrics(num_classes=2)
    metrics.update(X, labels(X))
    return metrics.compute().to_dict()["overall"]["nc1"]


def ridge(X: Any) -> Any:
    return (
        EquilibriumKernelRidge(ridge=0.1, convention="preactivation")
        .fit(X, labels(X).astype(float))
        .predict(BASE)
    )


def classifier(X: Any) -> Any:
    return (
        EquilibriumKernelClassifier(ridge=0.1, convention="preactivation")
        .fit(X, labels(X))
        .decision_function(BASE)
    )


def empirical(X: Any) -> Any:
    module = nsd.build(DEQ, FEATURES, 6, 2, rng=0, dtype=torch.float64)
    return nsd.empirical_kernels(module, X).ck


KERNELS: dict[str, Callable[[Any], Any]] = {
    "kernel": lambda X: nsd.kernel(DEQ.centred(1.0), X, convention="preactivation"),
    "tangent kernel": lambda X: nsd.kernel(DEQ, X, convention="preactivation", kind="ntk"),
    "both kernels": lambda X: (
        nsd.kernel(nsd.DeepEquilibrium("tanh", 0.2), X, convention="preactivation", kind="both").ntk
    ),
    "cross kernel": lambda X: nsd.kernel(DEQ, BASE, X, convention="preactivation").T,
    "KernelOperator": operator,
    "empirical_kernels": empirical,
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "match": match,
    "MixtureStatistics.estimate": statistics,
    "equivalent": equivalent,
    "CollapseMetrics.update": collapse,
}
ESTIMATORS: dict[str, Callable[[Any], Any]] = {"ridge": ridge, "classifier": classifier}
CALLS = {**KERNELS, **OTHERS, **ESTIMATORS}
