"""Accuracy of dense and convolutional DEQ kernels, and of RBF support vectors, on the same images.

Accuracies are on 2000 test images; smaller n take several disjoint parts of the training images.
Ridge, and the two parameters of the support vectors, are chosen on a fifth of the training rows and
refitted on all.  The largest images take hours.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.svm import SVC

import notsodeep as nsd
from experiments.convolutions.blocks import block_means
from experiments.runner import Cell, Experiment, Finding, Profile, Record

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
RIDGES = np.logspace(-6, 0, 13)  # of the mean of the diagonal
SIGMA_A2 = 0.2
PARTS = 5  # disjoint training sets, where the images are enough for them
_MNIST, _CIFAR = (1000, 2000, 5000), (1000, 2000, 4000)


def _cells(profile: Profile) -> list[Cell]:
    """List how images are read: averaged over blocks, and pooled by the read-out or not."""
    if profile != "paper":
        n, test = (60, 40) if profile == "smoke" else (300, 200)
        small = {"data": "digits", "input_pooling": 1, "pool": 2 * n, "test": test, "sizes": [n]}
        return [{**small, "pooling": pooling} for pooling in ("flatten", 3)]
    return [
        {
            "data": data, "input_pooling": input_pooling, "pooling": pooling, "pool": 5000,
            "test": 2000, "sizes": list(sizes),
        }
        for input_pooling, pooling in ((2, "flatten"), (1, "flatten"), (2, 3))
        for data, sizes in (("mnist", _MNIST), ("fashion_mnist", _MNIST), ("cifar10", _CIFAR))
    ]  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Measure a row for each n and method."""
    sizes = {"samples": cell["pool"], "test_samples": cell["test"], "rng": 0}
    data = nsd.data.load(cell["data"], preprocessing="none", **sizes)
    shape: Any = data.image_shape
    layer = nsd.Convolution("relu", weight=SIGMA_A2, inject=1.0 - SIGMA_A2)
    order = np.random.default_rng(0).permutation(cell["pool"])
    side = cell["input_pooling"]
    (X, grid), (X_test, _) = (block_means(part, shape, side) for part in (data.X, data.X_test))
    X, y, y_test = X[order], data.y[order], data.y_test
    n = max(cell["sizes"])
    model = nsd.ConvolutionalEquilibrium([layer], grid, cell["pooling"])
    methods = {}
    dense = nsd.DeepEquilibrium("relu", SIGMA_A2)
    for name, kind, described in (("dense", "theory", dense), ("convolutional", "pixels", model)):
        scale = nsd.data.Preprocessing.fit(X, kind, pixels=grid[0] * grid[1])
        A, B = scale.apply(X)[:n], scale.apply(X_test)
        pairs = [
            nsd.kernel(described, *rows, convention="feature", kind="both")
            for rows in ((A,), (B, A))
        ]
        methods[name] = tuple(np.stack([pair.ck, pair.ntk]) for pair in pairs)
        if name == "dense":
            rows, new = A, B
    found = []
    for size in cell["sizes"]:
        sets = [slice(k * size, (k + 1) * size) for k in range(min(n // size, PARTS))]
        about = {"pixels": f"{grid[0]} × {grid[1]}", "n": size, "parts": len(sets)}
        found += [{**about, **row} for row in kernel_rows(methods, sets, y, y_test)]
        svc = [svc_right(rows[part], y[part], new, y_test) for part in sets]
        accuracy, error = averaged(np.array([right for right, _ in svc], dtype=np.float64))
        record = {"method": "RBF support vectors", "chosen": [chosen for _, chosen in svc]}
        found.append({**about, **record, "accuracy": accuracy, "error": error})
    return {"rows": found, "seed_of_cell": seed}


def ridge_right(
    K: FloatArray, cross: FloatArray, y: IntArray, y_test: IntArray
) -> tuple[NDArray[np.bool_], float]:
    """Which test rows kernel ridge regression gets right, and the ridge that was chosen."""
    targets = np.eye(int(y.max()) + 1)[y]
    unit = float(np.trace(K)) / len(K)
    cut = len(y) - len(y) // 5
    values, vectors = linalg.eigh(K[:cut, :cut])
    turned, read = vectors.T @ targets[:cut], K[cut:, :cut] @ vectors
    scores = [
        np.mean((read @ (turned / (values + r * unit)[:, None])).argmax(1) == y[cut:])
        for r in RIDGES
    ]
    ridge = float(RIDGES[int(np.argmax(scores))])
    weights = linalg.solve(K + ridge * unit * np.eye(len(K)), targets, assume_a="pos")
    return (cross @ weights).argmax(1) == y_test, ridge


def svc_right(
    X: FloatArray, y: IntArray, X_test: FloatArray, y_test: IntArray
) -> tuple[NDArray[np.bool_], list[float]]:
    """Which test rows support vectors get right, and the C and γ that were chosen."""
    cut = len(y) - len(y) // 5
    # The library would compute distances of every row anew, one by one.
    own, cross = (euclidean_distances(rows, X, squared=True) for rows in (X, X_test))
    tried = []
    for g in (0.3, 1.0, 3.0):
        K = np.exp(-g * own)
        for C in (1.0, 10.0, 100.0):
            fitted = SVC(C=C, kernel="precomputed").fit(K[:cut, :cut], y[:cut])
            tried.append((fitted.score(K[cut:, :cut], y[cut:]), C, g))
    _, C, g = max(tried)
    fitted = SVC(C=C, kernel="precomputed").fit(np.exp(-g * own), y)
    return fitted.predict(np.exp(-g * cross)) == y_test, [C, g]


def averaged(found: FloatArray) -> tuple[float, float]:
    """Mean over training sets and test rows, shape (sets, rows), and its standard error.

    Of the test rows, and of the training sets where there are several: their squares add.
    """
    by_row, by_set = found.mean(axis=0), found.mean(axis=1)
    variance = float(by_row.var(ddof=1)) / len(by_row)
    if len(by_set) > 1:
        variance += float(by_set.var(ddof=1)) / len(by_set)
    return float(found.mean()), math.sqrt(variance)


def kernel_rows(
    methods: dict[str, tuple[FloatArray, FloatArray]],
    sets: list[slice],
    y: IntArray,
    y_test: IntArray,
) -> list[dict[str, Any]]:
    """Measure both kernels of every method, the dense ones first, on the same rows.

    The lead of a convolutional kernel over the dense one has an error of its own, smaller than
    those of the two accuracies: they are right and wrong on much the same images.
    """
    rows = []
    dense: dict[str, FloatArray] = {}
    for name, (own, cross) in methods.items():
        for k, kernel in enumerate(("conjugate", "tangent")):
            found = [
                ridge_right(own[k, part, part], cross[k, :, part], y[part], y_test) for part in sets
            ]
            right = np.array([each for each, _ in found], dtype=np.float64)
            accuracy, error = averaged(right)
            row = {"method": f"{name}, {kernel}", "chosen": [ridge for _, ridge in found]}
            row |= {"accuracy": accuracy, "error": error}
            if kernel in dense:
                row["lead"], row["lead_error"] = averaged(right - dense[kernel])
            dense.setdefault(kernel, right)
            rows.append(row)
    return rows


def _findings(records: list[Record]) -> list[Finding]:
    findings = []
    for record in records:
        cell = record["cell"]
        for row in record["rows"]:
            lead = ""
            if "lead" in row:
                lead = f"over dense {100 * row['lead']:+.1f} ± {100 * row['lead_error']:.1f}"
            where = f"{cell['data']}, {row['pixels']}, {cell['pooling']}, n = {row['n']}"
            ours = f"{100 * row['accuracy']:.1f} ± {100 * row['error']:.1f} %"
            findings.append(Finding(f"{where}: {row['method']}", "", ours, lead))
    return findings


EXPERIMENT = Experiment(
    "convolution-accuracy",
    "Accuracy of dense and convolutional DEQ kernels on the same images",
    "documentation page on convolutions",
    _cells,
    _compute,
    _findings,
)
