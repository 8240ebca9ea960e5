"""How faithful a network is to a given DEQ, and the baselines that it has to be better than."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.splittings import Splitting

LEVEL = 0.95
STATE_ERROR = 1e-2
"""Relative error within which a state agrees with another, where there are no classes."""


@dataclass(frozen=True, repr=False)
class Fidelity(Record):
    """Whether a network decides as a DEQ does, on held-out rows.

    Attributes
    ----------
    rows : int
    agreement : float
        Share of rows to which both give the same class; without a read-out, whose state is within
        1 % of the fixed point.
    agreement_bound : float
        Clopper and Pearson's lower bound of it at 95 %, for data drawn as the held-out rows are.
    agreement_upper : float
        Their upper bound at 95 %.
    logit_error : float
        ‖o − o*‖/‖o*‖ over all rows.
    logit_quantile : float
        Conformal quantile: of another row drawn like these, ‖o − o*‖ is below it with a
        probability of 95 %.  Infinite with fewer than 19 rows.
    certified : float or None
        Share of rows with a proof that the DEQ's class is the one the network gives; None where
        nothing can be proved.
    accuracy, deq_accuracy : float or None
        With labels.

    Examples
    --------
    >>> exact = np.eye(3)[[0, 1, 2, 1]]
    >>> fidelity = fidelity_of(exact + 0.1, exact)
    >>> fidelity.agreement, round(fidelity.agreement_bound, 3), round(fidelity.logit_error, 4)
    (1.0, 0.473, 0.1732)
    """

    rows: int
    agreement: float
    agreement_bound: float
    agreement_upper: float
    logit_error: float
    logit_quantile: float
    certified: float | None = None
    accuracy: float | None = None
    deq_accuracy: float | None = None


def fidelity_of(
    scores: FloatArray,
    exact: FloatArray,
    *,
    proved: NDArray[np.bool_] | None = None,
    labels: NDArray[np.int64] | None = None,
    states: bool = False,
) -> Fidelity:
    """Compare logits with those of the DEQ, both of shape (n, K).

    Parameters
    ----------
    scores, exact : ndarray of shape (n, K)
    proved : ndarray of bool, optional
        Rows whose class is proved.
    labels : ndarray of int, optional
    states : bool
        They are states, and not logits: there are no classes.
    """
    distances = np.linalg.norm(scores - exact, axis=1)
    if states:
        same = distances <= STATE_ERROR * np.linalg.norm(exact, axis=1)
    else:
        same = scores.argmax(axis=1) == exact.argmax(axis=1)
    size = float(np.linalg.norm(exact))

    def right(values: FloatArray) -> float | None:
        return None if labels is None else float(np.mean(values.argmax(axis=1) == labels))

    return Fidelity(
        len(same),
        float(same.mean()),
        lower_bound(int(same.sum()), len(same)),
        1.0 - lower_bound(int((~same).sum()), len(same)),
        float(np.linalg.norm(distances)) / size if size else 0.0,
        conformal_quantile(distances),
        None if proved is None else float(proved.mean()),
        right(scores),
        right(exact),
    )


def lower_bound(successes: int, trials: int, level: float = LEVEL) -> float:
    """Return Clopper and Pearson's lower bound of a share.

    Examples
    --------
    >>> round(lower_bound(100, 100), 4)  # 0.05^(1/100)
    0.9705
    """
    if successes == 0:
        return 0.0
    return float(stats.beta.ppf(1.0 - level, successes, trials - successes + 1))


def conformal_quantile(distances: FloatArray, level: float = LEVEL) -> float:
    """Return the ⌈(n + 1)·level⌉-th smallest distance, infinite if there are too few.

    Examples
    --------
    >>> conformal_quantile(np.arange(1.0, 20.0)), conformal_quantile(np.ones(5))
    (19.0, inf)
    """
    # n + 1: the new row takes each place among the n with the same probability, whatever its law.
    rank = math.ceil((len(distances) + 1) * level)
    if rank > len(distances):
        return math.inf
    return float(np.sort(distances)[rank - 1])


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
