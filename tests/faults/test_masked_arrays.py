"""What is behind a mask is no data: masked entries are rejected wherever samples are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep import estimators
from notsodeep.data import Preprocessing
from notsodeep.errors import InvalidInput
from notsodeep.kernel_solvers import ridge_path, solve
from notsodeep.networks import TrainingSettings, fit_readout, train
from notsodeep.networks.random import build
from public_calls import BASE, CALLS, DEQ, FEATURES

LABELS = np.arange(len(BASE)) % 2
KERNEL = nsd.kernel(DEQ, BASE, convention="preactivation", kind="ntk")


def masked(values: Any, *index: int) -> Any:
    array = np.ma.array(values)
    array[index] = np.ma.masked
    return array


def network() -> Any:
    return build(DEQ, FEATURES, 6, 2, rng=0, dtype=torch.float64)


def certified(X: Any, y: Any = None) -> Any:
    return nsd.match(DEQ, tau0=1.0, family="leaky_relu").certify(X, y)


def fitted(name: str, X: Any, y: Any) -> Any:
    options = {"ridge": 0.1} if "Kernel" in name else {}
    return getattr(estimators, name)(**options).fit(X, y)


SAMPLES: dict[str, Callable[[Any], Any]] = {
    **CALLS,
    "certify": certified,
    "Preprocessing.fit": Preprocessing.fit,
    "Preprocessing.apply": Preprocessing.fit(BASE).apply,
    "fit_readout": lambda X: fit_readout(network(), X, LABELS, 0.1),
    "train": lambda X: train(network(), X, LABELS, TrainingSettings(1), progress=False),
    "TheoryScaler": lambda X: fitted("TheoryScaler", X, None),
    "TheoryScaler.transform": lambda X: fitted("TheoryScaler", BASE, None).transform(X),
    "CompiledClassifier": lambda X: fitted("CompiledClassifier", X, LABELS),
    "RandomEquilibriumFeatures": lambda X: fitted("RandomEquilibriumFeatures", X, None),
    "predict": lambda X: fitted("EquilibriumKernelRidge", BASE, LABELS).predict(X),
    "EquilibriumKernel": lambda X: estimators.EquilibriumKernel(convention="preactivation")(X),
    "EquilibriumKernel, one row": lambda X: estimators.EquilibriumKernel(
        convention="preactivation"
    )(BASE[0], X[0]),
}
TARGETS: dict[str, Callable[[Any], Any]] = {
    "MixtureStatistics.estimate": lambda y: nsd.data.MixtureStatistics.estimate(BASE, y),
    "CollapseMetrics.update": lambda y: nsd.collapse.CollapseMetrics(2).update(BASE, y),
    "certify": lambda y: certified(BASE, y),
    "EquilibriumKernelClassifier": lambda y: fitted("EquilibriumKernelClassifier", BASE, y),
    "EquilibriumKernelRidge": lambda y: fitted("EquilibriumKernelRidge", BASE, 1.0 * y),
    "CompiledClassifier": lambda y: fitted("CompiledClassifier", BASE, y),
    "fit_readout": lambda y: fit_readout(network(), BASE, y, 0.1),
    "train": lambda y: train(network(), BASE, y, TrainingSettings(1), progress=False),
    "fit_readout, real targets": lambda y: fit_readout(
        network(), BASE, 1.0 * np.ma.stack([y, y], axis=1), 0.1
    ),
    "solve": lambda y: solve(KERNEL, 1.0 * y, 0.1, progress=False),
    "ridge_path": lambda y: ridge_path(KERNEL, 1.0 * y, [0.1]),
}


@pytest.mark.parametrize("call", SAMPLES.values(), ids=SAMPLES)
def test_samples(call: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"no masked entries. Got 1 masked entries, the first"):
        call(masked(BASE, 0, 2))
    call(np.ma.array(BASE))  # a mask over nothing


@pytest.mark.parametrize("call", TARGETS.values(), ids=TARGETS)
def test_labels_and_targets(call: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput, match="no masked entries"):
        call(masked(LABELS, 3))
    call(np.ma.array(LABELS))


def test_lists_of_masked_rows() -> None:
    rows = [np.ma.array(row) for row in BASE]
    nsd.kernel(DEQ, rows, convention="preactivation", kind="ntk")
    rows[2] = masked(BASE[2], 1)
    for call in (CALLS["tangent kernel"], CALLS["ridge"], CALLS["CollapseMetrics.update"]):
        with pytest.raises(InvalidInput, match=r"no masked entries. Got 1 masked .* at index 1"):
            call(rows)


def test_masked_integers() -> None:
    """Images are not turned into floats before they are preprocessed."""
    images = np.random.default_rng(0).integers(0, 255, size=(8, 6), dtype=np.uint8)
    for call in (Preprocessing.fit, Preprocessing.fit(images).apply):
        with pytest.raises(InvalidInput, match=r"no masked entries.*index \(1, 4\)"):
            call(masked(images, 1, 4))


def test_missing_labels_beside_names() -> None:
    names = np.array(["a", "b"] * 4, dtype=object)
    names[3] = None
    with pytest.raises(InvalidInput, match="labels of one kind, none of them missing"):
        fitted("EquilibriumKernelClassifier", BASE, names)
