"""Exact answers, early: explicit layers, a certificate after each, and the solver afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.networks.affine import AffineDEQ, Resolvent
from notsodeep.networks.cell import MAX_STEPS, Method
from notsodeep.records import Record
from notsodeep.trained.certificate import Certified, Certifier, row_norms
from notsodeep.trained.layers import Layer
from notsodeep.trained.margin import Margin, margin_of

_LEAST_SHARE = 0.05  # of the rows, that a check has to prove


@dataclass(frozen=True, repr=False)
class HybridRecord(Record):
    """What happened to the rows of one batch."""

    rows: int
    certified_after: tuple[float, ...]  # share of the rows proved after each layer, cumulative
    steps: NDArray[np.int64]  # of the solver, for every row; zero for those that layers proved
    uncertified: int  # rows that converged to the tolerance without a proof: near-ties

    @property
    def mean_steps(self) -> float:
        """Solver steps per row."""
        return float(self.steps.mean()) if self.rows else 0.0


class HybridEquilibrium(nn.Module):
    """A module whose every answer is the DEQ's own class, proved or solved to the tolerance.

    Rows go through the explicit layers; those whose class is certified leave; the others continue
    with the solver from where the layers have brought them, checked after every step, until they
    are certified or converged.  Batches shrink as rows leave.  All arithmetic is in float64 on the
    CPU, wherever the module is sent, since there the certificate is a proof.

    Parameters
    ----------
    cell : AffineDEQ
        With a read-out; a copy of it is kept.
    margin : Margin
    layers : sequence of Layer
        May be empty: the solver with the same early exit.
    method : Method
        Of the solver; a method with memory gives way to one without.
    tolerance : float
        Relative, of rows that cannot be certified.
    max_steps : int
    first_check : int
        The first layer after which rows are checked, counted from 1.

    Attributes
    ----------
    last_record : HybridRecord or None
        Of the last batch.
    """

    def __init__(
        self,
        cell: AffineDEQ,
        margin: Margin,
        layers: Sequence[Layer],
        method: Method,
        *,
        tolerance: float = 1e-10,
        max_steps: int = MAX_STEPS,
        first_check: int = 1,
    ) -> None:
        super().__init__()
        cell.require_readout()
        checks.positive_number(tolerance, "tolerance", "HybridEquilibrium")
        if any(len(layer.bias) != cell.width for layer in layers):
            raise InvalidInput(f"layers must have the DEQ's width, {cell.width}.")
        self.cell = copy.deepcopy(cell).double().requires_grad_(False)
        self.tolerance, self.max_steps = tolerance, max_steps
        self.first_check = min(first_check, max(len(layers), 1))
        self.method = _without_memory(method, margin)
        self._resolvents = [Resolvent(cell.activation, k.step, margin.beta) for k in layers]
        for k, layer in enumerate(layers):
            self.register_buffer(f"weight_{k}", torch.tensor(layer.weight))
            self.register_buffer(f"bias_{k}", torch.tensor(layer.bias))
        self.last_record: HybridRecord | None = None
        self._prepare(margin)
        # Bounds are those of the weights that the module has: they follow what is loaded.
        self.register_load_state_dict_post_hook(  # type: ignore[no-untyped-call]
            lambda module, keys: module._prepare(margin_of(module.cell))
        )

    def _prepare(self, margin: Margin) -> None:
        self.certifier = Certifier(self.cell, margin)
        self.splitting = self.cell.splitting(self.method)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Stay in float64 on the CPU."""
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return logits in float64, shape (n, K); their arg max is the DEQ's class.

        Raises
        ------
        NotConverged
            A row is neither certified nor solved after `max_steps`.
        """
        drive, sizes = self.certifier.rows(x.detach().cpu().double().numpy())
        assert self.cell.readout is not None
        batch = _Batch(drive, sizes, len(self.cell.readout))
        after = []
        states: list[Tensor] = []
        t = torch.zeros_like(drive)
        for k, resolvent in enumerate(self._resolvents):
            # The latest state first, as `Layer.weight` has its columns.
            inputs = torch.cat([batch.drive, *reversed(states)], dim=1) if states else batch.drive
            weight, bias = self.get_buffer(f"weight_{k}"), self.get_buffer(f"bias_{k}")
            t = resolvent.preimage(torch.addmm(bias, inputs, weight.mT))
            if k + 1 < self.first_check:
                states.append(resolvent.phi(t))
                after.append(0.0)
                continue
            certified = self.certifier.classes(t, batch.drive, batch.sizes)
            keep = batch.leave(certified, certified.proved, 0)
            states = [z[keep] for z in [*states, certified.states]]
            t = t[keep]
            after.append(1.0 - len(batch.open) / max(len(x), 1))
        uncertified = self._solve_others(batch, t)
        self.last_record = HybridRecord(len(x), tuple(after), batch.steps.numpy(), uncertified)
        return batch.scores.to(x.device)

    def _solve_others(self, batch: _Batch, t: Tensor) -> int:
        """Solve the rows that are left; return how many converged without a certificate."""
        maps = self.splitting
        s = maps.image(t)
        uncertified = 0
        for step in range(1, self.max_steps + 1):
            if not len(batch.open):
                return uncertified
            s = maps.advance(s, maps.phi(t), batch.drive)
            t = maps.preimage(s)
            certified = self.certifier.classes(t, batch.drive, batch.sizes)
            image = maps.phi(certified.preactivations)
            # Near-ties between two classes have no margin to prove, however precise the state.
            solved = row_norms(certified.states - image) <= self.tolerance * row_norms(image)
            uncertified += int((solved & ~certified.proved).sum())
            keep = batch.leave(certified, certified.proved | solved, step)
            s, t = s[keep], t[keep]
        if len(batch.open):
            raise NotConverged(
                f"{len(batch.open)} rows are neither certified nor solved to {self.tolerance:g} "
                f"after {self.max_steps} steps. Use a looser tolerance, or more steps."
            )
        return uncertified


def first_check(shares: Sequence[float | None]) -> int:
    """Return the first layer that proves more than 5 % of the rows, from 1; the last if none does.

    A check that proves next to nothing costs as much as one that proves everything.
    """
    worth = (k for k, share in enumerate(shares, 1) if (share or 0.0) > _LEAST_SHARE)
    return next(worth, len(shares))


def _without_memory(method: Method, margin: Margin) -> Method:
    """Return a method whose rows depend on no earlier steps, so that they can leave."""
    if method.name != "anderson":
        return method
    if margin.norm * margin.slopes.largest < 1.0 or not margin.slopes.monotone:
        return Method("plain", margin.beta)  # converges, and needs no resolvent
    return Method("peaceman_rachford", 2.0 / margin.lipschitz)


class _Batch:
    """Rows that are still open, and the answers of those that have left."""

    def __init__(self, drive: Tensor, sizes: Tensor, classes: int) -> None:
        self.drive, self.sizes = drive, sizes
        self.open = torch.arange(len(drive))
        self.scores = torch.full((len(drive), classes), torch.nan, dtype=torch.float64)
        self.steps = torch.zeros(len(drive), dtype=torch.int64)

    def leave(self, certified: Certified, done: Tensor, step: int) -> Tensor:
        """Note the answers of rows that are done; return which rows of the batch are not."""
        left = self.open[done]
        self.scores[left] = certified.scores[done]
        self.steps[left] = step
        keep = torch.nonzero(~done).squeeze(1)
        self.open = self.open[keep]
        self.drive, self.sizes = self.drive[keep], self.sizes[keep]
        return keep
