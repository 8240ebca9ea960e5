"""Stored activations that contain each other, as deep as one likes."""

from __future__ import annotations

import json
from typing import Any


def nested(levels: int) -> dict[str, Any]:
    """An activation within an activation, and so on."""
    activation: dict[str, Any] = {"name": "relu", "parameters": {}}
    for _ in range(levels):
        parameters = {"activation": activation, "scale": 1.0, "constant": 0.0}
        activation = {"name": "centred", "parameters": parameters}
    return activation


def text(levels: int) -> str:
    """Write it as JSON, which Python does by recursion as well."""
    start = '{"name": "centred", "parameters": {"scale": 1.0, "constant": 0.0, "activation": '
    return start * levels + json.dumps(nested(0)) + "}}" * levels
