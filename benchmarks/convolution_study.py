"""Accuracy of dense and convolutional DEQ kernels, and of RBF support vectors, on the same images.

The kernels of a setting are computed in tiles, which are kept in --work: a run that was stopped
resumes.  They are float32: errors of some 1e-7 of the diagonal, and no ridge below 1e-6 of it is
tried.  Accuracies are on 2000 test images; smaller n take several disjoint parts of the training
images.  Ridge, and the two parameters of the support vectors, are chosen on a fifth of the training
rows and refitted on all.  Every setting adds its rows to
benchmarks/results/convolutions/accuracy.json as soon as it is done.

    python benchmarks/convolution_study.py --work runs/convolutions             # all, for hours
    python benchmarks/convolution_study.py --work runs/convolutions --only 3    # the first three
    python benchmarks/convolution_study.py --work runs/convolutions --again     # stored ones too
    python benchmarks/convolution_study.py --siblings            # explicit convolutions on digits
    python benchmarks/convolution_study.py --table               # for docs/convolutions.md
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.svm import SVC

import notsodeep as nsd
from measure import RESULTS, environment
from notsodeep.files.atomic_files import atomic_write, write_json
from notsodeep.kernels.convolution import duration
from tables import markdown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PLACE = RESULTS / "convolutions" / "accuracy.json"
SIBLINGS = RESULTS / "convolutions" / "siblings.json"
TILE = 500
TEST = 2000
POOL = 5000  # training images from which all n are taken
RIDGES = np.logspace(-6, 0, 13)  # of the mean of the diagonal
SIGMA_A2 = 0.2
PARTS = 5  # disjoint training sets, where the images are enough for them


@dataclass(frozen=True)
class Setting:
    """Images, how they are read, and how many of them.

    Attributes
    ----------
    data : str
    input_pooling : int
        Images are averaged over blocks of this side, for all methods alike.
    pooling : "flatten" or int
        Of the convolutional read-out.
    sizes : tuple of int
        Numbers of training images.
    """

    data: str
    input_pooling: int
    pooling: str | int
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of files."""
        return f"{self.data}_{self.input_pooling}_{self.pooling}"


_MNIST, _CIFAR = (1000, 2000, 5000), (1000, 2000, 4000)
# The shortest first.
SETTINGS = tuple(
    Setting(data, input_pooling, pooling, sizes)
    for input_pooling, pooling in ((2, "flatten"), (1, "flatten"), (2, 3))
    for data, sizes in (("mnist", _MNIST), ("fashion_mnist", _MNIST), ("cifar10", _CIFAR))
)


