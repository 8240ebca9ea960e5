"""Read-outs of a random DEQ and of the networks made for it over the width, and as predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from notsodeep.compilation.settings import CompileSettings
from notsodeep.data import Dataset, draw_rows
from notsodeep.errors import NotConverged
from notsodeep.kernels import kernel
from notsodeep.matching import Match
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.networks.sampling import random_network
from notsodeep.prediction import WidthCurve, width_curve
from notsodeep.prediction.scores import default_targets

_ROWS = 400  # for training, and as many new ones, at most
_DRAWS = 4
_HALVINGS = 4  # of the width that was asked for


def width_record(settings: CompileSettings, found: Match, data: Dataset) -> dict[str, Any]:
    """Predict and measure accuracies of read-outs at several widths, on a few hundred rows.

    ``"predicted"`` is a `WidthCurve`, ``"measured"`` and ``"errors"`` hold means and standard
    errors over draws at ``"widths"``, by role; or there is a ``"reason"`` why the law of widths is
    not for them.
    """
    models: dict[str, Any] = {
        "deq": found.model, "matched": found.network, "unmatched": found.unmatched
    }  # fmt: skip
    reason = _reason(settings, found)
    if reason:
        return {"reason": reason}
    chosen = draw_rows(data.X, _ROWS, settings.seed)
    unseen = draw_rows(data.X_test, _ROWS, settings.seed)
    X, y, new, truth = data.X[chosen], data.y[chosen], data.X_test[unseen], data.y_test[unseen]
    rows, n = np.concatenate([X, new]), len(X)
    widths = sorted({max(16, settings.width >> k) for k in range(_HALVINGS)})
    line = np.unique(np.geomspace(widths[0], 4 * widths[-1], 17).round().astype(int))
    targets = default_targets(len(data.classes))
    curves: list[WidthCurve] = []
    tables: dict[str, dict[int, list[float]]] = {}
    for role, model in models.items():  # the DEQ comes first, and says which widths there are
        K = kernel(model, X, kind="ck", convention="feature")
        ridge = settings.ridge * float(np.diag(K).mean())
        curves.append(width_curve({role: model}, (X, y, new, truth), line, ridge=ridge))
        tables[role] = {}
        for width in widths:
            shares = []
            try:
                for k in range(_DRAWS):
                    generator = np.random.default_rng([settings.seed, k])
                    network = random_network(model, rows.shape[1], width, generator)
                    Z = network.features(rows, settings.tolerance).astype(np.float64)
                    K = Z @ Z.T
                    alpha = np.linalg.solve(K[:n, :n] + ridge * np.eye(n), targets[y])
                    gaps = np.square((K[n:, :n] @ alpha)[:, None] - targets).sum(axis=2)
                    shares.append((gaps.argmin(axis=1) == truth).mean())
            except NotConverged:  # narrow DEQs need not have a fixed point
                continue
            tables[role][width] = shares
        # Only widths at which every draw came to rest: others would be a biased choice of draws.
        widths = list(tables[role])
    if not widths:
        return {"reason": f"Not all DEQs of width {settings.width} or less come to rest."}
    drawn = {role: np.array([table[m] for m in widths]) for role, table in tables.items()}
    return {
        "reason": "",
        "rows": n,
        "new_rows": len(new),
        "draws": _DRAWS,
        "widths": widths,
        "predicted": _together(curves).to_dict(),
        "measured": {role: table.mean(axis=1).tolist() for role, table in drawn.items()},
        "errors": {
            role: (table.std(axis=1, ddof=1) / math.sqrt(_DRAWS)).tolist()
            for role, table in drawn.items()
        },
    }


def _reason(settings: CompileSettings, found: Match) -> str:
    if settings.train != "readout":
        return "The law of widths is for read-outs; here all weights are trained."
    if not isinstance(found.model, DeepEquilibrium) or not found.model.is_vanilla:
        return "The law of widths is for vanilla DEQs."
    networks = (found.network, found.unmatched)
    if any(not isinstance(net, ExplicitNetwork) or net.depth > 1 for net in networks):
        return "The law of widths is for networks of one hidden layer."
    return ""


def _together(curves: list[WidthCurve]) -> WidthCurve:
    """Put the curves of single models into one; its ridge is that of the first."""
    first = curves[0]
    names = ("test_mse", "accuracy", "effective_width", "limit_mse", "limit_accuracy")
    merged: dict[str, Any] = {
        name: {role: value for curve in curves for role, value in getattr(curve, name).items()}
        for name in names
    }
    return WidthCurve(widths=first.widths, ridge=first.ridge, **merged)
