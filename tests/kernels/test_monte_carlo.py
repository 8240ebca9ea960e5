"""Random finite networks against the exact kernels: within five standard errors of the mean.

Finite width adds a bias, a second-order effect of the fluctuations from network to network: about
a third of s²/√(K_ii K_jj), where s is their standard deviation (found at width 128 with 2000
draws).  It falls like 1/width, the standard error like 1/√(width·draws), so that with fewer draws
than the width it stays within the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import notsodeep as nsd
from cases import REFERENCE, identifier
from notsodeep import threads
from notsodeep.activations import Activation
from notsodeep.errors import InvalidInput, NotConverged, UnknownName
from notsodeep.kernels import (
    MonteCarloEstimate,
    equilibrium_draw,
    explicit_draw,
    monte_carlo,
)
from notsodeep.kernels.drawn_cells import normal_entries

DEVIATIONS = 5.0


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Products this small are slower on many threads, and far slower on a busy machine."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def inputs() -> np.ndarray:
    """Six unit-norm rows, some of them close or nearly opposite, and the same spread out."""
    rng = np.random.default_rng(11)
    X = rng.normal(size=(6, 20))
    X[1] = X[0] + 0.5 * X[1]
    X[2] = -X[0] + 0.5 * X[2]
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return np.vstack([X, X * np.array([0.5, 0.7, 0.9, 1.3, 2.0, 3.0])[:, None]])


def agrees(estimate: MonteCarloEstimate, exact: np.ndarray) -> bool:
    deviation = np.abs(estimate.mean - exact)
    return bool((deviation <= DEVIATIONS * estimate.standard_error).all())


SIGMAS = (0.0, 0.2, 0.1)
FEW = [nsd.DeepEquilibrium(name, s) for s in SIGMAS for name in ("relu", "tanh", "elu")]
FEW += [nsd.DeepEquilibrium("swish", s).centred(1.0) for s in SIGMAS]
SLOW = [deq.sigma_a2 == 0.1 or (deq.sigma_a2 == 0.0 and deq is not FEW[0]) for deq in FEW]


@pytest.mark.parametrize(
    "deq",
    [
        pytest.param(deq, id=str(deq), marks=[pytest.mark.slow] * slow)
        for deq, slow in zip(FEW, SLOW, strict=True)
    ],
)
def test_equilibrium_networks(deq: nsd.DeepEquilibrium) -> None:
    X = inputs()
    draw = equilibrium_draw(deq, width=256, convention="feature")
    estimate = monte_carlo(draw, X, draws=150, rng=0)["conjugate"]
    assert estimate.draws == 150
    exact = nsd.conjugate_kernel(deq, X, convention="feature")
    assert agrees(estimate, exact)
    # The same numbers must reject a kernel that is a little wrong.
    assert not agrees(estimate, 1.2 * exact)
    assert not agrees(estimate, nsd.conjugate_kernel(deq, X) + 0.1)


def test_preactivation_convention() -> None:
    X = inputs()
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    feature, full = (
        monte_carlo(equilibrium_draw(deq, 64, convention=convention), X, 10, rng=3)["conjugate"]
        for convention in ("feature", "preactivation")
    )
    np.testing.assert_allclose(full.mean, 0.2 * feature.mean + 0.8 * X @ X.T, rtol=1e-12)
    np.testing.assert_allclose(full.standard_error, 0.2 * feature.standard_error, rtol=1e-9)
    assert agrees(full, nsd.conjugate_kernel(deq, X))


@pytest.mark.parametrize("layers", [["relu"], ["tanh", "relu"], ["swish", "elu", "sin"]])
def test_explicit_networks(layers: list[str]) -> None:
    X = inputs()
    network = nsd.ExplicitNetwork(layers).centred(1.0)
    estimate = monte_carlo(explicit_draw(network, 256), X, draws=100, rng=0)["conjugate"]
    exact = nsd.conjugate_kernel(network, X)
    assert agrees(estimate, exact)
    assert not agrees(estimate, nsd.conjugate_kernel(nsd.ExplicitNetwork(layers), X) + 0.1)


def test_signs_for_weights() -> None:
    # With 2000 features every input is spread out: what is left of the law is of order 1/2000.
    X = np.random.default_rng(2).normal(size=(6, 2000)) / np.sqrt(2000)
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    draw = equilibrium_draw(deq, 128, convention="feature", law="rademacher")
    estimate = monte_carlo(draw, X, draws=60, rng=0)["conjugate"]
    assert agrees(estimate, nsd.conjugate_kernel(deq, X, convention="feature"))
    network = nsd.ExplicitNetwork(["relu"])
    estimate = monte_carlo(explicit_draw(network, 128, law="rademacher"), X, 60, rng=0)["conjugate"]
    assert agrees(estimate, nsd.conjugate_kernel(network, X))
    # With one feature the pre-activations are ±x, and no Gaussians at all.
    alone = explicit_draw(nsd.ExplicitNetwork(["abs"]), 8, law="rademacher")
    estimate = monte_carlo(alone, [[3.0]], draws=5, rng=0)["conjugate"]
    assert estimate.mean == pytest.approx(9.0, rel=1e-15)
    assert estimate.standard_error < 1e-14


def contraction(deq: nsd.DeepEquilibrium, X: np.ndarray) -> float:
    """σa² E φ′² at the worst sample: the squared spectral radius of the linearised iteration."""
    scales = np.sqrt(np.diag(nsd.conjugate_kernel(deq, X)))
    return float(deq.sigma_a2 * deq.activation.moments(scales).slope_square.max())


def grid() -> list[object]:
    """σa² = 0.8 is for those that have to skip 0.9."""
    cases = []
    steep_ones = ("normalized_relu", "abs", "identity", "elu(alpha=1.5)", "erf")
    for activation in REFERENCE:
        steep = identifier(activation) in (*steep_ones, "hard_tanh(scale=1,clip=1)")
        for sigma_a2 in (0.0, 0.1, 0.5, 0.8, 0.9) if steep else (0.0, 0.1, 0.5, 0.9):
            cases.append(
                pytest.param(activation, sigma_a2, id=f"{identifier(activation)}-{sigma_a2}")
            )
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "sigma_a2"), grid())
def test_the_whole_grid(activation: Activation, sigma_a2: float) -> None:
    deq = nsd.DeepEquilibrium(activation, sigma_a2)
    draw = equilibrium_draw(deq, width=2048, convention="feature", tolerance=1e-7)
    # A polynomial may have a kernel on the unit-norm rows and none on the larger ones.
    for X in (inputs(), inputs()[:6]) if np.isinf(activation.lipschitz) else (inputs(),):
        try:
            exact = nsd.conjugate_kernel(deq, X, convention="feature")
        except NotConverged:
            # No finite variance at infinite width: finite networks have no fixed point either.
            with pytest.raises(NotConverged, match="grow without bound"):
                monte_carlo(draw, X, draws=2, rng=5)
            continue
        # erf at 0.878: one network in about a hundred has an eigenvalue of -1.003.
        if (steepness := contraction(deq, X)) > 0.87:
            pytest.skip(
                f"σa² E φ′² = {steepness:.3f}: at this width some networks have a spectral radius "
                "of one or more and no stable fixed point, and the mean over them does not exist"
            )
        assert agrees(monte_carlo(draw, X, draws=32, rng=5)["conjugate"], exact)


def test_networks_without_a_fixed_point() -> None:
    X = inputs()
    growing = nsd.DeepEquilibrium(nsd.activations.leaky_relu(1.5, 1.0), 0.9)
    with pytest.raises(
        NotConverged, match=r"width 64.*4L²\) = 0\.1111.*smaller sigma_a2"
    ) as caught:
        monte_carlo(equilibrium_draw(growing, 64, max_steps=100), X, draws=2, rng=0)
    record = caught.value.record
    assert (record.converged, record.steps) == (False, 100)
    assert record.residual > 0.01
    assert record.value.shape == (12, 64)
    # Faster than exponential growth ends at once, and without a warning.
    cubic = nsd.DeepEquilibrium(nsd.activations.polynomial((0.0, 1.0, 0.0, 1.0)), 0.5)
    with pytest.raises(NotConverged, match="grow without bound") as caught:
        monte_carlo(equilibrium_draw(cubic, 64), X, draws=2, rng=0)
    assert caught.value.record.steps < 50


@pytest.mark.parametrize(("tolerance", "error"), [(1e-6, 3e-6), (1e-10, 1e-9), (1e-13, 1e-12)])
def test_features_are_a_fixed_point(tolerance: float, error: float) -> None:
    X = np.vstack([inputs(), np.zeros(20), 1e-20 * inputs()[0], 1e20 * inputs()[0]])
    for rows in (X[:13], X):  # the last rows are not for float32
        draw = equilibrium_draw(
            nsd.DeepEquilibrium("tanh", 0.2), 50, convention="feature", tolerance=tolerance
        )
        gram = np.asarray(draw(np.random.default_rng(7), rows)["conjugate"])
        rng = np.random.default_rng(7)
        B = normal_entries(rng, (20, 50)).astype(np.float64)
        A = normal_entries(rng, (50, 50))
        A = (A * np.float32(np.sqrt(0.2 / 50))).astype(np.float64)
        z = np.zeros((len(rows), 50))
        for _ in range(200):
            z = np.tanh(z @ A + np.sqrt(0.8) * rows @ B)
        exact = z @ z.T / 50
        size = np.sqrt(np.maximum(np.diag(exact), 1e-300))
        assert (np.abs(gram - exact) / np.outer(size, size)).max() < error


def test_mean_and_standard_error() -> None:
    matrices = np.random.default_rng(0).normal(size=(9, 2, 3, 3)) + 1e6
    remaining = iter(matrices)

    def draw(rng: np.random.Generator, X: np.ndarray) -> Mapping[str, np.ndarray]:
        conjugate, tangent = next(remaining)
        return {"conjugate": conjugate, "tangent": tangent}

    estimates = monte_carlo(draw, np.eye(3), draws=9, rng=0)
    assert list(estimates) == ["conjugate", "tangent"]
    for index, estimate in enumerate(estimates.values()):
        values = matrices[:, index]
        np.testing.assert_allclose(estimate.mean, values.mean(axis=0), rtol=1e-15)
        expected = values.std(axis=0, ddof=1) / 3.0
        np.testing.assert_allclose(estimate.standard_error, expected, rtol=1e-8)


def test_randomness_comes_from_rng_alone() -> None:
    X = inputs()
    draw = equilibrium_draw(nsd.DeepEquilibrium("relu", 0.1), 16)
    seeded, again, other = (monte_carlo(draw, X, 3, rng=seed)["conjugate"] for seed in (1, 1, 2))
    assert np.array_equal(seeded.mean, again.mean)
    assert not np.array_equal(seeded.mean, other.mean)
    generator = np.random.default_rng(1)
    assert np.array_equal(monte_carlo(draw, X, 3, rng=generator)["conjugate"].mean, seeded.mean)
    assert not np.array_equal(monte_carlo(draw, X, 3, rng=generator)["conjugate"].mean, seeded.mean)


def test_averages_are_those_of_the_single_draws() -> None:
    """By tiles of products in float32, whatever the number of threads and of rows at once."""
    X = np.random.default_rng(4).normal(size=(600, 5))
    layer = nsd.Dense("relu", weight=0.3, inject=0.5, bias=0.1)
    for model in (nsd.DeepEquilibrium("tanh", 0.2), nsd.DeepEquilibrium(cell=[layer, layer])):
        draw = equilibrium_draw(model, 40, tolerance=1e-6)
        estimate = monte_carlo(draw, X, 5, rng=8)["conjugate"]
        seeds = np.random.default_rng(8).integers(2**63, size=(5, 2))
        singles = np.array([draw(np.random.default_rng(seed), X)["conjugate"] for seed in seeds])
        size = np.sqrt(np.diag(estimate.mean))
        for found, expected in (
            (estimate.mean, singles.mean(axis=0)),
            (estimate.standard_error, singles.std(axis=0, ddof=1) / np.sqrt(5.0)),
        ):
            assert (np.abs(found - expected) / np.outer(size, size)).max() < 1e-6
        assert np.array_equal(estimate.mean, estimate.mean.T)
        with threads.single_thread():
            assert np.array_equal(monte_carlo(draw, X, 5, rng=8)["conjugate"].mean, estimate.mean)


def returning(*results: object):
    remaining = iter(results)
    return lambda rng, X: next(remaining)


def test_bad_draws_are_refused() -> None:
    X = np.eye(2)
    good = {"conjugate": np.eye(2)}
    cases = [
        ((np.eye(2),), "return a mapping .* Got ndarray"),
        (({},), "return a mapping"),
        ((good, {"conjugate": np.full((2, 2), np.nan)}), "conjugate kernel of draw 1 must be fini"),
        ((good, {"conjugate": np.eye(3)}), r"draw 1 must have shape \(2, 2\)"),
        (({"tangent": np.ones(2)},), r"tangent kernel of draw 0 must have shape \(2, 2\)"),
        ((good, {"tangent": np.eye(2)}), r"same kernels every time \(conjugate\). Got tangent"),
    ]
    for results, words in cases:
        with pytest.raises(InvalidInput, match=words):
            monte_carlo(returning(*results), X, draws=2, rng=0)
    # An overflow in the features is seen in the kernel.
    huge = explicit_draw(nsd.ExplicitNetwork([nsd.activations.polynomial((0.0, 0.0, 1e200))]), 4)
    with pytest.raises(InvalidInput, match="the conjugate kernel of draw 0 must be finite"):
        monte_carlo(huge, X, draws=2, rng=0)


def test_bad_arguments_are_refused() -> None:
    X = np.eye(2)
    deq, network = nsd.DeepEquilibrium("relu", 0.1), nsd.ExplicitNetwork(["relu"])
    draw = equilibrium_draw(deq, 4)
    for draws in (1, 0, 2.5, True, "3"):
        with pytest.raises(InvalidInput, match=r"draws of monte_carlo .* at least 2"):
            monte_carlo(draw, X, draws, rng=0)
    with pytest.raises(InvalidInput, match="rng of monte_carlo"):
        monte_carlo(draw, X, 2, rng=None)
    with pytest.raises(InvalidInput, match=r"reshape\(1, -1\)"):
        monte_carlo(draw, np.ones(3), 2, rng=0)
    with pytest.raises(InvalidInput, match="draw of monte_carlo must be a callable"):
        monte_carlo(deq, X, 2, rng=0)
    for width in (0, -3, 2.0, None):
        with pytest.raises(InvalidInput, match="width of equilibrium_draw"):
            equilibrium_draw(deq, width)
        with pytest.raises(InvalidInput, match="width of explicit_draw"):
            explicit_draw(network, width)
    with pytest.raises(UnknownName, match="law of explicit_draw 'gaussian'"):
        explicit_draw(network, 4, law="gaussian")
    with pytest.raises(UnknownName, match="'rademacher'"):
        equilibrium_draw(deq, 4, law="radmacher")
    with pytest.raises(UnknownName, match="'feature'"):
        equilibrium_draw(deq, 4, convention="features")
    with pytest.raises(InvalidInput, match="tolerance of equilibrium_draw must be positive"):
        equilibrium_draw(deq, 4, tolerance=0.0)
    with pytest.raises(InvalidInput, match="max_steps"):
        equilibrium_draw(deq, 4, max_steps=0)
    with pytest.raises(InvalidInput, match="be a DeepEquilibrium"):
        equilibrium_draw(network, 4)
    with pytest.raises(InvalidInput, match="be an ExplicitNetwork"):
        explicit_draw(deq, 4)
