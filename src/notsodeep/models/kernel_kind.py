"""The words that say which kernel of which model is meant."""

from __future__ import annotations

from typing import Literal, get_args

from notsodeep import checks
from notsodeep.models.convolutional import ConvolutionalModel
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.models.explicit import ExplicitNetwork
from notsodeep.models.monotone import MonotoneEquilibrium

Model = DeepEquilibrium | ExplicitNetwork | MonotoneEquilibrium
KernelModel = Model | ConvolutionalModel
"""Whatever has an exact kernel."""

KernelName = Literal["conjugate", "tangent"]
Convention = Literal["preactivation", "feature"]


def checked_choice(model: object, kernel: str, convention: str, owner: str) -> None:
    """Refuse what is not a model, a kernel or a convention."""
    if not isinstance(model, Model):
        requirement = "be a DeepEquilibrium or an ExplicitNetwork (or a MonotoneEquilibrium)"
        raise checks.refusal("model", owner, requirement, repr(model))
    checks.known_name(kernel, get_args(KernelName), f"kernel of {owner}")
    checks.known_name(convention, get_args(Convention), f"convention of {owner}")
    if isinstance(model, MonotoneEquilibrium) and (kernel, convention) == (
        "tangent",
        "preactivation",
    ):
        remedy = "Use convention='feature'."
        requirement = "be 'feature' for the tangent kernel of a monotone network"
        raise checks.refusal("convention", owner, requirement, convention, remedy)
