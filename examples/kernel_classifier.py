"""Classify handwritten digits with the exact kernel of a DEQ, and with its shallow twin.

Run ``python examples/kernel_classifier.py [--out kernel_classifier.png]``; some seconds.

Both are scikit-learn estimators.  The exact leave-one-out error, from one fit, chooses the ridge.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from notsodeep.estimators import CompiledClassifier, EquilibriumKernelClassifier
from notsodeep.plotting import DEEP, MUTED, house_style, new_figure, save_figure


def main(out: str | Path = "kernel_classifier.png") -> Path:
    """Fit both, print their accuracies, draw the path of the ridge and some mistakes."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, train_size=500, test_size=400, random_state=0
    )

    kernel = EquilibriumKernelClassifier("tanh", sigma_a2=0.2, ridge="loo")
    kernel.fit(X_train, y_train)
    print(f"exact kernel:  ridge {kernel.ridge_:.2g}, accuracy {kernel.score(X_test, y_test):.3f}")

    compiled = CompiledClassifier("tanh", sigma_a2=0.2, family="hard_tanh", random_state=0)
    compiled.fit(X_train, y_train)
    print(
        f"shallow twin:  {compiled.match_.network}, accuracy {compiled.score(X_test, y_test):.3f}"
    )

    assert kernel.ridges_ is not None
    ridges = kernel.ridges_[::15]
    targets = np.where(y_test[:, None] == kernel.classes_, 1.0, -1.0)
    errors = []
    for ridge in ridges:
        one = EquilibriumKernelClassifier("tanh", sigma_a2=0.2, ridge=float(ridge))
        outputs = one.fit(X_train, y_train).decision_function(X_test)
        errors.append(np.square(outputs - targets).mean())

    guess = kernel.predict(X_test)
    wrong = np.flatnonzero(guess != y_test)[:9]
    with house_style():
        figure, (left, right) = new_figure(2, width=4.4, height=3.4)
        left.loglog(
            kernel.ridges_, kernel.ridge_scores_, color=DEEP, label="leave-one-out, one fit"
        )
        left.loglog(ridges, errors, "ko", ms=4, label="new digits, one fit each")
        left.axvline(kernel.ridge_, color=MUTED, linewidth=1)
        left.set_xlabel("ridge")
        left.set_ylabel("mean squared error")
        left.legend(frameon=False)
        right.set_axis_off()
        right.set_title("digits it gets wrong, and its guess")
        for place, row in enumerate(wrong):
            x, y0 = (place % 3) / 3, 1 - (place // 3 + 1) / 3
            inset = right.inset_axes((x + 0.03, y0 + 0.02, 0.27, 0.27))
            inset.imshow(X_test[row].reshape(8, 8), cmap="gray_r")
            inset.set_axis_off()
            right.text(x + 0.02, y0 + 0.24, str(guess[row]), color=DEEP, ha="right", fontsize=9)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="kernel_classifier.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
