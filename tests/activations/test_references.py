"""Every moment, coefficient and pair expectation against 20-30 digit tables made with mpmath."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from notsodeep import activations
from notsodeep.activations import Activation, centre, hard_tanh, piecewise_linear
from notsodeep.activations.activation import moments_by_quadrature
from notsodeep.activations.pairs import quadrature_pairs

TABLES = Path(__file__).parents[1] / "references"
MOMENT_NAMES = {
    "mean": "mean",
    "slope": "first",
    "curvature": "second",
    "square": "square",
    "slope_square": "derivative_square",
    "square_curvature": "square_second",
}


def records(table: str) -> list[Any]:
    loaded: list[Any] = json.loads((TABLES / table).read_text())
    return loaded


def label(record: dict[str, Any]) -> str:
    facts = [str(v) for k, v in record.items() if k in ("tau", "var1", "var2", "correlation")]
    parameters = [str(v) for v in record["parameters"].values()]
    return "-".join([record["activation"], *parameters, *facts]).replace(" ", "")


def test_tables_cover_every_named_activation() -> None:
    for table in ("moments.json", "pairs.json"):
        covered = {record["activation"] for record in records(table)}
        assert covered == set(activations.names())


def test_tables_cover_the_grid() -> None:
    assert {r["tau"] for r in records("moments.json")} == {0.1, 0.5, 1.0, 2.0}
    kinds = {(r["activation"], str(r["parameters"])) for r in records("pairs.json")}
    correlations = {0.0, 0.5, -0.5, 0.999999, -0.999999, 1.0, -1.0}
    for kind in kinds:
        mine = [r for r in records("pairs.json") if (r["activation"], str(r["parameters"])) == kind]
        assert {r["correlation"] for r in mine} == correlations
        assert {(r["var1"], r["var2"]) for r in mine} == {(1.0, 1.0), (0.25, 4.0)}


@pytest.mark.parametrize("record", records("moments.json"), ids=label)
def test_moments(record: dict[str, Any]) -> None:
    activation = activations.named(record["activation"], **record["parameters"])
    moments = activation.moments(record["tau"])
    for name, key in MOMENT_NAMES.items():
        expected = float(record[key])
        assert getattr(moments, name) == pytest.approx(expected, rel=1e-12, abs=1e-14), name


@pytest.mark.parametrize("record", records("moments.json"), ids=label)
def test_hermite_coefficients(record: dict[str, Any]) -> None:
    activation = activations.named(record["activation"], **record["parameters"])
    expected = np.array([float(a) for a in record["hermite"]])
    found = activation.hermite_coefficients(record["tau"], len(expected))[0]
    size = np.sqrt(float(record["square"]))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15 * size)


@pytest.mark.parametrize("record", records("pairs.json"), ids=label)
def test_pair_expectations(record: dict[str, Any]) -> None:
    activation = activations.named(record["activation"], **record["parameters"])
    var1, var2 = record["var1"], record["var2"]
    cov = record["correlation"] * np.sqrt(var1 * var2)
    # √(1−ρ²) is 1.4e-3 at ρ = .999999, and the double nearest to .999999 is off by 3e-17: the
    # derivative of a kinked activation is then known to 1e-14, far inside the tolerance.
    pair = activations.pair_expectations(activation, var1, var2, cov)
    assert pair.value == pytest.approx(float(record["value"]), rel=1e-10, abs=1e-12)
    assert pair.derivative == pytest.approx(float(record["derivative"]), rel=1e-10, abs=1e-12)
    rho = np.atleast_1d(cov / np.sqrt(var1 * var2))
    scales = np.sqrt([[var1], [var2]])
    by_quadrature = quadrature_pairs(activation, *scales, rho, 1.0 - np.abs(rho))
    assert by_quadrature.value == pytest.approx(float(record["value"]), rel=1e-10, abs=1e-12)
    derivative = float(record["derivative"])
    assert by_quadrature.derivative == pytest.approx(derivative, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_moments_of_lines_agree_with_quadrature_or_are_left_to_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 5))
    knots = np.sort(rng.normal(size=count)) * 10.0 ** rng.uniform(-1, 1)
    phi: Activation = piecewise_linear(knots.tolist(), rng.normal(size=count + 1).tolist(), 0.3)
    if seed % 2:
        phi = centre(phi, 1.3)
    left = 0
    for scale in 10.0 ** np.linspace(-3.0, 3.0, 13):
        own = phi.closed_form_moments(np.array([scale]))
        assert own is not None
        if np.isnan(own).any():
            left += 1
            continue
        expected = moments_by_quadrature(phi, np.array([scale]))
        size, steepness = np.sqrt(expected[3:5])
        units = [size, steepness, steepness / scale, size**2, steepness**2]
        units.append(steepness**2 + size * steepness / scale)
        assert (np.abs(own - expected) <= 5e-15 * np.array(units)).all()
    assert left < 13


def test_moments_that_cancel_are_left_to_quadrature() -> None:
    # All of φ beyond five standard deviations, or all of its slope, or φ, on a sliver of the line.
    far, thin = piecewise_linear((5.0,), (0.0, 1.0), 0.0), hard_tanh(1.0, 1e-6)
    hat = piecewise_linear((0.0, 1e-6, 2e-6), (0.0, 1.0, -1.0, 0.0))
    one = np.ones(1)
    assert all(np.isnan(phi.closed_form_moments(one)).all() for phi in (far, thin, hat))
    assert np.isfinite(hard_tanh().closed_form_moments(one)).all()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_moments_of_centred_waves_agree_with_quadrature(name: str) -> None:
    phi = centre(activations.named(name), 0.9)
    scales = np.geomspace(1e-3, 8.0, 25)
    own, expected = phi.moments(scales), moments_by_quadrature(phi, scales)
    np.testing.assert_allclose(own.square, expected[3], rtol=1e-13)
    np.testing.assert_allclose(own.slope_square, expected[4], rtol=1e-13)
    np.testing.assert_allclose(own.square_curvature, expected[5], atol=1e-13)
    # Beyond the reach of quadrature: E(φ − c)² → ½ + c².
    assert phi.moments(100.0).square == pytest.approx(0.5 + phi.constant**2, rel=1e-15)
