"""Populations estimated from samples: the law that comes of them, and how it is labelled."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from mixture_cases import draw, mixture_of
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.equivalents import LimitingSpectrum
from notsodeep.equivalents.distances import kolmogorov_to_law
from notsodeep.errors import NotEnoughMemory

SPECTRA = {
    "isotropic": lambda p: np.ones(p),
    "two levels": lambda p: np.where(np.arange(p) < p // 2, 0.5, 2.0),
    "spread": lambda p: np.linspace(0.2, 1.8, p),
    "partly zero": lambda p: np.where(np.arange(p) < p // 4, 0.0, 1.0),
}


def both_laws(
    spectrum: str, n: int, p: int, mean: float = 8.0
) -> tuple[LimitingSpectrum, LimitingSpectrum, np.ndarray]:
    """The law from estimates, the law of the mixture itself, and the estimate's eigenvalues."""
    means = np.zeros((2, p))
    means[0, p // 3], means[1, p // 2] = mean, 0.6 * mean
    mixture = GaussianMixture(means, np.stack([SPECTRA[spectrum](p)] * 2))
    X, y, exact, _ = draw(mixture, n)
    deq = nsd.DeepEquilibrium("tanh", 0.2).centred(exact.tau0)
    eq = nsd.equivalent(deq, X, y, order=1, convention="preactivation")
    return (
        nsd.limiting_spectrum(eq, population="deconvolved"),
        nsd.limiting_spectrum(nsd.equivalent(deq, X, y, mixture, convention="preactivation")),
        eq.eigvalsh(),
    )


def distance(left: LimitingSpectrum, right: LimitingSpectrum) -> float:
    top = 1.1 * max(law.support[-1][1] for law in (left, right))
    x = np.linspace(0.0, top, 4001)
    return float(np.abs(left.cdf(x) - right.cdf(x)).max())


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(("n", "p"), [(320, 200), (160, 200), (100, 200)])
def test_deconvolution_recovers_the_law(spectrum: str, n: int, p: int) -> None:
    estimated, exact, eigenvalues = both_laws(spectrum, n, p)
    start = exact.support[0][0] if exact.point_mass[1] else -np.inf
    assert distance(estimated, exact) < 0.05
    assert kolmogorov_to_law(eigenvalues, estimated.cdf, start) < 0.05
    assert len(estimated.spikes) == len(exact.spikes) == 2
    for spike in estimated.spikes:  # the sample's own, so that they are met closely
        assert spike.value == pytest.approx(eigenvalues[-1 - spike.rank], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_deconvolution_at_full_size(spectrum: str) -> None:
    estimated, exact, eigenvalues = both_laws(spectrum, n=1600, p=1000)
    assert distance(estimated, exact) <= 0.02
    for spike in estimated.spikes:
        assert spike.value == pytest.approx(eigenvalues[-1 - spike.rank], rel=0.002)


def test_raw_eigenvalues_of_the_sample_would_not_do() -> None:
    estimated, exact, _ = both_laws("isotropic", n=320, p=200)
    X, y, _, _ = draw(GaussianMixture(np.eye(2, 200), 1.0), 320)
    raw = MixtureStatistics.estimate(X, y).covariance_spectrum
    widened = np.sqrt(raw.weights @ (raw.eigenvalues - 1.0) ** 2)
    found = estimated.bulk.equation
    spread = np.sqrt(found.weights @ (found.eigenvalues[:, 0] - 1.0) ** 2)
    assert widened > 0.6
    assert spread < 0.2 * widened
    assert distance(estimated, exact) < 0.02


def test_no_spikes_where_there_are_no_means() -> None:
    for seed in range(5):
        X, y, _, _ = draw(GaussianMixture(np.zeros((2, 150)), 1.0), 120, seed)
        stats = MixtureStatistics.estimate(X, y)
        deq = nsd.DeepEquilibrium("tanh", 0.2).centred(stats.tau0)
        law = nsd.limiting_spectrum(
            nsd.equivalent(deq, X, y, convention="preactivation"), population="deconvolved"
        )
        assert law.spikes == ()


def test_origin_says_how_the_population_was_obtained() -> None:
    estimated, exact, _ = both_laws("spread", n=160, p=200)
    assert estimated.origin.startswith("eigenvalues of C° deconvolved from 160 samples (")
    assert "one covariance for all classes, and the means of the sample" in estimated.origin
    assert exact.origin == "the exact covariances and means of the mixture"


def test_known_mixtures_can_be_deconvolved_too() -> None:
    sample = draw(mixture_of("anisotropic", 200, mean=8.0), 300)
    deq = nsd.DeepEquilibrium("relu", 0.2).centred(sample.stats.tau0)
    eq = nsd.equivalent(deq, sample.X, sample.y, sample.mixture, order=1)
    estimated = nsd.limiting_spectrum(eq, population="deconvolved")
    exact = nsd.limiting_spectrum(eq, population="exact")
    assert "deconvolved" in estimated.origin
    assert distance(estimated, exact) < 0.02
    eigenvalues = eq.eigvalsh()
    for spike in estimated.spikes:
        assert spike.value == pytest.approx(eigenvalues[-1 - spike.rank], rel=0.005)


def test_images() -> None:
    data = nsd.data.load("digits", rng=0)
    stats = MixtureStatistics.estimate(data.X, data.y)
    deq = nsd.DeepEquilibrium("relu", 0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, data.X, data.y, order=1, convention="preactivation")
    law = nsd.limiting_spectrum(eq, population="deconvolved")
    eigenvalues = eq.eigvalsh()
    assert law.point_mass[1] > 0.9  # far more images than features
    assert kolmogorov_to_law(eigenvalues, law.cdf, law.support[0][0]) < 0.01
    assert len(law.spikes) >= 3
    for spike in law.spikes:
        assert spike.value == pytest.approx(eigenvalues[-1 - spike.rank], rel=0.002)


def test_scatter_matrix_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _, _ = draw(mixture_of("isotropic", 100), 80)
    stats = MixtureStatistics.estimate(X, y)
    eq = nsd.equivalent(
        nsd.DeepEquilibrium("tanh", 0.2).centred(stats.tau0), X, y, convention="preactivation"
    )
    monkeypatch.setattr("notsodeep.checks.available_memory", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match="scatter matrix of the features"):
        nsd.limiting_spectrum(eq, population="deconvolved")
