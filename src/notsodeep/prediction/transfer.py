"""Hyper-parameters of one network, used unchanged on another.

A ridge, a rate and a number of epochs count in units of the kernel: a network with c times the
kernel wants c times the ridge and a rate of 1/c.  A read-out that is tuned anew finds its own unit,
and two kernels that differ by a factor are the same to it; hyper-parameters that are carried over
unchanged are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, KernelName, Model, kernel_name
from notsodeep.prediction.scores import default_targets
from notsodeep.prediction.width import RowKernel
from notsodeep.records import Plotted, Record

TRANSFER_TOL = 0.05
"""Largest relative difference of losses of a network that hyper-parameters transfer to."""

MAX_EPOCHS = 1000
"""Most epochs, that is steps of gradient descent on all rows, that are tried."""

EPOCH_GRID = np.unique(np.geomspace(1, MAX_EPOCHS, 40).round())
RATES = 4  # powers of two, down from half the largest stable one
RIDGES_PER_DECADE, RIDGE_DECADES = 4, (-6, 2)  # from the size of the kernel
SAME_ACCURACY = 0.005  # half a point


@dataclass(frozen=True, eq=False, repr=False)
class Tuned(Record):
    """Hyper-parameters, and what they reach on new rows."""

    rate: float  # of gradient descent on half the sum of squares over the training rows
    epochs: int
    loss: float  # squared error, summed over outputs, after these epochs
    accuracy: float
    ridge: float
    ridge_loss: float  # of ridge regression
    ridge_accuracy: float


@dataclass(frozen=True, eq=False, repr=False)
class Transfer(Plotted):
    """The hyper-parameters of a first network, used unchanged on others."""

    _drawing = "transfer"

    names: tuple[str, ...]  # the first is the one that was tuned
    seen: FloatArray  # (E,): epochs at which losses are recorded
    loss: dict[str, FloatArray]  # (E,), at the first one's rate
    accuracy: dict[str, FloatArray]  # (E,)
    fixed: dict[str, Tuned]  # each network with the first one's rate, epochs and ridge
    own: dict[str, Tuned]  # each network with its own
    size: dict[str, float]  # mean diagonal of the kernel, constant part taken off
    largest: dict[str, float]  # its largest eigenvalue
    rows: int
    new_rows: int  # that losses and accuracies are of
    kind: str
    convention: str

    @property
    def first(self) -> Tuned:
        """What was tuned."""
        return self.own[self.names[0]]

    def loss_gap(self, name: str) -> float:
        """Return the largest relative difference of losses until the first one's best epoch."""
        until = self.seen <= self.first.epochs
        here, there = self.loss[self._known(name)][until], self.loss[self.names[0]][until]
        return float(np.abs(here / there - 1.0).max())

    def ridge_gap(self, name: str) -> float:
        """Return the relative difference of losses at the first one's ridge."""
        return abs(self.fixed[self._known(name)].ridge_loss / self.first.ridge_loss - 1.0)

    def diverges(self, name: str) -> bool:
        """Whether gradient descent on a network is unstable at the first one's rate η: ηx > 2."""
        return self.first.rate * self.largest[self._known(name)] > 2.0

    def holds(self, name: str) -> bool:
        """Whether hyper-parameters transfer to a network, by `rule`."""
        return max(self.loss_gap(name), self.ridge_gap(name)) <= TRANSFER_TOL

    @property
    def rule(self) -> str:
        """What `holds` judges by."""
        return (
            f"Rule: hyper-parameters transfer if losses on new rows, with the rate, the epochs and "
            f"the ridge of {self.names[0]}, stay within {TRANSFER_TOL:.0%} of its own at every "
            "epoch and at the ridge."
        )

    def verdict(self, name: str) -> str:
        """Say whether hyper-parameters transfer to a network, with the numbers."""
        here, own, first = self.fixed[self._known(name)], self.own[name], self.first
        word = "yes" if self.holds(name) else "no"
        if self.diverges(name):
            descent = f"gradient descent diverges at the rate {first.rate:g}"
        else:
            descent = (
                f"losses differ by up to {self.loss_gap(name):.1%} along {first.epochs} epochs of "
                f"rate {first.rate:g}, accuracy {here.accuracy:.1%} against {first.accuracy:.1%}"
            )
        text = (
            f"Hyper-parameters transfer to {name}: {word}; {descent}; at the ridge "
            f"{first.ridge:.3g} losses differ by {self.ridge_gap(name):.1%}, accuracy "
            f"{here.ridge_accuracy:.1%} against {first.ridge_accuracy:.1%}."
        )
        if word == "no":
            best, others = (max(t.accuracy, t.ridge_accuracy) for t in (own, first))
            comparison = "as accurate" if best >= others - SAME_ACCURACY else "less accurate"
            text += (
                f" Tuned for itself it is {comparison}: {own.accuracy:.1%} by descent, "
                f"{own.ridge_accuracy:.1%} by ridge."
            )
        return text

    def __str__(self) -> str:
        return "\n".join([*(self.verdict(name) for name in self.names[1:]), self.rule])

    def _known(self, name: str) -> str:
        return checks.known_name(name, self.names, "network")


