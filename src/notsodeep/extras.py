"""Packages that only some parts need: which extra brings each, and what is said without it.

`import notsodeep`, exact kernels, equivalents and matching need none of them.
"""

from __future__ import annotations

import importlib.util

from notsodeep.errors import MissingPackage

EXTRAS = {
    "app": ("streamlit",),
    "cli": ("jinja2", "rich", "typer"),
    "cluster": ("dask", "distributed", "zarr"),
    "onnx": ("onnx",),
    "plot": ("matplotlib",),
    "torch": ("torch",),
}
"""Packages by the extra that installs them, as in pyproject.toml."""

_EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}


def is_installed(package: str) -> bool:
    """Say whether a package could be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require(owner: str, *packages: str) -> None:
    """Require optional packages, before anything is done that needs them.

    Parameters
    ----------
    owner : str
        What needs them; the message starts with it.
    packages : str
        Names under which they are imported.

    Raises
    ------
    MissingPackage
        With the command that installs what is missing.

    Examples
    --------
    >>> require("notsodeep.networks", "torch")
    """
    absent = [package for package in packages if not is_installed(package)]
    if absent:
        raise missing(owner, *absent)


def missing(owner: str, *packages: str) -> MissingPackage:
    """Word the absence of optional packages.

    Examples
    --------
    >>> print(missing("A report", "jinja2", "matplotlib"))
    A report needs the packages jinja2 and matplotlib, which are not installed. Get them with: pip
    install 'notsodeep[cli,plot]'
    """
    extras = ",".join(sorted({_EXTRA_OF[package] for package in packages}))
    several = len(packages) > 1
    noun, be, them = ("packages", "are", "them") if several else ("package", "is", "it")
    return MissingPackage(
        f"{owner} needs the {noun} {' and '.join(packages)}, which {be} not installed. "
        f"Get {them} with: pip install 'notsodeep[{extras}]'"
    )


def explained(error: ImportError) -> ImportError:
    """Turn the failed import of an optional package into a `MissingPackage`; others stay.

    Examples
    --------
    >>> print(explained(ModuleNotFoundError("No module named 'torch'", name="torch")))
    This needs the package torch, which is not installed. Get it with: pip install
    'notsodeep[torch]'
    """
    package = (error.name or "").split(".")[0]
    return missing("This", package) if package in _EXTRA_OF else error
