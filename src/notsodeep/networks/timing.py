"""What a DEQ costs against an explicit network: both in one run, on the same rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import NotConverged
from notsodeep.networks.equilibrium_solvers import SOLVERS, as_solver
from notsodeep.networks.gradient_choices import as_gradient
from notsodeep.networks.modules import ExplicitModule, FeatureNetwork, ImplicitNetwork
from notsodeep.networks.readout import tensor_rows
from notsodeep.numerics.paired_times import FrontPoint, Timing, TimingTable, seconds, time_beside

_FAR_BEHIND = 2.0  # times as slow as the fastest solver
_TRIALS = 2  # further runs of the solvers that are not


def time_against(
    deq: ImplicitNetwork,
    explicit: ExplicitModule,
    X: Any,
    *,
    tolerance: float | None = None,
    training: bool = True,
    repeats: int = 9,
) -> TimingTable:
    """Measure a DEQ and an explicit network beside each other, on one batch.

    Every repeat times one call of each, in turn first and second, so that a busy moment of the
    machine hits both.  The DEQ gets its fastest solver, found by trial for each kind of work.  The
    weights of both stay as they are: the training step's SGD update is made at rate zero.

    Parameters
    ----------
    deq : ImplicitNetwork
    explicit : ExplicitModule
        Of the same width, inputs, outputs, dtype and `trainable`.
    X : array_like or Tensor of shape (batch, p)
    tolerance : float, optional
        Of the DEQ; its solver's by default.
    training : bool
        Measure a training step too.
    repeats : int, default 9

    Returns
    -------
    TimingTable
        Printing it gives two lines of numbers.

    Raises
    ------
    NotConverged
        No solver reaches the tolerance.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 8, 64, 2, rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["hard_tanh"]), 8, 64, 2, rng=0)
    >>> table = time_against(deq, net, np.ones((16, 8)), repeats=3)
    >>> table.inference.steps > 5, table.training_step.ratio > 0
    (True, True)
    """
    owner = "time_against"
    for name in ("in_features", "width", "out_features", "trainable"):
        _same_setting(name, getattr(deq, name), getattr(explicit, name), owner)
    _same_setting("dtype", deq.readout.dtype, explicit.readout.dtype, owner)
    checks.positive_integer(repeats, "repeats", owner)
    rows = tensor_rows(X, deq, owner)
    variants = {name: _variant(deq, name, tolerance) for name in SOLVERS}
    rival = copy.deepcopy(explicit)
    first = next(iter(variants.values()))
    return TimingTable(
        str(deq.description),
        str(explicit.description),
        len(rows),
        deq.in_features,
        deq.width,
        deq.trainable,
        first.solver.tolerance_for(rows.dtype),
        str(rows.dtype).removeprefix("torch."),
        torch.get_num_threads(),
        repeats,
        _compare(variants, rival, rows, _inference, repeats),
        _compare(variants, rival, rows, _training_step, repeats) if training else None,
    )


def tolerance_front(
    deq: ImplicitNetwork,
    explicit: ExplicitModule,
    X: Any,
    y: Any,
    tolerances: Sequence[float],
    *,
    batch: int = 256,
    repeats: int = 9,
) -> list[FrontPoint]:
    """Measure a trained DEQ at several tolerances, beside an explicit network.

    Parameters
    ----------
    deq : ImplicitNetwork
    explicit : ExplicitModule
        Of the same width, inputs, outputs, dtype and `trainable`.
    X, y : array_like of shape (n, p) and (n,)
        Test rows and their classes; the first `batch` rows are timed.
    tolerances : sequence of float
    batch, repeats : int

    Examples
    --------
    >>> import notsodeep as nsd
    >>> deq = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 8, 64, 2, rng=0)
    >>> net = nsd.build(nsd.ExplicitNetwork(["hard_tanh"]), 8, 64, 2, rng=0)
    >>> X, y = np.random.default_rng(0).normal(size=(16, 8)), np.arange(16) % 2
    >>> loose, strict = tolerance_front(deq, net, X, y, (1e-1, 1e-5), repeats=3)
    >>> loose.inference.steps < strict.inference.steps
    True
    """
    rows = tensor_rows(X, deq, "tolerance_front")
    labels = torch.as_tensor(np.asarray(y))
    points = []
    for tolerance in tolerances:
        table = time_against(
            deq, explicit, rows[:batch], tolerance=tolerance, training=False, repeats=repeats
        )
        variant = _variant(deq, table.inference.solver, tolerance).eval()
        with torch.no_grad():
            guesses = torch.cat([variant(part).argmax(dim=1) for part in torch.split(rows, 1024)])
        accuracy = float((guesses == labels).double().mean())
        points.append(FrontPoint(tolerance, accuracy, table.inference))
    return points


def _variant(deq: ImplicitNetwork, solver: str, tolerance: float | None) -> ImplicitNetwork:
    """Return the same DEQ, on the same memory, with another solver."""
    form = {
        "name": solver,
        "tolerance": deq.solver.tolerance if tolerance is None else tolerance,
        "max_steps": deq.solver.max_steps,
    }
    variant = copy.copy(deq)
    # Parameters of its own: gradients stay with the variant.
    variant._parameters = {
        name: None if p is None else nn.Parameter(p.detach(), p.requires_grad)
        for name, p in deq._parameters.items()
    }
    variant.solver = as_solver(form)
    if (gradient := deq.gradient.to_dict())["name"] == "implicit":
        variant.gradient = as_gradient({**gradient, "solver": form})
    variant.on_failure = "raise"
    return variant


Work = Callable[[FeatureNetwork, Tensor], Callable[[], None]]
"""Makes a function that does one piece of the work, from a module and rows."""


def _inference(module: FeatureNetwork, rows: Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        module.eval()(rows)

    return run


def _training_step(module: FeatureNetwork, rows: Tensor) -> Callable[[], None]:
    labels = torch.arange(len(rows), device=rows.device) % module.out_features
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(parameters, lr=0.0)

    def run() -> None:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module.train()(rows), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return run


def _compare(
    variants: dict[str, ImplicitNetwork],
    explicit: ExplicitModule,
    rows: Tensor,
    work: Work,
    repeats: int,
) -> Timing:
    name, run_deq = _fastest({k: work(v, rows) for k, v in variants.items()})
    run_explicit = work(explicit, rows)
    run_explicit()
    record = variants[name].last_record
    assert record is not None
    assert record.forward is not None
    backward = sum(solve.steps for solve in record.derivatives)
    return time_beside(run_deq, run_explicit, repeats, name, record.forward.steps, backward)


def _fastest(runs: dict[str, Callable[[], None]]) -> tuple[str, Callable[[], None]]:
    """Return the solver with the shortest run, among those that reach the tolerance."""
    times: dict[str, float] = {}
    failure: NotConverged | None = None
    for name, run in runs.items():
        try:
            times[name] = seconds(run)
        except NotConverged as error:
            failure = error
    if not times and failure is not None:
        raise failure
    # One run tells who is far behind; the others meet again, in turn.
    near = [name for name in times if times[name] < _FAR_BEHIND * min(times.values())]
    for _ in range(_TRIALS if len(near) > 1 else 0):
        for name in near:
            times[name] = min(times[name], seconds(runs[name]))
    best = min(times, key=times.__getitem__)
    return best, runs[best]


def _same_setting(name: str, deq: object, explicit: object, owner: str) -> None:
    """Require two networks that can be compared."""
    if deq != explicit:
        requirement = f"be the same for both networks in {name}"
        raise checks.invalid("deq and explicit", owner, requirement, f"{deq} and {explicit}")
