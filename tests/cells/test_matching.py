"""Explicit networks for general cells: every coefficient, as they are, and the exact dual."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.equivalents import expansion
from notsodeep.models import DeepEquilibrium, Dense

MIXED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)])
BIASED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)])
BENT = DeepEquilibrium(cell=[Dense("tanh", 0.2, 0.8, 0.1)])
NORMALISED = DeepEquilibrium(cell=[Dense("relu", 0.3, 0.9, 0.1, "feature")])


@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize("model", [BIASED, NORMALISED, MIXED], ids=str)
def test_the_dual_has_the_kernel_itself_on_the_sphere(model: DeepEquilibrium, kind: str) -> None:
    X = nsd.data.sphere(40, 30, rng=0)
    m = nsd.match(model, family="dual", kind=kind, convention="feature")
    wanted = nsd.kernel(model, X, kind=kind, convention="feature")
    got = nsd.kernel(m.network, X, kind=kind, convention="preactivation")
    bound = m.achieved.error_bound(0.75)
    assert np.abs(got - wanted).max() <= bound + 1e-10


def test_a_mixed_ring_is_matched() -> None:
    """One layer has norm_fluctuation = covariance_overlap/2, so that it meets the other three."""
    m = nsd.match(MIXED.centred(1.0), tau0=1.0, family="piecewise_linear")
    assert m.feasible, m.reason
    met = ("linear", "covariance_overlap", "scale2")
    assert max(abs(m.residuals[name]) for name in met) < 1e-10 * m.target.scale2
    gaps = []
    for p in (120, 480):
        X, _ = nsd.data.paper_mixture(dimension=p).sample(int(0.8 * p), rng=0)
        certificate = m.certify(X)
        gaps.append(certificate.matched.gap)
        assert certificate.matched.gap < 0.25 * certificate.unmatched.gap
    assert gaps[1] < 0.75 * gaps[0]


@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize(
    ("model", "scale"),
    [(BIASED, 1.0), (BIASED, 1.3), (MIXED, 1.0), (MIXED.centred(1.0), 1.0), (BENT, 1.0)],
    ids=str,
)
def test_two_kinks_meet_every_coefficient(model: DeepEquilibrium, scale: float, kind: str) -> None:
    m = nsd.match(model, tau0=scale, family="two_kinks", kind=kind)
    assert m.feasible, m.reason
    assert m.model == model  # nothing is put in its place
    largest = max(abs(value) for name, value in m.residuals.items() if name != "rescaling")
    assert largest < 1e-9 * m.target.scale2
    # The coefficients are those of the network itself, which knows no closed forms.
    found = expansion(m.network, scale, kind=kind, convention="preactivation")
    assert found.constant == m.achieved.constant
    assert type(m).from_dict(m.to_dict()).target == m.target


def test_the_match_is_of_the_model_as_given() -> None:
    """The gap falls as p grows, whereas the centred sibling stays another model."""
    gaps, apart = [], []
    for p in (120, 480):
        X, _ = nsd.data.paper_mixture(dimension=p).sample(int(0.8 * p), rng=0)
        m = nsd.match(MIXED, tau0=float(np.sqrt(np.square(X).sum(axis=1).mean())))
        assert m.family == "two_kinks"
        assert m.model == MIXED
        gaps.append(m.certify(X).matched.gap)
        assert gaps[-1] < 0.02 * m.certify(X).unmatched.gap
        raw, centred = (
            nsd.kernel(each, X, convention="feature") for each in (MIXED, MIXED.centred(m.tau0))
        )
        apart.append(float(np.linalg.norm(raw - centred, 2)))
    assert gaps[1] < 0.6 * gaps[0]
    assert apart[1] > apart[0]


RELU = DeepEquilibrium("relu", 0.2)


def test_a_vanilla_model_is_matched_as_it_is() -> None:
    m = nsd.match(RELU, tau0=1.0)
    assert (m.family, m.model, m.feasible) == ("two_kinks", RELU, True)
    odd = nsd.match(DeepEquilibrium("tanh", 0.2), tau0=1.0)
    assert odd.network.depth == 1  # centred as it is


@pytest.mark.parametrize("kind", ["ck", "ntk"])
@pytest.mark.parametrize(
    ("model", "family", "scale"),
    [
        (RELU, "leaky_relu", 1.0),
        (RELU, "piecewise_linear", 1.3),
        (BIASED, "leaky_relu", 0.8),
        (DeepEquilibrium("swish", 0.3), "scaled", 1.0),
        (DeepEquilibrium("sigmoid", 0.3), "hard_tanh", 1.0),
    ],
)
def test_one_layer_with_a_mean_meets_what_it_promises(
    model: DeepEquilibrium, family: str, scale: float, kind: str
) -> None:
    m = nsd.match(model, tau0=scale, family=family, kind=kind)
    assert m.feasible, m.reason
    assert (m.model, m.network.depth) == (model, 1)
    met = ["constant", "linear", "scale2"]
    met += ["covariance_overlap"] * (family == "piecewise_linear")
    assert max(abs(m.residuals[name]) for name in met) < 1e-9 * m.target.scale2
    mean = m.network.activations[0].moments(scale).mean
    assert mean == pytest.approx(m.parameters["mean"], rel=1e-12)
    assert mean**2 == pytest.approx(m.target.constant, rel=1e-9)
    assert m.achieved.norm_shift * m.target.norm_shift >= 0.0  # 0 of a hard tanh
    assert nsd.ExplicitNetwork.from_dict(m.network.to_dict()) == m.network


def test_on_data_one_layer_is_taken_if_it_is_close() -> None:
    digits = nsd.data.load("digits", samples=300)
    m = nsd.match(DeepEquilibrium("swish", 0.2), digits.X, refine=False)
    assert (m.model, m.network.depth) == (DeepEquilibrium("swish", 0.2), 1)
    assert "exact-kernel gap on" in m.reason
    deeper = [c for c in m.candidates if c.network.depth == 2]
    assert deeper
    assert min(c.score for c in deeper) < m.score
    certificate = m.certify(digits.X_test, digits.y_test)
    kernels = [
        nsd.kernel(each, digits.X_test, convention="feature") for each in (m.model, m.network)
    ]
    n = len(digits.X_test)
    H = np.eye(n) - 1.0 / n
    a, b = (H @ K @ H for K in kernels)
    expected = np.linalg.norm(a - b, 2) / np.linalg.norm(a, 2)
    assert certificate.matched.centred_gap == pytest.approx(expected, rel=1e-6)
    assert certificate.matched.readout_gap <= certificate.matched.centred_gap < 0.012


def test_steep_means_do_not_hide_a_gap() -> None:
    """Of a sigmoid's kernel nearly all is constant: the gap is judged without that."""
    digits = nsd.data.load("digits", samples=300)
    m = nsd.match(DeepEquilibrium("sigmoid", 0.2), digits.X, family="leaky_relu")
    certificate = m.certify(digits.X_test)
    assert certificate.matched.relative_gap < 0.002
    assert certificate.matched.centred_gap > 0.03


