"""Match a convolutional DEQ by an explicit convolutional network, on data.

There are no coefficients to solve for: the kernel depends on the Gram matrices of all pixels.  But
an activation that matches a dense DEQ at the mean variance of a pixel is a start, and the distance
of exact kernels on images is refined from there over the same families.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.checks import FloatArray
from notsodeep.data import draw_rows
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching.families import FAMILIES, named, those_that_apply
from notsodeep.matching.family import MixtureFamily
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
)
from notsodeep.numerics.distances import KernelDistance, kernel_distance, operator_norm
from notsodeep.records import Plotted

# With kinks away from zero every pair of pixels would be done one by one.
_FAST = (LeakyReLU, Scaled, Quadratic, Cubic)
_LEAST = 30  # images: a third to refine on, the others to judge


@dataclass(frozen=True, repr=False)
class ConvolutionalMatch(Plotted):
    """An explicit convolutional network that stands for a convolutional DEQ.

    Attributes
    ----------
    deq : ConvolutionalEquilibrium
        With its activation centred at the mean scale of a pixel.
    network : ConvolutionalNetwork
        With the same windows, borders and read-out.
    family : str
    parameters : dict
        Of the family.
    kernel, convention : str
    matched, unmatched : KernelDistance
        On images that were not used to refine: of `network`, and of the network with the DEQ's own
        activation.
    refinement : Refinement
        What refining gained there.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> layer = nsd.Convolution("relu", weight=0.2, inject=0.8)
    >>> model = nsd.ConvolutionalEquilibrium([layer], (4, 4))
    >>> X = np.random.default_rng(0).normal(size=(60, 16))
    >>> match = nsd.matching.match_convolution(model, X, family="leaky_relu")
    >>> match.matched.relative_gap < 0.2 * match.unmatched.relative_gap
    True
    """

    _drawing = "certificate"

    deq: ConvolutionalEquilibrium
    network: ConvolutionalNetwork
    family: str
    parameters: dict[str, float]
    kernel: str
    convention: str
    matched: KernelDistance
    unmatched: KernelDistance
    refinement: Refinement

    def __str__(self) -> str:
        return (
            f"{self.network} for {self.deq}: relative gap {self.matched.relative_gap:.3%}, "
            f"unmatched {self.unmatched.relative_gap:.3%}, on {self.refinement.held_out} images"
        )


def match_convolution(
    deq: ConvolutionalEquilibrium,
    X: ArrayLike,
    *,
    family: str | MixtureFamily = "auto",
    kernel: KernelName = "conjugate",
    convention: Convention = "feature",
    rows: int = 100,
    rng: int | np.random.Generator = 0,
) -> ConvolutionalMatch:
    """Find the explicit convolutional network whose exact kernel is nearest on images.

    Parameters
    ----------
    deq : ConvolutionalEquilibrium
        Of one layer, with inject = 1 − weight and no bias.
    X : array_like of shape (n, features)
        Images, pixels of norm about one: see ``preprocessing="pixels"`` of `notsodeep.data.load`.
    family : str or MixtureFamily
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
    >>> found.matched.relative_gap < 0.1 * found.unmatched.relative_gap
    True
    """
    owner = "match_convolution"
    if not isinstance(deq, ConvolutionalEquilibrium):
        raise checks.refusal("deq", owner, "be a ConvolutionalEquilibrium", repr(deq))
    layer = deq.cell[0]
    if len(deq.cell) > 1 or layer.bias > 0.0 or abs(layer.weight + layer.inject - 1.0) > 1e-12:
        requirement = "have one layer, without bias and with inject = 1 − weight"
        raise checks.refusal("the cell", owner, requirement, str(deq))
    images = deq.rows(X, "X", owner)
    if len(images) < _LEAST:
        raise checks.refusal("X", owner, f"have at least {_LEAST} rows", len(images))
    middle = min(checks.positive_integer(rows, "rows", owner), len(images) // 3)
    drawn = images[draw_rows(images, 3 * middle, checks.random_generator(rng, owner))]
    fit, held_out = drawn[:middle], drawn[middle:]
    pixels = deq.image_shape[0] * deq.image_shape[1]
    tau0 = math.sqrt(np.einsum("ij,ij->", images, images) / (len(images) * pixels))
    dense = DeepEquilibrium(layer.activation, layer.weight)
    problem = Problem(deq=dense, tau0=tau0, kernel=kernel, convention=convention)
    centred = ConvolutionalEquilibrium(
        [replace(layer, activation=problem.centred.activation)],
        deq.image_shape,
        deq.pooling,
        stride=deq.stride,
        input_pooling=deq.input_pooling,
    )

    def target(Z: FloatArray) -> FloatArray:
        return np.asarray(exact_kernel(centred, Z, kind=kernel, convention=convention))

    def twin(activations: tuple[Activation, ...]) -> ConvolutionalNetwork:
        return ConvolutionalNetwork(
            activations,
            deq.image_shape,
            deq.pooling,
            size=layer.size,
            padding=layer.padding,
            stride=deq.stride,
            input_pooling=deq.input_pooling,
        )

    def built(each: MixtureFamily, x: FloatArray) -> ConvolutionalNetwork:
        return twin(each.network(x, problem).activations)

    wanted = target(fit)
    starts = []
    for each in _families(family, problem):
        found = each.answer(problem)
        if found.fitted is not None:
            reached = exact_kernel(twin(found.fitted.activations), fit, kind=kernel)
            starts.append((operator_norm(wanted - reached), each, found))
    if not starts:
        raise checks.refusal("family", owner, "have a network for this DEQ", str(family))
    starts.sort(key=lambda start: start[0])
    best: tuple[float, MixtureFamily, FloatArray, Refinement] | None = None
    for _, each, found in starts[:2]:
        parameters, record = refined(
            target,
            partial(built, each),
            np.array(list(found.parameters.values())),
            fit,
            held_out,
            kernel,
            each.bounds,
        )
        gap = min(record.before, record.after)
        if best is None or gap < best[0]:
            best = gap, each, parameters, record
    assert best is not None
    _, each, parameters, record = best
    network = built(each, parameters)
    own = ExplicitNetwork([layer.activation]).centred(tau0)
    apart = target(held_out)
    distances = [
        kernel_distance(apart, np.asarray(exact_kernel(net, held_out, kind=kernel)))
        for net in (network, twin(own.activations * len(network.activations)))
    ]
    names = each.parameter_names
    return ConvolutionalMatch(
        deq=centred,
        network=network,
        family=each.name,
        parameters={name: float(v) for name, v in zip(names, parameters, strict=True)},
        kernel=kernel,
        convention=convention,
        matched=distances[0],
        unmatched=distances[1],
        refinement=record,
    )


def _families(family: str | MixtureFamily, problem: Problem) -> list[MixtureFamily]:
    if isinstance(family, MixtureFamily):
        return [family]
    checks.known_name(family, FAMILIES, "family")
    if family == "auto":
        return [each for each in those_that_apply(problem) if isinstance(each, _FAST)]
    found = named(family)
    if not isinstance(found, MixtureFamily):
        requirement = "be a family of the mixture theory: convolutions have no sphere"
        raise checks.refusal("family", "match_convolution", requirement, family)
    return [found]
