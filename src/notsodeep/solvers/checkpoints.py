"""The state of a solve on disk: complete or absent, whatever kills the writer.

A checkpoint directory holds one ``state-….safetensors`` and a manifest with its SHA-256 and what
identifies the problem.  A new state gets a new name; the manifest, replaced atomically, is the
switch from the old one to it, and only then the old one is removed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy
from scipy.sparse.linalg import LinearOperator

from notsodeep.checks import FloatArray, solvers
from notsodeep.execution import Manifest, atomic_write, sha256_of_array, sha256_of_bytes
from notsodeep.solvers.block_cg import BlockState

_KIND = "checkpoint of a solve"
_AGREEMENT = 1e-8  # of two products with the same vector: another BLAS adds up in another order
_STATE = ("x", "basis", "coefficients", "directions")


@dataclass(frozen=True, eq=False)
class Problem:
    """What tells one system from another.

    Matrices are known by their product with one fixed vector.

    Attributes
    ----------
    right : str
        SHA-256 of B.
    ridge : float
    image : ndarray of shape (n,)
        K v.
    preconditioned : ndarray of shape (n,)
        P v; v itself without a preconditioner.
    """

    right: str
    ridge: float
    image: FloatArray
    preconditioned: FloatArray

    @classmethod
    def of(
        cls, matrix: LinearOperator, B: FloatArray, ridge: float, near: LinearOperator | None
    ) -> Problem:
        """Describe (K + λI) x = B with a preconditioner; costs one product with K."""
        probe = np.random.default_rng(0).standard_normal(len(B))
        preconditioned = probe if near is None else np.asarray(near @ probe)
        return cls(sha256_of_array(B), ridge, np.asarray(matrix @ probe), preconditioned)

    def differences(self, other: Problem) -> dict[str, bool]:
        """Say of each part of the problem whether it is another one."""
        return {
            "B": self.right != other.right,
            "ridge": self.ridge != other.ridge,
            "operator": not _agree(self.image, other.image),
            "preconditioner": not _agree(self.preconditioned, other.preconditioned),
        }


def _agree(one: FloatArray, two: FloatArray) -> bool:
    if one.shape != two.shape:
        return False
    return bool(np.linalg.norm(one - two) <= _AGREEMENT * np.linalg.norm(one))


@dataclass(frozen=True, eq=False)
class Progress:
    """How far a solve has come.

    Attributes
    ----------
    state : BlockState
    history : ndarray of shape (steps + 1, k)
        Relative residuals so far.
    """

    state: BlockState
    history: FloatArray

    @property
    def steps(self) -> int:
        """Steps taken."""
        return len(self.history) - 1


class SolveCheckpoints:
    """The checkpoint of one problem in one directory.

    Parameters
    ----------
    directory : Path
    problem : Problem
    seconds : float
        Time between two states, unless one must be written now.
    """

    def __init__(self, directory: Path, problem: Problem, seconds: float) -> None:
        self._directory, self._problem, self._seconds = directory, problem, seconds
        self._written = time.monotonic()

    def read(self) -> Progress | None:
        """Return the state in the directory; None if there is none.

        Raises
        ------
        DataCorrupted
            A file is not what was written.
        InvalidInput
            The directory holds something else, or the checkpoint of another problem.
        """
        directory = self._directory
        manifest = Manifest.read(directory)
        if manifest is None:
            return None
        solvers.own_checkpoint(manifest.kind, _KIND, directory)
        solvers.intact_checkpoint(manifest.problems(directory), directory)
        arrays: dict[str, FloatArray] = {}
        for name in manifest.sha256:
            arrays |= safetensors.numpy.load_file(directory / name)
        facts = manifest.facts
        stored = Problem(
            str(facts["B"]), float(facts["ridge"]), arrays["image"], arrays["preconditioned"]
        )
        solvers.same_problem(stored.differences(self._problem), directory)
        state = BlockState(**{name: arrays[name] for name in _STATE})
        return Progress(state, arrays["history"])

    def write(self, progress: Progress, *, now: bool) -> None:
        """Make this the stored state, if it is time or must be `now`.

        Raises
        ------
        NotWritable
            The directory cannot be written or the disk is full; the older state is still there.
        """
        if not now and time.monotonic() - self._written < self._seconds:
            return
        problem, directory = self._problem, self._directory
        arrays = {name: getattr(progress.state, name) for name in _STATE}
        arrays |= {
            "history": progress.history,
            "image": problem.image,
            "preconditioned": problem.preconditioned,
        }
        content = safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in arrays.items()})
        digest = sha256_of_bytes(content)
        name = f"state-{digest[:16]}.safetensors"
        with atomic_write(directory / name) as stream:
            stream.write(content)
        facts = {"B": problem.right, "ridge": problem.ridge, "steps": progress.steps}
        Manifest(_KIND, {name: digest}, facts).write(directory)
        # Older states, and what a killed writer left behind.
        for path in (*directory.glob("state-*.safetensors"), *directory.glob(".*.tmp")):
            if path.name != name:
                path.unlink(missing_ok=True)
        self._written = time.monotonic()