def transfer(
    models: Mapping[str, Model],
    X: ArrayLike,
    y: ArrayLike,
    X_new: ArrayLike,
    y_new: ArrayLike,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
) -> Transfer:
    r"""Tune ridge, rate and epochs for one network, and use them unchanged on others.

    With exact kernels, for read-outs (conjugate) or all weights (tangent) of infinite width.  With
    K = V diag(x) Vᵀ of the training rows, scores of new rows after k steps of gradient descent of
    rate η on ½‖Y − Kα‖², that is k epochs of all rows, are

    .. math:: K_\text{new} V \frac{1 - (1 - ηx)^k}{x} V^T Y,

    those of ridge regression have 1/(x + λ) for the fraction.  Features and targets are taken
    about their means over the training rows, as for read-outs with a bias.

    Parameters
    ----------
    models : mapping
        Networks by name; the first is tuned, a DEQ for instance.
    X, y : array_like of shape (n, p) and (n,)
        Training rows and labels 0 … K − 1; n × n kernels are decomposed.
    X_new, y_new : array_like of shape (N, p) and (N,)
        Hyper-parameters are tuned on every second of these rows, all else is about the others.
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
        Concerns DEQs only.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> data = nsd.data.load("digits", samples=200, rng=0)
    >>> deq = nsd.DeepEquilibrium("relu", 0.9).centred(1.0)
    >>> match = nsd.match(deq, data.X, convention="feature")
    >>> models = {"DEQ": deq, "matched": match.network, "plain": match.unmatched}
    >>> seen = nsd.prediction.transfer(models, data.X, data.y, data.X_test, data.y_test)
    >>> seen.holds("matched"), seen.holds("plain")
    (True, False)
    """
    if len(models) < 2:
        raise InvalidInput(f"models must hold at least two networks, got {len(models)}.")
    rows, new = checks.samples(X, "X"), checks.samples(X_new, "X_new")
    labels = checks.class_labels(y, len(rows), "transfer")
    truth = checks.class_labels(y_new, len(new), "transfer")
    if (labels == labels[0]).all():
        raise InvalidInput("y must hold at least two classes, got one.")
    if len(new) < 2:
        raise InvalidInput("X_new must have two rows, to tune with and to judge by, got one.")
    targets = default_targets(int(max(labels.max(), truth.max())) + 1)
    kind = kernel_name(kind, "kind")
    fits = {}
    for name, model in models.items():
        K = exact_kernel(model, np.concatenate([rows, new]), rows, kind=kind, convention=convention)
        fits[name] = _Fits.of(np.asarray(K), labels, truth, targets)
    first, *_ = fits.values()
    tuned = {name: fit.tuned() for name, fit in fits.items()}
    best, *_ = tuned.values()
    curves = {name: fit.judged(fit.descent(best.rate, EPOCH_GRID)) for name, fit in fits.items()}
    return Transfer(
        names=tuple(models),
        seen=EPOCH_GRID,
        loss={name: curve[0] for name, curve in curves.items()},
        accuracy={name: curve[1] for name, curve in curves.items()},
        fixed={name: fit.reached(best.rate, best.epochs, best.ridge) for name, fit in fits.items()},
        own=tuned,
        size={name: fit.size for name, fit in fits.items()},
        largest={name: float(fit.rows.eigenvalues[-1]) for name, fit in fits.items()},
        rows=len(rows),
        new_rows=int((~first.validation).sum()),
        kind=kind,
        convention=convention,
    )


