"""Other people's numbers: Gaussian processes of DEQs, and variability of their kernels."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.kernels.gaussian_process_limit import _distance, _features
from experiments.kernels.kernel_variability import EXPERIMENT, activation_ratio, lowest_ratio
from notsodeep.errors import NotConverged
from notsodeep.models import DeepEquilibrium, Dense
from notsodeep.networks.sampling import random_network


def test_weights_drawn_where_they_are_looked_at_have_the_law_of_whole_matrices() -> None:
    rng = np.random.default_rng(0)
    X, layer = np.array([[1.0, 0.0], [0.6, 0.8]]), Dense("tanh", 0.36, inject=1.0)
    model = DeepEquilibrium(cell=[layer])
    drawn = [random_network(model, 2, 60, rng).features(X) for _ in range(400)]
    whole = np.stack([Z @ Z.T for Z in drawn])
    parts = np.stack([Z @ Z.T for Z in (_features(layer, X, 60, 1e-5, rng) for _ in range(400))])
    error = np.sqrt((whole.var(axis=0) + parts.var(axis=0)) / 400)
    assert (np.abs(whole.mean(axis=0) - parts.mean(axis=0)) < 4.0 * error).all()
    # The spread, which is that of finite width, agrees too.
    np.testing.assert_allclose(parts.std(axis=0), whole.std(axis=0), rtol=0.2)
    with pytest.raises(NotConverged, match="larger width"):
        _features(layer, X, 10, 1e-6, rng)


def test_distance_of_a_known_sample() -> None:
    # Two points at the median: the step from 0 to 1 is half a unit away from the law.
    assert _distance(np.zeros(2)) == pytest.approx(0.5)


def test_variability_on_gaussian_classes() -> None:
    cells = [c for c in EXPERIMENT.cells("smoke") if c["dimension"] == 8]
    for cell in cells:
        record = {"cell": cell, **EXPERIMENT.compute(cell, 0)}
        for name in ("relu", "erf"):
            assert lowest_ratio(record, name) > 0.9
        assert activation_ratio(record, "conjugate") < 1.0
