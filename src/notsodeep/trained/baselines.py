"""What an explicit network has to be better than, or must be said to be no better than."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.splittings import Splitting

_RIDGES = (1e-8, 1e-6, 1e-4, 1e-2)
_EPOCHS = 40
_BATCH = 128


def refitted(
    features: FloatArray, targets: FloatArray, apart: FloatArray, targets_apart: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Fit a read-out to logits by ridge regression; the ridge is chosen on rows set apart."""
    mean, level = features.mean(axis=0), targets.mean(axis=0)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(features))
    projected = vectors.T @ (centred.T @ (targets - level)) / len(features)
    scale = max(float(values.mean()), 1e-300)
    best: tuple[float, FloatArray, FloatArray] | None = None
    for ridge in _RIDGES:
        damped = projected / (np.maximum(values, 0.0) + ridge * scale)[:, None]
        weights = (vectors @ damped).T
        bias = level - weights @ mean
        error = float(np.linalg.norm(apart @ weights.T + bias - targets_apart))
        if best is None or error < best[0]:
            best = error, weights, bias
    assert best is not None
    return best[1], best[2]


def baseline_logits(
    cell: AffineCell,
    splitting: Splitting,
    layers: int,
    X: tuple[FloatArray, FloatArray, FloatArray],
    logits: tuple[FloatArray, FloatArray],
    rng: int,
) -> dict[str, FloatArray]:
    """Return the logits of the baselines on test rows.

    Parameters
    ----------
    cell : AffineCell
    splitting : Splitting
        The DEQ's best solver, truncated to as many steps as there are layers.
    layers : int
    X : rows to fit, rows set apart, test rows
    logits : of the DEQ on the first two
    rng : int
    """
    drives = [cell.drive(rows) for rows in X]
    generator = np.random.default_rng(rng)
    random = generator.standard_normal((cell.width, cell.inputs)) / np.sqrt(cell.inputs)
    spread = [((rows - cell.shift) / cell.scale) @ random.T for rows in X]
    spread = [values / max(float(spread[0].std()), 1e-300) for values in spread]
    found = {}
    for name, features in (
        ("recurrence dropped, read-out refitted", [cell.activation(h) for h in drives]),
        ("random features, read-out refitted", [cell.activation(h) for h in spread]),
    ):
        weights, bias = refitted(features[0], logits[0], features[1], logits[1])
        found[name] = features[2] @ weights.T + bias
    drive = torch.as_tensor(drives[2])
    s, following = splitting.cold(drive), splitting.steps(drive)
    for _ in range(layers):
        s = following(s)
    found[f"solver cut off after {layers} steps"] = cell.logits(splitting.resolvent(s).numpy())
    found["plain network, trained on the DEQ's outputs"] = _trained_network(
        cell, layers, X, logits, rng
    )
    return found


def _trained_network(
    cell: AffineCell,
    layers: int,
    X: tuple[FloatArray, FloatArray, FloatArray],
    logits: tuple[FloatArray, FloatArray],
    rng: int,
) -> FloatArray:
    """Train a plain network of the same widths on the DEQ's logits, with Adam and early stop."""
    phi = torch_twin(cell.activation)
    rows = [torch.tensor((x - cell.shift) / cell.scale, dtype=torch.float32) for x in X]
    level = logits[0].mean(axis=0)
    unit = max(float((logits[0] - level).std()), 1e-300)
    targets = [torch.tensor((o - level) / unit, dtype=torch.float32) for o in logits]
    generator = torch.Generator().manual_seed(rng)
    sizes = [cell.inputs, *[cell.width] * layers, logits[0].shape[1]]
    weights = [
        (torch.randn(b, a, generator=generator) * (2.0 / a) ** 0.5).requires_grad_()
        for a, b in pairwise(sizes)
    ]
    biases = [torch.zeros(b, requires_grad=True) for b in sizes[1:]]

    def network(x: torch.Tensor) -> torch.Tensor:
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            x = phi(nn.functional.linear(x, weight, bias))
        return nn.functional.linear(x, weights[-1], biases[-1])

    optimiser = torch.optim.Adam([*weights, *biases], lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _EPOCHS)
    best, answer = np.inf, torch.zeros(len(rows[2]), sizes[-1])
    for _ in range(_EPOCHS):
        order = torch.randperm(len(rows[0]), generator=generator)
        for begin in range(0, len(order), _BATCH):
            batch = order[begin : begin + _BATCH]
            loss = nn.functional.mse_loss(network(rows[0][batch]), targets[0][batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
        with torch.no_grad():
            error = float(nn.functional.mse_loss(network(rows[1]), targets[1]))
            if error < best:
                best, answer = error, network(rows[2])
    scores: FloatArray = answer.double().numpy() * unit + level
    return scores
