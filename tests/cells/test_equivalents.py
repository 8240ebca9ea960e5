"""Equivalents of general cells: coefficients, gaps and their slopes, spheres."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import leaky_relu
from notsodeep.equivalents import expansion
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import DeepEquilibrium, Dense, MonotoneEquilibrium

CENTRED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)]).centred(1.0)
NORMALISED = DeepEquilibrium(
    cell=[
        Dense("relu", 0.3, 0.9, 0.1, "feature"),
        Dense("erf", 0.5, 0.2, 0.1),
        Dense("tanh", 0.4, 0.0, 0.1, "preactivation"),
    ]
)
RAW = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)])
CHOICES = [(c, k) for c in ("preactivation", "feature") for k in ("ck", "ntk")]


def gaps(model: DeepEquilibrium, p: int, convention: str, kind: str) -> dict[str, float]:
    """Distances of both orders, and of the first one with rows rescaled linearly in ‖x‖²."""
    mixture = nsd.data.paper_mixture(dimension=p)
    X, y = mixture.sample(int(0.8 * p), rng=1)
    stats = mixture.statistics(X, y)
    if model == CENTRED:  # four coefficients are about a model that is centred at just this scale
        model = model.centred(stats.tau0)
    options = {"kind": kind, "convention": convention}
    K = nsd.kernel(model, X, kind=kind, convention=convention)
    plain, sharp = (
        nsd.equivalent(model, X, y, mixture, order=k, **options).to_dense() for k in (1, 2)
    )
    taylor = expansion(model, stats.tau0, **options)
    chi = np.square(X).sum(axis=1) - stats.tau0**2
    Y = X * (1.0 + taylor.rescaling / taylor.linear * chi)[:, None]
    rescaled = plain + taylor.linear * (Y @ Y.T - X @ X.T)
    if model.is_centred_for(stats.tau0):  # norms of the data in place of those of the theorem
        psi = stats.psi + stats.t[y] / np.sqrt(p)
        rescaled += taylor.norm_fluctuation * (np.outer(chi, chi) - np.outer(psi, psi))
    found = {"plain": plain, "rescaled": rescaled, "sharp": sharp}
    distances = {name: float(np.linalg.norm(K - each, 2)) for name, each in found.items()}
    return distances | {"norm": float(np.linalg.norm(K, 2))}


@pytest.mark.parametrize("model", [RAW, NORMALISED], ids=["raw", "normalised"])
def test_uncentred_models_have_equivalents(model: DeepEquilibrium) -> None:
    small = gaps(model, 150, "preactivation", "ck")
    large = gaps(model, 600, "preactivation", "ck")
    # Four times the dimension: the gap halves, that of the sharper form falls faster.
    assert np.log(large["plain"] / small["plain"]) / np.log(4.0) == pytest.approx(-0.5, abs=0.2)
    assert large["sharp"] < 0.2 * large["plain"]
    assert large["plain"] < 0.05 * large["norm"]


def test_uncentred_networks_have_equivalents() -> None:
    network = nsd.ExplicitNetwork(["relu", "erf"])
    gap = []
    for p in (100, 400):
        mixture = nsd.data.paper_mixture(dimension=p)
        X, y = mixture.sample(int(0.8 * p), rng=1)
        K = nsd.kernel(network, X)
        sharp = nsd.equivalent(network, X, y, mixture, order=2).to_dense()
        gap.append(float(np.linalg.norm(K - sharp, 2)))
    assert gap[1] < 0.5 * gap[0]


def test_both_orders_have_one_limiting_spectrum() -> None:
    """The rows themselves, whatever they are rescaled by, have the population's law."""
    mixture = nsd.data.paper_mixture(dimension=120)
    X, y = mixture.sample(96, rng=1)
    first, second = (nsd.equivalent(RAW, X, y, mixture, order=order) for order in (1, 2))
    np.testing.assert_array_equal(second.samples, X)
    spectra = [nsd.limiting_spectrum(eq) for eq in (first, second)]
    values = [[spike.value for spike in law.spikes] for law in spectra]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("name", ["relu", "tanh", "swish", "cos", "erf"])
@pytest.mark.parametrize("centred", [True, False], ids=["centred", "as it is"])
def test_the_second_order_is_nearer(name: str, centred: bool) -> None:
    mixture = nsd.data.paper_mixture(dimension=250)
    X, y = mixture.sample(200, rng=3)
    stats = mixture.statistics(X, y)
    model = DeepEquilibrium(name, 0.4)
    model = model.centred(stats.tau0) if centred else model
    for convention, kind in CHOICES:
        K = nsd.kernel(model, X, kind=kind, convention=convention)
        options = {"kind": kind, "convention": convention}
        plain, sharp = (
            np.linalg.norm(
                K - nsd.equivalent(model, X, y, mixture, order=k, **options).to_dense(), 2
            )
            for k in (1, 2)
        )
        assert sharp < (0.15 if name in ("tanh", "erf") else 0.7) * plain


