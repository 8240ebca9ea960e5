"""Random finite networks against the exact kernels: within five standard errors of the mean.

Finite width adds a bias of about a third of s²/√(K_ii K_jj), s the standard deviation from network
to network.  It falls like 1/width, the standard error like 1/√(width·draws), so that with fewer
draws than the width it stays within the bound.
"""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from cases import REFERENCE, identifier
from notsodeep import threads
from notsodeep.activations import Activation
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.networks.sampling import MonteCarlo, monte_carlo, random_network

Model = nsd.DeepEquilibrium | nsd.ExplicitNetwork

RING = nsd.DeepEquilibrium(
    cell=[
        nsd.Dense("tanh", 0.5, 0.6, 0.1, normalise="preactivation"),
        nsd.Dense("relu", 0.4, 0.3, 0.2, normalise="feature"),
    ]
)
MODELS = [
    nsd.DeepEquilibrium("relu", 0.2),
    nsd.DeepEquilibrium("tanh", 0.0),
    nsd.DeepEquilibrium("swish", 0.2).centred(1.0),
    nsd.ExplicitNetwork(["relu"]),
    nsd.ExplicitNetwork(["swish", "elu", "sin"]).centred(1.0),
    nsd.DeepEquilibrium(cell=[nsd.Dense("tanh", 0.5, 0.6, 0.1), nsd.Dense("relu", 0.8, 0.3)]),
    RING,
]


