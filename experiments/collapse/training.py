"""Train a network with one of the heads and record its neural collapse, epoch by epoch.

The record that `train_head` returns holds plain JSON values; a number that does not exist, or is
not finite, is null.  K classes, d features z between head and classifier.

``settings``
    The form of `CollapseSettings`.
``classes``, ``counts``
    Names of the K classes, and training samples of each.
``groups``
    ``{"majority": […], "minority": […]}``, lists of classes; empty for balanced classes.
``parameters``
    Trained numbers of ``backbone``, ``head`` and ``classifier``.
``num_features``
    d.
``gain_bound``
    The gain that the head's budget allows; see `experiments.collapse.heads`.
``epochs``
    A list, in order, with one object for each measured epoch:

    ``epoch``
        Epochs done, counted from 1.
    ``loss``, ``accuracy``
        On the training samples, in evaluation.
    ``majority_accuracy``, ``minority_accuracy``
        The same for the samples of the two groups; null for balanced classes.
    ``test_accuracy``, ``test_majority_accuracy``, ``test_minority_accuracy``
        On the test part, which is balanced; null without one.
    ``nc1``, ``nc1_trace_ratio``, ``nc1_cdnv``
        NC1 over all classes, on the training samples; see `notsodeep.collapse.CollapseSummary`.
    ``nc2_features``, ``nc2_classifier``, ``nc3_alignment``, ``nc3_duality``, ``nc4``
        Likewise.
    ``minority_cosine``, ``minority_cosine_features``
        Mean cosine between minority classifiers, and between centred minority means; null for
        balanced classes.
    ``spectral_norm``, ``gain``
        Of the head's matrix, and ‖G‖₂ of the realised head, without its activation.
    ``gain_on_means``
        ‖M_z‖_F/‖M_h‖_F for the centred class means that leave and enter the head: the gain that
        the data see.
    ``solver``
        Null for a head without one; else ``mean_steps``, ``most_steps``, ``largest_residual`` and
        ``failures`` of the forward solves in the epoch's training steps, and
        ``backward_mean_steps``, ``backward_failures`` of those for gradients.
``final``
    After the last epoch:

    ``report``
        All of `notsodeep.collapse.CollapseReport`, such as ``feature_cosines`` and
        ``classifier_cosines`` (K × K), ``feature_norms``, ``classifier_norms`` (K).
    ``entering``
        ``nc1``, ``nc2_features``, ``nc3_alignment``, ``nc3_duality`` of the features h that enter
        the head, against the same classifier.
    ``projection``
        ``points`` (m × 2), ``labels`` (m), ``means`` (K × 2): some training samples, at most 40 of
        a class, and the class means, along the two leading principal directions of the centred
        means; ``classifier`` (K × 2): rows of W of mean length one, along the same two;
        ``share`` (2): share of the means' scatter along each; ``classes`` (K).
    ``three_classes``
        The same for the first class and the last two alone, whose means span a plane.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from experiments.collapse.backbones import Perceptron, ResNet18
from experiments.collapse.headed_network import FixedETF, HeadedNetwork, linear_classifier
from experiments.collapse.heads import make_head
from experiments.collapse.measurements import HeadMeasurements
from experiments.collapse.settings import CollapseSettings
from experiments.runner import Record
from notsodeep.arrays import IntArray
from notsodeep.collapse import simplex_etf
from notsodeep.data import Dataset, Preprocessing, load
from notsodeep.networks.training import Training, train


def train_head(
    settings: CollapseSettings, *, checkpoint: str | Path | None = None, progress: bool = False
) -> Record:
    """Load the data, train the network that the settings describe, and measure it.

    Parameters
    ----------
    settings : CollapseSettings
    checkpoint : path, optional
        Directory for the state of the training, which resumes there if it was stopped.
    progress : bool
        Show a bar on a terminal.

    Returns
    -------
    dict
        See the top of this module.  The same settings give the same record, on one machine with
        one number of threads.
    """
    data = collapse_data(settings)
    network = collapse_network(settings, data)
    measurements = HeadMeasurements(network, data, settings)
    options = {"checkpoint": checkpoint, "progress": progress}
    run = fit(network, data, settings, after_epoch=measurements.after_epoch, **options)
    return {
        "settings": settings.to_dict(),
        "classes": list(data.classes),
        "counts": np.bincount(data.y, minlength=len(data.classes)).tolist(),
        "groups": measurements.groups,
        "parameters": {
            name: sum(p.numel() for p in getattr(network, name).parameters())
            for name in ("backbone", "head", "classifier")
        },
        "num_features": network.head.num_features,
        "gain_bound": network.head.gain_bound,
        "epochs": [_epoch(record) for record in run.history if record["measured"]],
        "final": measurements.at_the_end(),
    }


def fit(
    network: HeadedNetwork, data: Dataset, settings: CollapseSettings, **options: Any
) -> Training:
    """Train a network in place, its head's matrix within its budget; `options` are of `train`."""
    decays = network.decays(settings.scale_free_decay)
    chosen: dict[str, Any] = {"decays": decays, "after_step": network.constrain, **options}
    return train(network, data.X, data.y, settings.training(), **chosen)


