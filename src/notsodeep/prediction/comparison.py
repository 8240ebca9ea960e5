"""Does matching matter for me?  Predicted curves of several networks side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import expansion
from notsodeep.errors import InvalidInput
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, KernelName, Model
from notsodeep.prediction.classes import Classes
from notsodeep.prediction.risk import RiskCurve, predict_risk
from notsodeep.prediction.task import TableName
from notsodeep.records import Plotted

RATIOS = ("diagonal", "norm_fluctuation", "covariance_overlap")
"""Coefficients that count in units of the linear one: γ/a, α2/a and α3/a."""

_SAME = 0.005  # half a point of accuracy


@dataclass(frozen=True, eq=False, repr=False)
class RiskComparison(Plotted):
    """Predicted curves of several networks; the first is the one that others are to replace.

    Attributes
    ----------
    names : tuple of str
    curves : tuple of RiskCurve
    ratios : dict of dict
        γ/a, α2/a and α3/a of each network: up to the unit of the ridge (or of time), all that a
        kernel's limit depends on.  Empty for networks that are not centred.
    """

    _drawing = "risk_comparison"

    names: tuple[str, ...]
    curves: tuple[RiskCurve, ...]
    ratios: dict[str, dict[str, float]]

    def changes(self, name: str) -> FloatArray:
        """Return by how much the accuracy of a network differs from the first one's, (R,)."""
        found = self.curves[self.names.index(checks.known_name(name, self.names, "network"))]
        return np.asarray(found.accuracy - self.curves[0].accuracy)

    @property
    def verdict(self) -> str:
        """What the curves say, in a few sentences."""
        first, axis = self.names[0], self.curves[0].axis
        sentences = []
        for name, curve in zip(self.names[1:], self.curves[1:], strict=True):
            change = self.changes(name)
            worst = int(np.abs(change).argmax())
            at = f"{axis} {curve.values[worst]:.3g}"
            tuned = float(curve.accuracy.max() - self.curves[0].accuracy.max())
            if abs(change[worst]) < _SAME:
                within = f"{100.0 * abs(change[worst]):.1f} points"
                sentence = f"{name} behaves as {first}: accuracies within {within}"
            else:
                sentence = (
                    f"{name} differs from {first} by up to {_points(change[worst])} (at {at}), and "
                    f"by {_points(tuned)} where each is best"
                )
            if tuned > _SAME:
                sentence += "; for accuracy alone it is the better one"
            elif tuned >= -_SAME:
                sentence += "; for accuracy alone it would do as well"
            sentences.append(f"{sentence}.")
        return " ".join(sentences)

    def __str__(self) -> str:
        axis = self.curves[0].axis
        lines = [f"{axis:>10}  " + "  ".join(f"{name:>12}" for name in self.names)]
        for i, value in enumerate(self.curves[0].values):
            cells = "  ".join(f"{curve.accuracy[i]:>12.2%}" for curve in self.curves)
            lines.append(f"{value:>10.3g}  {cells}")
        for name, ratios in self.ratios.items():
            if ratios:
                numbers = ", ".join(f"{key} {value:.4g}" for key, value in ratios.items())
                lines.append(f"{name}, relative to its linear part: {numbers}")
        return "\n".join([*lines, self.verdict])


def compare_risks(
    models: Mapping[str, Model],
    mixture: GaussianMixture | MixtureStatistics,
    counts: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    ridge: ArrayLike | None = None,
    time: ArrayLike | None = None,
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    noise: float = 0.0,
    tables: TableName = "resolved",
) -> RiskComparison:
    """Predict several networks on the same data, at the same ridges or times.

    Parameters
    ----------
    models : mapping
        Networks by name, for instance a DEQ, the network matched to it and a plain one.
    mixture, counts, targets, ridge, time, kernel, convention, noise, tables
        As for `predict_risk`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> first = np.where(np.arange(256) < 128, 1.9, 0.1)
    >>> mixture = nsd.data.GaussianMixture(np.zeros((2, 256)), [first, 2.0 - first])
    >>> deq = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    >>> choice = {"kernel": "conjugate", "convention": "preactivation"}
    >>> found = nsd.match(deq, tau0=1.0, family="piecewise_linear", **choice)
    >>> models = {"DEQ": deq, "matched": found.network, "plain": found.unmatched}
    >>> seen = compare_risks(models, mixture, (256, 256), ridge=1e-3, **choice)
    >>> [float(curve.accuracy[0].round(2)) for curve in seen.curves]
    [0.75, 0.75, 0.9]
    """
    if len(models) < 2:
        raise checks.invalid("models", "compare_risks", "hold at least two networks", len(models))
    curves = [
        predict_risk(
            model, mixture, counts, targets, ridge=ridge, time=time, kernel=kernel,
            convention=convention, noise=noise, tables=tables,
        )
        for model in models.values()
    ]  # fmt: skip
    tau0 = _scale(mixture, curves[0])
    ratios = {
        name: shape_ratios(model, tau0, kernel=kernel, convention=convention)
        for name, model in models.items()
    }
    return RiskComparison(tuple(models), tuple(curves), ratios)


def shape_ratios(
    model: Model,
    tau0: float,
    *,
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
) -> dict[str, float]:
    """Return γ/a, α2/a and α3/a of a model's kernel; nothing of one that has no expansion.

    Networks that share them behave the same, up to the unit of the ridge or of time; those that are
    not centred with a bias in the read-out, to which constants and terms in one norm alone are
    nothing.  A match is as good as its worst ratio, which residuals in units of the kernel's
    diagonal can hide.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.DeepEquilibrium("relu", 0.2).centred(1.0)
    >>> {name: round(ratio, 3) for name, ratio in shape_ratios(deq, 1.0).items()}
    {'diagonal': 0.39, 'norm_fluctuation': 0.171, 'covariance_overlap': 0.329}
    """
    if not isinstance(model, DeepEquilibrium | ExplicitNetwork):
        return {}
    try:
        found = expansion(model, tau0, kernel=kernel, convention=convention)
    except InvalidInput:
        return {}
    return {name: float(getattr(found, name) / found.linear) for name in RATIOS}


def _scale(mixture: object, curve: RiskCurve) -> float:
    return Classes.of(mixture).scale(curve.counts / curve.counts.sum())


def _points(share: float) -> str:
    return f"{round(100.0 * share, 1) + 0.0:+.1f} points"  # no −0.0
