"""Verdicts on data: they hold on the theory's mixtures, and fail where they should."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.data import GaussianMixture, MixtureStatistics
from notsodeep.errors import InvalidInput
from notsodeep.models import Conditions

DEQ = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
DATA = (
    "comparable sizes",
    "small class means",
    "centred data",
    "small trace differences",
    "spread covariance",
    "Gaussian norms",
)


def failures(X: np.ndarray, y: np.ndarray) -> set[str]:
    return {v.name for v in nsd.conditions(DEQ, X, y) if v.holds is False}


def test_all_hold_on_the_mixture_of_the_paper() -> None:
    X, y = nsd.data.paper_mixture(1000).sample(800, rng=0)
    verdicts = nsd.conditions(DEQ, X, y)
    assert verdicts.hold
    assert [v.name for v in verdicts][-6:] == list(DATA)
    content = json.loads(json.dumps(verdicts.to_dict()))
    assert content["small class means"]["holds"] is True
    assert "Gaussian norms: holds" in str(verdicts)
    assert Conditions.from_dict(content) == verdicts


def test_each_fails_where_it_should() -> None:
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
        assert failures(*mixture.sample(n, rng=0)) == {name}
    # Norms that vary: a scale mixture, as images of different contrast are.
    X, y = GaussianMixture(means, 1.0).sample(n, rng=0)
    X = X * np.exp(0.4 * rng.standard_normal((n, 1)))
    assert failures(X, y) == {"Gaussian norms"}
    # Norms that do not vary enough.
    assert failures(X / np.linalg.norm(X, axis=1, keepdims=True), y) == {"Gaussian norms"}


@pytest.mark.parametrize(("n", "p"), [(16, 1000), (2000, 30)])
def test_sizes_must_be_comparable(n: int, p: int) -> None:
    X, _ = GaussianMixture(np.zeros((2, p)), 1.0).sample(n, rng=0)
    verdict = nsd.conditions(DEQ, X)["comparable sizes"]
    assert verdict.holds is False
    assert verdict.value == pytest.approx(max(n / p, p / n))


def test_verdicts_on_the_model_stay() -> None:
    X, y = nsd.data.paper_mixture(200).sample(160, rng=0)
    relu = nsd.DeepEquilibrium("relu", sigma_a2=0.3)
    verdicts = nsd.conditions(relu, X, y)
    assert verdicts["contraction"].holds is False
    assert verdicts["centring"].holds is False
    tau0 = MixtureStatistics.estimate(X, y).tau0
    assert nsd.conditions(relu.centred(tau0), X, y)["centring"].holds is True
    assert len(list(nsd.conditions(relu))) == 5


def test_scale_is_that_of_the_data() -> None:
    X, y = GaussianMixture(np.zeros((1, 300)), 2.0).sample(240, rng=0)
    expected = DEQ.centred(MixtureStatistics.estimate(X, y).tau0).tau_star
    assert nsd.conditions(DEQ, X, y)["existence of τ*"].value == pytest.approx(expected)
    assert nsd.conditions(DEQ, X)["existence of τ*"].value == pytest.approx(expected, rel=0.01)
    given = nsd.conditions(DEQ, X, y, tau0=1.0)["existence of τ*"].value
    assert given == pytest.approx(DEQ.centred(1.0).tau_star)


def test_classes_of_few_rows_have_no_verdicts() -> None:
    X, y = nsd.data.paper_mixture(100).sample(80, rng=0)
    y = np.where(np.arange(80) < 3, 2, y)
    assert [v.name for v in nsd.conditions(DEQ, X, y)] == [v.name for v in nsd.conditions(DEQ, X)]


def test_bad_input_is_refused() -> None:
    X, y = nsd.data.paper_mixture(100).sample(80, rng=0)
    for wrong in ("tanh", nsd.ExplicitNetwork(["tanh"])):
        with pytest.raises(InvalidInput, match="model of conditions must be a DEQ"):
            nsd.conditions(wrong)
    with pytest.raises(InvalidInput, match="one label for each of the 79 rows"):
        nsd.conditions(DEQ, X[1:], y)
    with pytest.raises(InvalidInput, match="X of conditions must be finite"):
        nsd.conditions(DEQ, [[np.nan]])
    with pytest.raises(InvalidInput, match="X of conditions must be given with the labels"):
        nsd.conditions(DEQ, y=[0, 1])
