"""Small equilibrium networks that were trained here, and come with the package.

They take pixels between 0 and 1, as `notsodeep.data.load` with
"unit_range" gives them, and scale them
themselves.  *Contracting* ones are tanh with ‖W‖₂ ≤ 0.9, *monotone* ones relu with
W = (1 − m)I − AᵀA + B − Bᵀ, m = 0.5 (Winston, Kolter, *Monotone operator equilibrium networks*,
NeurIPS 2020).
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from notsodeep import checks
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.weights import load_cell

__all__ = ["load", "names"]


def names() -> tuple[str, ...]:
    """Return the names that `load` knows.

    Examples
    --------
    >>> names()
    ('monotone-digits-64', 'monotone-mnist-100', 'tanh-digits-64', 'tanh-mnist-100')
    """
    return tuple(sorted(path.stem for path in _networks().glob("*.safetensors")))


def load(name: str) -> AffineDEQ:
    """Return a trained network by its name; its `metadata` say what is known of it.

    Examples
    --------
    >>> cell = load("tanh-digits-64")
    >>> cell, cell.metadata["data"], cell.metadata["input_shift"]
    (AffineDEQ(tanh, width 64, 64 inputs, 10 classes), 'digits', '0.305')
    """
    checks.known_name(name, names(), "network")
    return load_cell(_networks() / f"{name}.safetensors")


def _networks() -> Path:
    # The package is installed as files: its networks are read through paths, not copied first.
    return Path(str(resources.files("notsodeep.zoo") / "networks"))
