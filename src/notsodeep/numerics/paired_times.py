"""What a DEQ costs against an explicit network, each call timed beside one of the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Timing:
    """One kind of work.

    Attributes
    ----------
    deq_seconds, explicit_seconds : float
        Medians over the repeats.
    ratio : float
        Median over the repeats of (DEQ's time)/(explicit network's time right beside it).
    quartiles : tuple of float
        The middle half of these ratios lies between them.
    ratio_of_fastest : float
        Ratio of the fastest calls; far from `ratio` if the machine had other work.
    solver : str
        The DEQ's fastest solver for this work.
    steps, backward_steps : int
        Evaluations of the map, for the features and for the gradient.
    """

    deq_seconds: float
    explicit_seconds: float
    ratio: float
    quartiles: tuple[float, float]
    ratio_of_fastest: float
    solver: str
    steps: int
    backward_steps: int


@dataclass(frozen=True)
class TimingTable:
    """A DEQ against an explicit network of the same width.

    Attributes
    ----------
    deq, explicit : str
        The models.
    batch, in_features, width : int
    trainable : str
        What the training step trains, "all" or "readout".
    tolerance : float
        Relative, of the DEQ's fixed point and of its gradient.
    dtype : str
    threads, repeats : int
    inference, training_step : Timing
        Outputs without gradients; outputs, cross entropy, gradients and SGD update, None if that
        was not measured.
    library : {"torch", "numpy"}
        What computed both.
    """

    deq: str
    explicit: str
    batch: int
    in_features: int
    width: int
    trainable: str
    tolerance: float
    dtype: str
    threads: int
    repeats: int
    inference: Timing
    training_step: Timing | None
    library: str = "torch"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.deq} against {self.explicit}: width {self.width}, batch {self.batch}, "
            f"p = {self.in_features}, {self.dtype}, {self.threads} threads, {self.library}",
            f"tolerance {self.tolerance:g}, trainable: {self.trainable}, median of {self.repeats}",
        ]
        for name, row in (("inference", self.inference), ("training step", self.training_step)):
            if row is None:
                continue
            low, high = row.quartiles
            steps = f"{row.steps} + {row.backward_steps}" if row.backward_steps else f"{row.steps}"
            lines.append(
                f"{name:<14} {1e3 * row.deq_seconds:9.3f} ms {1e3 * row.explicit_seconds:9.3f} ms  "
                f"{row.ratio:6.1f} × ({low:.1f} to {high:.1f}), {row.solver}, {steps} steps"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class FrontPoint:
    """A DEQ at one tolerance: what it costs, and how accurate it is.

    Attributes
    ----------
    tolerance : float
        Relative, of the fixed point.
    accuracy : float
        Share of the test rows that it gets right.
    inference : Timing
    """

    tolerance: float
    accuracy: float
    inference: Timing


def time_beside(
    run_deq: Callable[[], None],
    run_explicit: Callable[[], None],
    repeats: int,
    solver: str,
    steps: int,
    backward_steps: int = 0,
) -> Timing:
    """Time two functions, one call of each in every repeat, in turn first and second.

    A busy moment of the machine hits both.

    Examples
    --------
    >>> timing = time_beside(lambda: sum(range(9999)), lambda: sum(range(9)), 3, "none", 1)
    >>> timing.ratio > 1.0
    True
    """
    pairs = []
    for repeat in range(repeats):
        first, second = (run_explicit, run_deq) if repeat % 2 else (run_deq, run_explicit)
        pair = seconds(first), seconds(second)
        pairs.append(pair[::-1] if repeat % 2 else pair)
    deq_times, explicit_times = (np.array(times) for times in zip(*pairs, strict=True))
    ratios = deq_times / explicit_times
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return Timing(
        float(np.median(deq_times)),
        float(np.median(explicit_times)),
        middle,
        (low, high),
        float(deq_times.min() / explicit_times.min()),
        solver,
        steps,
        backward_steps,
    )


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
