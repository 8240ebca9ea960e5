"""Training curves before training: predicted from statistics, then measured on torch networks.

Run ``python examples/before_training.py [--out before_training.png]``; about two minutes.

A DEQ and the explicit network matched to it are trained by gradient descent on draws of a Gaussian
mixture: all weights, and the read-out alone.  The lines were known before: they need class means
and covariances, no sample.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.plotting import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure

DIMENSION, SAMPLES, NEW, DRAWS = 128, 128, 1000, 3
# What is trained, the kernel that this has at infinite width, width, rate, and times to look at.
RUNS = [
    ("all", "ntk", 512, 0.05, (0.25, 0.5, 1.0, 2.0)),
    ("readout", "ck", 2048, 0.25, (0.5, 1.0, 2.0, 4.0)),
]


def classes() -> nsd.data.GaussianMixture:
    """Return two classes that differ in their means and, a little, in their traces."""
    means = np.zeros((2, DIMENSION))
    means[0, 0] = means[1, 8] = 2.0
    return nsd.data.GaussianMixture(means, [1.0, 1.0 + 2.0 / math.sqrt(DIMENSION)])


def trained(
    model: object, trainable: str, width: int, rate: float, times: tuple, draw: int
) -> np.ndarray:
    """Train a network on a draw of the data; return test and training errors at the times."""
    (X, y), (Z, t) = classes().sample(SAMPLES, rng=draw), classes().sample(NEW, rng=draw + 100)
    rows = torch.from_numpy(np.concatenate([X, Z]))
    targets = torch.from_numpy(2.0 * np.concatenate([y, t]) - 1.0)
    network = nsd.build(model, DIMENSION, width, 1, draw, trainable=trainable).double()
    scores = network
    if trainable == "readout":  # features stay what they are
        with torch.no_grad():
            rows = network.features(rows)
        scores = partial(torch.nn.functional.linear, weight=network.readout)
    with torch.no_grad():  # the theory starts from a network that says nothing
        start = scores(rows)[:, 0]
    descent = torch.optim.SGD(list(network.parameters()), lr=rate)
    errors = []
    for step in range(1, round(times[-1] / rate) + 1):
        descent.zero_grad()
        gap = scores(rows[:SAMPLES])[:, 0] - start[:SAMPLES] - targets[:SAMPLES]
        (0.5 * gap.square().sum()).backward()
        descent.step()
        if any(math.isclose(step * rate, time) for time in times):
            with torch.no_grad():
                squares = (scores(rows)[:, 0] - start - targets).square()
            errors.append((float(squares[SAMPLES:].mean()), float(squares[:SAMPLES].mean())))
    return np.array(errors)


def main(out: str | Path = "before_training.png") -> Path:
    """Predict, train, compare and draw."""
    mixture, tau0 = classes(), math.sqrt(1.0 + 1.0 / math.sqrt(DIMENSION))
    counts = mixture.class_counts(SAMPLES)
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(tau0)
    with house_style():
        figure, panels = new_figure(2, width=4.6, height=3.6)
    for axes, (trainable, kernel, width, rate, times) in zip(panels, RUNS, strict=True):
        choice = {"kind": kernel, "convention": "feature"}
        network = nsd.match(deq, tau0=tau0, family="piecewise_linear", **choice).network
        line = np.geomspace(0.2 * times[0], 2.0 * times[-1], 25)
        curve = nsd.predict_risk(deq, mixture, counts, time=line, **choice)
        at = nsd.predict_risk(deq, mixture, counts, time=times, rate=rate, **choice)
        axes.plot(line, curve.test_mse, color=DEEP, label="test, predicted")
        axes.plot(line, curve.train_mse, color=MUTED, ls="--", label="training, predicted")
        print(f"{trainable}: predicted at t =", *times, "is", *(f"{e:.3f}" for e in at.test_mse))
        for name, model, marker, colour in (
            ("DEQ", deq, "o", DEEP),
            ("matched", network, "s", SHALLOW),
        ):
            runs = np.stack(
                [trained(model, trainable, width, rate, times, k) for k in range(DRAWS)]
            )
            mean, scatter = runs.mean(axis=0), runs.std(axis=0, ddof=1)
            shown = (f"{m:.3f} ± {s:.3f}" for m, s in zip(mean[:, 0], scatter[:, 0], strict=True))
            print(f"{trainable}: {name}, {DRAWS} draws:", *shown)
            for column, fill in ((0, colour), (1, "white")):
                axes.errorbar(
                    times, mean[:, column], yerr=scatter[:, column], fmt=marker, mfc=fill,
                    color=colour, ms=6, lw=1.0, label=None if column else f"{name}, trained",
                )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel("time: steps × rate")
        axes.set_ylabel("mean squared error")
        axes.set_title("all weights" if trainable == "all" else "read-out alone")
    panels[0].legend(frameon=False)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("before_training.png"))
    main(parser.parse_args().out)
