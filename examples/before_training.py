"""Training curves before training: predicted from statistics, then measured on torch networks.

Run ``python examples/before_training.py [--out before_training.png]``; about half a minute.

All weights of a DEQ and of the explicit network matched to it are trained by gradient descent on a
Gaussian mixture.  The lines were known before: they need class means and covariances, no sample.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.plotting import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure

DIMENSION, SAMPLES, WIDTH, RATE = 128, 128, 512, 0.05
TIMES = (0.25, 0.5, 1.0, 2.0)


def trained(model: object, X: np.ndarray, y: np.ndarray, Z: np.ndarray, t: np.ndarray) -> list:
    """Train a network of a model; return test and training error at the times."""
    network = nsd.build(model, in_features=X.shape[1], width=WIDTH, out_features=1, rng=0).double()
    rows, targets, new = (torch.from_numpy(a) for a in (X, 2.0 * y - 1.0, Z))
    with torch.no_grad():  # the theory starts from a network that says nothing
        start, start_new = network(rows)[:, 0], network(new)[:, 0]
    descent = torch.optim.SGD(network.parameters(), lr=RATE)
    errors = []
    for step in range(1, round(TIMES[-1] / RATE) + 1):
        descent.zero_grad()
        (0.5 * (network(rows)[:, 0] - start - targets).square().sum()).backward()
        descent.step()
        if any(math.isclose(step * RATE, time) for time in TIMES):
            with torch.no_grad():
                seen = (network(rows)[:, 0] - start - targets).square().mean()
                unseen = (
                    network(new)[:, 0] - start_new - (2.0 * torch.from_numpy(t) - 1.0)
                ).square()
            errors.append((float(unseen.mean()), float(seen)))
    return errors


def main(out: str | Path = "before_training.png") -> Path:
    """Predict, train, compare and draw."""
    means = np.zeros((2, DIMENSION))
    means[0, 0] = means[1, 8] = 2.0
    mixture = nsd.data.GaussianMixture(means, [1.0, 1.0 + 2.0 / math.sqrt(DIMENSION)])
    tau0 = math.sqrt(1.0 + 1.0 / math.sqrt(DIMENSION))
    deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2).centred(tau0)
    choice = {"kernel": "tangent", "convention": "feature"}
    network = nsd.match(deq, tau0=tau0, family="piecewise_linear", **choice).network

    counts = mixture.class_counts(SAMPLES)
    curve = nsd.predict_risk(deq, mixture, counts, time=np.geomspace(0.05, 4.0, 25), **choice)
    at = nsd.predict_risk(deq, mixture, counts, time=TIMES, rate=RATE, **choice)
    (X, y), (Z, t) = mixture.sample(SAMPLES, rng=0), mixture.sample(2000, rng=1)
    measured = {"DEQ": trained(deq, X, y, Z, t), "matched": trained(network, X, y, Z, t)}
    for name, errors in measured.items():
        print(f"{name}: test error at t =", *TIMES, "is", *(f"{e[0]:.3f}" for e in errors))
    print("predicted:", *(f"{e:.3f}" for e in at.test_mse))

    with house_style():
        figure, (axes,) = new_figure(width=5.0, height=3.6)
        axes.plot(curve.values, curve.test_mse, color=DEEP, label="test, predicted")
        axes.plot(curve.values, curve.train_mse, color=MUTED, ls="--", label="training, predicted")
        for (name, errors), marker, colour in zip(
            measured.items(), ("o", "s"), (DEEP, SHALLOW), strict=True
        ):
            for column, fill in ((0, colour), (1, "none")):
                values = [pair[column] for pair in errors]
                label = f"{name}, trained" if column == 0 else None
                axes.plot(TIMES, values, marker, mfc=fill, mec=colour, ms=6, label=label)
        axes.set_xscale("log")
        axes.set_xlabel("time: steps × rate")
        axes.set_ylabel("mean squared error")
        axes.legend(frameon=False)
        return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("before_training.png"))
    main(parser.parse_args().out)
