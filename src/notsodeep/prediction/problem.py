"""A learning problem as the theory sees it: classes, class sizes, targets, noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.prediction.classes import Classes

_RATIO = 1e4  # samples per dimension, or dimensions per sample, that the equations were tried with


@dataclass(frozen=True, eq=False)
class Problem:
    """Training samples of a mixture, and what is fitted to them.

    Attributes
    ----------
    classes : Classes
    counts : ndarray of shape (K,)
        n_a, as floats.
    targets : ndarray of shape (K, k)
        U_a, the right answer for class a.
    flips : ndarray of shape (K, K)
        Probability that a training sample of class a carries the label b; the identity without
        label noise.
    noise : float
        Standard deviation of Gaussian noise on training targets.
    test_weights : ndarray of shape (K,)
        Class shares of new samples.
    owner : str
        The public function that errors name.
    """

    classes: Classes
    counts: FloatArray
    targets: FloatArray
    flips: FloatArray
    noise: float
    test_weights: FloatArray
    owner: str

    @classmethod
    def checked(
        cls,
        mixture: object,
        counts: object,
        targets: object = None,
        *,
        noise: object = 0.0,
        flips: object = 0.0,
        test_weights: object = None,
        owner: str,
    ) -> Problem:
        """Check everything a user may have got wrong."""
        classes = Classes.of(mixture, owner)
        sizes = _class_counts(counts, classes, owner)
        weights = sizes / sizes.sum()
        if test_weights is not None:
            weights = _probabilities(test_weights, classes.count, owner)
        level = checks.finite_number(noise, "noise", owner)
        if level < 0.0:
            raise checks.invalid("noise", owner, "not be negative", level)
        return cls(
            classes,
            sizes,
            _class_targets(targets, classes.count, owner),
            _flip_table(flips, classes.count, owner),
            level,
            weights,
            owner,
        )

    @property
    def shares(self) -> FloatArray:
        """n_a/n."""
        return np.asarray(self.counts / self.counts.sum())

    @property
    def outputs(self) -> int:
        """Number of target columns k."""
        return int(self.targets.shape[1])

    @property
    def given(self) -> FloatArray:
        """Mean target that training samples of each class carry, shape (K, k)."""
        return np.asarray(self.flips @ self.targets)

    @property
    def noise_covariance(self) -> FloatArray:
        """Covariance of the targets of training samples of each class, shape (K, k, k)."""
        second = np.einsum("ab,bk,bl->akl", self.flips, self.targets, self.targets)
        first = self.given
        return np.asarray(
            second - first[:, :, None] * first[:, None, :] + self.noise**2 * np.eye(self.outputs)
        )


def usual_targets(K: int) -> FloatArray:
    """Return (−1, 1) for two classes, one-hot − 1/K for more; shape (K, k)."""
    return np.array([[-1.0], [1.0]]) if K == 2 else np.eye(K) - 1.0 / K


def _class_counts(counts: object, classes: Classes, owner: str) -> FloatArray:
    array = checks.real_array(counts, "counts", owner)
    if array.shape != (classes.count,):
        requirement = f"hold one number of training samples for each of the {classes.count} classes"
        raise checks.invalid("counts", owner, requirement, f"shape {array.shape}")
    if (array < 1.0).any() or (array != np.rint(array)).any():
        raise checks.invalid("counts", owner, "be integers of at least 1", array.tolist())
    ratio = float(array.sum()) / classes.dimension
    if not 1.0 / _RATIO <= ratio <= _RATIO:
        requirement = f"make n/p lie between {1.0 / _RATIO:g} and {_RATIO:g}"
        got = f"n/p = {ratio:.3g}"
        raise checks.invalid(
            "counts", owner, requirement, got, "The theory is about n and p of one size."
        )
    return array


def _class_targets(targets: object, K: int, owner: str) -> FloatArray:
    if targets is None:
        return usual_targets(K)
    array = checks.real_array(targets, "targets", owner)
    if array.ndim not in (1, 2) or len(array) != K or 0 in array.shape:
        requirement = f"hold one target, a number or a row, for each of the {K} classes"
        raise checks.invalid("targets", owner, requirement, f"shape {array.shape}")
    array = array.reshape(K, -1)
    if (array == array[0]).all():
        got = f"{array[0].tolist()} for every class"
        raise checks.invalid("targets", owner, "differ between classes", got)
    return array


def _flip_table(flips: object, K: int, owner: str) -> FloatArray:
    array = checks.real_array(flips, "flips", owner)
    if array.ndim == 0:
        if not 0.0 <= float(array) < 1.0:
            raise checks.invalid("flips", owner, "be a probability below 1", float(array))
        off = np.full((K, K), float(array) / (K - 1))
        return off + (1.0 - float(array) - float(array) / (K - 1)) * np.eye(K)
    if array.shape != (K, K) or (array < 0.0).any() or np.abs(array.sum(axis=1) - 1.0).max() > 1e-8:
        requirement = f"be a probability, or a ({K}, {K}) matrix of rows that sum to 1"
        raise checks.invalid("flips", owner, requirement, f"shape {array.shape}")
    return array


def _probabilities(weights: object, K: int, owner: str) -> FloatArray:
    array = checks.real_array(weights, "test_weights", owner)
    if array.shape != (K,) or (array < 0.0).any() or abs(array.sum() - 1.0) > 1e-8:
        requirement = f"be {K} class shares of new samples that sum to 1"
        raise checks.invalid("test_weights", owner, requirement, array.tolist())
    return array
