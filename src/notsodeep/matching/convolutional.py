"""Match a convolutional DEQ by an explicit convolutional network, on data.

There are no coefficients to solve for: the kernel depends on the Gram matrices of all pixels.  But
an activation that matches a dense DEQ at the mean variance of a pixel is a start, and the distance
of exact kernels on images is refined from there over the same families.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data import draw_rows
from notsodeep.equivalents.distances import operator_norm
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching.families import FAMILIES, named, those_that_apply
from notsodeep.matching.family import Family, MixtureFamily
from notsodeep.matching.match_record import Match
from notsodeep.matching.piecewise_families import LeakyReLU
from notsodeep.matching.polynomial_families import Cubic, Quadratic
from notsodeep.matching.problem import Problem
from notsodeep.matching.refinement import Refinement, refined
from notsodeep.matching.scaled_family import Scaled
from notsodeep.models import (
    Convention,
    ConvolutionalEquilibrium,
    ConvolutionalNetwork,
    DeepEquilibrium,
    ExplicitNetwork,
    KernelName,
    conditions,
)

# With kinks away from zero every pair of pixels would be done one by one.
_FAST = (LeakyReLU, Scaled, Quadratic, Cubic)
_LEAST = 30  # images: a third to refine on, the others to judge
_REFINED = 2  # of the families, those that start nearest


@dataclass(frozen=True, eq=False, repr=False)
class ConvolutionalMatch(Match):
    """An explicit convolutional network that stands for a convolutional DEQ.

    A `Match` whose models are convolutional, with the same windows, borders and read-out.  It has
    no target coefficients; what there is to say is in ``refinement`` and in ``certify``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("relu", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (4, 4))
    >>> X = np.random.default_rng(0).normal(size=(90, 16))
    >>> found = nsd.match(model, X[:60], family="leaky_relu")
    >>> certificate = found.certify(X[60:])
    >>> certificate.matched.relative_gap < 0.2 * certificate.unmatched.relative_gap
    True
    """

    deq: ConvolutionalEquilibrium  # type: ignore[assignment]
    fitted: ConvolutionalNetwork | None  # type: ignore[assignment]
    target: None  # type: ignore[assignment]
    achieved: None

    @property
    def unmatched(self) -> ConvolutionalNetwork:  # type: ignore[override]
        """An unmatched network of the same depth, with the DEQ's own activation."""
        phi = self.deq.activation  # centred at the scale inside the DEQ
        plain = ExplicitNetwork([getattr(phi, "base", phi)] * self.network.depth)
        return twin_of(self.deq, plain.centred(self.tau0).activations)

    def __str__(self) -> str:
        return f"{self.network} for {self.deq}: {self.reason}"


def twin_of(
    deq: ConvolutionalEquilibrium, activations: tuple[Activation, ...]
) -> ConvolutionalNetwork:
    """Make the explicit network with the windows, borders and read-out of a DEQ of one layer."""
    return ConvolutionalNetwork(
        activations,
        deq.image_shape,
        deq.pooling,
        size=deq.cell[0].size,
        padding=deq.padding,
        stride=deq.stride,
        input_pooling=deq.input_pooling,
    )


class _Candidate(NamedTuple):
    gap: float
    family: MixtureFamily
    parameters: FloatArray
    refinement: Refinement


