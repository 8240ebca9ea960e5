"""A match and conditions, read back from runs of this version and of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from notsodeep.matching import ConvolutionalMatch, Match
from notsodeep.models import Conditions


def stored_match(content: Mapping[str, Any]) -> Match:
    """Read a match; of candidates, earlier versions stored too little to read them.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.match(nsd.DeepEquilibrium("relu", 0.2), tau0=1.0, family="leaky_relu")
    >>> again = stored_match(found.to_dict())
    >>> again.network == found.network, again.residuals == found.residuals
    (True, True)
    """
    whole = [candidate for candidate in content["candidates"] if "deq" in candidate]
    plain = _finite(content["conditions"])
    images = content["deq"]["kind"] == "convolutional_equilibrium"
    kind = ConvolutionalMatch if images else Match
    return kind.from_dict({**content, "candidates": whole, "conditions": plain})


def stored_conditions(content: Mapping[str, Any]) -> Conditions:
    """Read conditions."""
    return Conditions.from_dict(_finite(content))


def _finite(content: Mapping[str, Any]) -> dict[str, Any]:
    """Name the numbers that are not finite, for which earlier versions wrote None."""
    numbers = ("value", "bound")
    return {
        name: {**form, **{key: "NaN" for key in numbers if form[key] is None}}
        for name, form in content.items()
    }
