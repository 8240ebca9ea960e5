"""The certificate of a match: exact kernels of both sides on the user's data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import linalg

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.equivalents.distances import KernelDistance, kernel_distances
from notsodeep.models import Conditions
from notsodeep.records import Plotted
from notsodeep.threads import map_threads

_RIDGE = 1e-3  # of the mean of the kernel's diagonal

CLOSE = 0.01
"""Relative gap below which a network is close: fewer layers, or a plain layer, will do."""

_EVEN = 1.25  # gaps within a quarter are as good as each other

_ROWS = {
    "relative gap": ("relative_gap", "{:.3%}"),
    "  at the best scale": ("scaled_gap", "{:.3%}"),
    "  without the constant part": ("centred_gap", "{:.3%}"),
    "  with scale and constant free": ("readout_gap", "{:.3%}"),
    "operator-norm gap": ("gap", "{:.4g}"),
    "Frobenius, relative": ("frobenius", "{:.3%}"),
    "spectra (Wasserstein)": ("spectra", "{:.3g}"),
    "kernel alignment": ("alignment", "{:.6f}"),
    "top eigenvector overlap": ("eigenvector_overlap", "{:.6f}"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Plotted):
    """How closely a network's kernel follows a DEQ's on given data, next to an unmatched one.

    A tuned ridge undoes a change of scale, and a bias in the read-out removes the constant part:
    the gap "with scale and constant free" is what such a read-out sees, the fair comparison.
    """

    _drawing = "certificate"
    _derived = ("plain_suffices", "verdict")

    matched: KernelDistance  # of the matched network from the DEQ
    unmatched: KernelDistance  # of a plain network of the same depth from the DEQ
    accuracy: dict[str, float] | None  # two-fold kernel ridge: deq, matched, unmatched
    class_means: dict[str, FloatArray] | None  # means of the blocks of "deq" and "matched", (K, K)
    conditions: Conditions
    kind: str
    convention: str
    names: dict[str, str]  # what "deq", "matched" and "unmatched" are
    difference: FloatArray = field(repr=False)  # K_deq − K_matched, rows ordered by class

    @property
    def plain_suffices(self) -> bool:
        """Whether an unmatched network is as near, with scale and constant free."""
        least = max(_EVEN * self.matched.readout_gap, CLOSE)
        return self.unmatched.readout_gap <= least

    @property
    def verdict(self) -> str:
        """What the gaps with scale and constant free say, in one sentence."""
        near, plain = self.matched.readout_gap, self.unmatched.readout_gap
        numbers = f"{near:.2%} of the DEQ's kernel from it, a plain one {plain:.2%}"
        text = f"With scale and constant free the matched network is {numbers}"
        return text + (": a plain layer does as well." if self.plain_suffices else ".")

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [(f"on {len(self.difference)} rows", "matched", "unmatched")]
        for label, (name, form) in _ROWS.items():
            sides = self.matched, self.unmatched
            rows.append((label, *(form.format(getattr(side, name)) for side in sides)))
        if (accuracy := self.accuracy) is not None:
            label = f"ridge accuracy (DEQ {accuracy['deq']:.2%})"
            rows.append((label, f"{accuracy['matched']:.2%}", f"{accuracy['unmatched']:.2%}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{self.names['deq']}: {self.kind} kernel, {self.convention}"]
        for label, *pair in rows:
            lines.append(label.ljust(widths[0] + 2) + "  ".join(map(str.rjust, pair, widths[1:])))
        lines += [f"{side}: {self.names[side]}" for side in ("matched", "unmatched")]
        lines.append(self.verdict)
        if failing := [verdict.name for verdict in self.conditions if verdict.holds is not True]:
            lines.append(f"conditions that do not hold: {', '.join(failing)}")
        return "\n".join(lines)


def certificate_of_kernels(
    kernels: dict[str, FloatArray],
    y: object,
    conditions: Conditions,
    kind: str,
    convention: str,
    names: dict[str, str],
    order: IntArray | None = None,
) -> Certificate:
    """Compare the kernels "deq", "matched" and "unmatched" on the same data; y: labels or None."""
    deq, matched, unmatched = kernels.values()
    accuracy = class_means = None
    by_class = np.arange(len(deq))
    near, far = kernel_distances(deq, [matched, unmatched])
    if y is not None:
        labels = np.unique(checks.class_labels(y, len(deq), "certify"), return_inverse=True)[1]
        shares = map_threads(lambda K: ridge_accuracy(K, labels, order), kernels.values())
        accuracy = dict(zip(kernels, shares, strict=True))
        class_means = {name: _block_means(kernels[name], labels) for name in ("deq", "matched")}
        by_class = np.argsort(labels, kind="stable")
    return Certificate(
        matched=near,
        unmatched=far,
        accuracy=accuracy,
        class_means=class_means,
        conditions=conditions,
        kind=kind,
        convention=convention,
        names=names,
        difference=(deq - matched)[np.ix_(by_class, by_class)],
    )


def ridge_accuracy(K: FloatArray, labels: IntArray, order: IntArray | None = None) -> float:
    """Return the accuracy of kernel ridge regression on one-hot labels, averaged over two folds.

    Within a class the rows, in the given order, go to the two folds in turn; the ridge is 1e-3 of
    the mean of the diagonal.
    """
    targets = np.eye(int(labels.max()) + 1)[labels]
    turns = np.arange(len(K)) if order is None else order
    turns = turns[np.argsort(labels[turns], kind="stable")]
    folds = [turns[start::2] for start in (0, 1)]
    ridge = _RIDGE * float(np.trace(K)) / len(K)
    right = 0
    for train, test in (folds, folds[::-1]):
        system = K[np.ix_(train, train)]
        system.flat[:: len(train) + 1] += ridge
        factor = linalg.cho_factor(system, overwrite_a=True, check_finite=False)
        weights = linalg.cho_solve(factor, targets[train], check_finite=False)
        right += int(((K[np.ix_(test, train)] @ weights).argmax(axis=1) == labels[test]).sum())
    return right / len(K)


def _block_means(K: FloatArray, labels: IntArray) -> FloatArray:
    members = np.eye(int(labels.max()) + 1)[labels]
    members = members / members.sum(axis=0)
    return np.asarray(members.T @ K @ members)
