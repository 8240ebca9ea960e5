"""A match, read back from what a run has stored of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from notsodeep.equivalents import Coefficients, SphereCoefficients
from notsodeep.matching import KernelSeries, Match, Refinement
from notsodeep.matching.match_record import Target
from notsodeep.models import Conditions, DeepEquilibrium, ExplicitNetwork


def stored_match(content: Mapping[str, Any]) -> Match:
    """Turn the form made by ``Match.to_dict`` back, without the families that were not chosen.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.match(nsd.DeepEquilibrium("relu", 0.2), tau0=1.0, family="leaky_relu")
    >>> again = stored_match(found.to_dict())
    >>> again.network == found.network, again.residuals == found.residuals
    (True, True)
    """
    network, achieved = content["network"], content["achieved"]
    refinement = content["refinement"]
    return Match(
        family=content["family"],
        deq=DeepEquilibrium.from_dict(content["deq"]),
        fitted=None if network is None else ExplicitNetwork.from_dict(network),
        parameters=content["parameters"],
        target=_target(content["target"]),
        achieved=None if achieved is None else _target(achieved),
        residuals=content["residuals"],
        feasible=content["feasible"],
        reason=content["reason"],
        conditions=stored_conditions(content["conditions"]),
        kernel=content["kernel"],
        convention=content["convention"],
        tau0=content["tau0"],
        candidates=(),
        refinement=None if refinement is None else Refinement(**refinement),
    )


def stored_conditions(content: Mapping[str, Any]) -> Conditions:
    """Read conditions, also of earlier versions, which wrote None for numbers not finite."""
    numbers = ("value", "bound")
    return Conditions.from_dict(
        {
            name: {**form, **{key: "NaN" for key in numbers if form[key] is None}}
            for name, form in content.items()
        }
    )


def _target(content: Mapping[str, Any]) -> Target:
    """Tell the three kinds of targets by what they hold."""
    if "taylor" in content:
        return KernelSeries(np.array(content["taylor"]), content["total"])
    kind = Coefficients if "norm_fluctuation" in content else SphereCoefficients
    fields = kind.__dataclass_fields__
    return kind(**{name: value for name, value in content.items() if name in fields})
