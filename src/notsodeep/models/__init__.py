"""Frozen descriptions of the networks, read by kernels, equivalents, matching and torch alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from notsodeep import checks
from notsodeep.models.conditions import Conditions, Verdict, conditions
from notsodeep.models.equilibrium import DeepEquilibrium, require_varying
from notsodeep.models.explicit import ExplicitNetwork
from notsodeep.models.images import (
    ConvolutionalEquilibrium,
    ConvolutionalModel,
    ConvolutionalNetwork,
)
from notsodeep.models.layers import Convolution, Dense
from notsodeep.models.monotone import MonotoneEquilibrium

__all__ = [
    "Conditions",
    "Convention",
    "Convolution",
    "ConvolutionalEquilibrium",
    "ConvolutionalModel",
    "ConvolutionalNetwork",
    "DeepEquilibrium",
    "Dense",
    "ExplicitNetwork",
    "KernelModel",
    "KernelName",
    "Model",
    "MonotoneEquilibrium",
    "Verdict",
    "checked_choice",
    "conditions",
    "kernel_name",
    "model_from_dict",
    "require_varying",
]

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
    lower = value.lower() if isinstance(value, str) else value
    name = _ALIASES.get(lower, lower)
    return cast(KernelName, checks.known_name(name, get_args(KernelName), what))


def checked_choice(model: object, kind: str, convention: str, owner: str) -> KernelName:
    """Reject what is not a model, a kernel or a convention; return the kernel by its name."""
    if not isinstance(model, Model):
        requirement = "be a DeepEquilibrium or an ExplicitNetwork (or a MonotoneEquilibrium)"
        raise checks.invalid("model", owner, requirement, repr(model), GIVEN_WEIGHTS)
    kind = kernel_name(kind, f"kernel of {owner}")
    checks.known_name(convention, get_args(Convention), f"convention of {owner}")
    monotone = isinstance(model, MonotoneEquilibrium)
    if monotone and (kind, convention) == ("ntk", "preactivation"):
        remedy = "Use convention='feature'."
        requirement = "be 'feature' for the tangent kernel of a monotone network"
        raise checks.invalid("convention", owner, requirement, convention, remedy)
    return kind


def model_from_dict(content: Mapping[str, Any]) -> KernelModel:
    """Turn the form made by `to_dict` of any model back into it.

    Examples
    --------
    >>> model_from_dict(ExplicitNetwork(["relu"]).to_dict())
    ExplicitNetwork(activations=(<activation relu>,))
    """
    models = (
        DeepEquilibrium,
        ExplicitNetwork,
        MonotoneEquilibrium,
        ConvolutionalEquilibrium,
        ConvolutionalNetwork,
    )
    table = {model.kind: model for model in models}
    kind = content.get("kind") if isinstance(content, Mapping) else None
    return table[checks.known_name(str(kind), table, "kind of a stored model")].from_dict(content)
