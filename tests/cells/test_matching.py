"""Explicit networks for general cells: every coefficient, as they are, and the exact dual."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.equivalents import expansion
from notsodeep.errors import InvalidInput
from notsodeep.models import DeepEquilibrium, Dense

MIXED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)])
BIASED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)])
BENT = DeepEquilibrium(cell=[Dense("tanh", 0.2, 0.8, 0.1)])
NORMALISED = DeepEquilibrium(cell=[Dense("relu", 0.3, 0.9, 0.1, "feature")])


@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize("model", [BIASED, NORMALISED, MIXED], ids=str)
def test_the_dual_has_the_kernel_itself_on_the_sphere(model: DeepEquilibrium, kernel: str) -> None:
    X = nsd.data.sphere(40, 30, rng=0)
    m = nsd.match(model, family="dual", kernel=kernel, convention="feature")
    wanted = nsd.kernel(model, X, kind=kernel, convention="feature")
    got = nsd.kernel(m.network, X, kind=kernel)
    bound = m.achieved.error_bound(0.75)
    assert np.abs(got - wanted).max() <= bound + 1e-10


def test_a_mixed_ring_is_matched() -> None:
    """One layer has norm_fluctuation = covariance_overlap/2, so that it meets the other three."""
    m = nsd.match(MIXED, tau0=1.0, family="piecewise_linear")
    assert m.feasible, m.reason
    met = ("linear", "covariance_overlap", "scale2")
    assert max(abs(m.residuals[name]) for name in met) < 1e-10 * m.target.size
    gaps = []
    for p in (120, 480):
        X, _ = nsd.data.paper_mixture(dimension=p).sample(int(0.8 * p), rng=0)
        certificate = m.certify(X)
        gaps.append(certificate.matched.gap)
        assert certificate.matched.gap < 0.25 * certificate.unmatched.gap
    assert gaps[1] < 0.75 * gaps[0]


@pytest.mark.parametrize("kernel", ["conjugate", "tangent"])
@pytest.mark.parametrize(
    ("model", "scale"),
    [(BIASED, 1.0), (BIASED, 1.3), (MIXED, 1.0), (MIXED.centred(1.0), 1.0), (BENT, 1.0)],
    ids=str,
)
def test_two_kinks_meet_every_coefficient(
    model: DeepEquilibrium, scale: float, kernel: str
) -> None:
    m = nsd.match(model, tau0=scale, family="two_kinks", kernel=kernel)
    assert m.feasible, m.reason
    assert m.deq == model  # nothing is put in its place
    largest = max(abs(value) for name, value in m.residuals.items() if name != "rescaling")
    assert largest < 1e-9 * m.target.size
    # The coefficients are those of the network itself, which knows no closed forms.
    found = expansion(m.network, scale, kernel=kernel)
    assert found.constant == m.achieved.constant
    assert type(m).from_dict(m.to_dict()).target == m.target


def test_the_match_is_of_the_model_as_given() -> None:
    """The gap falls as p grows, whereas the centred sibling stays another model."""
    gaps, apart = [], []
    for p in (120, 480):
        X, _ = nsd.data.paper_mixture(dimension=p).sample(int(0.8 * p), rng=0)
        m = nsd.match(MIXED, tau0=float(np.sqrt(np.square(X).sum(axis=1).mean())))
        assert m.family == "two_kinks"
        assert m.deq == MIXED
        gaps.append(m.certify(X).matched.gap)
        assert gaps[-1] < 0.02 * m.certify(X).unmatched.gap
        raw, centred = (
            nsd.conjugate_kernel(each, X, convention="feature")
            for each in (MIXED, MIXED.centred(m.tau0))
        )
        apart.append(float(np.linalg.norm(raw - centred, 2)))
    assert gaps[1] < 0.6 * gaps[0]
    assert apart[1] > apart[0]


def test_a_vanilla_model_is_matched_as_it_is_if_asked() -> None:
    relu = DeepEquilibrium("relu", 0.2)
    m = nsd.match(relu, tau0=1.0, centre=False)
    assert (m.family, m.deq, m.feasible) == ("two_kinks", relu, True)
    assert nsd.match(relu, tau0=1.0, family="leaky_relu").deq == relu.centred(1.0)
    with pytest.raises(InvalidInput, match="models that are not centred"):
        nsd.match(relu, tau0=1.0, family="leaky_relu", centre=False)


@pytest.mark.slow
def test_refining_two_kinks_is_better_on_other_rows() -> None:
    X, _ = nsd.data.paper_mixture(dimension=60).sample(120, rng=0)
    m = nsd.match(BIASED, X, refine=True)
    assert m.refinement is not None
    assert m.refinement.kept
    assert m.refinement.after < 0.7 * m.refinement.before


def test_what_has_no_coefficients_is_named() -> None:
    with pytest.raises(InvalidInput, match="cannot be centred"):
        nsd.match(BIASED, tau0=1.0, family="leaky_relu")
    with pytest.raises(InvalidInput, match="have coefficients of the mixture theory"):
        nsd.match(NORMALISED, tau0=1.0)
