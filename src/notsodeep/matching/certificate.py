"""The certificate of a match: exact kernels of both sides on the user's data."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy import linalg

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.equivalents.distances import (
    KernelDistance,
    centred_norm,
    kernel_distances,
    operator_norm,
)
from notsodeep.models import Conditions
from notsodeep.prediction import RiskComparison
from notsodeep.records import Plotted
from notsodeep.threads import map_threads

_RIDGE = 1e-3  # of the mean of the kernel's diagonal


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Plotted):
    """How closely a network's kernel follows a DEQ's on given data, next to an unmatched one.

    Attributes
    ----------
    matched, unmatched : KernelDistance
        Of the matched network, and of an unmatched network of the same shape, from the DEQ.
    accuracy : dict or None
        Two-fold kernel ridge accuracy of "deq", "matched" and "baseline"; None without labels.
    class_means : dict or None
        Means of the blocks of "deq" and "matched" by pairs of classes, (K, K); None without
        labels.
    conditions : Conditions
        The theory's assumptions on this DEQ and data.
    kernel, convention : str
    names : dict
        What "deq", "matched" and "baseline" are.
    with_bias : float or None
        Relative gap of the matched network with both kernels doubly centred, HKH with
        H = I − 11ᵀ/n: all that read-outs with a bias see.  A DEQ that is not centred has a large
        constant part, next to which any gap is small; this one is not.
    uncentred : dict or None
        Relative gap of the matched network from the DEQ *without* centring: "gap" of the kernels as
        they are, and "with_bias" of both kernels doubly centred.  None if nothing was taken off.
    predicted : RiskComparison or None
        Predicted accuracies of "deq", "matched" and "baseline" over the ridge, their shape ratios
        and what they say; None without a mixture.
    difference : ndarray of shape (n, n)
        K_deq − K_matched, rows ordered by class if labels were given.
    """

    _drawing = "certificate"

    matched: KernelDistance
    unmatched: KernelDistance
    accuracy: dict[str, float] | None
    class_means: dict[str, FloatArray] | None
    conditions: Conditions
    kernel: str
    convention: str
    names: dict[str, str]
    difference: FloatArray = field(repr=False)
    with_bias: float | None = None
    uncentred: dict[str, float] | None = None
    predicted: RiskComparison | None = None

    @property
    def baseline(self) -> KernelDistance:
        """The former name of `unmatched`."""
        message = "Certificate.baseline is called unmatched now."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.unmatched

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the JSON form; what is unmatched is "baseline", as in files of version 0.1."""
        form = super().to_dict(arrays=arrays)
        return {"baseline" if name == "unmatched" else name: item for name, item in form.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a JSON form; see `Record.from_dict`."""
        if isinstance(content, Mapping):
            content = {
                "unmatched" if name == "baseline" else name: v for name, v in content.items()
            }
        return super().from_dict(content)

    def __str__(self) -> str:
        title = f"{self.names['deq']}: {self.kernel} kernel, {self.convention}"
        rows: list[tuple[str, ...]] = [(f"on {len(self.difference)} rows", "matched", "unmatched")]
        measures = {
            "operator-norm gap": ("gap", "{:.4g}"),
            "relative, at the best scale": ("scaled_gap", "{:.3%}"),
            "relative, as they are": ("relative_gap", "{:.3%}"),
            "Frobenius, relative": ("frobenius", "{:.3%}"),
            "spectra (Wasserstein)": ("spectra", "{:.3g}"),
            "kernel alignment": ("alignment", "{:.6f}"),
            "top eigenvector overlap": ("eigenvector_overlap", "{:.6f}"),
        }
        for label, (name, form) in measures.items():
            matched, unmatched = getattr(self.matched, name), getattr(self.unmatched, name)
            rows.append((label, form.format(matched), form.format(unmatched)))
        if (accuracy := self.accuracy) is not None:
            label = f"ridge accuracy (DEQ {accuracy['deq']:.2%})"
            rows.append((label, f"{accuracy['matched']:.2%}", f"{accuracy['baseline']:.2%}"))
        failing = [verdict.name for verdict in self.conditions if verdict.holds is not True]
        note = f"conditions that do not hold: {', '.join(failing)}\n" if failing else ""
        networks = f"matched: {self.names['matched']}\nunmatched: {self.names['baseline']}\n"
        told = f"predicted: {self.predicted.verdict}\n" if self.predicted is not None else ""
        return _framed(title, rows) + networks + self._about_centring + note + told

    @property
    def _about_centring(self) -> str:
        if self.uncentred is None:
            if self.with_bias is None:
                return ""
            return f"with a bias in both read-outs: {self.with_bias:.3%} away\n"
        gap, with_bias = self.uncentred["gap"], self.uncentred["with_bias"]
        return (
            "compared: the centred DEQ; from the DEQ without centring the matched network is\n"
            f"{gap:.2%} away, {with_bias:.2%} if both read-outs have a bias\n"
        )


def certificate_of_kernels(
    deq: FloatArray,
    matched: FloatArray,
    unmatched: FloatArray,
    *,
    y: object,
    conditions: Conditions,
    kernel: str,
    convention: str,
    names: dict[str, str],
    order: IntArray | None = None,
    uncentred: FloatArray | None = None,
) -> Certificate:
    """Compare three kernel matrices on the same data.

    `y` are labels or None; `order` is that of `ridge_accuracy`; `uncentred` is the kernel of the
    DEQ before it was centred.
    """
    accuracy = class_means = None
    by_class = np.arange(len(deq))
    kernels = {"deq": deq, "matched": matched, "baseline": unmatched}
    near, far = kernel_distances(deq, [matched, unmatched])
    if y is not None:
        labels = np.unique(checks.class_labels(y, len(deq), "certify"), return_inverse=True)[1]
        found = map_threads(lambda K: ridge_accuracy(K, labels, order), kernels.values())
        accuracy = dict(zip(kernels, found, strict=True))
        class_means = {name: _block_means(kernels[name], labels) for name in ("deq", "matched")}
        by_class = np.argsort(labels, kind="stable")
    return Certificate(
        matched=near,
        unmatched=far,
        accuracy=accuracy,
        class_means=class_means,
        conditions=conditions,
        kernel=kernel,
        convention=convention,
        names=names,
        difference=(deq - matched)[np.ix_(by_class, by_class)],
        with_bias=_gap_with_bias(deq, matched),
        uncentred=None if uncentred is None else _gaps_before_centring(uncentred, matched),
    )


def _gaps_before_centring(deq: FloatArray, matched: FloatArray) -> dict[str, float]:
    gap = operator_norm(deq - matched) / operator_norm(deq)
    return {"gap": gap, "with_bias": _gap_with_bias(deq, matched)}


def _gap_with_bias(deq: FloatArray, matched: FloatArray) -> float:
    return centred_norm(deq - matched) / centred_norm(deq)


def ridge_accuracy(K: FloatArray, labels: IntArray, order: IntArray | None = None) -> float:
    """Return the accuracy of kernel ridge regression on one-hot labels, averaged over two folds.

    Within a class the rows go to the two folds in turn; the ridge is 1e-3 of the mean of the
    diagonal.

    Parameters
    ----------
    K : ndarray of shape (n, n)
    labels : ndarray of shape (n,)
        0, 1, ….
    order : ndarray of shape (n,), optional
        Order in which rows take turns; as they come if left out.
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


def _framed(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Draw a table as text: a title, a head, and columns of which all but the first are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def rule(left: str, bar: str, joint: str, right: str) -> str:
        return left + joint.join(bar * (width + 2) for width in widths) + right

    def line(row: tuple[str, ...], wall: str) -> str:
        cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        return f"{wall} " + f" {wall} ".join(cells) + f" {wall}"

    top = rule("┏", "━", "┳", "┓")
    titles = textwrap.wrap(title, len(top))
    head, *body = rows
    lines = [
        *(" " * ((len(top) - len(part)) // 2) + part for part in titles),
        top,
        line(head, "┃"),
        rule("┡", "━", "╇", "┩"),
        *(line(row, "│") for row in body),
        rule("└", "─", "┴", "┘"),
    ]
    return "\n".join(lines) + "\n"


def _block_means(K: FloatArray, labels: IntArray) -> FloatArray:
    members = np.eye(int(labels.max()) + 1)[labels]
    members = members / members.sum(axis=0)
    return np.asarray(members.T @ K @ members)
