"""Several networks side by side: where matching matters, and what a plain network would do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.prediction import RiskComparison, compare_risks, shape_ratios
from risk_cases import mixture


def compared(name: str, sigma_a2: float, ridge: Any, **choice: Any) -> RiskComparison:
    deq = nsd.DeepEquilibrium("relu", sigma_a2).centred(1.0)
    found = nsd.match(deq, tau0=1.0, family="piecewise_linear", **choice)
    models = {"DEQ": deq, "matched": found.network, "plain": found.unmatched}
    return compare_risks(models, mixture(name, 256), (256, 256), ridge=ridge, **choice)


@pytest.mark.parametrize(
    ("name", "kernel", "wanted"),
    [
        ("halves", "conjugate", (0.752, 0.904)),
        ("halves", "tangent", (0.735, 0.919)),
        ("trace", "tangent", (0.732, 0.852)),
    ],
)
def test_preactivation_kernels_are_not_those_of_a_plain_network(
    name: str, kernel: str, wanted: tuple[float, float]
) -> None:
    seen = compared(name, 0.2, 1e-3, kernel=kernel, convention="preactivation")
    deq, matched, plain = (curve.accuracy[0] for curve in seen.curves)
    assert deq == pytest.approx(wanted[0], abs=0.003)
    assert matched == pytest.approx(wanted[0], abs=0.012)
    assert plain == pytest.approx(wanted[1], abs=0.003)
    assert seen.ratios["DEQ"]["diagonal"] == pytest.approx(
        seen.ratios["matched"]["diagonal"], rel=1e-6
    )
    assert seen.ratios["plain"]["diagonal"] > 5.0 * seen.ratios["DEQ"]["diagonal"]
    assert "plain differs from DEQ" in seen.verdict
    assert "better one" in seen.verdict


def test_feature_kernels_are_those_of_a_plain_network_up_to_a_factor() -> None:
    seen = compared("weak", 0.2, [0.1, 1.0], kernel="conjugate", convention="feature")
    assert np.abs(seen.changes("plain")).max() < 0.01
    assert "would do as well" in seen.verdict
    assert "plain" in str(seen)
    again = RiskComparison.from_dict(json.loads(json.dumps(seen.to_dict())))
    assert again.verdict == seen.verdict
    pytest.importorskip("matplotlib")
    assert len(seen.plot(nsd.plotting.new_figure()[1][0]).lines) == 3


@pytest.mark.parametrize(
    ("activation", "sigma_a2", "kernel", "convention", "wanted"),
    [
        ("relu", 0.2, "conjugate", "feature", (0.390, 0.171, 0.329)),
        ("tanh", 0.2, "conjugate", "feature", (0.072, 0.0, 0.0)),
        ("relu", 0.2, "tangent", "feature", (0.781, 0.088, 0.506)),
        ("relu", 0.2, "conjugate", "preactivation", (0.020, 0.0085, 0.016)),
        ("relu", 0.2, "tangent", "preactivation", (0.076, 0.0085, 0.049)),
        ("normalized_relu", 0.8, "tangent", "feature", (4.62, 0.219, 0.754)),
    ],
)
def test_shape_ratios(
    activation: str, sigma_a2: float, kernel: Any, convention: Any, wanted: tuple[float, ...]
) -> None:
    deq = nsd.DeepEquilibrium(activation, sigma_a2).centred(1.0)
    found = shape_ratios(deq, 1.0, kernel=kernel, convention=convention)
    np.testing.assert_allclose(list(found.values()), wanted, rtol=3e-3, atol=6e-4)


def test_shape_ratios_of_a_model_that_is_not_centred_are_those_a_bias_leaves() -> None:
    network = nsd.ExplicitNetwork(["relu"])
    shifted = nsd.ExplicitNetwork(["relu"]).centred(1.0)
    # A constant added to φ changes neither slopes nor the kernel without its constant part.
    found, same = shape_ratios(network, 1.0), shape_ratios(shifted, 1.0)
    np.testing.assert_allclose(list(found.values()), list(same.values()), rtol=1e-12)
    assert shape_ratios(nsd.MonotoneEquilibrium("relu", 0.2), 1.0) == {}


def test_one_network_is_no_comparison() -> None:
    with pytest.raises(InvalidInput, match="at least two networks"):
        compare_risks({"a": nsd.ExplicitNetwork(["relu"])}, mixture("weak", 64), (9, 9), ridge=1.0)
