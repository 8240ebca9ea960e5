"""The dual activation has the DEQ's own kernel on unit-norm data."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.matching.record import KernelSeries
from notsodeep.models import Convention, KernelName

BOTH: tuple[KernelName, ...] = ("ck", "ntk")


def gap(m: nsd.matching.Match, X: np.ndarray) -> float:
    wanted = nsd.kernel(m.model, X, kind=m.kind, convention=m.convention)
    return float(
        np.linalg.norm(
            wanted - nsd.kernel(m.network, X, kind=m.kind, convention="preactivation"), 2
        )
    )


def close_rows(seed: int = 0) -> np.ndarray:
    """Unit rows with cosines all over [−1, 1], near-duplicates and duplicates."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 5))
    X = np.concatenate([X, X[:10] + 1e-4 * rng.standard_normal((10, 5)), X[:5], -X[:3]])
    return np.asarray(X / np.linalg.norm(X, axis=1, keepdims=True))


@pytest.mark.parametrize("convention", ["preactivation", "feature"])
@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("activation", ["normalized_relu", "tanh", "swish", "cos", "hard_tanh"])
def test_same_kernel_in_general_position(
    activation: str, kind: KernelName, convention: Convention
) -> None:
    X = nsd.data.sphere(200, 240, rng=0)
    deq = nsd.DeepEquilibrium(activation, 0.2)
    m = nsd.match(deq, family="dual", kind=kind, convention=convention)
    assert gap(m, X) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOTH)
def test_same_kernel_at_the_size_of_the_sphere_paper(kind: KernelName) -> None:
    X = nsd.data.sphere(1000, 1200, rng=0)
    deq = nsd.DeepEquilibrium("normalized_relu", 0.2)
    m = nsd.match(deq, family="dual", kind=kind, convention="preactivation")
    assert gap(m, X) <= 1e-10


@pytest.mark.parametrize("activation", ["swish", "cos", "gelu", "softplus"])
@pytest.mark.parametrize("kind", BOTH)
def test_smooth_activations_bear_close_rows(activation: str, kind: KernelName) -> None:
    m = nsd.match(nsd.DeepEquilibrium(activation, 0.2), family="dual", kind=kind)
    assert gap(m, close_rows()) <= 1e-8


@pytest.mark.parametrize("activation", ["normalized_relu", "hard_tanh", "tanh", "abs"])
@pytest.mark.parametrize("kind", BOTH)
def test_the_reported_bound_holds_on_close_rows(activation: str, kind: KernelName) -> None:
    X = close_rows()
    m = nsd.match(nsd.DeepEquilibrium(activation, 0.2), family="dual", kind=kind)
    wanted = nsd.kernel(m.model, X, kind=m.kind, convention=m.convention)
    error = np.abs(wanted - nsd.kernel(m.network, X, kind=kind, convention="feature"))
    assert isinstance(m.achieved, KernelSeries)
    assert len(m.achieved.coefficients) <= 33
    cosines = np.minimum(np.abs(X @ X.T), 1.0)
    bound = 2.0 * m.achieved.remainder * cosines ** (len(m.achieved.coefficients) - 1)
    assert (error <= bound + 1e-11).all()
    assert m.residuals["remainder"] == m.achieved.remainder
    # The bound says something: a cut series without its remainder breaks the diagonal.
    if activation != "tanh":
        assert m.achieved.remainder > 1e-8


def test_signs_do_not_change_the_kernel_and_tame_the_activation() -> None:
    m = nsd.match(nsd.DeepEquilibrium("tanh", 0.2), family="dual")
    coefficients = np.array(list(m.parameters.values()))
    x = np.linspace(-4.0, 4.0, 81)
    worst = max(
        float(np.abs(nsd.activations.hermite(tuple(s * np.abs(coefficients)))(x)).max())
        for s in np.random.default_rng(0).choice([-1.0, 1.0], size=(50, len(coefficients)))
    )
    assert float(np.abs(m.network.activations[0](x)).max()) < worst
    X = nsd.data.sphere(50, 60, rng=1)
    flipped = nsd.ExplicitNetwork([nsd.activations.hermite(tuple(np.abs(coefficients)))])
    np.testing.assert_allclose(
        nsd.kernel(flipped, X, convention="preactivation"),
        nsd.kernel(m.network, X, convention="preactivation"),
        atol=1e-13,
    )


def test_series_is_the_kernel() -> None:
    deq = nsd.DeepEquilibrium("swish", 0.3)
    m = nsd.match(deq, family="dual", kind="ntk", convention="preactivation")
    assert isinstance(m.target, KernelSeries)
    for t in (-0.6, 0.0, 0.3, 0.7):
        X = np.array([[1.0, 0.0], [t, np.sqrt(1.0 - t * t)]])
        exact = nsd.kernel(deq, X, convention="preactivation", kind="ntk")[0, 1]
        assert np.polynomial.polynomial.polyval(t, m.target.coefficients) == pytest.approx(
            exact, abs=1e-11
        )
    assert (m.target.coefficients >= 0.0).all()


def test_certificate_refuses_rows_off_the_sphere() -> None:
    m = nsd.match(nsd.DeepEquilibrium("relu", 0.2), family="dual")
    with pytest.raises(nsd.errors.InvalidInput, match="norm one"):
        m.certify(2.0 * nsd.data.sphere(20, 30, rng=0))
