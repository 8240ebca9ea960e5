"""Checks of what the scikit-learn estimators are given; called by `fit`, never by `__init__`."""

from __future__ import annotations

from notsodeep.checks.wording import refusal


def flag(value: object, parameter: str, owner: str) -> bool:
    """Require True or False."""
    if not isinstance(value, bool):
        raise refusal(parameter, owner, "be True or False", repr(value))
    return value
