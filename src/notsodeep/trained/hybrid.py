"""Exact answers, early: explicit layers, a certificate after each, and the solver for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.errors import NotConverged
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell
from notsodeep.trained.certificate import Certified, Certifier, row_norms
from notsodeep.trained.explicit_layers import Layer
from notsodeep.trained.margin import Margin
from notsodeep.trained.resolvent import Resolvent
from notsodeep.trained.splittings import MethodChoice, MethodName, Splitting

_WORTH = 0.05  # share of the rows that a check has to prove


@dataclass(frozen=True, repr=False)
class HybridRecord(Record):
    """What happened to the rows of one batch.

    Attributes
    ----------
    rows : int
    certified_after : tuple of float
        Share of the rows whose class was proved after each layer, cumulative.
    steps : ndarray of shape (rows,)
        Steps of the solver for every row; zero for those that layers have proved.
    uncertified : int
        Rows that converged to the tolerance without a proof: near-ties.
    """

    rows: int
    certified_after: tuple[float, ...]
    steps: NDArray[np.int64]
    uncertified: int

    @property
    def mean_steps(self) -> float:
        """Solver steps per row."""
        return float(self.steps.mean()) if self.rows else 0.0


class HybridEquilibrium(nn.Module):
    """A module whose every answer is the DEQ's own class, proved or solved to the tolerance.

    Rows go through the explicit layers; those whose class is certified leave; the others continue
    with the solver from where the layers have brought them, checked after every step, until they
    are certified or converged.  Batches shrink as rows leave.  All arithmetic is in float64, in
    which the certificate is a proof whatever the precision of the rows.

    Parameters
    ----------
    cell : AffineCell
        With a read-out.
    margin : Margin
    layers : sequence of Layer
        May be empty: the solver with the same early exit.
    choice : MethodChoice
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
        cell: AffineCell,
        margin: Margin,
        layers: Sequence[Layer],
        choice: MethodChoice,
        *,
        tolerance: float = 1e-10,
        max_steps: int = 3000,
        first_check: int = 1,
    ) -> None:
        super().__init__()
        cell.require_readout("HybridEquilibrium")
        checks.positive_number(tolerance, "tolerance", "HybridEquilibrium")
        self.cell, self.tolerance, self.max_steps = cell, tolerance, max_steps
        self.first_check = min(first_check, max(len(layers), 1))
        self.certifier = Certifier(cell, margin)
        self.splitting = Splitting(cell, *_without_memory(choice, margin), margin.beta)
        self._resolvents = [Resolvent(cell.activation, k.step, margin.beta) for k in layers]
        self._weights = [
            (torch.tensor(k.weight).mT.contiguous(), torch.tensor(k.bias)) for k in layers
        ]
        if layers and len(layers[-1].bias) != cell.width:
            requirement = f"end with a layer of the DEQ's width, {cell.width}"
            raise checks.invalid("layers", "HybridEquilibrium", requirement, len(layers[-1].bias))
        self._widths = [len(k.bias) for k in layers]
        self._phi = self.splitting.resolvent.phi
        self.last_record: HybridRecord | None = None

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Return logits in float64, shape (n, K); their arg max is the DEQ's class.

        Raises
        ------
        NotConverged
            A row is neither certified nor solved after `max_steps`.
        """
        drive, sizes = self.certifier.rows(x.detach().cpu().double().numpy())
        batch = _Batch(drive, sizes, self.cell.readout[1].size if self.cell.readout else 0)
        after = []
        states: list[Tensor] = []
        t = torch.zeros_like(drive)
        for k, (weight, bias) in enumerate(self._weights):
            # The latest state first, as `Layer.weight` has its columns.
            inputs = torch.cat([batch.drive, *reversed(states)], dim=1) if states else batch.drive
            s = torch.addmm(bias, inputs, weight)
            t = self._resolvents[k].preimage(s)
            if k + 1 < self.first_check or self._widths[k] != self.cell.width:
                states.append(self._phi(t))
                after.append(0.0)
                continue
            found = self.certifier.classes(t, batch.drive, batch.sizes)
            keep = batch.leave(found, found.proved, 0)
            states = [z[keep] for z in [*states, found.states]]
            t = t[keep]
            after.append(1.0 - len(batch.open) / max(len(x), 1))
        uncertified = self._solve_rest(batch, t)
        steps = batch.steps.numpy()
        self.last_record = HybridRecord(len(x), tuple(after), steps, uncertified)
        return batch.scores

    def _solve_rest(self, batch: _Batch, t: Tensor) -> int:
        """Solve the rows that are left; return how many converged without a certificate."""
        method = self.splitting
        s = method.resolvent.image(t)
        uncertified = 0
        for step in range(1, self.max_steps + 1):
            if not len(batch.open):
                return uncertified
            s = method.advance(s, self._phi(t), batch.drive)
            t = method.resolvent.preimage(s)
            found = self.certifier.classes(t, batch.drive, batch.sizes)
            image = self._phi(found.preactivations)
            gap = row_norms(found.states - image)
            # Near-ties between two classes have no margin to prove, however precise the state.
            solved = gap <= self.tolerance * row_norms(image)
            uncertified += int((solved & ~found.proved).sum())
            keep = batch.leave(found, found.proved | solved, step)
            s, t = s[keep], t[keep]
        if len(batch.open):
            raise NotConverged(
                f"{len(batch.open)} rows are neither certified nor solved to {self.tolerance:g} "
                f"after {self.max_steps} steps. Use a looser tolerance, or more steps."
            )
        return uncertified


def first_check(certified: Sequence[float | None]) -> int:
    """Return the first layer whose check proves something, counted from 1; the last if none does.

    A check that proves next to nothing costs as much as one that proves everything.
    """
    shares = [share or 0.0 for share in certified]
    return next((k for k, share in enumerate(shares, 1) if share > _WORTH), len(shares))


def _without_memory(choice: MethodChoice, margin: Margin) -> tuple[MethodName, float]:
    """Return a method whose rows depend on no earlier steps, so that they can leave."""
    if choice.method in ("peaceman_rachford", "forward_backward", "plain"):
        return choice.method, choice.step
    if margin.norm * margin.slopes.largest < 1.0 or not margin.slopes.monotone:
        return "plain", margin.beta  # converges, and needs no resolvent
    return "peaceman_rachford", 2.0 / margin.lipschitz


class _Batch:
    """Rows that are still open, and the answers of those that have left."""

    def __init__(self, drive: Tensor, sizes: Tensor, classes: int) -> None:
        self.drive, self.sizes = drive, sizes
        self.open = torch.arange(len(drive))
        self.scores = torch.full((len(drive), classes), torch.nan, dtype=torch.float64)
        self.steps = torch.zeros(len(drive), dtype=torch.int64)

    def leave(self, found: Certified, done: Tensor, step: int) -> Tensor:
        """Note the answers of rows that are done; return the indices, in the batch, of the rest."""
        left = self.open[done]
        self.scores[left] = found.scores[done]
        self.steps[left] = step
        keep = torch.nonzero(~done).squeeze(1)
        self.open = self.open[keep]
        self.drive, self.sizes = self.drive[keep], self.sizes[keep]
        return keep
