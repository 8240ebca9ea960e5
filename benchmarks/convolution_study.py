"""Accuracy of dense and convolutional DEQ kernels, and of RBF support vectors, on the same images.

Ridge, and the SVC's two parameters, are chosen on a fifth of the training rows and refitted on all.

    python benchmarks/convolution_study.py --data mnist --samples 1000 --input-pooling 2
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.svm import SVC

import notsodeep as nsd
from notsodeep.kernels.convolution import ConvolutionPlan, duration

RIDGES = np.logspace(-6, 0, 13)  # of the mean of the diagonal


def ridge_predictions(
    K: np.ndarray, cross: np.ndarray, targets: np.ndarray, ridge: float
) -> np.ndarray:
    """Return K(test, train) (K + λI)⁻¹ Y, λ in units of the mean of the diagonal."""
    system = K + ridge * np.trace(K) / len(K) * np.eye(len(K))
    return cross @ np.linalg.solve(system, targets)


def kernel_accuracy(K: np.ndarray, cross: np.ndarray, y: np.ndarray, y_test: np.ndarray) -> dict:
    """Accuracy on test rows; cross is (test, train)."""
    targets = np.eye(int(y.max()) + 1)[y]
    cut = len(y) - len(y) // 5
    scores = [
        np.mean(
            ridge_predictions(K[:cut, :cut], K[cut:, :cut], targets[:cut], r).argmax(1) == y[cut:]
        )
        for r in RIDGES
    ]
    ridge = float(RIDGES[int(np.argmax(scores))])
    accuracy = float(np.mean(ridge_predictions(K, cross, targets, ridge).argmax(1) == y_test))
    return {"accuracy": accuracy, "ridge": ridge}


def svc_accuracy(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> dict:
    """Accuracy of support vectors with the best C and γ on the validation rows."""
    cut = len(y) - len(y) // 5
    tried = [
        (SVC(C=C, gamma=g).fit(X[:cut], y[:cut]).score(X[cut:], y[cut:]), C, g)
        for C in (1.0, 10.0, 100.0)
        for g in (0.3, 1.0, 3.0)
    ]
    _, C, g = max(tried)
    return {
        "accuracy": float(SVC(C=C, gamma=g).fit(X, y).score(X_test, y_test)),
        "C": C,
        "gamma": g,
    }


def main() -> None:
    """Read the options, estimate the time, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--test-samples", type=int, default=2000)
    parser.add_argument("--input-pooling", type=int, default=1)
    parser.add_argument("--pooling", default="flatten")
    parser.add_argument("--sigma-a2", type=float, default=0.2)
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--yes", action="store_true", help="start even if it takes hours")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    sizes = {"samples": options.samples, "test_samples": options.test_samples, "rng": 0}
    sizes["balanced"] = options.data != "digits"  # whose test part is small
    data = nsd.data.load(options.data, preprocessing="pixels", **sizes).images_last()
    plain = nsd.data.load(options.data, **sizes)
    pooling = int(options.pooling) if options.pooling.isdigit() else options.pooling
    layer = nsd.Convolution(
        options.activation, weight=options.sigma_a2, inject=1.0 - options.sigma_a2
    )
    model = nsd.ConvolutionalEquilibrium(
        [layer], data.image_shape, pooling, input_pooling=options.input_pooling
    )
    parts = [ConvolutionPlan(model, data.X, other, "feature") for other in (None, data.X_test)]
    seconds = sum(part.estimated_seconds() for part in parts)
    print(f"{model}: about {duration(seconds)}", flush=True)
    if seconds > 3600.0 and not options.yes:
        sys.exit("This takes more than an hour: start it with --yes.")
    rows = []
    start = time.perf_counter()
    for name, described, X, X_test in (
        ("dense", nsd.DeepEquilibrium(options.activation, options.sigma_a2), plain.X, plain.X_test),
        ("convolutional", model, data.X, data.X_test),
    ):
        own = nsd.kernel_pair(described, X, convention="feature")
        cross = nsd.kernel_pair(described, X_test, X, convention="feature")
        for kernel in ("conjugate", "tangent"):
            found = kernel_accuracy(
                getattr(own, kernel), getattr(cross, kernel), data.y, data.y_test
            )
            rows.append({"model": name, "kernel": kernel, **found})
    rows.append(
        {
            "model": "SVC",
            "kernel": "rbf",
            **svc_accuracy(plain.X, plain.y, plain.X_test, plain.y_test),
        }
    )
    for row in rows:
        row["error"] = math.sqrt(row["accuracy"] * (1.0 - row["accuracy"]) / len(data.y_test))
        print(f"{row['model']:>14} {row['kernel']:>10} {row['accuracy']:.4f} ± {row['error']:.4f}")
    record = {"options": {**vars(options), "results": None}, "model": str(model), "rows": rows}
    record["seconds"] = time.perf_counter() - start
    name = f"convolution_{options.data}_{options.samples}_{options.input_pooling}_{options.pooling}"
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
