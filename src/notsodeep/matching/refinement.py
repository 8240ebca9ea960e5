"""Refine a match: minimise the distance of exact kernels on a sample over a family's parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.distances import operator_norm
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.kernels.fixed_pairs import FixedPairs
from notsodeep.models import (
    ConvolutionalNetwork,
    ExplicitNetwork,
    KernelName,
)
from notsodeep.records import Record


@dataclass(frozen=True, repr=False)
class Refinement(Record):
    """What refining did."""

    rows: int  # used to refine
    held_out: int  # others
    before: float  # operator-norm gap on the held-out rows
    after: float
    before_relative: float  # divided by the norm of the DEQ's kernel there
    after_relative: float
    evaluations: int  # kernels computed
    kept: bool  # whether the parameters were taken: if they are better on held-out rows

    def __str__(self) -> str:
        verb = "kept" if self.kept else "not kept"
        return (
            f"gap on {self.held_out} held-out rows {self.before:.4g} → {self.after:.4g} "
            f"({100 * self.before_relative:.2g} % → {100 * self.after_relative:.2g} %), {verb}"
        )


def refined(
    target: Callable[[FloatArray], FloatArray],
    build: Callable[[FloatArray], ExplicitNetwork | ConvolutionalNetwork],
    start: FloatArray,
    rows: FloatArray,
    held_out: FloatArray,
    kind: KernelName,
    bounds: tuple[ArrayLike, ArrayLike],
) -> tuple[FloatArray, Refinement]:
    """Minimise ‖K − K_θ‖_F over θ from a start; return θ and what was gained on held-out rows.

    `target` maps rows to the kernel to match, `build` parameters to a network.
    """
    wanted = target(rows)
    fixed = FixedPairs(rows)
    aim = fixed.entries(wanted)
    # An entry off the diagonal stands for two: the sum of squares is ‖K − K_θ‖_F²/‖K‖_F².
    weight = np.sqrt(fixed.multiplicity) / np.linalg.norm(wanted)
    evaluations = 0

    def difference(x: FloatArray) -> FloatArray:
        nonlocal evaluations
        evaluations += 1
        network = build(x)
        try:
            if isinstance(network, ExplicitNetwork):
                reached = fixed.kernel(network, kind, "feature")
            else:
                whole = exact_kernel(network, rows, kind=kind, convention="feature")
                reached = fixed.entries(np.asarray(whole))
        except NotSoDeepError:
            # No kernel at these parameters: far worse than any, so that the search turns back.
            return np.full(len(weight), 1.0)
        return np.asarray((reached - aim) * weight)

    low, high = (np.broadcast_to(edge, start.shape) for edge in bounds)
    begin = np.clip(start, low, high)
    # Frobenius norm, because it is a smooth sum of squares; judged below by the operator norm, on
    # other rows.  Tighter tolerances took twice the evaluations on twelve problems and left that
    # gap as it was in the median; at best they halved it.
    fit = least_squares(
        difference, begin, bounds=(low, high), xtol=1e-4, ftol=1e-6, gtol=1e-10, max_nfev=25,
    )  # fmt: skip
    found = np.asarray(fit.x, dtype=np.float64)
    apart = target(held_out)
    norm = operator_norm(apart)
    gaps = [
        operator_norm(apart - exact_kernel(build(x), held_out, kind=kind, convention="feature"))
        for x in (start, found)
    ]
    kept = gaps[1] < gaps[0]
    record = Refinement(
        rows=len(rows),
        held_out=len(held_out),
        before=gaps[0],
        after=gaps[1],
        before_relative=gaps[0] / norm,
        after_relative=gaps[1] / norm,
        evaluations=evaluations,
        kept=kept,
    )
    return (found if kept else start), record
