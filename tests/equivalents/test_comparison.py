"""An exact kernel beside its equivalent, as a record."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import notsodeep as nsd
from mixture_cases import Sample, draw, mixture_of
from notsodeep.data import MixtureStatistics
from notsodeep.equivalents import Comparison
from notsodeep.errors import InvalidInput


def compared(
    sample: Sample, activation: str = "relu", **options: str
) -> tuple[Comparison, np.ndarray, np.ndarray]:
    options.setdefault("convention", "preactivation")
    deq = nsd.DeepEquilibrium(activation, 0.2).centred(sample.stats.tau0)
    eq = nsd.equivalent(deq, sample.X, sample.y, sample.mixture, **options)
    kernel = options.pop("kind", "ck")
    exact = getattr(nsd.kernel(deq, sample.X, **options, kind="both"), kernel)
    return nsd.compare(exact, eq), exact, eq.to_dense()


@pytest.mark.parametrize(("n", "kind"), [(240, "ntk"), (450, "ck")])
def test_numbers(n: int, kind: str) -> None:
    result, exact, dense = compared(draw(mixture_of("different", 300, mean=8.0), n), kind=kind)
    difference = exact - dense
    assert result.gap == pytest.approx(np.linalg.norm(difference, 2), rel=1e-8)
    assert result.relative_gap == pytest.approx(result.gap / np.linalg.norm(exact, 2), rel=1e-10)
    assert result.frobenius == pytest.approx(np.linalg.norm(difference), rel=1e-10)
    assert result.trace_gap == pytest.approx(abs(np.trace(difference)) / n, rel=1e-8)
    np.testing.assert_allclose(result.eigenvalues, np.linalg.eigvalsh(exact))
    theirs = np.linalg.eigvalsh(dense)
    assert result.wasserstein == pytest.approx(np.abs(result.eigenvalues - theirs).mean(), rel=1e-6)
    assert 0.0 < result.kolmogorov < (0.05 if n < 300 else 1.0)
    assert result.law_kolmogorov < 0.02
    assert result.law is not None
    assert result.spikes[:, 0].tolist() == [s.value for s in result.law.spikes]
    for predicted, found in result.spikes[:2]:
        assert abs(predicted / found - 1.0) < 0.06


def test_spikes_are_paired_by_rank() -> None:
    # n > p: the law has spikes below the bulk too, p and more places down.
    result, _, _ = compared(draw(nsd.data.paper_mixture(300), 600))
    assert result.law is not None
    low = result.law.support[0][0]
    below = [found for predicted, found in result.spikes if predicted < low]
    assert below
    for found in below:
        assert found < low
    order = result.spikes[:, 1].tolist()
    assert order == sorted(order, reverse=True)


def test_json_and_text() -> None:
    result, _, _ = compared(draw(nsd.data.paper_mixture(200), 160))
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["gap"] == result.gap
    assert len(content["spikes"]) == 2
    assert len(content["spikes"][0]) == 2
    assert content["law"]["origin"] == result.law.origin
    assert len(content["eigenvalues"]) == 160
    assert "eigenvalues" not in result.to_dict(arrays=False)
    lines = str(result).splitlines()
    assert lines[0].startswith("operator-norm gap")
    assert "% of ‖kernel‖" in lines[0]
    assert sum(line.startswith("spike") for line in lines) == 2
    assert any(line.startswith("Kolmogorov to the law") for line in lines)


def test_without_a_law() -> None:
    X, y, _, _ = draw(nsd.data.paper_mixture(200), 160)
    stats = MixtureStatistics.estimate(X, y)
    deq = nsd.DeepEquilibrium("relu", 0.2).centred(stats.tau0)
    eq = nsd.equivalent(deq, X, y, convention="preactivation")
    exact = nsd.kernel(deq, X, convention="preactivation")
    result = nsd.compare(exact, eq)
    assert result.law is None
    assert math.isnan(result.law_kolmogorov)
    assert result.spikes.shape == (0, 2)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert content["law"] is None
    assert content["law_kolmogorov"] is None
    assert "law" not in str(result)
    law = nsd.limiting_spectrum(eq, population="deconvolved")
    brought = nsd.compare(exact, eq, law=law)
    assert brought.law is law
    assert len(brought.spikes) == 2
    assert abs(brought.spikes[0, 0] / brought.spikes[0, 1] - 1.0) < 0.03


def test_kernels_without_a_linear_part() -> None:
    result, _, _ = compared(draw(mixture_of("isotropic", 200), 160), "cos", convention="feature")
    assert result.law is not None
    assert result.law.bulk is None
    assert math.isnan(result.law_kolmogorov)
    json.dumps(result.to_dict(), allow_nan=False)
    assert "Kolmogorov to the law" not in str(result)


def test_sphere() -> None:
    X = nsd.data.sphere(200, 240, rng=0)
    network = nsd.ExplicitNetwork(["relu", "tanh"])
    result = nsd.compare(
        nsd.kernel(network, X, convention="preactivation"),
        nsd.sphere_equivalent(network, X, convention="preactivation"),
    )
    assert result.relative_gap < 1e-3
    assert len(result.spikes) == 1


def test_bad_input_is_refused() -> None:
    sample = draw(nsd.data.paper_mixture(100), 80)
    deq = nsd.DeepEquilibrium("relu", 0.2).centred(sample.stats.tau0)
    eq = nsd.equivalent(deq, sample.X, sample.y, sample.mixture, convention="preactivation")
    with pytest.raises(InvalidInput, match=r"K of compare must have shape \(80, 80\)"):
        nsd.compare(np.eye(79), eq)
    with pytest.raises(InvalidInput, match=r"be symmetric. Got an asymmetry of 1"):
        nsd.compare(np.triu(np.ones((80, 80))), eq)
    with pytest.raises(InvalidInput, match=r"be an Equivalent.*sphere_equivalent"):
        nsd.compare(np.eye(80), np.eye(80))
    with pytest.raises(InvalidInput, match="K of compare must be finite"):
        nsd.compare(np.full((80, 80), np.nan), eq)
