"""Equivalents of general cells: coefficients, gaps and their slopes, spheres."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import leaky_relu
from notsodeep.equivalents import Expansion, coefficients, expansion, sphere_coefficients
from notsodeep.equivalents.right_angles import at_right_angles
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
FOUR = {
    ("preactivation", "ck"): (0.584373936174, 0.002856151119, 0.009801720564, 0.618370978),
    ("preactivation", "ntk"): (
        0.917188902152,
        0.006030817900,
        0.051464591880,
        1.133575875269,
    ),
    ("feature", "ck"): (0.146093484043, 0.013519686308, 0.046396770256, 0.210768691187),
    ("feature", "ntk"): (0.375390709582, 0.015027390783, 0.197212586918, 0.777556628821),
}
# constant, linear, norm_shift, norm_curvature, norm_fluctuation, covariance_overlap, rescaling,
# scale2
SEVEN = {
    ("preactivation", "ck"): (
        0.113380466626, 0.552344664300, -0.010696653620, 0.003681354830,
        0.003458220385, 0.015145022971, -0.070083567004, 0.701358826471,
    ),
    ("preactivation", "ntk"): (
        0.186699787026, 0.857810825601, -0.025736038178, 0.009660936508,
        0.009302947542, 0.075291174148, -0.168613030968, 1.274587242723,
    ),
    ("feature", "ck"): (
        0.141431609297, 0.152359921728, 0.030282686463, -0.007947387631,
        0.011443748372, 0.039254475053, -0.025035106193, 0.350679413236,
    ),
    ("feature", "ntk"): (
        0.192931273865, 0.412693145888, 0.021255877866, -0.003860603791,
        0.015430430125, 0.171174263726, -0.094086315931, 0.987973034597,
    ),
}  # fmt: skip


def numbers(found: Expansion) -> tuple[float, ...]:
    return (
        found.constant, found.linear, found.norm_shift, found.norm_curvature,
        found.norm_fluctuation, found.covariance_overlap, found.rescaling, found.scale2,
    )  # fmt: skip


@pytest.mark.parametrize("choice", FOUR)
def test_four_coefficients_of_a_centred_ring(choice: tuple[str, str]) -> None:
    convention, kernel = choice
    found = coefficients(CENTRED, 1.0, kind=kernel, convention=convention)
    assert found.four == pytest.approx(FOUR[choice], abs=1e-11)


@pytest.mark.parametrize("choice", SEVEN)
def test_seven_coefficients_of_a_ring_with_biases(choice: tuple[str, str]) -> None:
    convention, kernel = choice
    found = expansion(RAW, 1.0, kind=kernel, convention=convention)
    assert numbers(found) == pytest.approx(SEVEN[choice], abs=1e-11)


@pytest.mark.parametrize("activation", ["relu", "tanh", "swish"])
def test_a_centred_vanilla_model_has_the_papers_coefficients(activation: str) -> None:
    deq = DeepEquilibrium(activation, 0.3).centred(1.1)
    for convention, kernel in FOUR:
        found = expansion(deq, 1.1, kind=kernel, convention=convention)
        papers = coefficients(deq, 1.1, kind=kernel, convention=convention)
        four = (found.linear, found.norm_fluctuation, found.covariance_overlap, found.scale2)
        assert four == pytest.approx(papers.four, rel=1e-11, abs=1e-12)
        assert abs(found.constant) + abs(found.norm_shift) + abs(found.norm_curvature) < 1e-12


@pytest.mark.parametrize("choice", FOUR)
@pytest.mark.parametrize("model", [RAW, NORMALISED], ids=["raw", "normalised"])
def test_the_expansion_is_that_of_the_exact_kernel(
    model: DeepEquilibrium, choice: tuple[str, str]
) -> None:
    """Pairs off the base point by ε: what seven numbers leave over falls like ε³."""
    convention, kernel = choice
    found = expansion(model, 1.0, kind=kernel, convention=convention)
    own = nsd.kernel(model, np.eye(1), kind=kernel, convention=convention)[0, 0]
    assert found.scale2 == pytest.approx(own, rel=1e-13)
    errors = []
    for epsilon in (0.04, 0.02):
        chi, omega, s = 0.7 * epsilon, -0.4 * epsilon, 0.5 * epsilon
        one, two = np.sqrt(1.0 + chi), np.sqrt(1.0 + omega)
        cosine = s / (one * two)
        x, y = np.array([one, 0.0]), two * np.array([cosine, np.sqrt(1.0 - cosine**2)])
        K = nsd.kernel(model, x[None], y[None], kind=kernel, convention=convention)[0, 0]
        predicted = (
            found.constant
            + found.linear * s
            + found.norm_shift * (chi + omega)
            + found.norm_curvature * (chi**2 + omega**2)
            + found.norm_fluctuation * chi * omega
            + found.covariance_overlap * s**2
            + found.rescaling * s * (chi + omega)
        )
        errors.append(abs(K - predicted))
    assert errors[0] < 1e-4
    assert errors[0] / errors[1] == pytest.approx(8.0, rel=0.15)


@pytest.mark.parametrize(
    "model",
    [
        CENTRED, NORMALISED, RAW, DeepEquilibrium("cos", 0.4), nsd.ExplicitNetwork(["relu", "tanh"])
    ],
    ids=str,
)  # fmt: skip
def test_right_angles_are_those_of_the_exact_kernel(model: nsd.Model) -> None:
    q, h = np.array([0.6, 0.9, 1.0, 1.7]), 0.02
    first = np.column_stack([np.sqrt(q), np.zeros(4)])
    for convention, kernel in FOUR:
        value, slope = at_right_angles(model, q, kind=kernel, convention=convention)
        exact = [
            nsd.kernel(
                model, first, np.sqrt(q)[:, None] * [cosine, np.sqrt(1.0 - cosine**2)],
                kind=kernel, convention=convention,
            )
            for cosine in (-2.0 * h, -h, 0.0, h, 2.0 * h)
        ]  # fmt: skip
        np.testing.assert_allclose(value, exact[2], rtol=1e-13, atol=1e-15)
        difference = (exact[0] - 8.0 * exact[1] + 8.0 * exact[3] - exact[4]) / (12.0 * h)
        np.testing.assert_allclose(slope, difference / np.sqrt(np.outer(q, q)), rtol=1e-6)
        taylor = expansion(model, 1.0, kind=kernel, convention=convention)
        assert value[2, 2] == pytest.approx(taylor.constant, abs=1e-14)
        assert slope[2, 2] == pytest.approx(taylor.linear, rel=1e-12)


def gaps(model: DeepEquilibrium, p: int, convention: str, kind: str) -> dict[str, float]:
    """Distances of both orders, and of the first one with rows rescaled linearly in ‖x‖²."""
    mixture = nsd.data.paper_mixture(dimension=p)
    X, y = mixture.sample(int(0.8 * p), rng=1)
    stats = mixture.statistics(X, y)
    if model == CENTRED:  # four coefficients are about a model that is centred at just this scale
        model = model.centred(stats.tau0)
    options = {"kind": kind, "convention": convention}
    K = nsd.kernel(model, X, kind=kind, convention=convention)
    plain, sharp = (nsd.equivalent(model, X, stats, order=k, **options).to_dense() for k in (1, 2))
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
        stats = mixture.statistics(X, y)
        K = nsd.conjugate_kernel(network, X, convention="preactivation")
        sharp = nsd.equivalent(network, X, stats, order=2, convention="preactivation").to_dense()
        gap.append(float(np.linalg.norm(K - sharp, 2)))
    assert gap[1] < 0.5 * gap[0]


def test_the_nearer_order_is_chosen_if_asked() -> None:
    mixture = nsd.data.paper_mixture(dimension=120)
    X, y = mixture.sample(96, rng=1)
    stats = mixture.statistics(X, y)
    first, second = (
        nsd.equivalent(RAW, X, stats, order=order, convention="preactivation") for order in (1, 2)
    )
    # The kernel is nearer to the second; the first is nearest to itself.
    for K, best in (
        (nsd.conjugate_kernel(RAW, X, convention="preactivation"), 2),
        (first.to_dense(), 1),
    ):
        found = nsd.equivalent(RAW, X, stats, order="auto", exact=K, convention="preactivation")
        gaps = {eq.order: float(np.linalg.norm(K - eq.to_dense(), 2)) for eq in (first, second)}
        assert found.gaps == pytest.approx(gaps, rel=1e-6, abs=1e-12)
        assert found.order == best
    assert first.gaps is None
    # The rows themselves, whatever they are rescaled by, have the population's law.
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
    for convention, kernel in FOUR:
        K = nsd.kernel(model, X, kind=kernel, convention=convention)
        options = {"kind": kernel, "convention": convention}
        plain, sharp = (
            np.linalg.norm(K - nsd.equivalent(model, X, stats, order=k, **options).to_dense(), 2)
            for k in (1, 2)
        )
        assert sharp < (0.15 if name in ("tanh", "erf") else 0.7) * plain


def test_rows_of_one_norm_and_rows_of_zeros() -> None:
    X = nsd.data.sphere(60, 80, rng=0)
    for rows in (X, 3.0 * X, np.vstack([X, np.zeros((1, 80))])):
        stats = nsd.data.MixtureStatistics.estimate(rows, np.zeros(len(rows), dtype=int))
        for model in (RAW, DeepEquilibrium("tanh", 0.3)):
            eq = nsd.equivalent(model, rows, stats, convention="preactivation")
            filled = np.flatnonzero(rows.any(axis=1))
            K = nsd.conjugate_kernel(model, rows[filled], convention="preactivation")
            difference = K - eq.to_dense()[np.ix_(filled, filled)]
            assert np.linalg.norm(difference, 2) < 0.1 * np.linalg.norm(K, 2)
            assert np.isfinite(eq.to_dense()).all()


@pytest.mark.parametrize("model", [RAW, DeepEquilibrium("swish", 0.3)], ids=["raw", "swish"])
def test_norms_of_heavy_tails(model: DeepEquilibrium) -> None:
    # Rows far smaller than the biases, too: there inputs at right angles are nearly parallel.
    rng = np.random.default_rng(0)
    X = nsd.data.sphere(200, 250, rng=0) * np.exp(0.7 * rng.standard_normal((200, 1)))
    X[0] *= 1e-3
    K = nsd.conjugate_kernel(model, X, convention="preactivation")
    plain, sharp = (
        np.linalg.norm(
            K - nsd.equivalent(model, X, order=order, convention="preactivation").to_dense(), 2
        )
        for order in (1, 2)
    )
    assert sharp < 0.3 * plain


def test_norms_without_an_equilibrium_are_named() -> None:
    X = 10.0 * nsd.data.sphere(60, 80, rng=0)
    X[0] *= 0.05  # large inputs saturate the units, small ones leave them steep
    steep = DeepEquilibrium(nsd.activations.from_formula("tanh(3*x)"), 0.9)
    nsd.equivalent(steep, X, order=1, convention="preactivation")
    with pytest.raises(NotConverged, match=r"no stable equilibrium at ‖x‖² = 0.25, .* order=1"):
        nsd.equivalent(steep, X, convention="preactivation")


def test_four_coefficients_do_not_do_with_biases() -> None:
    """The four numbers that a centred kernel has, taken of a biased one, leave a gap of order n."""
    remaining = []
    for p in (150, 600):
        mixture = nsd.data.paper_mixture(dimension=p)
        X, y = mixture.sample(int(0.8 * p), rng=1)
        stats = mixture.statistics(X, y)
        K = nsd.conjugate_kernel(RAW, X, convention="preactivation")
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
    eq = nsd.equivalent(RAW, X, mixture.statistics(X, y), order=1, convention="preactivation")
    law = nsd.limiting_spectrum(eq)
    own = eq.eigvalsh()[::-1]
    top = [spike.value for spike in law.spikes[:2]]
    assert top == pytest.approx(own[:2], rel=0.05)
    # The constant is the largest spike by far: about n·κ0.
    assert top[0] > 0.9 * 320 * 0.113


CELLS = [
    RAW,
    DeepEquilibrium(cell=[Dense("tanh", 0.5, 0.6, 0.1, "preactivation"), Dense("relu", 0.8, 0.3)]),
    DeepEquilibrium(cell=[Dense("relu", 0.3, 0.9, 0.1, "feature")]),
    MonotoneEquilibrium(leaky_relu(0.9, 0.2), 0.5, 0.5, 0.3, 1.0),
]


@pytest.mark.parametrize("model", CELLS, ids=str)
def test_sphere_coefficients_are_derivatives_of_the_exact_kernel(
    model: DeepEquilibrium | MonotoneEquilibrium,
) -> None:
    h = 1e-3
    t = np.array([-2 * h, -h, 0.0, h, 2 * h, 1.0])
    X, Y = np.array([[1.0, 0.0]]), np.column_stack([t, np.sqrt(1.0 - t**2)])
    for convention, kernel in FOUR:
        if isinstance(model, MonotoneEquilibrium) and (convention, kernel) == (
            "preactivation",
            "ntk",
        ):
            continue
        g = nsd.kernel(model, X, Y, kind=kernel, convention=convention)[0]
        found = sphere_coefficients(model, 50, kind=kernel, convention=convention)
        assert found.value == pytest.approx(g[2], abs=1e-12)
        assert found.linear == pytest.approx((g[0] - 8 * g[1] + 8 * g[3] - g[4]) / (12 * h), 1e-8)
        bend = (-g[0] + 16 * g[1] - 30 * g[2] + 16 * g[3] - g[4]) / (12 * h**2)
        assert found.curvature == pytest.approx(bend, rel=1e-5, abs=1e-7)
        assert found.end == pytest.approx(g[5], rel=1e-12)


def test_what_has_no_equivalent_says_so() -> None:
    mixture = nsd.data.paper_mixture(dimension=50)
    X, y = mixture.sample(40, rng=0)
    stats = mixture.statistics(X, y)
    with pytest.raises(InvalidInput, match="DEQ"):
        nsd.equivalent(CELLS[3], X, stats, convention="preactivation")
    for order in (3, True, "best"):
        with pytest.raises(InvalidInput, match="order of equivalent must be 1, 2 or 'auto'"):
            nsd.equivalent(RAW, X, stats, order=order, convention="preactivation")
    for wrong in ({"order": "auto"}, {"exact": np.eye(40)}):
        with pytest.raises(InvalidInput, match="exact of equivalent must be given with order='au"):
            nsd.equivalent(RAW, X, stats, **wrong)
    with pytest.raises(InvalidInput, match="four coefficients must be centred"):
        coefficients(RAW, 1.0, convention="preactivation")
