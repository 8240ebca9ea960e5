"""The records of real computations go through JSON text and come back the same."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.checks import strict_json
from notsodeep.collapse import (
    CollapseMetrics,
    layer_peeled,
    minority_collapse_threshold,
    nearest_etf,
    simplex_etf,
)
from notsodeep.equivalents import expansion
from notsodeep.errors import InvalidInput
from notsodeep.kernel_solvers import (
    ridge_path,
    solve,
    spectral_density,
    top_eigenpairs,
)
from notsodeep.numerics.fixed_point import solve_fixed_point
from notsodeep.records import Record

X = nsd.data.sphere(30, 40, rng=0)
RELU = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
TANH = nsd.DeepEquilibrium("tanh", sigma_a2=0.2)
K = nsd.kernel(RELU, X, convention="preactivation")


def _metrics() -> CollapseMetrics:
    metrics = CollapseMetrics(num_classes=3)
    metrics.update(simplex_etf(3, 4, rng=0)[[0, 0, 1, 2]], [0, 0, 1, 2])
    return metrics


def _mixture_law() -> Record:
    mixture = nsd.data.paper_mixture(dimension=60)
    rows, labels = mixture.sample(50, rng=0)
    stats = mixture.statistics(rows, labels)
    return nsd.limiting_spectrum(
        nsd.equivalent(TANH.centred(stats.tau0), rows, labels, mixture, convention="preactivation")
    )


def _match() -> nsd.matching.Match:
    return nsd.match(TANH, X, family="hard_tanh", refine=True)


RECORDS: dict[str, Callable[[], Record]] = {
    "certificate": lambda: _match().certify(X, np.arange(30) % 2),
    "expansion": lambda: expansion(TANH.centred(1.0), 1.0),
    "collapse of features": lambda: _metrics().compute(),
    "collapse with classifier": lambda: _metrics().compute(simplex_etf(3, 4, rng=0)),
    "comparison": lambda: nsd.compare(
        K, nsd.sphere_equivalent(RELU, X, convention="preactivation")
    ),
    "conditions": lambda: nsd.conditions(TANH, X=X),
    "conditions that are not finite": lambda: nsd.conditions(
        nsd.DeepEquilibrium(nsd.activations.from_formula("x**2"), 0.1), tau0=0.5
    ),
    "early stopping": lambda: ridge_path(K, X[:, :2], times=[0.1, 1.0]),
    "eigenpairs": lambda: top_eigenpairs(K, 3),
    "fixed point": lambda: solve_fixed_point(np.cos, 1.0),
    "kernel pair": lambda: nsd.kernel(TANH, X, convention="preactivation", kind="both"),
    "kernel pair in single precision": lambda: nsd.kernel(
        RELU,
        X,
        X[:4],
        dtype=np.float32,
        convention="preactivation",
        kind="both",
    ),
    "layer-peeled optimum": lambda: layer_peeled([10, 10, 1, 1], budget=1.0),
    "law of a mixture": _mixture_law,
    "law of a kernel without linear part": lambda: nsd.limiting_spectrum(
        nsd.sphere_equivalent(
            nsd.ExplicitNetwork([nsd.activations.from_formula("x**2 - 1")]),
            X,
            convention="preactivation",
        )
    ),
    "match": _match,
    "match of all families": lambda: nsd.match(TANH, tau0=1.0),
    "match by power series": lambda: nsd.match(RELU, tau0=1.0, family="dual"),
    "Monte Carlo": lambda: nsd.monte_carlo(TANH, X[:3], width=20, draws=2, rng=0),
    "nearest mean": lambda: _metrics().mismatch(
        simplex_etf(3, 4, rng=0), simplex_etf(3, 4, rng=0), labels=[0, 1, 2]
    ),
    "nearest simplex": lambda: nearest_etf(X[:4]),
    "ridge path": lambda: ridge_path(K, X[:, 0], [0.1, 1.0]),
    "solution": lambda: solve(K, X[:, :2], ridge=0.1),
    "spectral density": lambda: spectral_density(K, probes=3, steps=10),
    "threshold": lambda: minority_collapse_threshold(num_majority=2, num_minority=2, budget=1.0),
}


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal in every bit, NaN included; unstored fields do not count."""
    if dataclasses.is_dataclass(a) and isinstance(a, Record):
        stored = [f for f in dataclasses.fields(a) if f.metadata.get("stored", True)]
        return type(a) is type(b) and all(
            same(getattr(a, field.name), getattr(b, field.name)) for field in stored
        )
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_comes_back_from_json(name: str) -> None:
    record = RECORDS[name]()
    text = json.dumps(record.to_dict(), allow_nan=False)
    back = type(record).from_dict(strict_json(text))
    assert same(record, back)
    assert str(back) == str(record)
    assert len(repr(record)) < 400
    assert repr(back) == repr(record)
    assert record._repr_html_().startswith("<table>")


def test_a_law_that_was_read_is_the_same_function() -> None:
    law = _mixture_law()
    assert isinstance(law, nsd.equivalents.LimitingSpectrum)
    back = type(law).from_dict(law.to_dict())
    x = np.linspace(-1.0, 5.0, 50)
    np.testing.assert_array_equal(back.density(x), law.density(x))
    np.testing.assert_array_equal(back.cdf(x), law.cdf(x))


def test_a_path_that_was_read_still_chooses_and_says_what_it_lacks() -> None:
    path = ridge_path(K, X[:, 0], [0.1, 1.0, 10.0])
    back = type(path).from_dict(path.to_dict())
    assert back.best() == path.best()
    with pytest.raises(InvalidInput, match=r"RidgePath holds its curves.*again with ridge_path"):
        back.coefficients(1.0)


def test_conditions_are_read_by_name_and_wrong_ones_are_named() -> None:
    form = nsd.conditions(TANH).to_dict()
    assert form["contraction"]["holds"] is True
    form["contraction"]["bund"] = form["contraction"].pop("bound")
    with pytest.raises(InvalidInput, match=r"keys of a Verdict. Got bund"):
        nsd.models.Conditions.from_dict(form)
    for wrong in ([1], {"contraction": 1.0}):
        with pytest.raises(InvalidInput, match="mapping from names"):
            nsd.models.Conditions.from_dict(wrong)


def test_a_record_draws_itself() -> None:
    _, (axes,) = nsd.plotting.new_figure()
    assert nsd.conditions(TANH).plot(axes) is axes
    assert axes.get_xlabel() == "value / bound"
    assert _match().plot(axes).get_title() == "activations"
