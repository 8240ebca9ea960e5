"""The families that `match` knows by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from notsodeep import checks
from notsodeep.matching.dual_family import Dual
from notsodeep.matching.family import Family
from notsodeep.matching.piecewise_families import HardTanh, LeakyReLU, PiecewiseLinear
from notsodeep.matching.polynomial_families import Quadratic
from notsodeep.matching.problem import Problem
from notsodeep.matching.scaled_family import Plain, Scaled
from notsodeep.matching.two_kinks_family import TwoKinks

KNOWN: dict[str, type[Family]] = {
    family.name: family
    for family in (
        Plain,
        Dual,
        LeakyReLU,
        HardTanh,
        Scaled,
        PiecewiseLinear,
        TwoKinks,
        Quadratic,
    )
}
"""In the order in which "auto" prefers them, where they do equally well."""

FAMILIES = ("auto", *KNOWN)
"""What `match` accepts as the name of a family."""


def named(name: str, **options: Any) -> Family:
    """Return the family of that name with its options; None leaves one out.

    Examples
    --------
    >>> named("leaky_relu", layers=2)
    LeakyReLU(layers=2)
    """
    family = KNOWN[checks.known_name(name, KNOWN, "family")]
    known = {field.name for field in dataclasses.fields(family)}  # type: ignore[arg-type]
    given = {option: value for option, value in options.items() if value is not None}
    if given.get("layers") == 1 and "layers" not in known:
        del given["layers"]  # those that have no such option have one layer
    for option in given.keys() - known:
        requirement = f"be left out for {name}, which has no such option"
        raise checks.invalid(option, "match", requirement, repr(given[option]))
    return family(**given)


def those_that_apply(problem: Problem) -> list[Family]:
    """Return the families that ``family="auto"`` asks about a problem."""
    offered = (family().for_auto(problem) for family in KNOWN.values())
    return [family for family in offered if family is not None]
