"""Classify handwritten digits with the exact kernel of a DEQ, and with its shallow twin.

Run ``python examples/kernel_classifier.py``; it takes some seconds and writes
kernel_classifier.png: how the error depends on the ridge, as leave-one-out predicts it and as it
is on new digits.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from notsodeep.estimators import CompiledClassifier, EquilibriumKernelClassifier
from notsodeep.report.drawing import save_figure


def main() -> Path:
    """Fit both, print their accuracies, draw the path of the ridge."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, train_size=500, random_state=0)

    kernel = EquilibriumKernelClassifier("tanh", sigma_a2=0.2, ridge="loo")
    kernel.fit(X_train, y_train)
    print(f"exact kernel:  ridge {kernel.ridge_:.2g}, accuracy {kernel.score(X_test, y_test):.3f}")

    compiled = CompiledClassifier("tanh", sigma_a2=0.2, family="hard_tanh", random_state=0)
    compiled.fit(X_train, y_train)
    print(
        f"shallow twin:  {compiled.match_.network}, accuracy {compiled.score(X_test, y_test):.3f}"
    )

    assert kernel.ridges_ is not None
    ridges = kernel.ridges_[::10]
    targets = np.where(y_test[:, None] == kernel.classes_, 1.0, -1.0)
    errors = []
    for ridge in ridges:
        one = EquilibriumKernelClassifier("tanh", sigma_a2=0.2, ridge=float(ridge))
        outputs = one.fit(X_train, y_train).decision_function(X_test)
        errors.append(np.square(outputs - targets).mean())

    figure, axes = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
    axes.loglog(kernel.ridges_, kernel.ridge_scores_, label="leave-one-out, from one fit")
    axes.loglog(ridges, errors, "o", label="new digits, one fit each")
    axes.axvline(kernel.ridge_, color="0.6", linewidth=1)
    axes.set_xlabel("ridge")
    axes.set_ylabel("mean squared error")
    axes.legend(frameon=False)
    return save_figure(figure, "kernel_classifier.png")


if __name__ == "__main__":
    print(f"wrote {main()}")
