"""Small equilibrium networks that were trained: ours come with the package, others are fetched.

Ours were trained by `experiments/zoo_recipes.py`.  They take pixels between 0 and 1, as
`notsodeep.data.pixel_data` gives them, and scale them themselves.

Examples
--------
>>> import notsodeep as nsd
>>> cell = nsd.zoo.load("tanh-digits-64")
>>> cell
AffineCell(tanh, width 64, 64 inputs, 10 classes)
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from notsodeep import checks
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.files import StoredCell, load_cell
from notsodeep.zoo.public_networks import PUBLIC, PublicNetwork, fetch, load_public

__all__ = ["PUBLIC", "PublicNetwork", "data_of", "fetch", "load", "load_stored", "names"]


def names() -> tuple[str, ...]:
    """Return the names that `load` knows, ours first.

    Examples
    --------
    >>> names()[:2]
    ('monotone-digits-64', 'monotone-mnist-100')
    """
    return (*sorted(path.stem for path in _networks().glob("*.safetensors")), *sorted(PUBLIC))


def load(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> AffineCell:
    """Return a trained network by its name.

    Nothing is downloaded: a public network has to be fetched once, by `fetch`.

    Parameters
    ----------
    name : str
        One of `names`.
    data_dir : path, optional
        Where fetched networks are kept; see `notsodeep.data.data_directory`.

    Raises
    ------
    UnknownName
        There is no such network.
    DataNotFound
        It is a public one that has not been fetched.
    DataCorrupted
        Its file was altered.
    """
    return load_stored(name, data_dir=data_dir).cell


def load_stored(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> StoredCell:
    """Return a network as `load` does, with what is known of it: accuracy, seed, licence.

    Examples
    --------
    >>> load_stored("tanh-digits-64").metadata["input_shift"]
    '0.305'
    """
    checks.known_name(name, names(), "network")
    if name in PUBLIC:
        return load_public(name, data_dir)
    return load_cell(_networks() / f"{name}.safetensors")


def data_of(name: str) -> str:
    """Return the name of the image set that a network was trained on.

    Examples
    --------
    >>> data_of("tanh-mnist-100"), data_of("mondeq-quant-mnist-100")
    ('mnist', 'mnist')
    """
    return PUBLIC[name].data if name in PUBLIC else load_stored(name).metadata["data"]


def _networks() -> Path:
    # The package is installed as files: its networks are read through paths, not copied first.
    return Path(str(resources.files("notsodeep.zoo") / "networks"))
