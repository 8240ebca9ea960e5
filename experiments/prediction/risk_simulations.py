"""What predicted risks are compared with: fits on drawn samples, and networks trained on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import GaussianMixture, paper_mixture
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.networks.sampling import random_network

Network = DeepEquilibrium | ExplicitNetwork
Gram = Callable[[FloatArray, int, np.random.Generator], FloatArray]
"""(X, n, generator) ↦ the kernel of all rows of X with the first n."""
Response = Callable[[FloatArray], FloatArray]
"""Eigenvalues of the kernel, (n,) ↦ what multiplies the targets there, (fits, n)."""

QUANTITIES = ("train_mse", "test_mse", "train_accuracy", "accuracy", "score")
"""What is measured of a fit; the last is the mean first score of new samples of class 0."""


def mixture(name: str, p: int) -> GaussianMixture:
    """Return a mixture that is hard for one reason.

    "paper" and "weak" have means of norm 8 and 2 and traces that differ; "trace" has nothing but
    traces, "halves" nothing but covariances of equal trace; "aniso" has one spread covariance and
    means ±1.2 in a random direction; "three" has three classes, "imbalanced" the same ones with
    600, 300 and 124 of 1024 samples.
    """
    root, means = math.sqrt(p), np.zeros((2, p))
    if name == "paper":
        return paper_mixture(p)
    if name == "weak":
        means[0, 0] = means[1, 8] = 2.0
        return GaussianMixture(means, [1.0, 1.0 + 2.0 / root])
    if name == "trace":
        return GaussianMixture(means, [1.0 - 2.5 / root, 1.0 + 2.5 / root])
    if name == "halves":
        first = np.where(np.arange(p) < p // 2, 1.9, 0.1)
        return GaussianMixture(means, [first, 2.0 - first])
    if name == "aniso":
        spread = np.geomspace(0.05, 5.0, p)
        direction = np.random.default_rng(0).standard_normal(p)
        direction *= 1.2 / np.linalg.norm(direction)
        return GaussianMixture([direction, -direction], [spread / spread.mean()] * 2)
    shares = np.array([600, 300, 124]) / 1024 if name == "imbalanced" else None
    traces = [1.0 - 2.0 / root, 1.0, 1.0 + 2.0 / root]
    return GaussianMixture(3.0 * np.eye(3, p), traces, shares)


def default_targets(K: int) -> FloatArray:
    """Return (−1, 1) for two classes, one-hot − 1/K for more."""
    return np.array([[-1.0], [1.0]]) if K == 2 else np.eye(K) - 1.0 / K


def exact_gram(model: Network, kind: Any, convention: Any) -> Gram:
    """Return the exact kernel of a model."""
    return lambda X, n, rng: np.asarray(kernel(model, X, X[:n], kind=kind, convention=convention))


def random_gram(model: Network, width: int) -> Gram:
    """Return the Gram matrix of the features of a newly drawn network."""

    def gram(X: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
        Z = random_network(model, X.shape[1], width, rng).features(X).astype(np.float64)
        return np.asarray(Z @ Z[:n].T)

    return gram


def ridge_response(ridges: FloatArray) -> Response:
    """Return the response of ridge regression, 1/(x + λ)."""
    return lambda x: 1.0 / (np.maximum(x, 0.0) + ridges[:, None])


def flow_response(times: FloatArray) -> Response:
    """Return the response of gradient flow until t, (1 − exp(−tx))/x."""

    def response(x: FloatArray) -> FloatArray:
        positive = np.maximum(x, 1e-14 * x[-1])
        return np.asarray(-np.expm1(-times[:, None] * positive) / positive)

    return response


@dataclass(frozen=True, eq=False)
class Draws:
    """Training sets of a mixture, each with new samples; the same for all fitted to them."""

    data: GaussianMixture
    samples: int  # n of each training set
    count: int  # of draws
    seed: int
    tests: int = 1000  # new samples of each draw, balanced
    noise: float = 0.0  # standard deviation on training targets

    @property
    def targets(self) -> FloatArray:
        """Of each class, (K, k)."""
        return default_targets(self.data.num_classes)

    def __iter__(self) -> Iterator[tuple[FloatArray, IntArray, FloatArray, np.random.Generator]]:
        """Yield training rows with new ones below, all labels, training targets, a generator."""
        balanced = GaussianMixture(self.data.means, self.data.covariances)
        for draw in range(self.count):
            rng = np.random.default_rng([self.seed, draw])
            (X, y), (Z, truth) = (
                self.data.sample(self.samples, rng),
                balanced.sample(self.tests, rng),
            )
            Y = self.targets[y]
            Y = Y + self.noise * rng.standard_normal(Y.shape)
            yield np.concatenate([X, Z]), np.concatenate([y, truth]), Y, rng

    def fits(self, gram: Gram, response: Response) -> dict[str, Any]:
        """Measure fits α = f(K)Y: means and standard errors over the draws, by quantity."""
        rows = []
        for X, labels, Y, rng in self:
            K = gram(X, self.samples, rng)
            values, vectors = np.linalg.eigh(K[: self.samples])
            turned = vectors.T @ Y
            scores = (K @ (vectors @ (f[:, None] * turned)) for f in response(values))
            rows.append([self._measured(s, labels, Y) for s in scores])
        return with_errors(rows, QUANTITIES)

    def trained(
        self, model: Network, width: int, trainable: str, rate: float, times: list[float]
    ) -> dict[str, Any]:
        """Measure torch networks that are trained by full-batch gradient descent until the times.

        All weights or the read-out.  What a network says before training is taken off its outputs,
        as the theory has it: kernels know of changes alone.
        """
        import torch

        from notsodeep.networks.random import build

        steps = [round(time / rate) for time in times]
        rows = []
        for X, labels, Y, rng in self:
            network: Any = build(
                model,
                X.shape[1],
                width,
                Y.shape[1],
                rng,
                trainable=trainable,  # type: ignore[arg-type]
            ).double()
            inputs, targets = torch.from_numpy(X), torch.from_numpy(Y)
            with torch.no_grad():
                start = network(inputs)
            weights = [w for w in network.parameters() if w.requires_grad]
            descent, seen = torch.optim.SGD(weights, lr=rate), []
            for step in range(1, steps[-1] + 1):
                descent.zero_grad()
                gap = network(inputs[: self.samples]) - start[: self.samples] - targets
                (0.5 * gap.square().sum()).backward()
                descent.step()
                if step in steps:
                    with torch.no_grad():
                        scores = (network(inputs) - start).numpy()
                    seen.append(self._measured(scores, labels, Y))
            rows.append(seen)
        return with_errors(rows, QUANTITIES)

    def _measured(self, scores: FloatArray, labels: IntArray, Y: FloatArray) -> list[float]:
        n, targets = self.samples, self.targets
        wanted = np.concatenate([Y, targets[labels[n:]]])
        squares = np.square(scores - wanted).sum(axis=1)
        gaps = np.square(scores[:, None] - targets).sum(axis=2)
        right = gaps.argmin(axis=1) == labels
        first = scores[n:][labels[n:] == 0, 0].mean()
        return [squares[:n].mean(), squares[n:].mean(), right[:n].mean(), right[n:].mean(), first]


def with_errors(rows: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Turn (draws, fits, quantities) into means and standard errors of the mean, by quantity."""
    table = np.array(rows)
    errors = table.std(axis=0, ddof=1) / math.sqrt(len(table))
    return {
        "measured": {name: table.mean(axis=0)[:, i].tolist() for i, name in enumerate(names)},
        "errors": {name: errors[:, i].tolist() for i, name in enumerate(names)},
    }