@pytest.mark.slow
def test_refining_two_kinks_is_better_on_other_rows() -> None:
    X, _ = nsd.data.paper_mixture(dimension=60).sample(120, rng=0)
    m = nsd.match(BIASED, X)
    assert m.refinement is not None
    assert m.refinement.kept
    assert m.refinement.after < 0.7 * m.refinement.before


@pytest.mark.parametrize("activation", ["relu", "gelu", "elu"])
def test_auto_answers_for_the_model_that_was_given(activation: str) -> None:
    """No match of the centred sibling, however close that would be."""
    digits = nsd.data.load("digits", samples=300)
    deq = DeepEquilibrium(activation, 0.2)
    m = nsd.match(deq, digits.X, kind="ntk", refine=False)
    assert m.model == deq
    assert m.certify(digits.X_test[:200]).matched.relative_gap < 0.02


def test_normalised_layers_are_matched_as_they_are() -> None:
    """All seven coefficients of the cell as it is, and a gap that falls with p."""
    layers = Dense("tanh", 0.5, 0.6, 0.1, "preactivation"), Dense("relu", 0.3, 0.3)
    model, gaps = DeepEquilibrium(cell=layers), []
    for p in (120, 480):
        X, _ = nsd.data.paper_mixture(dimension=p).sample(int(0.8 * p), rng=0)
        m = nsd.match(model, tau0=float(np.sqrt(np.square(X).sum(axis=1).mean())))
        assert (m.family, m.model, m.feasible) == ("two_kinks", model, True)
        gaps.append(m.certify(X).matched.relative_gap)
    assert gaps[0] < 0.005
    assert gaps[1] < 0.6 * gaps[0]
