"""A solve that is interrupted, and goes on as if it had not been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from notsodeep.errors import (
    DataCorrupted,
    InvalidInput,
    LockTimeout,
    NotConverged,
    NotWritable,
)
from notsodeep.files import exclusive_lock
from notsodeep.kernel_solvers import solve
from problems import positive_matrix

RIDGE = 1e-3
K = positive_matrix(200)
B = np.random.default_rng(1).normal(size=(200, 4))
NEAR = aslinearoperator(np.linalg.inv(K + 0.05 * np.eye(200)))


class Interrupted(LinearOperator):
    """K, until someone presses Ctrl-C in the middle of a product."""

    def __init__(self, products: int) -> None:
        self.left = products
        super().__init__(np.float64, K.shape)

    def _matmat(self, V: np.ndarray) -> np.ndarray:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return np.asarray(K @ V)

    def _matvec(self, v: np.ndarray) -> np.ndarray:
        return self._matmat(v)


@pytest.mark.parametrize("preconditioner", [None, NEAR], ids=["plain", "preconditioned"])
def test_ctrl_c_and_resume(tmp_path: Path, preconditioner: LinearOperator | None) -> None:
    whole = solve(K, B, RIDGE, preconditioner=preconditioner)
    for products in (3, 5, 2):
        with pytest.raises(KeyboardInterrupt):
            solve(
                Interrupted(products), B, RIDGE,
                preconditioner=preconditioner, checkpoint=tmp_path / "state",
            )  # fmt: skip
    resumed = solve(K, B, RIDGE, preconditioner=preconditioner, checkpoint=tmp_path / "state")
    assert resumed.steps == whole.steps
    np.testing.assert_allclose(resumed.x, whole.x, rtol=0.0, atol=1e-12 * np.abs(whole.x).max())
    np.testing.assert_allclose(resumed.residuals, whole.residuals, rtol=1e-6)
    # One product is for the fingerprint of the operator, and steps are not done twice.
    steps = json.loads((tmp_path / "state/manifest.json").read_text())["facts"]["steps"]
    assert steps == whole.steps
    # One state, its manifest and the lock: nothing piles up.
    assert len(list((tmp_path / "state").iterdir())) == 3


def test_more_steps_after_too_few(tmp_path: Path) -> None:
    whole = solve(K, B, RIDGE)
    with pytest.raises(NotConverged):
        solve(K, B, RIDGE, max_steps=5, checkpoint=tmp_path)
    assert np.array_equal(solve(K, B, RIDGE, checkpoint=tmp_path).x, whole.x)
    finished = solve(K, B, RIDGE, checkpoint=tmp_path)
    assert np.array_equal(finished.x, whole.x)
    sharper = solve(K, B, RIDGE, tolerance=1e-10, checkpoint=tmp_path)
    assert sharper.residual.max() <= 1e-10


SCRIPT = """
import sys, time
import numpy as np
from problems import positive_matrix
from scipy.sparse.linalg import LinearOperator
from notsodeep.kernel_solvers import solve

K = positive_matrix(200)
B = np.random.default_rng(1).normal(size=(200, 4))

def slowly(V):
    time.sleep(0.02)
    return K @ V

A = LinearOperator(K.shape, matvec=slowly, matmat=slowly, dtype=float)
solve(A, B, 1e-3, checkpoint=sys.argv[1], checkpoint_seconds=0.0)
"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="kill"),
        pytest.param(signal.SIGINT, id="ctrl-c", marks=pytest.mark.slow),
    ],
)
def test_a_killed_process_leaves_a_state_to_resume_from(tmp_path: Path, number: int) -> None:
    directory = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(directory)],
        cwd=Path(__file__).parents[1] / "support", stderr=subprocess.DEVNULL,
    )  # fmt: skip
    manifest = directory / "manifest.json"
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        if manifest.exists() and json.loads(manifest.read_bytes())["facts"]["steps"] >= 4:
            break
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(timeout=30.0) != 0
    steps = json.loads(manifest.read_bytes())["facts"]["steps"]
    whole = solve(K, B, RIDGE)
    assert 4 <= steps < whole.steps
    resumed = solve(K, B, RIDGE, checkpoint=directory)
    assert resumed.steps == whole.steps
    np.testing.assert_allclose(resumed.x, whole.x, rtol=0.0, atol=1e-8 * np.abs(whole.x).max())


def test_another_problem_is_refused(tmp_path: Path) -> None:
    solve(K, B, RIDGE, preconditioner=NEAR, checkpoint=tmp_path)
    changed = K.copy()
    changed[0, 0] += 1e-3
    for arguments, name in (
        ((changed, B, RIDGE), "operator"),
        ((K, 2.0 * B, RIDGE), "B"),
        ((K, B[:, :3], RIDGE), "B"),
        ((K, B, 2.0 * RIDGE), "ridge"),
        ((K[:150, :150], B[:150], RIDGE), "B, operator"),
    ):
        near = NEAR if len(arguments[1]) == 200 else None
        with pytest.raises(InvalidInput, match=f"belongs to another problem: other {name}"):
            solve(*arguments, preconditioner=near, checkpoint=tmp_path)
    with pytest.raises(InvalidInput, match="other preconditioner"):
        solve(K, B, RIDGE, checkpoint=tmp_path)


def test_a_damaged_state_is_a_named_error(tmp_path: Path) -> None:
    solve(K, B, RIDGE, checkpoint=tmp_path)
    (state,) = tmp_path.glob("state-*.safetensors")
    content = bytearray(state.read_bytes())
    content[-100] ^= 1
    state.write_bytes(content)
    with pytest.raises(DataCorrupted, match=r"is damaged: .* SHA-256 .* start again"):
        solve(K, B, RIDGE, checkpoint=tmp_path)
    state.unlink()
    with pytest.raises(DataCorrupted, match="is missing"):
        solve(K, B, RIDGE, checkpoint=tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataCorrupted, match="not a readable manifest"):
        solve(K, B, RIDGE, checkpoint=tmp_path)


def test_two_solves_do_not_share_a_directory(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path / "lock"), pytest.raises(LockTimeout, match="is still held by"):
        solve(K, B, RIDGE, checkpoint=tmp_path)


def test_directories_of_something_else(tmp_path: Path) -> None:
    content = {"version": 1, "kind": "image set", "sha256": {}, "facts": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match="checkpoint of solve must be a checkpoint of a solve"):
        solve(K, B, RIDGE, checkpoint=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable):
        solve(K, B, RIDGE, checkpoint=tmp_path / "file")
