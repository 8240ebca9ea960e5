"""One look for every head, on all figures of collapse."""

from __future__ import annotations

from typing import Any

from notsodeep import checks
from notsodeep.papers.head_comparison import HEAD_LABELS
from notsodeep.plotting.canvas import DEEP, MUTED, SHALLOW

# Told apart by lightness and dashes as well as by hue.
_STYLES: dict[str, dict[str, Any]] = {
    "explicit": {"color": SHALLOW, "ls": "-"},
    "plain": {"color": MUTED, "ls": "-"},
    "residual": {"color": "#1b7f6b", "ls": (0, (5, 2))},
    "deq_truncated": {"color": "#6fa3dc", "ls": (0, (1, 1))},
    "deq": {"color": DEEP, "ls": "-", "lw": 3.0, "alpha": 0.6},
    "explicit_matched": {"color": "#7a3b06", "ls": (0, (4, 3))},
}


def head_style(head: str) -> dict[str, Any]:
    """Return the arguments of a line for a head, its label among them."""
    checks.known_name(head, _STYLES, "head")
    return {"lw": 1.6, "label": HEAD_LABELS[head], **_STYLES[head]}