def collapse_data(settings: CollapseSettings) -> Dataset:
    """Load the training and test part; the seed decides which samples."""
    data = load(
        settings.data,
        samples=settings.samples,
        test_samples=settings.test_samples,
        preprocessing="none",
        rng=settings.seed,
    )
    kept = np.arange(len(data.y))
    if settings.num_majority is not None and settings.ratio is not None:
        kept = _thinned(data.y, settings.num_majority, settings.ratio, settings.seed)
    pixels = None if data.image_shape is None else math.prod(data.image_shape[:2])
    fitted = Preprocessing.fit(data.X[kept], "theory", pixels=pixels)
    return dataclasses.replace(
        data,
        X=fitted.apply(data.X[kept], "float32"),
        y=data.y[kept],
        X_test=fitted.apply(data.X_test, "float32"),
        preprocessing=fitted,
        train_indices=data.train_indices[kept],
    )


def _thinned(y: IntArray, num_majority: int, ratio: float, seed: int) -> IntArray:
    """Keep the first classes, and one of `ratio` samples of the others (Fang et al., PNAS 2021)."""
    largest = int(np.bincount(y).min())
    stream = np.random.default_rng(seed).spawn(2)[1].spawn(3)[2]
    chosen = [
        stream.choice(
            np.flatnonzero(y == k),
            size=largest if k < num_majority else int(largest // ratio),
            replace=False,
        )
        for k in range(int(y.max()) + 1)
    ]
    return np.sort(np.concatenate(chosen))


def collapse_network(settings: CollapseSettings, data: Dataset) -> HeadedNetwork:
    """Build the network; the seed decides its weights, those of the backbone whatever the head."""
    parts = np.random.default_rng(settings.seed).spawn(3)
    backbone: Perceptron | ResNet18
    if settings.backbone == "mlp":
        widths = (settings.first_width or settings.width, settings.width)
        backbone = Perceptron(
            data.X.shape[1], widths, parts[0], feature_scale=settings.feature_scale
        )
    else:
        height, sides, channels = data.image_shape or (0, 0, 0)
        shape: Any = (channels, height, sides)  # checked inside
        backbone = ResNet18(shape, parts[0], width=settings.width)
    d, K = backbone.num_features, len(data.classes)
    head = make_head(
        settings.head,
        d,
        settings.spectral_budget,
        parts[1],
        activation=settings.activation,
        truncated_steps=settings.truncated_steps,
        solver=settings.solver,
    )
    classifier: nn.Linear | FixedETF
    if settings.classifier == "fixed_etf":
        classifier = FixedETF(simplex_etf(K, d, parts[2]))
    else:
        classifier = linear_classifier(d, K, parts[2])
    return HeadedNetwork(backbone, head, classifier)


def _epoch(record: Record) -> Record:
    """Join what was measured with what the solver did in the epoch's steps."""
    solver, backward = record["solver"], record["backward"]
    if solver is not None and backward is not None:
        solver = {
            **solver,
            "backward_mean_steps": backward["mean_steps"],
            "backward_failures": backward["failures"],
        }
    return {"epoch": record["epoch"] + 1, **record["measured"], "solver": solver}


CURVES = (
    "epoch", "loss", "accuracy", "test_accuracy", "nc1", "nc1_trace_ratio", "nc2_features",
    "nc3_alignment", "gain_on_means", "minority_cosine", "test_minority_accuracy",
)  # fmt: skip
AT_THE_END = ("nc2_classifier", "nc3_duality", "nc4", "gain", "spectral_norm")


def kept(record: Record) -> Record:
    """Return what of a record is stored: settings, curves, and what the solver did at the end."""

    def number(key: str, value: float) -> float:
        # Six digits of an accuracy tell one of 50,000 images.
        return float(f"{value:.6g}" if key.endswith("accuracy") else f"{value:.4g}")

    curves = [
        {key: number(key, epoch[key]) for key in CURVES if epoch.get(key) is not None}
        for epoch in record["epochs"]
    ]
    last = record["epochs"][-1]
    curves[-1] |= {key: number(key, last[key]) for key in AT_THE_END if key in last}
    names = ("cell", "settings", "groups", "gain_bound", "num_features", "process_seconds")
    known = {key: record[key] for key in (*names, "versions") if key in record}
    return {**known, "epochs": curves, "solver": last["solver"]}
