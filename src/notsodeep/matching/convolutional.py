"""Match a convolutional DEQ by an explicit convolutional network, on images.

There are no coefficients to solve for: the kernel depends on the Gram matrices of all pixels.  But
an activation that matches a dense DEQ at the mean variance of a pixel is a start, and the distance
of exact kernels on images is refined from there over the same families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.data import draw_rows
from notsodeep.equivalents.distances import operator_norm
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.matching.family import Family, Problem
from notsodeep.matching.quadratic import QUADRATIC
from notsodeep.matching.record import Match
from notsodeep.matching.refinement import refined
from notsodeep.matching.sphere import DUAL
from notsodeep.models import (
    Convention,
    ConvolutionalEquilibrium,
    ConvolutionalNetwork,
    DeepEquilibrium,
    KernelName,
    conditions,
)

FAST_FAMILIES = ("plain", "leaky_relu", "scaled")
"""Those of "auto": with kinks away from zero every pair of pixels would be done one by one."""

_LEAST = 30  # images: a third to refine on, the others to judge
_FITTED = 100  # images to refine on, at most; twice as many others judge
_REFINED = 2  # of the families, those that start nearest


def twin_of(
    model: ConvolutionalEquilibrium, activations: tuple[Activation, ...]
) -> ConvolutionalNetwork:
    """Make the explicit network with the windows, borders and read-out of a DEQ of one layer."""
    return ConvolutionalNetwork(
        activations,
        model.image_shape,
        model.pooling,
        size=model.cell[0].size,
        padding=model.padding,
        stride=model.stride,
    )


def match_convolution(
    model: ConvolutionalEquilibrium,
    X: ArrayLike,
    families: Sequence[Family],
    kind: KernelName,
    convention: Convention,
    rng: int | np.random.Generator,
) -> Match:
    """Find the explicit convolutional network whose exact kernel is nearest on images.

    Arguments are those of `match`.  The cell has one layer, with inject = 1 − weight and no bias;
    pixels have norm about one: ``preprocessing="pixels"`` of `notsodeep.data.load`.
    """
    owner, names = "match", ", ".join(each.name for each in families)
    if DUAL in families or QUADRATIC in families:
        requirement = "be a family of one layer for mixtures: convolutions have no sphere"
        raise checks.invalid("family", owner, requirement, names)
    layer = model.cell[0]
    if len(model.cell) > 1 or not model.dense.is_vanilla:
        requirement = "have one layer, without bias and with inject = 1 − weight"
        raise checks.invalid("the cell", owner, requirement, str(model))
    images = model.rows(X, "X", owner)
    if len(images) < _LEAST:
        raise checks.invalid("X", owner, f"have at least {_LEAST} rows", len(images))
    middle = min(_FITTED, len(images) // 3)
    drawn = images[draw_rows(images, 3 * middle, checks.random_generator(rng, owner))]
    fit, held_out = drawn[:middle], drawn[middle:]
    tau0 = model.pixel_scale(images)
    dense = DeepEquilibrium(layer.activation, layer.weight)
    problem = Problem(model=dense, tau0=tau0, kind=kind, convention=convention)

    def target(Z: FloatArray) -> FloatArray:
        return np.asarray(exact_kernel(model, Z, kind=kind, convention=convention))

    wanted = target(fit)
    starts = []
    for each in families:
        start = each.answer(problem)
        if start.fitted is not None:
            reached = exact_kernel(
                twin_of(model, start.network.activations),
                fit,
                kind=kind,
                convention="preactivation",
            )
            starts.append((operator_norm(wanted - np.asarray(reached)), each, start))
    if not starts:
        raise checks.invalid("family", owner, "have a network for this DEQ", names)
    starts.sort(key=lambda start: start[0])
    answers = []
    for _, each, start in starts[:_REFINED]:

        def build(x: FloatArray, each: Family = each) -> ConvolutionalNetwork:
            return twin_of(model, each.network(x, problem).activations)

        begin = np.array(list(start.parameters.values()))
        x, record = refined(target, build, begin, fit, held_out, kind, each.all_bounds)
        answers.append(
            replace(
                start,
                model=model,
                fitted=build(x),
                parameters=dict(zip(start.parameters, map(float, x), strict=True)),
                target=None,
                achieved=None,
                residuals={},
                feasible=True,
                reason=f"refined on exact kernels of images: {record}",
                conditions=conditions(model, tau0=tau0),
                score=min(record.before_relative, record.after_relative),
                refinement=record,
            )
        )
    return replace(min(answers, key=lambda answer: answer.score), candidates=tuple(answers))