def inputs() -> np.ndarray:
    """Six unit-norm rows, some of them close or nearly opposite, and the same spread out."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(6, 20))
    X[1] = X[0] + 0.5 * X[1]
    X[2] = -X[0] + 0.5 * X[2]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return np.vstack([X, X * np.array([0.5, 0.7, 0.9, 1.3, 2.0, 3.0])[:, None]])


def agrees(mean: np.ndarray, error: np.ndarray, exact: np.ndarray) -> bool:
    # A normalised diagonal does not fluctuate; features have a residual of 1e-6.
    return bool((np.abs(mean - exact) <= 5.0 * error + 1e-5).all())


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_means_are_the_exact_kernels(model: Model) -> None:
    X = inputs()
    estimate = monte_carlo(model, X, width=256, draws=120, rng=0)
    assert (estimate.width, estimate.draws) == (256, 120)
    for kind in ("ck", "ntk"):
        exact = nsd.kernel(model, X, kind=kind, convention="feature")
        mean, error = getattr(estimate, kind), getattr(estimate, f"{kind}_error")
        assert agrees(mean, error, exact), kind
        # The same numbers must reject a kernel that is a little wrong.
        assert not agrees(mean, error, 1.2 * exact), kind


@pytest.mark.slow
@pytest.mark.parametrize("sigma_a2", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("activation", REFERENCE, ids=identifier)
def test_the_whole_grid(activation: Activation, sigma_a2: float) -> None:
    deq, X = nsd.DeepEquilibrium(activation, sigma_a2), inputs()[:6]
    try:
        exact = nsd.kernel(deq, X, kind="ck", convention="feature")
    except NotConverged:
        # No finite variance or no stable equilibrium: finite networks have no fixed point either.
        with pytest.raises(NotConverged):
            monte_carlo(deq, X, width=1024, draws=2, rng=5)
        return
    scales = np.sqrt(np.diag(nsd.kernel(deq, X, kind="ck", convention="preactivation")))
    if sigma_a2 * activation.moments(scales).slope_square.max() > 0.87:
        pytest.skip("at this width some networks have no stable fixed point, and no mean exists")
    estimate = monte_carlo(deq, X, width=2048, draws=32, rng=5)
    assert agrees(estimate.ck, estimate.ck_error, exact)


def test_networks_without_a_fixed_point() -> None:
    cubic = nsd.DeepEquilibrium(nsd.activations.polynomial((0.0, 1.0, 0.0, 1.0)), 0.5)
    with pytest.raises(NotConverged, match=r"of width 64 was not found: .* larger width"):
        monte_carlo(cubic, inputs(), width=64, draws=2, rng=0)


@pytest.mark.parametrize("model", [MODELS[0], MODELS[3], RING], ids=str)
@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
def test_features_are_a_fixed_point(model: Model, tolerance: float) -> None:
    X, m = inputs(), 50
    network = random_network(model, 20, m, np.random.default_rng(7))
    cell = model.cell if isinstance(model, nsd.DeepEquilibrium) else [nsd.Dense("relu", 0.0, 1.0)]
    y = np.zeros((len(X), m))
    for _ in range(200):
        for layer, (A, U, beta) in zip(cell, network.layers, strict=True):
            h = np.sqrt(layer.inject) * X @ U.T
            h = h if A is None else h + np.sqrt(layer.weight / m) * y @ A.T
            h = h if beta is None else h + np.sqrt(layer.bias) * beta
            if layer.normalise == "preactivation":
                h = (h - h.mean(axis=1, keepdims=True)) / h.std(axis=1, keepdims=True)
            y = layer.activation(h)
            if layer.normalise == "feature":
                y = (y - y.mean(axis=1, keepdims=True)) / y.std(axis=1, keepdims=True)
    found = network.features(X, tolerance)
    assert found.dtype == np.float32
    exact = y / m**0.5
    error = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() < 5.0 * tolerance
    assert network.steps(X, tolerance) == 1 or network.steps(X, 1e-3) < network.steps(X, 1e-6)


@pytest.mark.parametrize("factor", [1e-30, 1e-23, 1e-12, 1e20])
def test_rows_of_any_size_keep_their_digits(factor: float) -> None:
    X = inputs()[:3]
    network = random_network(nsd.DeepEquilibrium("relu", 0.4), 20, 64, np.random.default_rng(0))
    plain = network.features(X).astype(np.float64)
    scaled = network.features(np.vstack([factor * X, np.zeros(20)])).astype(np.float64)
    np.testing.assert_allclose(scaled[:3] / factor, plain, rtol=2e-5, atol=1e-5 * plain.max())
    assert not scaled[3].any()


def test_randomness_comes_from_rng_alone() -> None:
    X, model = inputs(), MODELS[0]

    def mean(rng: int | np.random.Generator) -> MonteCarlo:
        return monte_carlo(model, X, width=16, draws=3, rng=rng)

    seeded, generator = mean(1), np.random.default_rng(1)
    assert np.array_equal(seeded.ntk, mean(1).ntk)
    assert np.array_equal(seeded.ntk, mean(generator).ntk)
    assert not np.array_equal(seeded.ntk, mean(generator).ntk)
    with threads.single_thread():
        assert np.array_equal(seeded.ntk, mean(1).ntk)


def test_mean_and_standard_error_are_those_of_the_draws() -> None:
    X, model = inputs(), MODELS[0]
    estimate = monte_carlo(model, X, width=16, draws=5, rng=8)
    seeds = np.random.default_rng(8).integers(2**63, size=(5, 2))
    generators = [np.random.default_rng(seed) for seed in seeds]
    singles = np.stack([random_network(model, 20, 16, g).kernels(X, g)[1] for g in generators])
    np.testing.assert_allclose(estimate.ntk, singles.mean(axis=0), rtol=1e-12)
    error = singles.std(axis=0, ddof=1) / 5.0**0.5
    np.testing.assert_allclose(estimate.ntk_error, error, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draws": 1}, "draws .* at least 2"),
        ({"width": 0}, "width"),
        ({"rng": None}, "rng"),
        ({"X": np.ones(3)}, r"reshape\(1, -1\)"),
        ({"model": nsd.MonotoneEquilibrium("relu")}, "be a DeepEquilibrium or an ExplicitNetwork"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, object], words: str) -> None:
    given = {"model": MODELS[0], "X": np.eye(2), "width": 4, "draws": 2, "rng": 0, **change}
    with pytest.raises(InvalidInput, match=words):
        monte_carlo(**given)
