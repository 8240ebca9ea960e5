"""Match a DEQ with a shallow network that behaves the same."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Centred
from notsodeep.arrays import FloatArray
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.data.selection import order_by_content
from notsodeep.equivalents import Coefficients, Expansion, SphereCoefficients, conditions
from notsodeep.equivalents.distances import one_library_at_a_time
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching.certificate import Certificate, certificate_of_kernels
from notsodeep.matching.kernel_series import KernelSeries
from notsodeep.matching.refinement import (
    MeasuredKernel,
    Refinement,
    wanted_kernel,
)
from notsodeep.models import (
    Conditions,
    Convention,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    Model,
)
from notsodeep.prediction import compare_risks
from notsodeep.records import NOT_STORED, Plotted

Target = Coefficients | Expansion | SphereCoefficients | KernelSeries


@dataclass(frozen=True, eq=False, repr=False)
class Match(Plotted):
    """A shallow network for a DEQ.

    Attributes
    ----------
    family : str
    deq : DeepEquilibrium
        What was matched: the model as given, or centred at tau0 if that is what the family meets.
    fitted : ExplicitNetwork or None
        The network; None if there is none.  `network` raises instead.
    parameters : dict of float
    target, achieved : Coefficients, Expansion, SphereCoefficients or KernelSeries
        What the DEQ's kernel has and what the network's kernel has; achieved is None without
        a network.
    residuals : dict of float
        achieved − target for each coefficient.
    feasible : bool
        Whether the equations that the family promises to meet are met.
    reason : str
        Which they are, or which fails and by how much; and why this family was chosen.
    conditions : Conditions
        The theory's assumptions on this DEQ at this scale.
    kernel, convention : str
    tau0 : float
        Scale of the data: √(tr C°/p); 1 on the sphere.
    score : float
        By which families are compared: the exact-kernel gap on drawn rows, or the largest residual
        without data; NaN if there is no network.
    candidates : tuple of Match
        Everything that was tried, this one included.
    refinement : Refinement or None
    measured : callable or None
        The kernel that stands for the DEQ's on data, if one was given.
    """

    _drawing = "match"

    family: str
    deq: DeepEquilibrium
    fitted: ExplicitNetwork | None
    parameters: dict[str, float]
    target: Target
    achieved: Target | None
    residuals: dict[str, float]
    feasible: bool
    reason: str
    conditions: Conditions
    kernel: KernelName
    convention: Convention
    tau0: float
    score: float = math.nan
    candidates: tuple[Match, ...] = ()
    refinement: Refinement | None = None
    measured: MeasuredKernel | None = field(default=None, metadata=NOT_STORED)

    @property
    def network(self) -> ExplicitNetwork:
        """The matched network."""
        if self.fitted is None:
            raise InvalidInput(
                f"The {self.family} family has no network for the {self.deq}: {self.reason}. "
                "Use family='auto' or another one."
            )
        return self.fitted

    @property
    def unmatched(self) -> ExplicitNetwork:
        """An unmatched network of the same depth, with the activation of the DEQ's (last) layer."""
        inner = self.deq.cell[-1].activation
        base = inner.base if isinstance(inner, Centred) else inner
        plain = ExplicitNetwork([base] * self.network.depth)
        return plain.centred(self.tau0) if isinstance(inner, Centred) else plain

    @property
    def baseline(self) -> ExplicitNetwork:
        """The former name of `unmatched`."""
        message = "Match.baseline is called unmatched now."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.unmatched

    def certify(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        stats: MixtureStatistics | None = None,
        mixture: GaussianMixture | None = None,
    ) -> Certificate:
        """Compute the exact kernels of DEQ, network and an unmatched network, and distances.

        Parameters
        ----------
        X : array_like of shape (n, p)
            Held-out data, prepared as the data of the match was.
        y : array_like of shape (n,), optional
            Integer labels: adds ridge accuracies, block means and the conditions on classes.  The
            order of the rows does not matter.
        stats : MixtureStatistics, optional
            Of X and y, for the conditions; estimated if left out.
        mixture : GaussianMixture, optional
            That the data are from: adds predicted accuracies over the ridge for as many samples.
        """
        owner = "Match.certify"
        rows = checks.samples(X, "X", owner)
        if len(rows) < 4:
            raise checks.invalid("X", owner, "have at least four rows", len(rows))
        if isinstance(self.target, SphereCoefficients | KernelSeries):
            rows = checks.unit_rows(rows, "X", owner)
        checks.enough_memory(
            5 * 8 * len(rows) ** 2,
            f"A certificate on {len(rows)} rows",
            "Pass fewer held-out rows.",
        )
        models: dict[str, Model] = {
            "deq": self.deq,
            "matched": self.network,
            "baseline": self.unmatched,
        }
        which = self.kernel, self.convention, self.measured
        # A measured kernel may be worth many threads; that of a model shares them itself.
        deq = None if self.measured is None else wanted_kernel(self.deq, rows, *which)
        with one_library_at_a_time(len(rows)), np.errstate(under="ignore"):
            if deq is None:
                deq = wanted_kernel(self.deq, rows, *which)
            kernels = {
                name: exact_kernel(model, rows, kind=self.kernel, convention=self.convention)
                for name, model in models.items()
                if name != "deq"
            }
            uncentred = None
            plain = _without_centring(self.deq)
            if plain != self.deq and self.measured is None:
                uncentred = exact_kernel(plain, rows, kind=self.kernel, convention=self.convention)
            certificate = certificate_of_kernels(
                deq,
                kernels["matched"],
                kernels["baseline"],
                y=y,
                conditions=conditions(
                    self.deq, rows, _statistics(rows, y) if stats is None else stats, tau0=self.tau0
                ),
                kernel=self.kernel,
                convention=self.convention,
                names={name: str(model) for name, model in models.items()},
                order=order_by_content(rows),
                uncentred=uncentred,
            )
        if mixture is None:
            return certificate
        predicted = compare_risks(
            models,
            mixture,
            mixture.class_counts(len(rows)),
            ridge=np.logspace(-3.0, 1.0, 9),
            kernel=self.kernel,
            convention=self.convention,
        )
        return replace(certificate, predicted=predicted)

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the JSON form, without a kernel that was measured; the network is "network"."""
        form = super().to_dict(arrays=arrays)
        return {"network" if name == "fitted" else name: value for name, value in form.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a JSON form; see `Record.from_dict`."""
        if isinstance(content, Mapping):
            content = {"fitted" if name == "network" else name: v for name, v in content.items()}
        return super().from_dict(content)

    def __str__(self) -> str:
        lines = [
            f"{self.deq}, {self.kernel} kernel ({self.convention})",
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


def _without_centring(deq: DeepEquilibrium) -> DeepEquilibrium:
    """Return the model with its activations as they were; the same one if nothing was taken off."""
    layers = [
        replace(layer, activation=layer.activation.base)
        if isinstance(layer.activation, Centred) and layer.activation.constant != 0.0
        else layer
        for layer in deq.cell
    ]
    return replace(deq, cell=tuple(layers))


def _statistics(rows: FloatArray, y: ArrayLike | None) -> MixtureStatistics | None:
    """Statistics for the verdicts on classes, if there are labels and enough rows of each."""
    if y is None:
        return None
    labels = checks.class_labels(y, len(rows), "Match.certify")
    if np.unique(labels, return_counts=True)[1].min() < 4:
        return None
    return MixtureStatistics.estimate(rows, labels)
