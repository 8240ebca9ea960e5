"""The state of a solve on disk: complete or absent, whatever kills the writer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse.linalg import LinearOperator

from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.files import sha256_of_array
from notsodeep.files.stored_states import read_state, write_state
from notsodeep.kernel_solvers.block_cg import BlockState

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
        found = read_state(directory, _KIND, "solve")
        if found is None:
            return None
        from safetensors.numpy import load_file

        arrays, facts = load_file(found.path), found.facts
        stored = Problem(
            str(facts["B"]), float(facts["ridge"]), arrays["image"], arrays["preconditioned"]
        )
        _same_problem(stored.differences(self._problem), directory)
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
        from safetensors.numpy import save

        problem = self._problem
        arrays = {name: getattr(progress.state, name) for name in _STATE}
        arrays |= {
            "history": progress.history,
            "image": problem.image,
            "preconditioned": problem.preconditioned,
        }
        content = save({k: np.ascontiguousarray(v) for k, v in arrays.items()})
        facts = {"B": problem.right, "ridge": problem.ridge, "steps": progress.steps}
        write_state(self._directory, _KIND, content, facts)
        self._written = time.monotonic()


def _same_problem(differing: Mapping[str, bool], directory: Path) -> None:
    """Require that nothing differs between a checkpoint and the solve that resumes."""
    names = [name for name, differs in differing.items() if differs]
    if names:
        raise InvalidInput(
            f"The checkpoint in {directory} belongs to another problem: other {', '.join(names)}. "
            "Resume with the same operator, B, ridge and preconditioner, or choose another "
            "directory."
        )