def test_rows_of_one_norm_and_rows_of_zeros() -> None:
    X = nsd.data.sphere(60, 80, rng=0)
    for rows in (X, 3.0 * X, np.vstack([X, np.zeros((1, 80))])):
        for model in (RAW, DeepEquilibrium("tanh", 0.3)):
            eq = nsd.equivalent(model, rows, convention="preactivation")
            filled = np.flatnonzero(rows.any(axis=1))
            K = nsd.kernel(model, rows[filled], convention="preactivation")
            difference = K - eq.to_dense()[np.ix_(filled, filled)]
            assert np.linalg.norm(difference, 2) < 0.1 * np.linalg.norm(K, 2)
            assert np.isfinite(eq.to_dense()).all()


@pytest.mark.parametrize("model", [RAW, DeepEquilibrium("swish", 0.3)], ids=["raw", "swish"])
def test_norms_of_heavy_tails(model: DeepEquilibrium) -> None:
    # Rows far smaller than the biases, too: there inputs at right angles are nearly parallel.
    rng = np.random.default_rng(0)
    X = nsd.data.sphere(200, 250, rng=0) * np.exp(0.7 * rng.standard_normal((200, 1)))
    X[0] *= 1e-3
    K = nsd.kernel(model, X, convention="preactivation")
    plain, sharp = (
        np.linalg.norm(
            K - nsd.equivalent(model, X, convention="preactivation", order=order).to_dense(), 2
        )
        for order in (1, 2)
    )
    assert sharp < 0.3 * plain


def test_norms_without_an_equilibrium_are_named() -> None:
    X = 10.0 * nsd.data.sphere(60, 80, rng=0)
    X[0] *= 0.05  # large inputs saturate the units, small ones leave them steep
    steep = DeepEquilibrium(nsd.activations.from_formula("tanh(3*x)"), 0.9)
    nsd.equivalent(steep, X, order=1)
    with pytest.raises(NotConverged, match="no stable equilibrium"):
        nsd.equivalent(steep, X)


def test_four_coefficients_do_not_do_with_biases() -> None:
    """The four numbers that a centred kernel has, taken of a biased one, leave a gap of order n."""
    remaining = []
    for p in (150, 600):
        mixture = nsd.data.paper_mixture(dimension=p)
        X, y = mixture.sample(int(0.8 * p), rng=1)
        stats = mixture.statistics(X, y)
        K = nsd.kernel(RAW, X)
        e = expansion(RAW, stats.tau0, convention="preactivation")
        chi = np.append(stats.t, 1.0)
        V = np.column_stack([stats.J / np.sqrt(p), stats.psi])
        C = e.norm_fluctuation * np.outer(chi, chi)
        C[:-1, :-1] += e.covariance_overlap * stats.T
        four = e.linear * X @ X.T + V @ C @ V.T
        four += (e.scale2 - stats.tau0**2 * e.linear) * np.eye(len(X))
        remaining.append(np.linalg.norm(K - four, 2))
    assert remaining[1] > 3.0 * remaining[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "convention", "kind", "plain", "rescaled"),
    [
        (CENTRED, "preactivation", "ck", (0.98, 0.69, 0.47), (0.186, 0.088, 0.039)),
        (CENTRED, "preactivation", "ntk", (2.12, 1.50, 1.02), (0.50, 0.25, 0.12)),
        (RAW, "preactivation", "ck", (0.85, 0.59, 0.40), (0.154, 0.073, 0.033)),
        (RAW, "feature", "ntk", (0.71, 0.56, 0.41), (0.62, 0.34, 0.18)),
    ],
)
def test_gaps_fall_as_they_should(
    model: DeepEquilibrium,
    convention: str,
    kind: str,
    plain: tuple[float, ...],
    rescaled: tuple[float, ...],
) -> None:
    found = [gaps(model, p, convention, kind) for p in (500, 1000, 2000)]
    # Other draws of the mixture than those of the table.
    assert [g["plain"] for g in found] == pytest.approx(plain, rel=0.10)
    assert [g["rescaled"] for g in found] == pytest.approx(rescaled, rel=0.10)
    # The second order goes beyond the linear rescaling, and falls too.
    assert all(g["sharp"] < 0.5 * g["rescaled"] for g in found)
    slope = np.polyfit(np.log([500, 1000, 2000]), np.log([g["sharp"] for g in found]), 1)[0]
    assert -1.2 < slope < -0.5


def test_limiting_spectrum_of_a_biased_ring() -> None:
    mixture = nsd.data.paper_mixture(dimension=400)
    X, y = mixture.sample(320, rng=2)
    eq = nsd.equivalent(RAW, X, y, mixture, convention="preactivation", order=1)
    law = nsd.limiting_spectrum(eq)
    own = eq.eigvalsh()[::-1]
    top = [spike.value for spike in law.spikes[:2]]
    assert top == pytest.approx(own[:2], rel=0.05)
    # The constant is the largest spike by far: about n·κ0.
    assert top[0] > 0.9 * 320 * 0.113


def test_what_has_no_equivalent_says_so() -> None:
    X = nsd.data.paper_mixture(dimension=50).sample(40, rng=0)[0]
    monotone = MonotoneEquilibrium(leaky_relu(0.9, 0.2), 0.5, 0.5, 0.3, 1.0)
    with pytest.raises(InvalidInput, match="DEQ"):
        nsd.equivalent(monotone, X)
    for order in (3, True, "best"):
        with pytest.raises(InvalidInput, match="order of equivalent must be 1 or 2"):
            nsd.equivalent(RAW, X, order=order)