@dataclass(frozen=True, eq=False)
class _Fits:
    """All fits with one kernel: training rows decomposed, and new rows to judge by."""

    rows: RowKernel
    middle: FloatArray  # mean target of the training rows, which a bias supplies
    targets: FloatArray
    truth: IntArray
    size: float

    @classmethod
    def of(cls, K: FloatArray, labels: IntArray, truth: IntArray, targets: FloatArray) -> _Fits:
        n, Y = len(labels), targets[labels]
        mean = K[:n].mean(axis=0)
        centred = K - K.mean(axis=1, keepdims=True) - mean + mean.mean()
        middle = Y.mean(axis=0)
        size = float(np.diag(centred).mean())
        return cls(RowKernel.of(centred, Y - middle), middle, targets, truth, size)

    @property
    def validation(self) -> NDArray[np.bool_]:
        return np.asarray(np.arange(len(self.truth)) % 2 == 0)

    def tuned(self) -> Tuned:
        """Find the lowest losses on the rows set apart for this."""
        # η ≤ 1/x_max, half of the stable 2/x_max; powers of two, so that slightly different kernels
        # are tried with the same rates.
        fastest = math.floor(-math.log2(self.rows.eigenvalues[-1]))
        best = (math.inf, 0.0, 1)
        for rate in 2.0 ** (fastest - np.arange(RATES)):
            losses, _ = self.judged(self.descent(rate, EPOCH_GRID), tuning=True)
            k = int(losses.argmin())
            best = min(best, (float(losses[k]), float(rate), int(EPOCH_GRID[k])))
        unit = math.floor(RIDGES_PER_DECADE * math.log10(self.size))
        steps = np.arange(
            RIDGES_PER_DECADE * RIDGE_DECADES[0], RIDGES_PER_DECADE * RIDGE_DECADES[1] + 1
        )
        levels = 10.0 ** ((unit + steps) / RIDGES_PER_DECADE)
        losses, _ = self.judged(1.0 / (self.rows.eigenvalues + levels[:, None]), tuning=True)
        return self.reached(best[1], best[2], float(levels[int(losses.argmin())]))

    def reached(self, rate: float, epochs: int, ridge: float) -> Tuned:
        fits = [*self.descent(rate, np.array([epochs])), 1.0 / (self.rows.eigenvalues + ridge)]
        losses, accuracies = self.judged(np.array(fits))
        descended, shrunk = zip(losses.tolist(), accuracies.tolist(), strict=True)
        return Tuned(rate, epochs, *descended, ridge, *shrunk)

    def descent(self, rate: float, epochs: FloatArray) -> FloatArray:
        """Return the responses of gradient descent after so many epochs each, shape (E, n)."""
        # Below, 1 − ηx is 1 up to rounding.  No score feels it: entries of `cross` are at most √(x
        # k_zz).
        x = np.maximum(self.rows.eigenvalues, 1e-14 * self.rows.eigenvalues[-1])
        with np.errstate(over="ignore"):
            return np.asarray((1.0 - (1.0 - rate * x) ** epochs[:, None]) / x)

    def judged(
        self, responses: FloatArray, *, tuning: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Return losses, infinite where a fit diverges, and accuracies of fits, shape (E,)."""
        rows = self.validation if tuning else ~self.validation
        truth, targets = self.truth[rows], self.targets
        fits = responses.T[:, :, None] * self.rows.targets[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self.rows.cross[rows] @ fits.reshape(len(fits), -1)
            scores = scores.reshape(len(truth), *fits.shape[1:]) + self.middle
            squares = np.square(scores - targets[truth][:, None]).sum(axis=-1).mean(axis=0)
            nearest = (scores @ targets.T - 0.5 * np.square(targets).sum(axis=1)).argmax(axis=-1)
        losses = np.where(np.isfinite(squares), squares, math.inf)
        return losses, (nearest == truth[:, None]).mean(axis=0)
