"""Scalings of images, and the factor at which a gap is the paper's."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.kernels.image_scalings import EXPERIMENT, SCALINGS, _scaled, factor_for


def test_scalings_do_what_they_say() -> None:
    pixels = np.random.default_rng(0).uniform(0.0, 16.0, (20, 9))
    pixels[0, 0] = 16.0
    for scaling in SCALINGS:
        X = _scaled(pixels, scaling)
        norms = np.linalg.norm(X, axis=1)
        assert (np.abs(X.mean(axis=0)).max() < 1e-12) == ("mean removed" in scaling)
        if "root mean squared" in scaling:
            assert np.square(norms).mean() == pytest.approx(1.0)
        if scaling == "every norm 1":
            np.testing.assert_allclose(norms, 1.0)
        if scaling == "values in [0, 1] over √p":
            assert X.max() == pytest.approx(1.0 / 3.0)


def test_multiples_have_the_gap_of_tanh_alone() -> None:
    first, *_ = EXPERIMENT.cells("smoke")
    base = EXPERIMENT.compute(first, 0)
    assert base["mean_squared_norm"] == pytest.approx(1.0)
    other = EXPERIMENT.compute({**first, "factor": 0.5}, 0)
    assert "matched" not in other
    assert set(base["matched"]) == {
        f"{convention}, {layers} layers"
        for convention in ("preactivation", "feature")
        for layers in (1, 2)
    }


def test_the_factor_is_interpolated() -> None:
    records = [
        {"cell": {"scaling": SCALINGS[0], "factor": s}, "equivalent": {"gap": 4.0 * s**3}}
        for s in (0.5, 1.0, 2.0)
    ]
    assert factor_for(records, 4.0 * 0.7**3) == pytest.approx([0.7])
    assert factor_for(records, 100.0) == []
