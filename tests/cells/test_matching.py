"""Explicit networks for general cells: all four coefficients of a ring, and the exact dual."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.models import DeepEquilibrium, Dense

MIXED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)])
BIASED = DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6, 0.1), Dense("relu", 0.8, 0.3, 0.05)])
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


def test_biases_are_not_matched_on_mixtures() -> None:
    with pytest.raises(InvalidInput, match="cannot be centred"):
        nsd.match(BIASED, tau0=1.0, family="leaky_relu")
