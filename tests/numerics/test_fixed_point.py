from __future__ import annotations

import numpy as np
import pytest

from notsodeep.errors import NotConverged
from notsodeep.numerics.fixed_point import solve_fixed_point


@pytest.mark.parametrize("slope", [0.0, 0.5, 0.99, -0.7, -3.0])
def test_linear_maps_are_solved(slope: float) -> None:
    solution = solve_fixed_point(lambda x: slope * x + 1.0, [0.0, 5.0])
    np.testing.assert_allclose(solution.value, 1.0 / (1.0 - slope), rtol=1e-12)
    assert solution.converged
    assert solution.residual <= 1e-13
    assert solution.steps < 50


def test_components_are_independent() -> None:
    a = np.array([0.1, 0.9, 0.5])
    together = solve_fixed_point(lambda x: a * np.tanh(x) + 0.3, np.zeros(3)).value
    for i, slope in enumerate(a):
        alone = solve_fixed_point(lambda x, s=slope: s * np.tanh(x) + 0.3, 0.0).value
        assert together[i] == pytest.approx(float(alone), rel=1e-13)
    np.testing.assert_allclose(together, a * np.tanh(together) + 0.3, rtol=1e-14)


def test_smallest_fixed_point_is_found_from_below() -> None:
    # x = x²/4 + 0.75 at 1 and 3.
    assert float(solve_fixed_point(lambda x: x**2 / 4 + 0.75, 0.0).value) == pytest.approx(1.0)


def test_no_fixed_point_is_reported_with_the_record() -> None:
    with pytest.raises(NotConverged, match="no fixed point") as error:
        solve_fixed_point(lambda x: x**2 + 1.0, 0.0, name="the thing")
    assert "the thing" in str(error.value)
    assert error.value.record.converged is False
    assert error.value.record.reason


def test_too_few_steps_is_not_silent() -> None:
    with pytest.raises(NotConverged, match="in 3 steps"):
        solve_fixed_point(np.cos, 0.0, max_steps=3)


def test_fixed_point_at_zero() -> None:
    solution = solve_fixed_point(lambda x: 0.5 * x, 1.0)
    assert abs(float(solution.value)) < 1e-200
