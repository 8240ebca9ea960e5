"""Train a network with one of the heads and record its neural collapse, epoch by epoch.

A cell is `DEFAULTS` with what a run changes.  K classes, d features z between head and classifier.
The record has its settings, the ``groups`` of large and small classes (lists; empty if balanced),
``gain_bound``, ``num_features``, and for each measured epoch (numbers that do not exist are null):

``loss``, ``accuracy`` and ``test_accuracy``
    The last on the test part, which is balanced; ``test_minority_accuracy`` likewise.
``nc1`` … ``nc4``, ``minority_cosine``
    As in `notsodeep.collapse.CollapseSummary`, on the training samples; the last is the mean cosine
    between minority classifiers.
``spectral_norm``, ``gain``, ``gain_on_means``
    Of the head's matrix; ‖G‖₂ of the head without its activation; ‖M_z‖_F/‖M_h‖_F for the centred
    class means that leave and enter the head, which is the gain that the data see.
``solver``
    What forward and backward solves in the epoch's training steps took.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.collapse.backbones import Perceptron, ResNet18, draw_weights
from experiments.collapse.heads import Head, HeadedNetwork
from experiments.runner import Cell, Record
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import CollapseMetrics
from notsodeep.data import Dataset, Preprocessing, draw_rows, load
from notsodeep.networks.training import TrainingSettings, train

DEFAULTS: Cell = {
    "data": "digits", "samples": None, "test_samples": None,  # balanced; all there is
    "num_majority": None, "ratio": None,  # classes from K_A on keep one of R training samples
    "backbone": "mlp", "width": 64,  # two layers of `width`; or a ResNet of `width` channels
    "spectral_budget": 0.5, "truncated_steps": 3, "activation": "identity",
    "solver": "paper",  # to a relative residual of 1e-3; "strict" is 1e-6
    "classifier": "learned",  # without bias, as in the layer-peeled model
    "epochs": 40, "batch_size": 64, "learning_rate": 0.05, "weight_decay": 5e-3,
    "schedule": "cosine",  # of SGD with momentum 0.9
    "measure_every": 1,  # the last epoch is always measured
    "seed": 0,  # of data, weights and the order of samples
}  # fmt: skip
"""Three more keys of a perceptron: "first_width"; "feature_scale": "fixed" for features whose scale
is not learned; "scale_free_decay", the weight decay of parameters whose scale does not matter."""
_ROWS = 512  # in one pass
_SHOWN = 40  # samples of a class in the picture of three
_MEASURES = (
    "nc1", "nc1_trace_ratio", "nc1_cdnv", "nc2_features", "nc2_classifier", "nc3_alignment",
    "nc3_duality", "nc4",
)  # fmt: skip


def head_cell(head: str, **settings: Any) -> Cell:
    """Return a cell; two that differ in the head alone start from the same backbone."""
    return {**DEFAULTS, "head": head, **settings}


def train_cell(cell: Cell, seed: int) -> Record:
    """Train one network; its seed is in the cell, so that heads are paired over seeds."""
    data = collapse_data(cell)
    network = collapse_network(cell, data)
    classes = list(range(len(data.classes)))
    groups: dict[str, list[int]] = {}
    if cell["num_majority"] is not None:
        cut = cell["num_majority"]
        groups = {"majority": classes[:cut], "minority": classes[cut:]}

    def after_epoch(epoch: int) -> Record:
        done = epoch + 1
        if done != cell["epochs"] and done % cell["measure_every"]:
            return {}
        return _measured(network, data, groups)

    history = fit(network, data, cell, after_epoch=after_epoch).history
    epochs = []
    for row in (row for row in history if row["measured"]):
        solver, backward = row["solver"], row["backward"]
        if solver is not None and backward is not None:
            back = {f"backward_{key}": backward[key] for key in ("mean_steps", "failures")}
            solver = {**solver, **back}
        epochs.append({"epoch": row["epoch"] + 1, **row["measured"], "solver": solver})
    return {
        "settings": cell,
        "groups": groups,
        "num_features": network.head.matrix.shape[0],
        "gain_bound": network.head.gain_bound,
        "epochs": epochs,
        "three_classes": _three_classes(network, data, cell["seed"]),
        "seed_of_cell": seed,
    }


def fit(network: HeadedNetwork, data: Dataset, cell: Cell, **options: Any) -> Any:
    """Train a network in place, its head's matrix within its budget."""
    names = ("epochs", "batch_size", "learning_rate", "weight_decay", "schedule", "seed")
    chosen = {name: cell[name] for name in names}
    settings = TrainingSettings(optimiser="momentum", momentum=0.9, **chosen)
    decays = network.decays(cell.get("scale_free_decay"))
    steps = {"after_step": network.head.constrain, "progress": False, **options}
    return train(network, data.X, data.y, settings, decays=decays, **steps)


def collapse_data(cell: Cell) -> Dataset:
    """Load the training and test part; the seed decides which samples."""
    sizes = {name: cell[name] for name in ("samples", "test_samples")}
    data = load(cell["data"], preprocessing="none", rng=cell["seed"], **sizes)
    rows = np.arange(len(data.y))
    if cell["num_majority"] is not None:
        rows = _thinned(data.y, cell["num_majority"], cell["ratio"], cell["seed"])
    pixels = None if data.image_shape is None else math.prod(data.image_shape[:2])
    fitted = Preprocessing.fit(data.X[rows], "theory", pixels=pixels)
    return dataclasses.replace(
        data,
        X=fitted.apply(data.X[rows], "float32"),
        y=data.y[rows],
        X_test=fitted.apply(data.X_test, "float32"),
        preprocessing=fitted,
        train_indices=data.train_indices[rows],
    )


