"""Versions of everything that numbers depend on."""

from __future__ import annotations

import importlib.metadata
import platform

from notsodeep import __version__

_PACKAGES = ("numpy", "scipy", "numba", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package and of those that compute for it."""
    found = {"notsodeep": __version__, "python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in _PACKAGES}
