"""Verdicts on data: they hold on the theory's mixtures, and fail where they should."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from mixture_cases import draw
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.errors import InvalidInput

DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
DATA = (
    "comparable sizes",
    "small class means",
    "centred data",
    "small trace differences",
    "spread covariance",
    "Gaussian norms",
)


def failures(X: np.ndarray, stats: MixtureStatistics) -> set[str]:
    return {v.name for v in nsd.conditions(DEQ, X=X, stats=stats) if v.holds is False}


def test_all_hold_on_the_mixture_of_the_paper() -> None:
    X, y, stats, _ = draw(nsd.data.paper_mixture(1000), 800)
    verdicts = nsd.conditions(DEQ, X=X, stats=stats)
    assert verdicts.hold
    assert [v.name for v in verdicts][-6:] == list(DATA)
    assert nsd.conditions(DEQ, X=X, stats=MixtureStatistics.estimate(X, y)).hold
    content = json.loads(json.dumps(verdicts.to_dict()))
    assert content["small class means"]["holds"] is True
    assert "Gaussian norms: holds" in str(verdicts)


@pytest.mark.parametrize("estimated", [False, True])
def test_each_fails_where_it_should(estimated: bool) -> None:
    p, n = 400, 320
    rng = np.random.default_rng(0)
    means = np.zeros((2, p))
    strong = means.copy()
    strong[0, 3], strong[1, 3] = 20.0, -20.0
    one_direction = np.ones((2, p))
    one_direction[:, 0] = 0.3 * p
    cases = {
        "small class means": GaussianMixture(strong, 1.0),
        "centred data": GaussianMixture(means + 1.0, 1.0),
        "small trace differences": GaussianMixture(means, [1.0, 3.0]),
        "spread covariance": GaussianMixture(means, one_direction),
    }
    for name, mixture in cases.items():
        X, y, stats, _ = draw(mixture, n)
        assert failures(X, MixtureStatistics.estimate(X, y) if estimated else stats) == {name}
    # Norms that vary: a scale mixture, as images of different contrast are.
    X, y, stats, mixture = draw(GaussianMixture(means, 1.0), n)
    X = X * np.exp(0.4 * rng.standard_normal((n, 1)))
    stats = MixtureStatistics.estimate(X, y) if estimated else mixture.statistics(X, y)
    assert failures(X, stats) == {"Gaussian norms"}
    # Norms that do not vary enough.
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    stats = MixtureStatistics.estimate(X, y) if estimated else mixture.statistics(X, y)
    assert failures(X, stats) == {"Gaussian norms"}


@pytest.mark.parametrize(("n", "p"), [(16, 1000), (2000, 30)])
def test_sizes_must_be_comparable(n: int, p: int) -> None:
    X, _, stats, _ = draw(GaussianMixture(np.zeros((2, p)), 1.0), n)
    verdict = nsd.conditions(DEQ, X=X)["comparable sizes"]
    assert verdict.holds is False
    assert verdict.value == pytest.approx(max(n / p, p / n))
    assert nsd.conditions(DEQ, stats=stats)["comparable sizes"] == verdict


def test_verdicts_on_the_model_stay() -> None:
    X, _, stats, _ = draw(nsd.data.paper_mixture(200), 160)
    relu = nsd.DeepEquilibrium("relu", sigma_a2=0.3)
    verdicts = nsd.conditions(relu, X=X, stats=stats)
    assert verdicts["contraction"].holds is False
    assert verdicts["centring"].holds is False
    assert nsd.conditions(relu.centred(stats.tau0), stats=stats)["centring"].holds is True
    assert len(list(nsd.conditions(relu))) == 5


def test_scale_is_that_of_the_data() -> None:
    X, _, stats, _ = draw(GaussianMixture(np.zeros((1, 300)), 2.0), 240)
    expected = DEQ.centred(stats.tau0).tau_star
    assert nsd.conditions(DEQ, stats=stats)["existence of τ*"].value == pytest.approx(expected)
    assert nsd.conditions(DEQ, X=X)["existence of τ*"].value == pytest.approx(expected, rel=0.01)
    given = nsd.conditions(DEQ, tau0=1.0, stats=stats)["existence of τ*"].value
    assert given == pytest.approx(DEQ.centred(1.0).tau_star)


def test_bad_input_is_refused() -> None:
    X, _, stats, _ = draw(nsd.data.paper_mixture(100), 80)
    for wrong in ("tanh", nsd.ExplicitNetwork(["tanh"])):
        with pytest.raises(InvalidInput, match="deq of conditions must be a DEQ"):
            nsd.conditions(wrong)
    with pytest.raises(InvalidInput, match=r"be those of X, of shape \(79, 100\)"):
        nsd.conditions(DEQ, X=X[1:], stats=stats)
    with pytest.raises(InvalidInput, match="X of conditions must be finite"):
        nsd.conditions(DEQ, X=[[np.nan]])
    with pytest.raises(InvalidInput, match="X of conditions must be given with the labels"):
        nsd.conditions(DEQ, stats=[0, 1])


def test_data_and_labels_come_second_and_third() -> None:
    X, y = nsd.data.paper_mixture(100).sample(80, rng=0)
    expected = nsd.conditions(DEQ, X=X, stats=MixtureStatistics.estimate(X, y))
    assert nsd.conditions(DEQ, X, y) == expected
    with pytest.warns(DeprecationWarning, match=r"write conditions\(deq, tau0=...\)"):
        assert nsd.conditions(DEQ, 1.0) == nsd.conditions(DEQ, tau0=1.0)
