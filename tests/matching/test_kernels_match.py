"""Exact kernels of matched networks, choice of the family, refinement and certificate."""

from __future__ import annotations

import json

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.matching.certificate import certificate_of_kernels, ridge_accuracy

RELU = nsd.DeepEquilibrium("relu", 0.2)
TANH = nsd.DeepEquilibrium("tanh", 0.2)


@pytest.fixture(scope="module")
def sample() -> tuple[np.ndarray, np.ndarray, float]:
    mixture = nsd.data.paper_mixture(800)
    X, y = mixture.sample(640, rng=0)
    return X, y, mixture.statistics(X, y).tau0


@pytest.mark.paper
@pytest.mark.parametrize(
    ("deq", "family", "convention", "bound"),
    [
        (RELU, "leaky_relu", "preactivation", 0.002),
        (RELU, "leaky_relu", "feature", 0.01),
        (TANH, "hard_tanh", "feature", 0.05),
    ],
)
def test_gap_on_the_papers_mixture(
    sample: tuple[np.ndarray, np.ndarray, float],
    deq: nsd.DeepEquilibrium,
    family: str,
    convention: str,
    bound: float,
) -> None:
    X, y, tau0 = sample
    model = deq.centred(tau0)
    certificate = nsd.match(model, tau0=tau0, family=family, convention=convention).certify(X, y)
    assert certificate.matched.gap <= bound
    assert certificate.unmatched.gap > 10 * certificate.matched.gap
    if convention == "preactivation":
        assert certificate.unmatched.gap > 10.0  # the plain network is nowhere near
    assert certificate.matched.alignment > 0.9999
    assert certificate.matched.eigenvector_overlap > 0.999


def test_gap_falls_with_the_dimension() -> None:
    gaps = []
    sizes = (150, 300, 600)
    for p in sizes:
        mixture = nsd.data.paper_mixture(p)
        per_seed = []
        for seed in range(3):
            X, y = mixture.sample(4 * p // 5, rng=seed)
            m = nsd.match(TANH, tau0=mixture.statistics(X, y).tau0, family="hard_tanh")
            per_seed.append(m.certify(X).matched.gap)
        gaps.append(np.mean(per_seed))
    slope = np.polyfit(np.log(sizes), np.log(gaps), 1)[0]
    assert -1.2 < slope < -0.3


def test_an_unmatched_design_does_not_pass(sample: tuple[np.ndarray, np.ndarray, float]) -> None:
    X, _, tau0 = sample
    relu = RELU.centred(tau0)
    good = nsd.match(relu, tau0=tau0, family="leaky_relu")
    bad = nsd.match(relu, tau0=tau0, family="hard_tanh")
    assert bad.certify(X).matched.relative_gap > 50 * good.certify(X).matched.relative_gap
    wrong_scale = nsd.match(relu, tau0=1.5 * tau0, family="leaky_relu")
    assert wrong_scale.certify(X).matched.relative_gap > 5 * good.certify(X).matched.relative_gap


def test_auto_chooses_and_says_why() -> None:
    by_residual = nsd.match(TANH, tau0=1.0)
    assert by_residual.network.depth == 1
    assert "chosen by its residual" in by_residual.reason
    assert {c.family for c in by_residual.candidates} >= {"leaky_relu", "hard_tanh", "plain"}
    on_sphere = nsd.match(RELU, nsd.data.sphere(60, 80, rng=0))
    assert on_sphere.family == "dual"
    assert "gap on 60 rows" in on_sphere.reason


def test_auto_takes_the_smallest_gap_on_data() -> None:
    mixture = nsd.data.paper_mixture(200)
    X, _ = mixture.sample(160, rng=0)
    m = nsd.match(RELU, X, refine=False)
    same = [c for c in m.candidates if c.fitted and c.network.depth == m.network.depth]
    least = min(c.score for c in same)
    assert m.score <= max(1.04 * least, least + 8e-4)
    even = [c for c in same if c.score <= max(1.04 * least, least + 8e-4)]
    assert m.readout_gap <= max(1.25 * min(c.readout_gap for c in even), 0.002)
    assert m.tau0 == pytest.approx(np.sqrt(np.square(X).sum() / len(X)))


@pytest.mark.slow
@pytest.mark.parametrize(("deq", "family"), [(RELU, "leaky_relu"), (TANH, "piecewise_linear")])
def test_refining_helps_on_held_out_rows(deq: nsd.DeepEquilibrium, family: str) -> None:
    X = nsd.data.load("digits", samples=300, rng=0).X
    m = nsd.match(deq, X, family=family)
    assert m.refinement is not None
    assert m.refinement.kept
    assert m.refinement.after < m.refinement.before
    plain = nsd.match(deq, X, family=family, refine=False)
    assert m.parameters != plain.parameters
    again = nsd.match(deq, X, family=family)
    assert again.parameters == m.parameters  # deterministic
    # Residuals are those of the refined network.
    assert max(map(abs, m.residuals.values())) > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "bound"), [("relu", 0.03), ("tanh", 0.06), ("swish", 0.15)])