def match_convolution(
    deq: ConvolutionalEquilibrium,
    X: ArrayLike,
    *,
    family: str | Family = "auto",
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    rows: int = 100,
    rng: int | np.random.Generator = 0,
) -> ConvolutionalMatch:
    """Find the explicit convolutional network whose exact kernel is nearest on images.

    `notsodeep.match` with a convolutional model is this function.

    Parameters
    ----------
    deq : ConvolutionalEquilibrium
        Of one layer, with inject = 1 − weight and no bias.
    X : array_like of shape (n, features)
        Images, pixels of norm about one: see ``preprocessing="pixels"`` of `notsodeep.data.load`.
    family : str or Family
        As for `notsodeep.match`; "auto" compares leaky_relu, scaled, quadratic and cubic, and
        refines the two nearest.
    kernel : {"conjugate", "tangent"}
    convention : {"feature", "preactivation"}
        Of the DEQ's kernel.
    rows : int, default 100
        Images to refine on, at most a third of X; up to twice as many others judge.
    rng : int or Generator
        Draws them.

    Raises
    ------
    InvalidInput
        The cell has several layers, a bias, or variances that do not add up to one.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("relu", weight=0.2, inject=0.8)
    >>> deq = nsd.ConvolutionalEquilibrium([layer], image_shape=(4, 4))
    >>> X = np.random.default_rng(0).normal(size=(60, 16))
    >>> found = match_convolution(deq, X, family="leaky_relu")
    >>> round(found.refinement.after_relative, 3)  # on rows set apart
    0.015
    """
    owner = "match"
    layer = deq.cell[0]
    if len(deq.cell) > 1 or not deq.dense.is_vanilla:
        requirement = "have one layer, without bias and with inject = 1 − weight"
        raise checks.invalid("the cell", owner, requirement, str(deq))
    images = deq.rows(X, "X", owner)
    if len(images) < _LEAST:
        raise checks.invalid("X", owner, f"have at least {_LEAST} rows", len(images))
    middle = min(checks.positive_integer(rows, "rows", owner), len(images) // 3)
    drawn = images[draw_rows(images, 3 * middle, checks.random_generator(rng, owner))]
    fit, held_out = drawn[:middle], drawn[middle:]
    tau0 = deq.pixel_scale(images)
    dense = DeepEquilibrium(layer.activation, layer.weight)
    problem = Problem(deq=dense, tau0=tau0, kernel=kernel, convention=convention)
    centred = replace(deq, cell=(replace(layer, activation=problem.centred.activation),))

    def target(Z: FloatArray) -> FloatArray:
        return np.asarray(exact_kernel(centred, Z, kind=kernel, convention=convention))

    def built(each: MixtureFamily, x: FloatArray) -> ConvolutionalNetwork:
        return twin_of(deq, each.network(x, problem).activations)

    wanted = target(fit)
    starts = []
    for each in _families(family, problem):
        found = each.answer(problem)
        if found.fitted is not None:
            twin = twin_of(deq, found.fitted.activations)
            reached = exact_kernel(twin, fit, kind=kernel)
            starts.append((operator_norm(wanted - reached), each, found))
    if not starts:
        raise checks.invalid("family", owner, "have a network for this DEQ", str(family))
    starts.sort(key=lambda start: start[0])
    tried = []
    for _, each, found in starts[:_REFINED]:
        parameters, record = refined(
            target,
            partial(built, each),
            np.array(list(found.parameters.values())),
            fit,
            held_out,
            kernel,
            each.bounds,
        )
        # The gap on held-out images, of whichever of start and refined parameters was kept.
        tried.append(_Candidate(min(record.before, record.after), each, parameters, record))
    best = min(tried, key=lambda candidate: candidate.gap)
    names = best.family.parameter_names
    return ConvolutionalMatch(
        family=best.family.name,
        deq=centred,
        fitted=built(best.family, best.parameters),
        parameters={name: float(v) for name, v in zip(names, best.parameters, strict=True)},
        target=None,
        achieved=None,
        residuals={},
        feasible=True,
        reason=f"refined on exact kernels of images: {best.refinement}",
        conditions=conditions(centred, tau0),
        kernel=kernel,
        convention=convention,
        tau0=tau0,
        score=best.gap,
        refinement=best.refinement,
    )


def _families(family: str | Family, problem: Problem) -> list[MixtureFamily]:
    if isinstance(family, MixtureFamily):
        return [family]
    if family == "auto":
        return [each for each in those_that_apply(problem) if isinstance(each, _FAST)]
    found = family
    if isinstance(family, str):
        checks.known_name(family, FAMILIES, "family")
        found = named(family)
    if not isinstance(found, MixtureFamily):
        requirement = "be a family of the mixture theory: convolutions have no sphere"
        raise checks.invalid("family", "match", requirement, str(family))
    return [found]
