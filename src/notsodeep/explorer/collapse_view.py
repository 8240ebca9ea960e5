"""From the settings of the second page to what it shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from notsodeep.collapse import (
    CollapseThreshold,
    LayerPeeledOptimum,
    layer_peeled,
    minority_collapse_threshold,
    nearest_etf,
)
from notsodeep.collapse.certificate import FeatureBudget
from notsodeep.collapse.heads import Head
from notsodeep.errors import NotSoDeepError
from notsodeep.explorer.state import CollapseState
from notsodeep.papers.reproduction import experiment

_GAINS, _RATIOS = 13, 25  # of the diagram


@dataclass(frozen=True, eq=False)
class CollapseView:
    """The optimum at the chosen point, and the threshold for its gain.

    Attributes
    ----------
    optimum : LayerPeeledOptimum
    threshold : CollapseThreshold or None
        None if there is none that floats can follow.
    threshold_note : str
        Why.
    """

    optimum: LayerPeeledOptimum
    threshold: CollapseThreshold | None
    threshold_note: str

    @property
    def distance_to_etf(self) -> float | None:
        """How far the classifiers are from a simplex ETF; None if they are all equal."""
        try:
            return nearest_etf(self.optimum.classifier).distance
        except NotSoDeepError:
            return None


def collapse_view(state: CollapseState) -> CollapseView:
    """Solve the layer-peeled model at the chosen point."""
    head = cast(Head, state.head)
    bound = None if head == "plain" else state.spectral_budget
    budget = cast(FeatureBudget, state.feature_budget)
    optimum = layer_peeled(
        state.counts, budget=state.budget, head=head, spectral_budget=bound, feature_budget=budget
    )
    try:
        threshold = minority_collapse_threshold(
            num_majority=state.majority,
            num_minority=state.minority,
            budget=state.budget,
            feature_budget=budget,
            head=head,
            spectral_budget=bound,
        )
    except NotSoDeepError as error:
        return CollapseView(optimum, None, str(error))
    return CollapseView(optimum, threshold, "")


def diagram_key(state: CollapseState) -> tuple[int, int, float, str]:
    """Return what the diagram depends on: not the head and the imbalance, which are its axes."""
    return state.majority, state.minority, state.budget, state.feature_budget


def diagram_records(
    majority: int, minority: int, budget: float, feature_budget: str
) -> list[dict[str, Any]]:
    """Solve a grid of gains and imbalances, by the work of the experiment ``collapse-phase``."""
    ratios = [float(f"{ratio:.6g}") for ratio in np.geomspace(1.1, 1e4, _RATIOS)]
    work = experiment("collapse-phase")
    records = []
    for gain in np.geomspace(0.25, 4.0, _GAINS):
        cell = {
            "majority": majority, "minority": minority, "feature_budget": feature_budget,
            "budget": budget, "row": "gain", "head": "explicit", "spectral_budget": float(gain),
            "ratios": ratios,
        }  # fmt: skip
        records.append({"cell": cell, **work.compute(cell, 0)})
    return records


def words(state: CollapseState, view: CollapseView) -> tuple[str, bool]:
    """Say what becomes of the minority classes, and whether they have collapsed."""
    cosine = view.optimum.minority_cosine
    R = f"R = {state.imbalance:.4g}"
    threshold = view.threshold
    border = "" if threshold is None else f" The threshold for this gain is {threshold.ratio:.4g}."
    if cosine is None:
        if state.imbalance == 1.0:
            return f"All classes have the same size: a simplex ETF.{border}", False
        return f"At {R} the minority classifiers are zero: they vanish.{border}", True
    if threshold is not None and state.imbalance >= threshold.ratio:
        return f"At {R} the minority classifiers coincide: minority collapse.{border}", True
    return f"At {R} the minority classifiers stay apart, with cosine {cosine:.3f}.{border}", False