def test_refined_gap_on_mnist(activation: str, bound: float) -> None:
    try:
        X = nsd.data.load("mnist", samples=900, rng=0).X
    except nsd.errors.DataNotFound:
        pytest.skip("MNIST is not on this machine: notsodeep data get mnist")
    deq = nsd.DeepEquilibrium(activation, 0.2)
    m = nsd.match(deq, X, family="piecewise_linear")
    assert m.refinement is not None
    assert (m.refinement.rows, m.refinement.held_out) == (300, 600)
    assert m.refinement.after <= bound


def test_certificate_reads_and_stores(sample: tuple[np.ndarray, np.ndarray, float]) -> None:
    X, y, tau0 = sample
    m = nsd.match(RELU, tau0=tau0, family="leaky_relu")
    certificate = m.certify(X[:200], y[:200])
    text = str(certificate)
    assert "operator-norm gap" in text
    assert "ridge accuracy" in text
    assert "with scale and constant free" in text
    stored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert stored["matched"]["gap"] == certificate.matched.gap
    assert stored["accuracy"].keys() == {"deq", "matched", "unmatched"}
    assert json.loads(json.dumps(m.to_dict(), allow_nan=False))["family"] == "leaky_relu"
    restored = nsd.ExplicitNetwork.from_dict(m.to_dict()["fitted"])
    assert restored == m.network
    assert "leaky_relu" in str(m)


def test_certificate_numbers_are_those_of_the_matrices() -> None:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((12, 12))
    K = A @ A.T
    E = np.diag(np.arange(12.0)) * 0.01
    conditions = nsd.conditions(RELU, tau0=1.0)
    labels = np.repeat([0, 1, 2], 4)
    result = certificate_of_kernels(
        {"deq": K, "matched": K - E, "unmatched": 2.0 * K}, y=labels, conditions=conditions,
        kind="ck", convention="feature",
        names={"deq": "a", "matched": "b", "unmatched": "c"},
    )  # fmt: skip
    assert result.matched.gap == pytest.approx(0.11)
    assert result.matched.relative_gap == pytest.approx(0.11 / np.linalg.norm(K, 2))
    assert result.unmatched.gap == pytest.approx(np.linalg.norm(K, 2))
    assert result.unmatched.scaled_gap == pytest.approx(0.0, abs=1e-12)
    assert result.plain_suffices
    assert "a plain layer does as well" in result.verdict
    assert result.unmatched.alignment == pytest.approx(1.0)
    assert result.class_means is not None
    assert result.class_means["deq"][0, 1] == pytest.approx(K[:4, 4:8].mean())
    np.testing.assert_allclose(result.difference, E, atol=1e-12)


def test_ridge_accuracy_can_be_good_and_bad() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    X = rng.standard_normal((60, 3)) * 0.1 + np.where(labels[:, None] == 1, 1.0, -1.0)
    # Odd and even rows are the folds, so labels must not follow them.
    order = rng.permutation(60)
    assert ridge_accuracy((X @ X.T)[np.ix_(order, order)], labels[order]) == 1.0
    noise = rng.standard_normal((60, 200))
    assert ridge_accuracy(noise @ noise.T, labels[order]) < 0.75
