"""Figures of what is predicted before training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from notsodeep.plotting.canvas import MUTED, axes_or_new, colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from notsodeep.arrays import FloatArray
    from notsodeep.prediction import (
        BestSigma,
        LearningCurve,
        PilotCurve,
        RiskCurve,
        Transfer,
        WidthCurve,
    )

_NAMES = {"test_mse": "mean squared error", "accuracy": "accuracy"}


def risk_curve(record: RiskCurve, ax: Axes | None = None, *, accuracy: bool = False) -> Axes:
    """Draw test and training error over the ridge or the time, or the accuracies.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mixture = nsd.data.paper_mixture(dimension=64)
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> curve = nsd.predict_risk(deq, mixture, (40, 40), ridge=[0.1, 1.0])
    >>> risk_curve(curve, nsd.plotting.new_figure()[1][0]).get_xlabel()
    'ridge λ'
    """
    axes = axes_or_new(ax)
    (deep,) = colours(1)
    test = record.accuracy if accuracy else record.test_mse
    train = record.train_accuracy if accuracy else record.train_mse
    axes.plot(record.values, test, color=deep, label="test")
    if train is not None:
        axes.plot(record.values, train, color=MUTED, ls="--", label="training")
    axes.set_xscale("log")
    axes.set_xlabel("ridge λ" if record.axis == "ridge" else "time t")
    axes.set_ylabel("accuracy" if accuracy else "mean squared error")
    axes.legend()
    return axes


def learning_curve(
    record: LearningCurve, ax: Axes | None = None, *, accuracy: bool = False
) -> Axes:
    """Draw the test error, or the accuracy, over n/p: one line for each ridge."""
    axes = axes_or_new(ax)
    (deep,) = colours(1)
    table = record.accuracy if accuracy else record.test_mse
    shades = np.linspace(1.0, 0.35, len(record.ridges))
    for column, level, alpha in zip(table.T, record.ridges, shades, strict=True):
        ratio = record.samples / record.dimension
        axes.plot(ratio, column, color=deep, alpha=float(alpha), label=f"λ = {level:.3g}")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("samples per dimension n/p")
    axes.set_ylabel("accuracy" if accuracy else "mean squared error")
    axes.legend()
    return axes


def width_curve(
    record: WidthCurve,
    ax: Axes | None = None,
    *,
    accuracy: bool = True,
    measured: Mapping[str, tuple[list[float], list[float], list[float]]] | None = None,
) -> Axes:
    """Draw accuracies, or errors, of read-outs over the width; dashed at infinite width.

    `measured` holds widths, values and their errors, drawn as dots, by model.  The axis above
    counts the first model's independent neurons.
    """
    axes = axes_or_new(ax)
    shades = [*colours(), MUTED]
    for i, name in enumerate(record.accuracy):
        colour = shades[i % len(shades)]
        column = (record.accuracy if accuracy else record.test_mse)[name]
        limit = (record.limit_accuracy if accuracy else record.limit_mse)[name]
        axes.plot(record.widths, column, color=colour, label=name)
        axes.axhline(limit, color=colour, lw=0.8, ls="--")
        if measured:
            places, values, errors = measured[name]
            axes.errorbar(places, values, yerr=errors, fmt="o", ms=4, color=colour)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("width m")
    axes.set_ylabel("accuracy" if accuracy else "mean squared error")
    name, neurons = next(iter(record.effective_width.items()))
    ticks = np.linspace(0, len(neurons) - 1, min(5, len(neurons))).round().astype(int)
    above = axes.secondary_xaxis("top")
    above.set_xticks(record.widths[ticks], labels=[f"{m:.0f}" for m in neurons[ticks]])
    above.minorticks_off()
    above.set_xlabel(f"independent neurons that count, {name}")
    axes.legend()
    return axes


def best_sigma(record: BestSigma, ax: Axes | None = None) -> Axes:
    """Draw the score over σa² and the ridge, with the best pair: which DEQ for my data."""
    axes = axes_or_new(ax)
    mesh: Any = axes.pcolormesh(
        record.sigma_a2, record.ridges, record.scores.T, cmap="viridis", shading="nearest"
    )
    axes.plot([record.value], [record.ridge], "o", mfc="none", mec="white", ms=9)
    axes.set_yscale("log")
    axes.set_xlabel("σa²")
    axes.set_ylabel("ridge λ")
    axes.figure.colorbar(mesh, ax=axes, label=_NAMES[record.goal])
    return axes


def predicted_scores(
    record: RiskCurve,
    ax: Axes | None = None,
    *,
    place: int = 0,
    output: int = 0,
    scores: list[FloatArray] | None = None,
) -> Axes:
    """Draw the Gaussian law of the scores of each class, over histograms of `scores` if given.

    `place` is the index of the ridge or time, `output` that of the score; `scores` holds one
    vector of measured scores for each class.
    """
    axes = axes_or_new(ax)
    shades = [*colours(), MUTED, *colours(5)[2:]]
    means = record.means[place, :, output]
    spreads = np.sqrt(record.covariances[place, :, output, output])
    x = np.linspace((means - 4.0 * spreads).min(), (means + 4.0 * spreads).max(), 400)
    for a, (mean, spread) in enumerate(zip(means, spreads, strict=True)):
        colour = shades[a % len(shades)]
        if scores is not None:
            axes.hist(scores[a], bins=40, density=True, color=colour, alpha=0.3)
        density = np.exp(-0.5 * np.square((x - mean) / spread)) / (spread * np.sqrt(2.0 * np.pi))
        axes.plot(x, density, color=colour, label=f"class {a}")
    axes.set_xlabel("score")
    axes.set_ylabel("density")
    axes.legend()
    return axes


def transfer(record: Transfer, ax: Axes | None = None, *, accuracy: bool = False) -> Axes:
    """Draw losses, or accuracies, over epochs at the rate that was tuned for the first network.

    The line across is at its best epoch; losses that grow beyond the first one's start are cut off.
    """
    axes = axes_or_new(ax)
    deep, shallow = colours()
    styles = [(deep, "-", 3.0), (shallow, "--", 1.5), (MUTED, "-", 1.5)]
    table = record.accuracy if accuracy else record.loss
    for i, name in enumerate(record.names):
        colour, line, thick = styles[i % len(styles)]
        axes.plot(record.seen, table[name], color=colour, ls=line, lw=thick, label=name)
    axes.axvline(record.first.epochs, color=MUTED, lw=0.8)
    if not accuracy:
        first = table[record.names[0]]
        axes.set_ylim(0.8 * first.min(), 1.3 * first.max())
    axes.set_xscale("log")
    axes.set_xlabel(f"epochs of rate {record.first.rate:g}")
    axes.set_ylabel(_NAMES["accuracy" if accuracy else "test_mse"])
    axes.legend()
    return axes


def pilot_curve(
    record: PilotCurve, ax: Axes | None = None, *, samples: float | None = None
) -> Axes:
    """Draw leave-one-out errors of a pilot over its size, extended to `samples`."""
    axes = axes_or_new(ax)
    end = 4.0 * record.samples[-1] if samples is None else samples
    for i, level in enumerate(record.ridges):
        (line,) = axes.plot(record.samples, record.mse[:, i], "o-", ms=4, label=f"λ = {level:.3g}")
        sizes = np.geomspace(record.samples[-1], end, 10)
        further = [record.extrapolated(float(n))[0][i] for n in sizes]
        axes.plot(sizes, further, ls="--", color=line.get_color())
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("samples n")
    axes.set_ylabel("leave-one-out mean squared error")
    axes.legend()
    return axes
