"""The standard wording of a refusal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from notsodeep.errors import InvalidInput, UnknownName


def refusal(
    parameter: str, owner: str, requirement: str, got: object, remedy: str = ""
) -> InvalidInput:
    """Word the standard message: parameter, owner, requirement, value got, remedy."""
    message = f"{parameter} of {owner} must {requirement}. Got {got}."
    return InvalidInput(f"{message} {remedy}" if remedy else message)


def known_name(value: str, table: Iterable[str], kind: str) -> str:
    """Require that `value` is one of the names in `table`; suggest near names otherwise."""
    names = sorted(table)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=3, cutoff=0.5)
    hint = (
        f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(names)}."
    )
    raise UnknownName(f"Unknown {kind} {value!r}. {hint}")
