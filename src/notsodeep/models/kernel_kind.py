"""The words that say which kernel of which model is meant."""

from __future__ import annotations

from typing import Literal, cast, get_args

from notsodeep import checks
from notsodeep.models.convolutional import ConvolutionalModel
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.models.explicit import ExplicitNetwork
from notsodeep.models.monotone import MonotoneEquilibrium

Model = DeepEquilibrium | ExplicitNetwork | MonotoneEquilibrium
KernelModel = Model | ConvolutionalModel
"""Whatever has an exact kernel."""

KernelName = Literal["ck", "ntk"]
Convention = Literal["preactivation", "feature"]


GIVEN_WEIGHTS = (
    "Kernels are about random weights; a network whose weights are given is for compile(cell, X)."
)
"""The remedy for one who passes a trained network where a description belongs."""

_ALIASES = {"conjugate": "ck", "nngp": "ck", "tangent": "ntk"}


def kernel_name(value: str, what: str) -> KernelName:
    """Return "ck" or "ntk", also for "conjugate", "nngp" and "tangent", in any case.

    Examples
    --------
    >>> kernel_name("NTK", "kernel"), kernel_name("conjugate", "kernel")
    ('ntk', 'ck')
    """
    name = _ALIASES.get(value.lower(), value) if isinstance(value, str) else value
    return cast(KernelName, checks.known_name(name, get_args(KernelName), what))


def checked_choice(model: object, kind: str, convention: str, owner: str) -> KernelName:
    """Reject what is not a model, a kernel or a convention; return the kernel by its name."""
    if not isinstance(model, Model):
        requirement = "be a DeepEquilibrium or an ExplicitNetwork (or a MonotoneEquilibrium)"
        raise checks.invalid("model", owner, requirement, repr(model), GIVEN_WEIGHTS)
    kind = kernel_name(kind, f"kernel of {owner}")
    checks.known_name(convention, get_args(Convention), f"convention of {owner}")
    if isinstance(model, MonotoneEquilibrium) and (kind, convention) == (
        "ntk",
        "preactivation",
    ):
        remedy = "Use convention='feature'."
        requirement = "be 'feature' for the tangent kernel of a monotone network"
        raise checks.invalid("convention", owner, requirement, convention, remedy)
    return kind