class Tiles:
    """Both kernels of training images with each other and with test images, tile by tile."""

    def __init__(self, place: Path, model: Any, X: FloatArray, X_test: FloatArray) -> None:
        self._place, self._model = place, model
        self._parts = {
            **{f"train{k}": X[k * TILE : (k + 1) * TILE] for k in range(len(X) // TILE)},
            **{f"test{k}": X_test[k * TILE : (k + 1) * TILE] for k in range(TEST // TILE)},
        }
        place.mkdir(parents=True, exist_ok=True)

    def compute(self, n: int) -> None:
        """Make sure that the tiles of the first n training images are there."""
        wanted = [
            (row, column)
            for i, row in enumerate(self._train(n))
            for column in (*self._train(n)[i:], *self._test())
        ]
        missing = [pair for pair in wanted if not self._path(*pair).exists()]
        start, busy, pairs = time.perf_counter(), time.process_time(), 0
        for done, (row, column) in enumerate(missing, start=1):
            A, B = self._parts[row], None if row == column else self._parts[column]
            pair = nsd.kernel_pair(self._model, A, B, convention="feature", dtype=np.float32)
            with atomic_write(self._path(row, column)) as stream:
                np.save(stream, np.stack([pair.conjugate, pair.tangent]))
            left = (time.perf_counter() - start) / done * (len(missing) - done)
            pairs += TILE**2 if B is not None else TILE * (TILE + 1) // 2
            each = 1e6 * (time.process_time() - busy) / pairs
            print(
                f"  {self._place.name}: {done}/{len(missing)}, {duration(left)} left, {each:.1f} µs"
                " of a processor for each pair",
                flush=True,
            )

    def kernels(self, n: int) -> tuple[FloatArray, FloatArray]:
        """Return K(train, train) and K(test, train), shapes (2, n, n) and (2, TEST, n)."""
        names = self._train(n)
        own = np.empty((2, n, n))
        cross = np.empty((2, TEST, n))
        for i, row in enumerate(names):
            here = slice(i * TILE, (i + 1) * TILE)
            for j, column in enumerate(names[i:], start=i):
                there = slice(j * TILE, (j + 1) * TILE)
                tile = np.load(self._path(row, column))
                own[:, here, there] = tile
                own[:, there, here] = tile.transpose(0, 2, 1)
            for j, column in enumerate(self._test()):
                tile = np.load(self._path(row, column))
                cross[:, j * TILE : (j + 1) * TILE, here] = tile.transpose(0, 2, 1)
        return own, cross

    def _train(self, n: int) -> list[str]:
        return [f"train{k}" for k in range(n // TILE)]

    def _test(self) -> list[str]:
        return [f"test{k}" for k in range(TEST // TILE)]

    def _path(self, row: str, column: str) -> Path:
        return self._place / f"{row}-{column}.npy"


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


def rows_of(setting: Setting, work: Path) -> list[dict[str, Any]]:
    """Measure a setting: a row for each n and method."""
    sizes = {"samples": POOL, "test_samples": TEST, "rng": 0}
    data = nsd.data.load(setting.data, preprocessing="none", **sizes).images_last()
    assert data.image_shape is not None
    layer = nsd.Convolution("relu", weight=SIGMA_A2, inject=1.0 - SIGMA_A2)
    whole = nsd.ConvolutionalEquilibrium(
        [layer], data.image_shape, input_pooling=setting.input_pooling
    )
    order = np.random.default_rng(0).permutation(POOL)
    X, X_test = (whole.images(part).reshape(len(part), -1) for part in (data.X, data.X_test))
    X, y, y_test = X[order], data.y[order], data.y_test
    shape = (*whole.grid, data.image_shape[2])
    model = nsd.ConvolutionalEquilibrium([layer], shape, setting.pooling)
    pixels, plain = (
        nsd.data.Preprocessing.fit(X, kind, pixels=shape[0] * shape[1])
        for kind in ("pixels", "theory")
    )
    tiles = Tiles(work / setting.name, model, pixels.apply(X), pixels.apply(X_test))
    X, X_test = plain.apply(X), plain.apply(X_test)
    dense = nsd.DeepEquilibrium("relu", SIGMA_A2)
    n = max(setting.sizes)
    tiles.compute(n)
    pair = [
        nsd.kernel_pair(dense, A, B, convention="feature")
        for A, B in ((X[:n], None), (X_test, X[:n]))
    ]
    methods = {
        "dense": tuple(np.stack([each.conjugate, each.tangent]) for each in pair),
        "convolutional": tiles.kernels(n),
    }
    rows = []
    for size in setting.sizes:
        starts = [k * size for k in range(min(n // size, PARTS))]
        about = {
            "data": setting.data,
            "pixels": f"{shape[0]} × {shape[1]}",
            "pooling": setting.pooling,
            "n": size,
            "parts": len(starts),
        }
        sets = [slice(start, start + size) for start in starts]
        rows += [{**about, **row} for row in kernel_rows(methods, sets, y, y_test)]
        svc = [svc_right(X[part], y[part], X_test, y_test) for part in sets]
        accuracy, error = averaged(np.array([right for right, _ in svc], dtype=np.float64))
        record = {"method": "RBF support vectors", "chosen": [chosen for _, chosen in svc]}
        rows.append({**about, **record, "accuracy": accuracy, "error": error})
    return rows


def siblings(pooling: str | int, n: int = 300, test: int = 500) -> dict[str, Any]:
    """Exact conjugate kernels of the DEQ and of one and two plain ReLU convolutions, on digits.

    A scale of the activation changes nothing here, as ridges are shares of the diagonal: one plain
    convolution stands for the twins that are rescaled ReLUs.  Leads are those of the DEQ.
    """
    data = nsd.data.load("digits", samples=n + test, preprocessing="pixels", rng=0)
    order = np.random.default_rng(0).permutation(n + test)
    X, y = data.X[order[:n]], data.y[order[:n]]
    X_test, y_test = data.X[order[n:]], data.y[order[n:]]
    layer = nsd.Convolution("relu", weight=SIGMA_A2, inject=1.0 - SIGMA_A2)
    models = {
        "DEQ": nsd.ConvolutionalEquilibrium([layer], (8, 8), pooling),
        "one": nsd.ConvolutionalNetwork(["relu"], (8, 8), pooling),
        "two": nsd.ConvolutionalNetwork(["relu", "relu"], (8, 8), pooling),
    }
    row: dict[str, Any] = {"pooling": pooling, "n": n, "test": test}
    right = {}
    for name, model in models.items():
        own, cross = (
            nsd.conjugate_kernel(model, A, B, convention="feature")
            for A, B in ((X, None), (X_test, X))
        )
        found, _ = ridge_right(own, cross, y, y_test)
        right[name] = found[None].astype(np.float64)
        row[name] = averaged(right[name])
        if name != "DEQ":
            row[f"lead over {name}"] = averaged(right["DEQ"] - right[name])
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Make the table of the page on convolutions: a line for each set and n, columns of methods."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines: dict[tuple[Any, ...], dict[str, str]] = {}
    sets = ["mnist", "fashion_mnist", "cifar10"]
    by_set = sorted(
        rows,
        key=lambda row: (sets.index(row["data"]), str(row["pooling"]) != "flatten", row["pixels"]),
    )
    for row in by_set:
        pooling = row["pooling"] if isinstance(row["pooling"], str) else f"{row['pooling']}-pooled"
        what = f"{row['data']}, {row['pixels']}, {pooling}, n = {row['n']}"
        cell = f"{100 * row['accuracy']:.1f} ± {100 * row['error']:.1f}"
        if "lead" in row:
            cell += f" ({100 * row['lead']:+.1f} ± {100 * row['lead_error']:.1f})"
        lines.setdefault((what, str(row["parts"])), {})[row["method"]] = cell
    return markdown(
        ("images", "training sets", *methods),
        [[*about, *(cells[method] for method in methods)] for about, cells in lines.items()],
    )


def main() -> None:
    """Measure the settings that are not stored yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="directory of the tiles")
    parser.add_argument("--only", type=int, default=len(SETTINGS), help="so many settings")
    parser.add_argument("--again", action="store_true", help="measure what is stored, too")
    parser.add_argument("--table", action="store_true", help="print the table of what is stored")
    parser.add_argument("--siblings", action="store_true", help="explicit convolutions, on digits")
    options = parser.parse_args()
    if options.siblings:
        found = []
        for pooling in ("flatten", 3, "average"):
            found.append(siblings(pooling))
            print(found[-1], flush=True)
            write_json(SIBLINGS, {"environment": environment(), "rows": found})
        return
    rows = json.loads(PLACE.read_text())["rows"] if PLACE.exists() else []
    if options.table or options.work is None:
        print(table(rows))
        return
    for setting in SETTINGS[: options.only]:
        shown = {row["n"] for row in rows if row["setting"] == setting.name}
        if shown >= set(setting.sizes) and not options.again:
            continue
        start = time.perf_counter()
        measured = rows_of(setting, options.work)
        for row in measured:
            row["setting"] = setting.name
            print({k: row[k] for k in ("setting", "n", "method", "accuracy", "error")}, flush=True)
        print(f"{setting.name}: {duration(time.perf_counter() - start)}", flush=True)
        rows = [row for row in rows if row["setting"] != setting.name] + measured
        about = {"sigma_a2": SIGMA_A2, "activation": "relu", "size": 3, "test_images": TEST}
        PLACE.parent.mkdir(exist_ok=True)
        write_json(PLACE, {"environment": environment(), "about": about, "rows": rows})


if __name__ == "__main__":
    main()
