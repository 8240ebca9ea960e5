"""Reading of JSON text that someone else may have written."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def strict_json(text: str | bytes) -> Any:
    """Parse JSON as its standard has it: no NaN, no infinity, and no key twice in one object.

    Raises
    ------
    ValueError
        The text is something else, or nested beyond what can be read.
    """
    try:
        return json.loads(text, parse_constant=_not_json, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return content
