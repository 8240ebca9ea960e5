"""What is predicted: a network and a learning problem, brought together; and what stops the fit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.equivalents import Coefficients
from notsodeep.equivalents import coefficients as coefficients_of
from notsodeep.errors import InvalidInput
from notsodeep.kernels import kernel as exact_kernel
from notsodeep.models import Convention, kernel_name
from notsodeep.prediction import filters
from notsodeep.prediction.problem import Problem
from notsodeep.prediction.resolvent import Ensemble
from notsodeep.prediction.tables import KernelTables, limit_tables, resolved_tables

TableName = Literal["resolved", "limit"]
FourNumbers = tuple[float, float, float, float]
Axis = Literal["ridge", "time"]

_RANGE = 1e12  # of the kernel's size over a ridge, or of a time times the size, either way


@dataclass(frozen=True, eq=False)
class Regularisation:
    """What stops the fit: ridges, or times of gradient flow or descent."""

    axis: Axis
    values: FloatArray
    rate: float | None = None
    momentum: float = 0.0

    def filters(self) -> list[filters.Filter]:
        """Return one filter for each value."""
        if self.axis == "ridge":
            return [filters.ridge(float(v)) for v in self.values]
        if self.rate is None:
            return [filters.gradient_flow(float(v)) for v in self.values]
        steps = np.rint(self.values / self.rate).astype(int)
        return [filters.gradient_descent(self.rate, int(k), momentum=self.momentum) for k in steps]


@dataclass(frozen=True, eq=False)
class Task:
    """A kernel in its tables, and what is to be learned with it.

    Attributes
    ----------
    problem : Problem
    model : object
        None if only coefficients are known.
    kernel, convention : str
    table_name : {"resolved", "limit"}
    tables : KernelTables
    """

    problem: Problem
    model: object
    kernel: str
    convention: str
    table_name: str
    tables: KernelTables

    @classmethod
    def of(
        cls,
        problem: Problem,
        model: object,
        *,
        kernel: str,
        convention: str,
        tables: str,
        coefficients: object = None,
    ) -> Task:
        """Check what is said of the network, and compute its tables."""
        owner = problem.owner
        kernel = kernel_name(kernel, f"kernel of {owner}")
        checks.known_name(convention, get_args(Convention), f"convention of {owner}")
        checks.known_name(tables, get_args(TableName), f"tables of {owner}")
        if coefficients is not None:
            four = _four_numbers(coefficients, owner)
            found = limit_tables(problem.classes, problem.shares, four)
            return cls(problem, model, kernel, convention, "limit", found)
        if model is None:
            raise InvalidInput(f"model of {owner} must be given, or the coefficients. Got neither.")
        found = _tables(model, problem, kernel, convention, tables)
        return cls(problem, model, kernel, convention, tables, found)

    def with_problem(self, problem: Problem) -> Task:
        """Return the same network for other class sizes."""
        tables = self.tables
        if self.table_name == "limit":  # it has the mean trace in it
            tables = _tables(self.model, problem, self.kernel, self.convention, "limit")
        return dataclasses.replace(self, problem=problem, tables=tables)

    @property
    def ensemble(self) -> Ensemble:
        """The resolvents of the kernel."""
        return Ensemble.of(self.problem.classes, self.tables, self.problem.counts)

    @property
    def size(self) -> float:
        """The diagonal of the kernel, without what class means and norms add."""
        linear = np.diag(self.tables.linear) * self.problem.classes.traces
        return float((self.tables.diagonal + linear).max())

    def values(self, given: object, axis: Axis) -> FloatArray:
        """Require ridges or times within the range that the equations are solved for."""
        array = np.atleast_1d(checks.real_array(given, axis, self.problem.owner))
        if array.ndim != 1 or not array.size or not (array > 0.0).all():
            requirement = "be a positive number or a list of them"
            raise checks.invalid(axis, self.problem.owner, requirement, array.tolist())
        shares = array / self.size if axis == "ridge" else array * self.size
        if shares.min() < 1.0 / _RANGE or shares.max() > _RANGE:
            unit = f"{self.size:.3g}" if axis == "ridge" else f"1/{self.size:.3g}"
            requirement = f"lie within a factor of {_RANGE:g} of {unit}, the size of the kernel"
            raise checks.invalid(axis, self.problem.owner, requirement, array.tolist())
        return array

    def regularisation(
        self, ridge: object, time: object, rate: object, momentum: object
    ) -> Regularisation:
        """Check what stops the fit."""
        owner = self.problem.owner
        if (ridge is None) == (time is None):
            got = "neither" if ridge is None else "both"
            raise InvalidInput(f"One of ridge and time must be given to {owner}. Got {got}.")
        if ridge is not None:
            if rate is not None or momentum != 0.0:
                raise checks.invalid("rate", owner, "come with time, not with a ridge", rate)
            return Regularisation("ridge", self.values(ridge, "ridge"))
        times = self.values(time, "time")
        beta = checks.finite_number(momentum, "momentum", owner)
        if not 0.0 <= beta < 1.0:
            raise checks.invalid("momentum", owner, "satisfy 0 ≤ momentum < 1", beta)
        if rate is None:
            if beta:
                raise checks.invalid("momentum", owner, "come with a rate", beta)
            return Regularisation("time", times)
        step = checks.positive_number(rate, "rate", owner)
        steps = times / step
        if (np.rint(steps) < 1).any() or (np.abs(steps - np.rint(steps)) > 1e-6 * steps).any():
            requirement = f"be whole numbers of steps of the rate {step:g}"
            raise checks.invalid("time", owner, requirement, times.tolist())
        limit = 2.0 * (1.0 + beta) / self._largest_eigenvalue()
        if step > limit:
            requirement = (
                f"be at most {limit:.3g}, 2(1 + momentum) over a bound on the kernel's norm"
            )
            remedy = "With a larger rate gradient descent may diverge."
            raise checks.invalid("rate", owner, requirement, step, remedy)
        return Regularisation("time", times, step, beta)

    def readout_width(self, width: object, stop: Regularisation) -> int:
        """Require a width that the law of trained read-outs is about."""
        owner = self.problem.owner
        m = checks.positive_integer(width, "width", owner)
        if stop.axis != "ridge":
            raise checks.invalid("width", owner, "come with a ridge", f"width = {m} and a time")
        if self.kernel != "conjugate" or self.convention != "feature":
            requirement = "come with the conjugate kernel in the feature convention, of a read-out"
            got = f"the {self.kernel} kernel, {self.convention}"
            raise checks.invalid("width", owner, requirement, got)
        return m

    def _largest_eigenvalue(self) -> float:
        """Bound the norm of the kernel: its bulk and its class means together."""
        classes, tables, counts = self.problem.classes, self.tables, self.problem.counts
        ratio = counts.sum() / classes.dimension
        top = float((np.diag(tables.linear) * classes.values.max(axis=0)).max())
        bulk = top * (1.0 + np.sqrt(ratio)) ** 2 + float(tables.diagonal.max())
        bulk += float((np.diag(tables.quadratic) * classes.traces**2).max())
        blocks = (tables.constant + tables.linear * classes.mean_products) / classes.dimension
        root = np.sqrt(counts)
        return float(bulk) + max(0.0, float(np.linalg.eigvalsh(root[:, None] * blocks * root)[-1]))


def _tables(
    model: object, problem: Problem, kernel: str, convention: str, name: str
) -> KernelTables:
    classes = problem.classes
    if name == "limit":
        choice: Any = {"kernel": kernel, "convention": convention}
        found = coefficients_of(model, classes.scale(problem.shares), **choice)  # type: ignore[arg-type]
        return limit_tables(classes, problem.shares, found.four)
    if hasattr(model, "image_shape"):
        requirement = "have a kernel of norms and inner products alone"
        got = f"{model}, which looks at pixels one by one"
        raise checks.invalid("model", problem.owner, requirement, got, "Use a pilot of the data.")

    def function(X: FloatArray, Y: FloatArray | None) -> FloatArray:
        choice: Any = {"kind": kernel, "convention": convention}
        return np.asarray(exact_kernel(model, X, Y, **choice))  # type: ignore[arg-type]

    return resolved_tables(function, classes, problem.owner)


def _four_numbers(given: object, owner: str) -> FourNumbers:
    numbers = given.four if isinstance(given, Coefficients) else given
    array = checks.real_array(numbers, "coefficients", owner)
    if array.shape != (4,) or not array[0] > 0.0 or not array[3] > 0.0:
        requirement = "be the numbers (linear, norm_fluctuation, covariance_overlap, scale2)"
        raise checks.invalid("coefficients", owner, requirement, array.tolist())
    a, bend, overlap, scale2 = map(float, array)
    return a, bend, overlap, scale2
