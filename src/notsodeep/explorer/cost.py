"""What a DEQ costs against an explicit network of the same width, counted and not measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from notsodeep import checks
from notsodeep.models import DeepEquilibrium, ExplicitNetwork

TOLERANCE = 1e-5
"""Relative, of the DEQ's fixed point."""
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Cost:
    """Multiplications for one sample.

    Attributes
    ----------
    rate : float
        Factor by which a step of the DEQ shrinks the distance from its fixed point.
    steps : int or None
        Steps to the tolerance; None if they do not get there.
    deq : int or None
    network : int
    """

    rate: float
    steps: int | None
    deq: int | None
    network: int

    @property
    def ratio(self) -> float | None:
        """How many times as much the DEQ costs."""
        return None if self.deq is None else self.deq / self.network


def inference_cost(
    deq: DeepEquilibrium,
    network: ExplicitNetwork,
    *,
    tau0: float,
    in_features: int,
    width: int,
    out_features: int,
) -> Cost:
    """Count the multiplications of both networks for one row.

    A step z ← φ(√σa² A z + √σb² B x)/√m multiplies by A, m² times; B x, m p times, is computed
    once.  At large width a small change of z shrinks in a step by √(σa² E φ′(√q ξ)²), with
    q = σa² E φ²(√q ξ) + σb² τ0² the variance of the pre-activations, so that T steps leave
    rate^T.  An explicit network takes one product for each layer.

    Parameters
    ----------
    deq : DeepEquilibrium
        As it is matched: centred, if the match centred it.
    network : ExplicitNetwork
    tau0 : float
        Scale of the data.
    in_features, width, out_features : int
        p, m and K.
    """
    owner = "inference_cost"
    p, m, K = (
        checks.positive_integer(value, name, owner)
        for name, value in (("in_features", in_features), ("width", width), ("out", out_features))
    )
    back, activation = deq.sigma_a2, deq.activation
    q = deq.preactivation_variance(checks.positive_number(tau0, "tau0", owner) ** 2)
    rate = math.sqrt(back * float(activation.moments(math.sqrt(q)).slope_square))
    steps = _steps(rate)
    ends = m * p + m * K
    explicit = ends + (network.depth - 1) * m * m
    return Cost(rate, steps, None if steps is None else ends + steps * m * m, explicit)


def _steps(rate: float) -> int | None:
    if rate == 0.0:
        return 1
    if rate >= 1.0:
        return None
    steps = math.ceil(math.log(TOLERANCE) / math.log(rate))
    return steps if steps <= _MOST_STEPS else None
