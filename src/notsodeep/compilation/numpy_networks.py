"""Finite networks in NumPy, for read-outs on fixed random features where PyTorch is not installed.

The same functions as in `finite_networks`, and the same weights: drawn by the same generator in the
same order and rounded to float32.  What they compute differs by rounding errors alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import sgemm
from threadpoolctl import threadpool_info

from notsodeep import extras
from notsodeep.activations import Activation
from notsodeep.compilation.settings import SCALE_ROWS, NetworkSettings
from notsodeep.data import Dataset, Preprocessing, draw_rows
from notsodeep.errors import NotConverged
from notsodeep.files.stored_arrays import write_network_file
from notsodeep.models import DeepEquilibrium, ExplicitNetwork
from notsodeep.numerics.paired_times import FrontPoint, TimingTable, time_beside
from notsodeep.numerics.ridge_fit import fit_ridge
from notsodeep.threads import thread_count

if TYPE_CHECKING:
    from notsodeep.networks.modules import ExplicitModule

Single = NDArray[np.float32]

AT_ONCE = True
"""Whether networks may be trained in several threads at the same time."""

_ROWS = 1024  # in one pass
_MOST_STEPS = 300
_REPEATS = 9


@dataclass(eq=False)
class ArrayNetwork:
    """A network with fixed random weights and a linear read-out.

    z* = φ(√σa² A z* + √σb² B x)/√m of a DEQ, or what its cell makes of z*, by plain iteration, or
    x_l = σ_l(W_l x_{l−1})/√m of an explicit network; outputs are a z* or a x_L.

    Attributes
    ----------
    description : DeepEquilibrium or ExplicitNetwork
    weights : dict of str to ndarray
        "recurrent" (m, m) and "injection" (m, p), or "weight_1" (m, p), "weight_2" (m, m), …; of a
        cell "weight_1" (m, m), "injection_1" (m, p), "shift_1" (m, 1), …
    readout : ndarray of shape (K, m)
    tolerance : float
        Relative, of a DEQ's fixed point for every row.
    steps : int
        What the last pass of a DEQ took.
    preprocessing : Preprocessing or None
        From raw rows to the rows that it takes.
    classes : tuple of str
        Names of the outputs.

    Examples
    --------
    >>> net = drawn(ExplicitNetwork(["relu"]), 4, 8, 2, np.random.default_rng(0))
    >>> net.features(np.ones((3, 4))).shape, net(np.ones((3, 4))).shape
    ((3, 8), (3, 2))
    """

    description: DeepEquilibrium | ExplicitNetwork
    weights: dict[str, Single]
    readout: Single
    tolerance: float = 1e-6
    steps: int = 0
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """The number of features, m."""
        return len(self.readout[0])

    def features(self, X: NDArray[Any]) -> Single:
        """Return the last features of rows (n, p), shape (n, m).

        Raises
        ------
        NotConverged
            The fixed point of a row was not found.
        """
        parts = [X[start : start + _ROWS] for start in range(0, len(X), _ROWS)]
        one = self._evaluated
        if isinstance(self.description, DeepEquilibrium):
            one = self._solved if self.description.is_vanilla else self._settled
        return np.vstack([one(np.asarray(part, dtype=np.float32)) for part in parts])

    def __call__(self, X: NDArray[Any]) -> Single:
        """Return the outputs, shape (n, K)."""
        return _product(self.features(X), self.readout)

    def _evaluated(self, X: Single) -> Single:
        assert isinstance(self.description, ExplicitNetwork)
        for weight, phi in zip(self.weights.values(), self.description.activations, strict=True):
            X = _applied(phi, _product(X, weight)) * _root(1.0 / self.width)
        return X

    def _solved(self, X: Single) -> Single:
        """Iterate h ← √σb² B x + √(σa²/m) A φ(h), from h = √σb² B x."""
        deq = self.description
        assert isinstance(deq, DeepEquilibrium)
        drive = _product(X, self.weights["injection"], math.sqrt(deq.sigma_b2))
        recurrent, gain = self.weights["recurrent"], math.sqrt(deq.sigma_a2 / self.width)

        def turn(h: Single) -> Single:
            return _product(_applied(deq.activation, h), recurrent, gain, drive)

        remedy = (
            f"At finite width it is sure to exist for σa² < 1/(4L²) = {deq.contraction_bound:.4g} "
            "only. Use a smaller sigma_a2 or a larger width."
        )
        h = self._iterated(turn, drive, remedy)
        return _applied(deq.activation, h) * _root(1.0 / self.width)

    def _settled(self, X: Single) -> Single:
        """Iterate turns through the cell of a DEQ, from units of zero."""
        deq = self.description
        assert isinstance(deq, DeepEquilibrium)
        drives = []
        for number, layer in enumerate(deq.cell, start=1):
            drive = np.zeros((len(X), self.width), np.float32)
            if layer.inject > 0.0:
                injection = self.weights[f"injection_{number}"]
                drive = _product(X, injection, math.sqrt(layer.inject))
            if layer.bias > 0.0:
                drive += _root(layer.bias) * self.weights[f"shift_{number}"].T
            drives.append(drive)

        def turn(units: Single) -> Single:
            for number, (layer, drive) in enumerate(zip(deq.cell, drives, strict=True), start=1):
                gain = math.sqrt(layer.weight / self.width)
                field = _product(units, self.weights[f"weight_{number}"], gain, drive)
                if layer.normalise == "preactivation":
                    field = _normalised(field)
                units = _applied(layer.activation, field)
                if layer.normalise == "feature":
                    units = _normalised(units)
            return units

        remedy = "Use smaller weights or a larger width."
        units = self._iterated(turn, np.zeros((len(X), self.width), np.float32), remedy)
        return np.asarray(units * _root(1.0 / self.width))

    def _iterated(self, turn: Callable[[Single], Single], h: Single, remedy: str) -> Single:
        """Iterate until no row moves by more than the tolerance."""
        residual = math.inf
        for step in range(1, _MOST_STEPS + 1):
            with np.errstate(over="ignore", invalid="ignore"):
                image = turn(h)
                change, size = (np.linalg.norm(rows, axis=1) for rows in (image - h, image))
            # A row that is zero and stays zero is solved.
            residual = float((change / np.where(change > 0.0, size, 1.0)).max())
            h, self.steps = image, step
            if residual <= self.tolerance or not np.isfinite(residual):
                break
        if not residual <= self.tolerance:
            raise NotConverged(
                f"The fixed point of {self.description} of width {self.width} was not found: "
                f"relative residual {residual:.2g} after {self.steps} steps. {remedy}"
            )
        return h

    def write(self, path: Path) -> None:
        """Write an explicit network to a file, as `notsodeep.save` writes its module."""
        form = {
            "description": self.description.to_dict(),
            "in_features": self.weights["weight_1"].shape[1],
            "width": self.width,
            "out_features": len(self.readout),
            "trainable": "readout",
            "bias": False,
            "dtype": "float32",
        }
        preprocessing = None if self.preprocessing is None else self.preprocessing.to_dict()
        content = {"network": form, "preprocessing": preprocessing, "classes": list(self.classes)}
        write_network_file(path, {**self.weights, "readout": self.readout}, content)

    def module(self) -> ExplicitModule:
        """Return an explicit network as a torch module in evaluation mode.

        Raises
        ------
        MissingPackage
            PyTorch, the extra ``torch``, is not installed.
        """
        extras.require("The network as a torch module", "torch")
        import torch

        from notsodeep.networks.modules import ExplicitModule

        assert isinstance(self.description, ExplicitNetwork)
        inputs = self.weights["weight_1"].shape[1]
        sizes = (inputs, self.width, len(self.readout))
        module = ExplicitModule(self.description, *sizes, trainable="readout")
        arrays = {**self.weights, "readout": self.readout}
        module.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in arrays.items()})
        vars(module).update(preprocessing=self.preprocessing, classes=self.classes)
        return module.eval()


def drawn(
    model: DeepEquilibrium | ExplicitNetwork,
    inputs: int,
    width: int,
    outputs: int,
    rng: np.random.Generator,
    tolerance: float = 1e-6,
) -> ArrayNetwork:
    """Draw the weights that `notsodeep.build` draws, with a read-out of zeros."""
    shapes = {"recurrent": (width, width), "injection": (width, inputs)}
    if isinstance(model, ExplicitNetwork):
        columns = [inputs] + (model.depth - 1) * [width]
        shapes = {f"weight_{k + 1}": (width, count) for k, count in enumerate(columns)}
    elif not model.is_vanilla:
        shapes = model.weight_shapes(width, inputs)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return ArrayNetwork(model, weights, np.zeros((outputs, width), np.float32), tolerance)


def train_network(
    model: DeepEquilibrium | ExplicitNetwork,
    data: Dataset,
    settings: NetworkSettings,
    index: int,
    checkpoint: Path | None = None,  # noqa: ARG001
) -> tuple[ArrayNetwork, dict[str, Any]]:
    """Draw network number `index`, fit its read-out, and measure its accuracy.

    A ridge regression is done in one go: nothing is written to `checkpoint`.
    """
    sizes = (data.X.shape[1], settings.width, len(data.classes))
    rng = np.random.default_rng([settings.seed, index])
    network = drawn(model, *sizes, rng, settings.tolerance)
    features, targets = network.features(data.X), np.eye(len(data.classes))[data.y]
    some = features[draw_rows(data.X, SCALE_ROWS, settings.seed)]
    ridge = settings.ridge * float(np.square(some).sum(axis=1).mean())
    fit = fit_ridge(features, targets, ridge, intercept=False, owner="compile")
    network.readout = fit.weights.astype(np.float32)
    found = _product(features, network.readout).argmax(axis=1)
    right = network(data.X_test).argmax(axis=1) == data.y_test
    record = {
        "ridge": ridge,
        "train_accuracy": float((found == data.y).mean()),
        "accuracy": float(right.mean()),
        "right": np.packbits(right).tobytes().hex(),
    }
    return network, record


def time_models(
    deq: DeepEquilibrium,
    explicit: ExplicitNetwork,
    data: Dataset,
    settings: NetworkSettings,
    batch: int,
) -> TimingTable:
    """Time inference of a new DEQ and a new network beside each other, on `batch` rows."""
    sizes = (data.X.shape[1], settings.width, len(data.classes))
    first, second = (
        drawn(model, *sizes, np.random.default_rng(settings.seed), settings.tolerance)
        for model in (deq, explicit)
    )
    rows = data.X[draw_rows(data.X, batch, settings.seed)]
    (point,) = tolerance_front(first, second, rows, np.zeros(len(rows)), [settings.tolerance])
    return TimingTable(
        str(deq),
        str(explicit),
        len(rows),
        rows.shape[1],
        settings.width,
        "readout",
        settings.tolerance,
        "float32",
        _blas_threads(),
        _REPEATS,
        point.inference,
        None,
        "numpy",
    )


def tolerance_front(
    deq: ArrayNetwork,
    explicit: ArrayNetwork,
    X: NDArray[Any],
    y: NDArray[Any],
    tolerances: Sequence[float],
    *,
    batch: int = 256,
) -> list[FrontPoint]:
    """Measure a trained DEQ at several tolerances, beside an explicit network.

    Parameters
    ----------
    deq, explicit : ArrayNetwork
        Of the same width.
    X, y : ndarray of shape (n, p) and (n,)
        Test rows and their classes; the first `batch` rows are timed.
    tolerances : sequence of float
    batch : int
    """
    rows = np.asarray(X, dtype=np.float32)
    run_explicit = _pass(explicit, rows[:batch])
    run_explicit()
    points = []
    for tolerance in tolerances:
        variant = replace(deq, tolerance=tolerance)
        run_deq = _pass(variant, rows[:batch])
        run_deq()
        steps = variant.steps
        timing = time_beside(run_deq, run_explicit, _REPEATS, "fixed_point", steps)
        accuracy = float((variant(rows).argmax(axis=1) == y).mean())
        points.append(FrontPoint(tolerance, accuracy, timing))
    return points


def _blas_threads() -> int:
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return max(pools, default=1)


def _pass(network: ArrayNetwork, rows: Single) -> Callable[[], None]:
    def run() -> None:
        network(rows)

    return run


def _normalised(units: Single) -> Single:
    """Layer normalisation over the units, without gains."""
    centred = units - units.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True)))


def _product(
    rows: Single, weight: Single, gain: float = 1.0, added: Single | None = None
) -> Single:
    """Return gain·rows Wᵀ + added, in one pass.

    By SciPy's BLAS, as the fits of the read-outs: NumPy has another, and each lets its threads spin
    for a while after a product, at the expense of the other's.  Where networks are trained side by
    side, each on one thread, by NumPy, which lets go of the interpreter's lock meanwhile.
    """
    if thread_count() == 1:
        result = np.asarray(rows @ weight.T)
        result *= np.float32(gain)
        return result if added is None else np.add(result, added, out=result)
    # Columns of Fortran are rows here: (W rowsᵀ)ᵀ, without a copy.
    start = {} if added is None else {"c": added.T, "beta": 1.0}
    return np.asarray(sgemm(gain, weight.T, rows.T, trans_a=True, **start)).T


def _applied(phi: Activation, h: NDArray[Any]) -> Single:
    # Most activations keep the precision of their argument; calling them would not.
    return np.asarray(phi.value(h), dtype=np.float32)


def _root(x: float) -> np.float32:
    return np.float32(math.sqrt(x))
