"""Colours that figures and pages share; apart from the drawing, which takes a second to import."""

from __future__ import annotations

DEEP = "#3b6ea8"
"""Colour of the deep equilibrium model and of what was measured."""
SHALLOW = "#d9822b"
"""Colour of the explicit network and of what was predicted."""
MUTED = "#8a8f98"
