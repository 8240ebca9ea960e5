"""Reading of JSON text that someone else may have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

DEEPEST = 100
"""Levels of nesting that are read: far more than we write, far less than what Python can follow."""


def strict_json(text: str | bytes) -> Any:
    """Parse JSON as its standard has it: no NaN, no infinity, and no key twice in one object.

    Raises
    ------
    ValueError
        The text is something else, or nested more than `DEEPEST` levels deep.
    """
    try:
        content = json.loads(text, parse_constant=_not_json, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if not shallow(content):
        raise ValueError(_TOO_DEEP)
    return content


def shallow(content: Any) -> bool:
    """Whether lists and mappings lie at most `DEEPEST` levels within each other."""
    level = [content]
    for _ in range(DEEPEST + 1):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return True
    return False


def _members(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return content
