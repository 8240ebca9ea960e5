"""The loop of an exported DEQ stops where torch's does, at every scale of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

import notsodeep as nsd

ROWS = np.random.default_rng(0).normal(size=(3, 6))
SCALES = (1e-36, 1e-30, 1e-25, 1e-23, 1e-20, 1e-10, 1.0, 1e10, 1e18, 1e20, 1e30, 1e37)
TOLERANCE = 1e-6

Loop = tuple[Any, onnxruntime.InferenceSession]


@pytest.fixture(scope="module", params=["tanh", "relu", "hard_tanh", "softplus"])
def loop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loop:
    path = Path(tmp_path_factory.mktemp("onnx")) / "net.onnx"
    net = nsd.build(nsd.DeepEquilibrium(request.param, 0.2), 6, 20, 3, rng=0).eval()
    nsd.export_onnx(net, path)
    return net, onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def exported(loop: Loop, rows: NDArray[Any]) -> tuple[NDArray[Any], float, int]:
    logits, residual, steps = loop[1].run(None, {"x": rows.astype(np.float32)})
    return logits, float(residual), int(steps)


def in_torch(loop: Loop, rows: NDArray[Any]) -> tuple[NDArray[Any], int]:
    with torch.no_grad():
        logits = loop[0](torch.as_tensor(rows.astype(np.float32))).numpy()
    return logits, loop[0].last_record.forward.steps


def errors_of_rows(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[Any]:
    gap, size = (np.abs(x.astype(np.float64)).max(axis=1) for x in (found - expected, expected))
    return np.asarray(np.divide(gap, size, where=size > 0.0, out=gap))


@pytest.mark.parametrize("scale", SCALES)
def test_one_scale(loop: Loop, scale: float) -> None:
    found, residual, steps = exported(loop, scale * ROWS)
    expected, wanted = in_torch(loop, scale * ROWS)
    assert errors_of_rows(found, expected).max() <= 10 * TOLERANCE
    assert residual <= TOLERANCE
    assert abs(steps - wanted) <= 1


def test_every_row_of_a_mixed_batch(loop: Loop) -> None:
    rows = np.concatenate([np.outer(SCALES, ROWS[0]), np.zeros((1, 6))])
    found, residual, steps = exported(loop, rows)
    expected, wanted = in_torch(loop, rows)
    assert errors_of_rows(found, expected).max() <= 10 * TOLERANCE
    assert residual <= TOLERANCE
    assert abs(steps - wanted) <= 1


@pytest.mark.parametrize("scale", [1e-45, 1e-44, 1e-42, 1e-40])
def test_denormal_rows_are_not_called_solved_where_they_are_not(loop: Loop, scale: float) -> None:
    net, _ = loop
    found, residual, _ = exported(loop, scale * ROWS)
    exact = nsd.build(net.description, 6, 20, 3, rng=0, dtype=torch.float64).eval()
    rows = torch.as_tensor((scale * ROWS).astype(np.float32), dtype=torch.float64)
    with torch.no_grad():
        expected = exact(rows).numpy()
    error = errors_of_rows(found, expected).max()
    assert residual > TOLERANCE or error <= 10 * TOLERANCE


@pytest.mark.parametrize("hole", [np.nan, np.inf, 3e38])
def test_a_row_that_is_not_finite_is_told_and_spoils_no_other(loop: Loop, hole: float) -> None:
    rows = ROWS.copy()
    rows[1] = hole
    found, residual, _ = exported(loop, rows)
    expected, _ = in_torch(loop, ROWS)
    assert residual == np.inf
    assert errors_of_rows(found, expected)[[0, 2]].max() <= 10 * TOLERANCE


def test_zeros_are_solved_at_once(loop: Loop) -> None:
    found, residual, steps = exported(loop, np.zeros((2, 6)))
    expected, wanted = in_torch(loop, np.zeros((2, 6)))
    assert steps == wanted
    assert residual <= TOLERANCE
    assert np.allclose(found, expected, rtol=1e-5, atol=0.0)
