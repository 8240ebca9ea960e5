"""Packages that only some parts need: which extra brings each, and what is said without it.

`import notsodeep`, exact kernels, equivalents and matching need none of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from notsodeep.errors import MissingPackage

EXTRAS = {
    "app": ("streamlit",),
    "cli": ("jinja2", "rich", "typer"),
    "store": ("dask", "distributed", "zarr"),
    "onnx": ("onnx", "onnxruntime"),
    "plot": ("matplotlib", "pillow"),
    "torch": ("torch",),
    "torchmetrics": ("torchmetrics",),
}
"""Packages by the extra that installs them, as in pyproject.toml."""

_EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}
_ROOT = Path(__file__).parents[2]  # of a checkout, if this file is in one


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

    The command names the checkout that is in use, or the package by its name if there is none.

    Examples
    --------
    >>> print(missing("A report", "jinja2", "matplotlib"))
    A report needs the packages jinja2 and matplotlib, which are not installed. Get them with: pip
    install ...[cli,plot]'
    """
    source = f"-e '{_ROOT}" if (_ROOT / "pyproject.toml").is_file() else "'notsodeep"
    extras = ",".join(sorted({_EXTRA_OF[package] for package in packages}))
    several = len(packages) > 1
    noun, be, them = ("packages", "are", "them") if several else ("package", "is", "it")
    return MissingPackage(
        f"{owner} needs the {noun} {' and '.join(packages)}, which {be} not installed. "
        f"Get {them} with: pip install {source}[{extras}]'"
    )


def explained(error: ImportError) -> ImportError:
    """Turn the failed import of an optional package into a `MissingPackage`; others stay.

    Examples
    --------
    >>> print(explained(ModuleNotFoundError("No module named 'torch'", name="torch")))
    This needs the package torch, which is not installed. Get it with: pip install
    ...[torch]'
    """
    package = (error.name or "").split(".")[0]
    return missing("This", package) if package in _EXTRA_OF else error
