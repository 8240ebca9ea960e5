"""Neural collapse of a network with a head: after an epoch, and at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from experiments.collapse.headed_network import HeadedNetwork
from experiments.collapse.settings import CollapseSettings
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.collapse import CollapseMetrics, CollapseReport
from notsodeep.data import Dataset, draw_rows

_ROWS = 512  # in one pass
_SHOWN = 40  # samples of a class in the projection
_MEASURES = (
    "nc1",
    "nc1_trace_ratio",
    "nc1_cdnv",
    "nc2_features",
    "nc2_classifier",
    "nc3_alignment",
    "nc3_duality",
    "nc4",
)


@dataclass(frozen=True, eq=False)
class Pass:
    """What a pass of samples through a network leaves: h and z (n, d), and the logits (n, K)."""

    entering: FloatArray
    features: FloatArray
    logits: FloatArray


@torch.no_grad()
def pass_through(network: HeadedNetwork, X: FloatArray) -> Pass:
    """Send rows through a network as it is, some at a time."""
    like = network.head.matrix
    parts = []
    for start in range(0, len(X), _ROWS):
        rows = torch.as_tensor(X[start : start + _ROWS], dtype=like.dtype, device=like.device)
        h = network.backbone(rows)
        z = network.head(h)
        parts.append((h, z, network.classifier(z)))
    return Pass(*(torch.cat(part).double().cpu().numpy() for part in zip(*parts, strict=True)))


class HeadMeasurements:
    """Measures one network on one data set.

    Parameters
    ----------
    network : HeadedNetwork
    data : Dataset
    settings : CollapseSettings

    Attributes
    ----------
    groups : dict of str to list of int
        Majority and minority classes; empty for balanced classes.
    """

    def __init__(self, network: HeadedNetwork, data: Dataset, settings: CollapseSettings) -> None:
        self.network, self.data, self.settings = network, data, settings
        self.groups: dict[str, list[int]] = {}
        if settings.num_majority is not None:
            classes = list(range(len(data.classes)))
            self.groups["majority"] = classes[: settings.num_majority]
            self.groups["minority"] = classes[settings.num_majority :]

    def after_epoch(self, epoch: int) -> dict[str, Any]:
        """Measure after epoch number `epoch`, from 0; nothing in epochs that are passed over."""
        last = epoch + 1 == self.settings.epochs
        if not last and (epoch + 1) % self.settings.measure_every:
            return {}
        seen = pass_through(self.network, self.data.X)
        report = self._report(seen.features, seen.features)
        overall, minority = report.overall, report.groups.get("minority")
        head = self.network.head
        entering, leaving = (self._centred_means(rows) for rows in (seen.entering, seen.features))
        gain_on_means = np.linalg.norm(leaving) / np.linalg.norm(entering)
        measured = {
            "loss": _cross_entropy(seen.logits, self.data.y),
            **self._accuracies(seen.logits, self.data.y, ""),
            **self._accuracies(self._test_logits(), self.data.y_test, "test_"),
            **{name: overall[name] for name in _MEASURES},
            "minority_cosine": minority and minority["cosine_classifier"],
            "minority_cosine_features": minority and minority["cosine_features"],
            "spectral_norm": head.spectral_norm(),
            "gain": head.gain(),
            "gain_on_means": float(gain_on_means),
        }
        return _finite(measured)

    def at_the_end(self) -> dict[str, Any]:
        """Measure what is shown once: geometry, projection, and the features before the head."""
        was_training = self.network.training
        self.network.eval()
        seen = pass_through(self.network, self.data.X)
        self.network.train(was_training)
        before = self._report(seen.entering, None).overall
        names = ("nc1", "nc2_features", "nc3_alignment", "nc3_duality")
        return {
            "report": self._report(seen.features, seen.features).to_dict(),
            "entering": _finite({name: before[name] for name in names}),
            "projection": self._projection(seen.features, list(range(len(self.data.classes)))),
            "three_classes": self._projection(seen.features, self._three_classes()),
        }

    def _report(self, features: FloatArray, decided: FloatArray | None) -> CollapseReport:
        """Measure features against the classifier; NC4 if it is applied to `decided`."""
        W = self.network.classifier.weight
        metrics = CollapseMetrics(len(self.data.classes), groups=self.groups)
        metrics.update(features, self.data.y)
        mismatch = None
        if decided is not None:
            mismatch = metrics.mismatch(decided, W, labels=self.data.y)
        return metrics.compute(W, mismatch=mismatch)

    def _test_logits(self) -> FloatArray | None:
        if not len(self.data.X_test):
            return None
        return pass_through(self.network, self.data.X_test).logits

    def _accuracies(
        self, logits: FloatArray | None, labels: IntArray, prefix: str
    ) -> dict[str, float | None]:
        found: dict[str, float | None] = {f"{prefix}accuracy": None}
        right = None if logits is None else logits.argmax(axis=1) == labels
        if right is not None:
            found[f"{prefix}accuracy"] = float(right.mean())
        for group in ("majority", "minority"):
            members = np.isin(labels, self.groups.get(group, []))
            known = right is not None and members.any()
            found[f"{prefix}{group}_accuracy"] = float(right[members].mean()) if known else None  # type: ignore[index]
        return found

    def _centred_means(self, features: FloatArray) -> FloatArray:
        K = len(self.data.classes)
        means = np.stack([features[self.data.y == k].mean(axis=0) for k in range(K)])
        return np.asarray(means - means.mean(axis=0))

    def _drawn_of(self, k: int) -> IntArray:
        """Return the indices of some samples of a class, in ascending order."""
        members = np.flatnonzero(self.data.y == k)
        return np.sort(members[draw_rows(self.data.X[members], _SHOWN, self.settings.seed)])

    def _three_classes(self) -> list[int]:
        """Choose the first class and the last two: the small ones, if there are two."""
        K = len(self.data.classes)
        return sorted({0, max(K - 2, 0), K - 1})

    def _projection(self, features: FloatArray, classes: list[int]) -> dict[str, Any]:
        """Coordinates along the two leading principal directions of the centred class means."""
        y = self.data.y
        means = np.stack([features[y == k].mean(axis=0) for k in classes])
        centre = means.mean(axis=0)
        _, singular, right = np.linalg.svd(means - centre, full_matrices=False)
        axes = right[:2] * np.sign(right[:2, np.abs(right[:2]).argmax(axis=1)].diagonal())[:, None]
        shown = np.concatenate([self._drawn_of(k) for k in classes])
        W = self.network.classifier.weight.detach().double().cpu().numpy()[classes]
        W = W / np.linalg.norm(W, axis=1).mean()
        return {
            "classes": classes,
            "points": _rounded((features[shown] - centre) @ axes.T),
            "labels": y[shown].tolist(),
            "means": _rounded((means - centre) @ axes.T),
            "classifier": _rounded(W @ axes.T),
            "share": (singular[:2] ** 2 / (singular**2).sum()).tolist(),
        }


def _finite(measured: Mapping[str, float | None]) -> dict[str, float | None]:
    """Put None in place of what is not finite: the curves end there."""
    return {
        name: float(value) if value is not None and math.isfinite(value) else None
        for name, value in measured.items()
    }


def _cross_entropy(logits: FloatArray, labels: IntArray) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - own))


def _rounded(points: FloatArray) -> list[list[float]]:
    """Coordinates for a picture need no more than five digits."""
    return [[float(f"{value:.5g}") for value in row] for row in points.tolist()]
