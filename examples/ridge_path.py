"""Choose a ridge, or a time to stop, without a validation set: measured and predicted.

Run ``python examples/ridge_path.py [--out ridge_path.png]``; a few seconds.

Kernel regression with the tangent kernel of a DEQ on a Gaussian mixture with noisy labels.  One
eigendecomposition gives every ridge and every stopping time; the random-matrix law gives the
effective dimension without one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import notsodeep as nsd
from notsodeep.kernel_solvers import ridge_path
from notsodeep.plotting import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure

NOISE = 1.0


def main(out: str | Path = "ridge_path.png") -> Path:
    """Fit along both paths, print what each criterion chooses, and draw."""
    rng = np.random.default_rng(0)
    mixture = nsd.data.paper_mixture(dimension=500)
    X, y = mixture.sample(600, rng=rng)
    X_new, y_new = mixture.sample(600, rng=rng)
    targets = np.where(y == 0, -1.0, 1.0) + NOISE * rng.standard_normal(len(y))
    targets_new = np.where(y_new == 0, -1.0, 1.0) + NOISE * rng.standard_normal(len(y_new))

    stats = mixture.statistics(X, y)
    deq = nsd.DeepEquilibrium("tanh", sigma_a2=0.2).centred(stats.tau0)
    K = nsd.kernel(deq, X, convention="preactivation", kind="ntk")
    K_new = nsd.kernel(deq, X_new, X, convention="preactivation", kind="ntk")
    law = nsd.limiting_spectrum(
        nsd.equivalent(deq, X, y, mixture, kind="ntk", convention="preactivation")
    )

    ridges = np.logspace(-2, 2.5, 40)
    path = ridge_path(K, targets, ridges)
    flow = ridge_path(K, targets, times=1.0 / ridges)

    def error(alpha: np.ndarray) -> float:
        return float(np.mean((K_new @ alpha - targets_new) ** 2))

    new = [error(path.coefficients(r)) for r in ridges]
    stopped = [error(flow.coefficients(t)) for t in flow.values]
    print(f"leave-one-out chooses λ = {path.best('leave_one_out'):.3g}")
    print(f"new samples would choose λ = {ridges[np.argmin(new)]:.3g}")
    print(f"generalised cross-validation stops at t = {flow.best():.3g}")

    with house_style():
        figure, (left, right) = new_figure(2, width=4.4, height=3.4)
        left.loglog(ridges, path.training_error, color=MUTED, label="training")
        left.loglog(ridges, path.leave_one_out, color=DEEP, label="leave-one-out")
        predicted = law.effective_dimension(ridges)
        risk = path.training_error / (1.0 - predicted / len(y)) ** 2
        left.loglog(ridges, risk, "--", color=SHALLOW, label="law predicts")
        left.loglog(ridges, new, "ko", ms=3, label="new samples")
        left.loglog(ridges, stopped, "kx", ms=4, label="new samples, stopped at 1/λ")
        left.set_ylim(0.3, 10.0)
        left.set_xlabel("ridge λ, or 1/time")
        left.set_ylabel("mean squared error")
        left.legend(frameon=False, fontsize=8)
        right.semilogx(ridges, path.effective_dimension, color=DEEP, label="of the kernel")
        right.semilogx(ridges, predicted, "--", color=SHALLOW, label="law predicts")
        right.set_xlabel("ridge λ")
        right.set_ylabel("effective dimension")
        right.legend(frameon=False)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="ridge_path.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
