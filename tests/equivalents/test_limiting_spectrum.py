"""Limiting spectra against eigenvalues, of the equivalent matrix and of exact kernels."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from mixture_cases import KINDS, Sample, draw, mixture_of
from notsodeep.data import GaussianMixture
from notsodeep.equivalents import LimitingSpectrum
from notsodeep.equivalents.distances import kolmogorov_to_law
from notsodeep.errors import InvalidInput, UnknownName

LINEAR = nsd.ExplicitNetwork(["identity"]).centred(1.0)  # its kernel is XXᵀ, without an identity


def with_means(
    p: int, covariances: object, strengths: tuple[float, ...] = (9.0, 5.0)
) -> GaussianMixture:
    means = np.zeros((len(strengths), p))
    means[np.arange(len(strengths)), p // 2 + 8 * np.arange(len(strengths))] = strengths
    return GaussianMixture(means, covariances)


def levels(p: int) -> np.ndarray:
    return np.where(np.arange(p) < p // 2, 0.2, 4.0)


def equivalent_of(sample: Sample, activation: str = "relu", **options: str):
    deq = nsd.DeepEquilibrium(activation, 0.2).centred(sample.stats.tau0)
    return nsd.equivalent(deq, sample.X, sample.y, sample.mixture, order=1, **options)


def found(law: LimitingSpectrum, eigenvalues: np.ndarray) -> list[tuple[float, float]]:
    """Predicted spikes, and the eigenvalues of their ranks."""
    return [(s.value, float(eigenvalues[-1 - s.rank])) for s in law.spikes]


# --- closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "p"), [(300, 500), (500, 300)])
def test_one_isotropic_class_in_closed_form(n: int, p: int) -> None:
    tau2, c = 1.3, n / p
    threshold = np.sqrt(c) * tau2  # of θ² = n‖μ‖²/p
    for factor, visible in ((0.5, False), (0.999, False), (1.001, True), (4.0, True)):
        mean = np.zeros((1, p))
        mean[0, 3] = np.sqrt(factor * threshold / c)
        X, y, _, mixture = draw(GaussianMixture(mean, tau2), n)
        law = nsd.limiting_spectrum(
            nsd.equivalent(LINEAR, X, y, mixture, convention="preactivation")
        )
        assert law.support[0] == pytest.approx(
            (tau2 * (1 - np.sqrt(c)) ** 2, tau2 * (1 + np.sqrt(c)) ** 2), rel=1e-12
        )
        assert law.point_mass == pytest.approx((0.0, max(0.0, 1.0 - p / n)), abs=1e-12)
        assert len(law.spikes) == visible
        assert len(law.undetected) == 1 - visible
        strength = law.spikes[0].strength if visible else law.undetected[0]
        assert (strength > 1.0) == visible
        if visible:
            square = factor * threshold
            expected = (square + tau2) * (square + c * tau2) / square
            assert law.spikes[0].value == pytest.approx(expected, rel=1e-9)


def test_one_direction_of_an_anisotropic_class() -> None:
    # A mean along an eigenvector of eigenvalue ℓ adds to the variance there: with θ² = n‖μ‖²/p the
    # eigenvalue solves 1 + δ + θ²/(D − z) = 0, D = cℓ/(1 + δ).
    n, p = 400, 500
    mixture = with_means(p, levels(p)[None], (6.0,))
    X, y, _, mixture = draw(mixture, n)
    law = nsd.limiting_spectrum(nsd.equivalent(LINEAR, X, y, mixture, convention="preactivation"))
    (spike,) = law.spikes
    z = spike.value
    delta = float(law.bulk.equation.solve(np.array([z]))[0, 0].real)
    ell = levels(p)[p // 2]
    assert 1.0 + delta + (n / p * 36.0) / (n / p * ell / (1.0 + delta) - z) == pytest.approx(
        0.0, abs=1e-8
    )


def test_sphere_in_closed_form() -> None:
    n, d = 300, 500
    X = nsd.data.sphere(n, d, rng=0)
    deq = nsd.DeepEquilibrium("normalized_relu", 0.2)
    eq = nsd.sphere_equivalent(deq, X, convention="preactivation")
    law = nsd.limiting_spectrum(eq)
    c, a = n / d, eq.expansion
    edges = [a.linear * (1 + s * np.sqrt(c)) ** 2 + a.diagonal for s in (-1, 1)]
    assert law.support[0] == pytest.approx(edges, rel=1e-12)
    # −1/(n α/β) = m(z), and Marchenko–Pastur has z = −1/m + 1/(1 + cm).
    m = -a.linear / (n * a.on_sphere(d).constant)
    expected = a.linear * (-1.0 / m + 1.0 / (1.0 + c * m)) + a.diagonal
    assert [s.value for s in law.spikes] == pytest.approx([expected], rel=1e-9)
    assert found(law, eq.eigvalsh())[0][1] == pytest.approx(expected, rel=0.01)
    assert law.origin == "points uniform on the sphere"


# --- against the equivalent matrix ----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "p"), [(240, 300), pytest.param(300, 300, marks=pytest.mark.slow), (450, 300)]
)
def test_law_of_the_equivalent(kind: str, n: int, p: int) -> None:
    sample = draw(mixture_of(kind, p, mean=8.0), n)
    for activation, options in (
        ("tanh", {}),
        ("relu", {"kind": "ntk", "convention": "feature"}),
    ):
        eq = equivalent_of(sample, activation, **options)
        law = nsd.limiting_spectrum(eq)
        eigenvalues = eq.eigvalsh()
        if law.support:
            start = law.support[0][0] if n > p else -np.inf
            assert kolmogorov_to_law(eigenvalues, law.cdf, start) < 0.015
            assert law.bulk.mass_error <= 1e-6
        assert law.point_mass[1] == pytest.approx(max(0.0, 1 - p / n) if law.support else 1.0)
        # The part of an eigenvalue that is not the identity; those below the bulk are small.
        for predicted, value in found(law, eigenvalues):
            accuracy = 0.05 * (value - law.shift) + 0.002 * law.scale
            assert abs(predicted - value) < accuracy


@pytest.mark.parametrize(
    ("n", "kind", "convention", "counts"),
    [(900, "ntk", "feature", (3, 1, 0)), (2500, "ck", "preactivation", (3, 0, 2))],
)
def test_spikes_in_gaps_and_below_the_bulk(
    n: int, kind: str, convention: str, counts: tuple[int, int, int]
) -> None:
    # Two levels of variance leave a gap in the bulk, and n > p one between point mass and bulk.
    p = 1000
    sample = draw(with_means(p, np.stack([levels(p)] * 3), (6.0, 6.0, 6.0)), n)
    eq = equivalent_of(sample, "relu", kind=kind, convention=convention)
    law = nsd.limiting_spectrum(eq)
    (low, a), (b, high) = law.support
    eigenvalues = eq.eigvalsh()
    inside = [s for s in law.spikes if a < s.value < b]
    below = [s for s in law.spikes if s.value < low]
    above = [s for s in law.spikes if s.value > high]
    assert (len(above), len(inside), len(below)) == counts
    for spike in inside + below:
        assert np.isnan(spike.strength)
    for predicted, value in found(law, eigenvalues):
        assert predicted - law.shift == pytest.approx(value - law.shift, rel=0.06)
    # Nothing else is outside: each eigenvalue is near the bulk, the point mass, or a spike.
    places = np.array([s.value for s in law.spikes])
    margin = 0.03 * (high - b)
    in_bulk = np.zeros(n, bool)
    for left, right in law.support:
        in_bulk |= (eigenvalues > left - margin) & (eigenvalues < right + margin)
    rest = eigenvalues[~in_bulk]
    near = np.abs(rest[:, None] - [law.shift, *places]).min(axis=1)
    assert (near < 0.05 * np.maximum(rest, 1e-3)).all()


def test_spikes_of_symmetric_classes_are_all_found() -> None:
    # Three classes that are alike make two equal eigenvalues, in every gap where there is one.
    p = 900
    sample = draw(with_means(p, np.stack([levels(p)] * 3), (6.0, 6.0, 6.0)), 900)
    law = nsd.limiting_spectrum(equivalent_of(sample))
    assert len(law.spikes) == 3
    assert [s.rank for s in law.spikes] == [0, 1, 2]
    assert law.spikes[1].value == pytest.approx(law.spikes[2].value, rel=1e-6)


def test_kernels_without_a_linear_part() -> None:
    sample = draw(mixture_of("different", 300), 240)
    eq = equivalent_of(sample, "cos", convention="feature")
    assert eq.linear == 0.0
    law = nsd.limiting_spectrum(eq)
    assert (law.bulk, law.support, law.point_mass) == (None, (), (eq.shift, 1.0))
    eigenvalues = eq.eigvalsh()
    assert len(law.spikes) == np.linalg.matrix_rank(eq.core)
    for predicted, value in found(law, eigenvalues):
        assert predicted == pytest.approx(value, rel=1e-10)
    assert (law.density([0.0, law.shift, 1.0]) == 0.0).all()
    np.testing.assert_allclose(
        law.cdf([law.shift - 1e-6, law.shift, 10.0]), [0.0, 1.0 - len(law.spikes) / 240, 1.0]
    )


def test_classes_whose_covariances_do_not_commute_are_named() -> None:
    p = 40
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(p, p)))[0]
    values = np.linspace(0.5, 1.5, p)
    sample = draw(
        GaussianMixture(np.eye(2, p), np.stack([np.diag(values), (Q * values) @ Q.T])), 60
    )
    law = nsd.limiting_spectrum(equivalent_of(sample))
    assert "do not commute" in law.origin
    assert "do not commute" in str(law)


def test_full_covariances_are_as_their_diagonals() -> None:
    p, n = 60, 50
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(p, p)))[0]
    diagonals = np.stack([levels(p), np.linspace(0.5, 1.5, p)])
    means = np.random.default_rng(1).normal(size=(2, p))
    full = np.stack([(Q * d) @ Q.T for d in diagonals])
    X, y = GaussianMixture(means, diagonals).sample(n, rng=0)
    laws = []
    for mixture, rows in (
        (GaussianMixture(means, diagonals), X),
        (GaussianMixture(means @ Q.T, 0.5 * (full + full.transpose(0, 2, 1))), X @ Q.T),
    ):
        sample = Sample(rows, y, mixture.statistics(rows, y), mixture)
        laws.append(nsd.limiting_spectrum(equivalent_of(sample)))
    np.testing.assert_allclose(laws[0].support, laws[1].support, rtol=1e-7)
    spikes = [[s.value for s in law.spikes] for law in laws]
    assert spikes[0] == pytest.approx(spikes[1], rel=1e-7)
    x = np.linspace(*laws[0].support[0], 42)[1:-1]  # at an edge the root of rounding is left
    np.testing.assert_allclose(laws[0].density(x), laws[1].density(x), atol=1e-6)


# --- against exact kernels ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "kind"), [("tanh", KINDS[0]), *(("relu", k) for k in KINDS)]
)
def test_exact_kernels_follow_the_law(activation: str, kind: str) -> None:
    assert_law_of_exact_kernels(activation, kind, p=400, draws=1, distance=0.015, spikes=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("kind", [*KINDS, "levels"])
def test_exact_kernels_follow_the_law_at_full_size(activation: str, kind: str) -> None:
    assert_law_of_exact_kernels(activation, kind, p=2500, draws=3, distance=0.005, spikes=0.01)


def assert_law_of_exact_kernels(
    activation: str, kind: str, p: int, draws: int, distance: float, spikes: float
) -> None:
    """Kolmogorov distance of every draw; strong spikes, of unequal strength, in the mean."""
    two = np.stack([np.where(np.arange(p) < p // 2, 0.4, 1.6)] * 2)
    covariances = two if kind == "levels" else mixture_of(kind, p).covariances
    errors: dict[str, list[np.ndarray]] = {"ck": [], "ntk": []}
    for seed in range(draws):
        X, y, stats, mixture = draw(with_means(p, covariances), 4 * p // 5, seed)
        deq = nsd.DeepEquilibrium(activation, 0.2).centred(stats.tau0)
        pair = nsd.kernel(deq, X, convention="preactivation", kind="both")
        for kernel, rows in errors.items():
            law = nsd.limiting_spectrum(
                nsd.equivalent(deq, X, y, mixture, kind=kernel, convention="preactivation")
            )
            eigenvalues = np.linalg.eigvalsh(getattr(pair, kernel))
            assert kolmogorov_to_law(eigenvalues, law.cdf) <= distance
            assert len(law.spikes) == 2
            assert law.spikes[0].value > 2.0 * law.spikes[1].value
            predicted, value = np.array(found(law, eigenvalues)).T
            rows.append(predicted / value - 1.0)
    for kernel, rows in errors.items():
        assert np.abs(np.mean(rows, axis=0)).max() <= spikes, (kernel, rows)


# --- the record -----------------------------------------------------------------------------------


def test_record() -> None:
    sample = draw(nsd.data.paper_mixture(300), 400)
    law = nsd.limiting_spectrum(equivalent_of(sample))
    content = json.loads(json.dumps(law.to_dict(), allow_nan=False))
    assert content["origin"] == "the exact covariances and means of the mixture"
    assert content["point_mass"] == pytest.approx([law.shift, 0.25])
    assert len(content["spikes"]) == len(law.spikes)
    assert content["spikes"][0]["rank"] == 0
    assert content["mass_error"] <= 1e-6
    assert str(law).startswith("bulk [")
    low, high = law.support[0]
    x = np.array([[low - 1.0, 0.5 * (low + high)], [high + 0.1, 1e9]])
    assert law.density(x).shape == law.cdf(x).shape == (2, 2)
    assert (law.density(x) > 0.0).tolist() == [[False, True], [False, False]]
    assert law.cdf(x)[1, 1] == pytest.approx(1.0, abs=1e-9)
    # Each spike is one eigenvalue of n.
    top = law.spikes[0].value
    jump = law.cdf(top + 1e-6) - law.cdf(top - 1e-6)
    assert float(jump) == pytest.approx(1 / 400, abs=1e-12)
    area = np.trapezoid(law.density(grid := np.linspace(low, high, 20_001)), grid)
    assert area == pytest.approx(0.75, abs=1e-4)


def test_bad_input_is_refused() -> None:
    sample = draw(nsd.data.paper_mixture(100), 80)
    eq = equivalent_of(sample)
    with pytest.raises(
        InvalidInput, match=r"eq of limiting_spectrum must be an Equivalent.*ndarray"
    ):
        nsd.limiting_spectrum(eq.to_dense())
    with pytest.raises(UnknownName, match=r"'deconvolved'\?"):
        nsd.limiting_spectrum(eq, population="deconvoluted")
    with pytest.raises(InvalidInput, match=r"x of LimitingSpectrum\.density must be finite"):
        nsd.limiting_spectrum(eq).density([np.nan])
    unknown = equivalent_of(sample._replace(mixture=None))
    with pytest.raises(InvalidInput, match=r"population must be named.*population='deconvolved'"):
        nsd.limiting_spectrum(unknown)
    with pytest.raises(InvalidInput, match=r"needs the statistics of a known mixture"):
        nsd.limiting_spectrum(unknown, population="exact")
