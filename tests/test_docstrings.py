"""Every public name has an example; that the examples run is what the doctests are for."""

from __future__ import annotations

import importlib
import inspect

import pytest

import notsodeep

PACKAGES = (
    "notsodeep",
    "notsodeep.activations",
    "notsodeep.models",
    "notsodeep.collapse",
    "notsodeep.data",
    "notsodeep.equivalents",
    "notsodeep.estimators",
    "notsodeep.cluster",
    "notsodeep.files",
    "notsodeep.kernels",
    "notsodeep.matching",
    "notsodeep.networks",
    "notsodeep.kernel_solvers",
    "notsodeep.prediction",
)
# `notsodeep.checks` and `notsodeep.errors` are not among them: refusals for contributors to word,
# and classes that are caught, not called.

WITHOUT = {
    "BestRecurrence": "what `best_sigma_a2` returns",
    "LearningCurve": "what `learning_curve` returns",
    "PilotCurve": "what `pilot_curve` returns",
    "PointRisk": "what `predict_on_points` returns",
    "RiskComparison": "what `compare_risks` returns",
    "Optimum": "what `best_ridge` returns",
    "WidthCurve": "what `width_curve` returns",
    "Acquired": "what `get` returns",
    "Certificate": "what `Match.certify` returns; see `match`",
    "Coefficients": "what `coefficients` returns",
    "Compilation": "what `compile` returns",
    "ConvolutionalModel": "what the two convolutional models share; see there",
    "Comparison": "what `compare` returns",
    "Equivalent": "what `equivalent` returns",
    "Family": "what the families derive from; see `MixtureFamily`",
    "Infeasible": "raised by the `solve` of a family; see `MixtureFamily`",
    "KernelSeries": "in `Match.target` of a dual activation; see `match`",
    "LimitingSpectrum": "what `limiting_spectrum` returns",
    "Match": "what `match` returns",
    "Refinement": "in `Match.refinement`; see `match`",
    "SphereCoefficients": "in `Equivalent.coefficients`; see `sphere_equivalent`",
    "Spike": "in `LimitingSpectrum.spikes`; see `limiting_spectrum`",
    "SpikePair": "in `Comparison.spikes`; see `compare`",
    "Timing": "in `TimingTable`",
    "TimingTable": "what `time_against` returns",
    "certificate_of_kernels": "needs kernels of three networks; `Match.certify` makes them",
    "checked_choice": "words refusals of a model, a kernel or a convention",
    "get": "downloads",
    "sphere_coefficients": "see `sphere_equivalent`, which has them as `coefficients`",
}
"""Names without an example, and why."""


def public_objects() -> dict[str, object]:
    """Return every public function and class, by name; modules, types and constants are none."""
    found: dict[str, object] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) or inspect.isclass(value):
                found[f"{value.__module__}.{name}"] = value
    return found


@pytest.mark.parametrize("name", sorted(public_objects()))
def test_has_an_example(name: str) -> None:
    docstring = inspect.getdoc(public_objects()[name]) or ""
    short = name.rpartition(".")[2]
    if short in WITHOUT:
        assert ">>>" not in docstring, f"{short} has an example: take it off the list"
    else:
        assert "Examples\n--------" in docstring, f"{name} has no section of examples"
        assert ">>> " in docstring


def test_the_list_is_about_public_names() -> None:
    assert set(WITHOUT) <= {name.rpartition(".")[2] for name in public_objects()}


def test_every_public_name_is_found() -> None:
    for name in notsodeep.__all__:
        assert getattr(notsodeep, name) is not None
