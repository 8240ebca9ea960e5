"""Plain JSON forms of the records of this part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def json_form(value: Any) -> Any:
    """Turn a record into dictionaries, lists and numbers; None stands for NaN and infinity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: json_form(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_form(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_form(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return json_form(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
