"""Draws of networks of one width, put together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

Work = Literal["training", "inference"]


@dataclass(frozen=True)
class WidthSummary:
    """What the cells of `accuracy-versus-width` with the same networks say, over their draws."""

    data: str
    activation: str
    train: str
    width: int
    accuracies: dict[str, list[float]]  # on test images, in percent, one for each draw
    seconds: dict[str, dict[str, float]]  # median processor time by work and network
    kernel_gap: dict[str, float]  # relative, from the exact kernel of the DEQ

    @property
    def draws(self) -> int:
        """Number of draws."""
        return len(self.accuracies["deq"])

    def mean(self, role: str) -> float:
        """Mean accuracy in percent."""
        return float(np.mean(self.accuracies[role]))

    def deviation(self, role: str) -> float:
        """Deviation of the accuracy over the draws (standard, n − 1); 0 for one draw."""
        return float(np.std(self.accuracies[role], ddof=1)) if self.draws > 1 else 0.0

    def difference(self, role: str) -> float:
        """Mean accuracy less the DEQ's, in percentage points."""
        return self.mean(role) - self.mean("deq")

    def interval(self, role: str) -> tuple[float, float] | None:
        """Student's 95 % interval for `difference`; None for one draw."""
        if self.draws < 2:
            return None
        gaps = np.subtract(self.accuracies[role], self.accuracies["deq"])
        quantile = float(stats.t.ppf(0.975, self.draws - 1))
        half = quantile * float(gaps.std(ddof=1)) / math.sqrt(self.draws)
        return float(gaps.mean()) - half, float(gaps.mean()) + half

    def ratio(self, work: Work, role: str = "matched") -> float:
        """Time of the DEQ over that of another network."""
        return self.seconds[work]["deq"] / self.seconds[work][role]

    def accuracy_text(self, role: str) -> str:
        """Mean ± standard deviation over the draws, in percent."""
        spread = f" ± {self.deviation(role):.2f}" if self.draws > 1 else ""
        return f"{self.mean(role):.2f}{spread}"


def by_width(records: Iterable[Mapping[str, Any]]) -> list[WidthSummary]:
    """Group records by (data, activation, what is trained, width), in this order of appearance.

    Widths of one curve come in ascending order.
    """
    groups: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = {}
    for record in records:
        cell = record["cell"]
        key = (cell["data"], cell["activation"], cell["train"], cell["width"])
        groups.setdefault(key, []).append(record)
    curves = list(dict.fromkeys(key[:3] for key in groups))
    ordered = sorted(groups, key=lambda key: (curves.index(key[:3]), key[3]))
    return [_summary(key, groups[key]) for key in ordered]


def _summary(key: tuple[str, str, str, int], draws: list[Mapping[str, Any]]) -> WidthSummary:
    roles = list(draws[0]["networks"])
    works = ("training", "inference")
    return WidthSummary(
        *key,
        accuracies={
            role: [100.0 * draw["networks"][role]["accuracy"] for draw in draws] for role in roles
        },
        seconds={
            work: {
                role: float(np.median([draw["seconds"][work][role] for draw in draws]))
                for role in roles
            }
            for work in works
        },
        kernel_gap=dict(draws[0]["kernel_gap"]),
    )
