"""A given DEQ as a torch module: implicit gradients through any splitting."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.solve_records import ImplicitRecord
from notsodeep.trained.cell import AffineCell, EquilibriumCell
from notsodeep.trained.margin import margin_of
from notsodeep.trained.resolvent import Resolvent
from notsodeep.trained.splittings import DAMPING, MethodChoice, choose_method


class GivenEquilibrium(nn.Module):
    """z* = φ(Wz* + Ux + b), logits C z* + c, with W, U, b, C, c as parameters.

    Forward and backward solves iterate the same map T of the splitting, s = T(s, h, W): its
    Jacobian, and so the transposed one, has a spectral radius below one where the splitting
    converges, also where the plain iteration diverges.

    Parameters
    ----------
    cell : AffineCell
    choice : MethodChoice, optional
        Of the solver; found by trial solves on the first batch otherwise.
    tolerance : float
        Relative, of the pre-images s and of the gradients.
    max_steps : int
    dtype : torch.dtype, default float64

    Attributes
    ----------
    last_record : ImplicitRecord or None
        Of the last solve.

    Examples
    --------
    >>> cell = EquilibriumCell.from_weights([[-9.0]], [[1.0]], readout=([[1.0]], None))
    >>> deq = GivenEquilibrium(cell)
    >>> x = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    >>> deq(x).item(), *torch.autograd.grad(deq(x).sum(), x)  # z = (1 + 9)⁻¹ x
    (0.1, tensor([[0.1000]], dtype=torch.float64))
    """

    def __init__(
        self,
        cell: AffineCell,
        choice: MethodChoice | None = None,
        *,
        tolerance: float = 1e-10,
        max_steps: int = 3000,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        cell.require_readout("GivenEquilibrium")
        checks.positive_number(tolerance, "tolerance", "GivenEquilibrium")
        assert cell.readout is not None

        def kept(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> nn.Parameter:
            return nn.Parameter(torch.tensor(values, dtype=dtype))

        self.recurrent, self.injection = kept(cell.recurrent), kept(cell.injection)
        self.bias, self.readout = kept(cell.bias), kept(cell.readout[0])
        self.readout_bias = kept(cell.readout[1])
        self.register_buffer("shift", torch.tensor(cell.shift, dtype=dtype))
        self.register_buffer("scale", torch.tensor(cell.scale, dtype=dtype))
        self.activation, self.choice = cell.activation, choice
        self.beta = margin_of(cell).beta
        self.tolerance, self.max_steps = tolerance, max_steps
        self.last_record: ImplicitRecord | None = None

    def cell(self) -> AffineCell:
        """Return the network with the weights as they are now."""
        return EquilibriumCell.from_weights(
            self.recurrent,
            self.injection,
            self.bias,
            self.activation,
            (self.readout, self.readout_bias),
            shift=self.get_buffer("shift"),
            scale=self.get_buffer("scale"),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (n, K)."""
        return nn.functional.linear(self.states(x), self.readout, self.readout_bias)

    def states(self, x: Tensor) -> Tensor:
        """Return z*, differentiable in x and all parameters.

        Raises
        ------
        NotConverged
            The solve, or that of a gradient, fails.
        """
        rows = (x - self.get_buffer("shift")) / self.get_buffer("scale")
        drive = nn.functional.linear(rows, self.injection, self.bias)
        if self.choice is None:
            self.choice = self._chosen(drive)
        method, step = self.choice.method, self.choice.step
        step = step if method in ("peaceman_rachford", "forward_backward") else self.beta
        resolvent = Resolvent(self.activation, step, self.beta)
        identity = torch.eye(len(self.recurrent), dtype=drive.dtype, device=drive.device)
        G = identity / self.beta - self.recurrent
        solver = {"name": "fixed_point", "tolerance": self.tolerance, "max_steps": self.max_steps}
        if method == "peaceman_rachford":
            inverse = torch.linalg.inv(identity + step * G)

            def following(s: Tensor, h: Tensor, matrix: Tensor) -> Tensor:
                reflected = 2.0 * resolvent(s) - s
                return 2.0 * ((reflected + step * h) @ matrix.mT) - reflected

            parameters = [drive, inverse]
        else:  # the others are forward–backward, or plain with another way to combine steps
            share = DAMPING if method == "damped" else 1.0

            def following(s: Tensor, h: Tensor, matrix: Tensor) -> Tensor:
                z = resolvent(s)
                image = z - step * (z @ matrix.mT - h)
                return image if share == 1.0 else (1.0 - share) * s + share * image

            parameters = [drive, G]
            if method == "anderson":
                solver["name"] = "anderson"
        start = resolvent.image(torch.zeros_like(drive)).detach()
        s, self.last_record = implicit_layer(
            following,
            parameters,
            start,
            solver=solver,
            gradient={"name": "implicit", "solver": solver},
            subject="the fixed point of the given network",
        )
        return resolvent(s)

    @torch.no_grad()
    def _chosen(self, drive: Tensor) -> MethodChoice:
        cell = self.cell()
        return choose_method(cell, drive.detach().cpu().double(), margin_of(cell))
