"""A match and conditions, read back from runs of this version and of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from notsodeep.matching import Match
from notsodeep.models import Conditions


def stored_match(content: Mapping[str, Any]) -> Match:
    """Read a match.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> found = nsd.match(nsd.DeepEquilibrium("relu", 0.2), tau0=1.0, family="leaky_relu")
    >>> again = stored_match(found.to_dict())
    >>> again.network == found.network, again.residuals == found.residuals
    (True, True)
    """
    return Match.from_dict(content)


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
