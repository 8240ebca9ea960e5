"""The record of a match, and its certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Centred
from notsodeep.arrays import FloatArray
from notsodeep.data.selection import order_by_content
from notsodeep.equivalents import Expansion
from notsodeep.equivalents.distances import one_library_at_a_time
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching.certificate import Certificate, certificate_of_kernels
from notsodeep.matching.refinement import Refinement
from notsodeep.models import (
    Conditions,
    Convention,
    ConvolutionalEquilibrium,
    ConvolutionalNetwork,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    conditions,
)
from notsodeep.records import Plotted, Record


@dataclass(frozen=True, eq=False, repr=False)
class KernelSeries(Record):
    """A kernel on the unit sphere as a power series Σ_k g_k tᵏ in t = x·y, g_k ≥ 0."""

    _derived = ("remainder",)

    coefficients: FloatArray  # g_0 … g_degree
    scale2: float  # g(1), the kernel's diagonal

    @property
    def remainder(self) -> float:
        """Σ_{k > degree} g_k: the share of the diagonal in higher powers."""
        return max(0.0, self.scale2 - float(self.coefficients.sum()))

    def error_bound(self, cosine: float) -> float:
        """Bound the error of an entry with |t| ≤ cosine, the last term carrying the remainder.

        |Σ_{k>K} g_k (t^K − t^k)| ≤ 2·remainder·|t|^K, and ≤ remainder·t^K for t ≥ 0.
        """
        return 2.0 * self.remainder * abs(cosine) ** (len(self.coefficients) - 1)


Target = Expansion | KernelSeries


@dataclass(frozen=True, eq=False, repr=False)
class Match(Plotted):
    """A shallow network for a DEQ, which is matched as it is given."""

    _drawing = "match"

    family: str
    model: DeepEquilibrium | ConvolutionalEquilibrium
    fitted: ExplicitNetwork | ConvolutionalNetwork | None  # `network` raises where there is none
    parameters: dict[str, float]
    target: Target | None  # what the DEQ's kernel has; None of a convolution
    achieved: Target | None  # what the network's kernel has
    residuals: dict[str, float]  # achieved − target, for each coefficient
    feasible: bool  # whether the equations that the family promises to meet are met
    reason: str  # which they are, or which fails; and why this family was chosen
    conditions: Conditions  # the theory's assumptions on this DEQ at this scale
    kind: KernelName
    convention: Convention
    tau0: float  # √(tr C°/p); 1 on the sphere
    score: float = math.nan  # relative gap on drawn rows, or largest residual over the diagonal
    readout_gap: float = math.nan  # on the same rows, with scale and constant free
    candidates: tuple[Match, ...] = ()  # all that was tried
    refinement: Refinement | None = None

    @property
    def network(self) -> ExplicitNetwork:
        """The matched network."""
        if self.fitted is None:
            raise InvalidInput(
                f"The {self.family} family has no network for the {self.model}: {self.reason}. "
                "Use family='auto' or another one."
            )
        return self.fitted  # type: ignore[return-value]  # of a convolution a ConvolutionalNetwork

    @property
    def unmatched(self) -> ExplicitNetwork:
        """A plain network of the same depth, with the activation of the DEQ's (last) layer."""
        inner = self.model.cell[-1].activation
        base = inner.base if isinstance(inner, Centred) else inner
        plain = ExplicitNetwork([base] * self.network.depth)
        plain = plain.centred(self.tau0) if isinstance(inner, Centred) else plain
        if isinstance(self.model, ConvolutionalEquilibrium):
            from notsodeep.matching.convolutional import twin_of

            return twin_of(self.model, plain.activations)  # type: ignore[return-value]
        return plain

    def certify(self, X: ArrayLike, y: ArrayLike | None = None) -> Certificate:
        """Compute the exact kernels of DEQ, network and an unmatched network, and distances.

        Parameters
        ----------
        X : array_like of shape (n, p)
            New rows, prepared as the data of the match was.
        y : array_like of shape (n,), optional
            Integer labels: adds ridge accuracies, block means and the conditions on classes.  The
            order of the rows does not matter.
        """
        owner = "Match.certify"
        rows = checks.samples(X, "X", owner)
        if len(rows) < 4:
            raise checks.invalid("X", owner, "have at least four rows", len(rows))
        if self.family == "dual" or (self.family == "quadratic" and self.network.depth == 1):
            rows = checks.unit_rows(rows, "X", owner)
        checks.enough_memory(
            5 * 8 * len(rows) ** 2,
            f"A certificate on {len(rows)} rows",
            "Pass fewer rows.",
        )
        models = {"deq": self.model, "matched": self.network, "unmatched": self.unmatched}
        with one_library_at_a_time(len(rows)), np.errstate(under="ignore"):
            kernels = {
                name: np.asarray(
                    exact_kernel(each, rows, kind=self.kind, convention=self.convention)
                )
                for name, each in models.items()
            }
            return certificate_of_kernels(
                kernels,
                y,
                conditions(self.model, rows, y, tau0=self.tau0),
                kind=self.kind,
                convention=self.convention,
                names={name: str(model) for name, model in models.items()},
                order=order_by_content(rows),
            )

    def __str__(self) -> str:
        lines = [
            f"{self.model}, {self.kind} kernel ({self.convention})",
            f"  → {self.fitted if self.fitted is not None else 'no network'}",
            f"  {self.family}: {self.reason}",
        ]
        for name, residual in self.residuals.items():
            wanted, got = getattr(self.target, name, None), getattr(self.achieved, name, None)
            if wanted is not None and got is not None:
                lines.append(
                    f"  {name:20} target {wanted:10.6f}  achieved {got:10.6f}  ({residual:+.2e})"
                )
        if self.refinement is not None:
            lines.append(f"  refined: {self.refinement}")
        return "\n".join(lines)