def _thinned(y: IntArray, num_majority: int, ratio: float, seed: int) -> IntArray:
    """Keep the first classes, and one of `ratio` samples of the others (Fang et al., PNAS 2021)."""
    largest = int(np.bincount(y).min())
    stream = np.random.default_rng(seed).spawn(2)[1].spawn(3)[2]
    sizes = [largest if k < num_majority else int(largest // ratio) for k in range(y.max() + 1)]
    chosen = (
        stream.choice(np.flatnonzero(y == k), size=size, replace=False)
        for k, size in enumerate(sizes)
    )
    return np.sort(np.concatenate(list(chosen)))


def collapse_network(cell: Cell, data: Dataset) -> HeadedNetwork:
    """Build the network; the seed decides its weights, those of the backbone whatever the head."""
    parts, width = np.random.default_rng(cell["seed"]).spawn(3), cell["width"]
    backbone: Perceptron | ResNet18
    if cell["backbone"] == "mlp":
        fixed = cell.get("feature_scale") == "fixed"
        widths = (cell.get("first_width") or width, width)
        backbone = Perceptron(data.X.shape[1], widths, parts[0], fixed_scale=fixed)
    else:
        height, side, channels = data.image_shape or (0, 0, 0)
        backbone = ResNet18((channels, height, side), parts[0], width=width)
    d, strict = backbone.num_features, cell["solver"] == "strict"
    options = {"activation": cell["activation"], "steps": cell["truncated_steps"]}
    head = Head(cell["head"], d, cell["spectral_budget"], parts[1], strict=strict, **options)
    classifier = nn.utils.skip_init(nn.Linear, d, len(data.classes), bias=False)
    draw_weights(classifier, parts[2])
    return HeadedNetwork(backbone, head, classifier)


@torch.no_grad()
def _pass(network: HeadedNetwork, X: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return h and z (n, d), and the logits (n, K), of a network as it is."""
    parts = []
    for rows in torch.split(torch.as_tensor(X, dtype=network.head.matrix.dtype), _ROWS):
        h = network.backbone(rows)
        z = network.head(h)
        parts.append((h, z, network.classifier(z)))
    h, z, logits = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
    return h, z, logits


def _measured(network: HeadedNetwork, data: Dataset, groups: dict[str, list[int]]) -> Record:
    h, z, logits = _pass(network, data.X)
    W = network.classifier.weight
    metrics = CollapseMetrics(len(data.classes), groups=groups)
    metrics.update(z, data.y)
    report = metrics.compute(W, mismatch=metrics.mismatch(z, W, labels=data.y))
    minority = report.groups.get("minority")
    shifted = logits - logits.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(data.y)), data.y]
    entering, leaving = (np.linalg.norm(_centred_means(rows, data.y)) for rows in (h, z))
    with torch.no_grad():
        matrices = (network.head.matrix, network.head.operator())
        norms = [float(torch.linalg.matrix_norm(matrix.double(), 2)) for matrix in matrices]
    measured = {
        "loss": float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - own)),
        "accuracy": float((logits.argmax(axis=1) == data.y).mean()),
        "test_accuracy": None,
        "test_minority_accuracy": None,
        **{name: report.overall[name] for name in _MEASURES},
        "minority_cosine": minority and minority["cosine_classifier"],
        "spectral_norm": norms[0],
        "gain": norms[1],
        "gain_on_means": float(leaving / entering),
    }
    if len(data.X_test):
        right = _pass(network, data.X_test)[2].argmax(axis=1) == data.y_test
        measured["test_accuracy"] = float(right.mean())
        members = np.isin(data.y_test, groups.get("minority", []))
        if members.any():
            measured["test_minority_accuracy"] = float(right[members].mean())
    return {
        name: float(value) if value is not None and math.isfinite(value) else None
        for name, value in measured.items()
    }


def _centred_means(features: FloatArray, y: IntArray) -> FloatArray:
    means = np.stack([features[y == k].mean(axis=0) for k in np.unique(y)])
    return means - means.mean(axis=0)


def _three_classes(network: HeadedNetwork, data: Dataset, seed: int) -> Record:
    """Coordinates in the plane of the means of the first class and the last two, the small ones."""
    network.eval()
    z, y, K = _pass(network, data.X)[1], data.y, len(data.classes)
    classes = sorted({0, max(K - 2, 0), K - 1})
    means = np.stack([z[y == k].mean(axis=0) for k in classes])
    centre = means.mean(axis=0)
    _, singular, right = np.linalg.svd(means - centre, full_matrices=False)
    axes = right[:2] * np.sign(right[:2, np.abs(right[:2]).argmax(axis=1)].diagonal())[:, None]
    members = (np.flatnonzero(y == k) for k in classes)
    shown = np.concatenate([np.sort(m[draw_rows(data.X[m], _SHOWN, seed)]) for m in members])
    return {
        "classes": classes,
        "points": np.round((z[shown] - centre) @ axes.T, 4).tolist(),
        "labels": y[shown].tolist(),
        "means": ((means - centre) @ axes.T).tolist(),
        "share": (singular[:2] ** 2 / (singular**2).sum()).tolist(),
    }


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
