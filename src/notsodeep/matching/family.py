"""A family of networks: its parameters, the network for each of them, and how to solve for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from notsodeep.activations import Moments
from notsodeep.checks import FloatArray
from notsodeep.equivalents import Coefficients, coefficients
from notsodeep.equivalents.mixture_coefficients import coefficients_of_layers
from notsodeep.models import Convention, DeepEquilibrium, ExplicitNetwork, KernelName


@dataclass(frozen=True)
class MixtureTask:
    """Find a network whose kernel has the coefficients of a DEQ's kernel.

    Attributes
    ----------
    deq : DeepEquilibrium
        Centred at tau0.
    tau0 : float
    kernel : {"conjugate", "tangent"}
    convention : {"preactivation", "feature"}
    target : Coefficients
        Of the DEQ.
    """

    deq: DeepEquilibrium
    tau0: float
    kernel: KernelName
    convention: Convention
    target: Coefficients

    def achieved(self, network: ExplicitNetwork) -> Coefficients:
        """Coefficients of a network, centred at tau0, in the kernel of the task."""
        return coefficients(network, self.tau0, kernel=self.kernel)

    def achieved_by(self, layers: Iterable[Moments]) -> Coefficients:
        """Coefficients of a network that is given by the moments of its layers."""
        return coefficients_of_layers(layers, self.tau0, self.kernel)

    def mismatch(self, reached: Coefficients) -> FloatArray:
        """Return the differences of the four coefficients in units of the target's diagonal.

        (Δlinear·τ0², Δnorm_fluctuation·τ0⁴, Δcovariance_overlap·τ0⁴, Δscale2)/scale2.
        """
        unit = np.array([self.tau0**2, self.tau0**4, self.tau0**4, 1.0]) / self.target.scale2
        return np.asarray((np.array(reached.four) - np.array(self.target.four)) * unit)


@dataclass(frozen=True)
class Solution:
    """Parameters found for a task.

    Attributes
    ----------
    parameters : ndarray or None
        None if there are none at all.
    feasible : bool
        Whether the equations that the family promises to meet are met.
    reason : str
        Which they are; if not feasible, which fails and by how much.
    """

    parameters: FloatArray | None
    feasible: bool
    reason: str


@dataclass(frozen=True)
class Family:
    """Networks given by a few parameters.

    Attributes
    ----------
    name : str
    parameter_names : tuple of str
    build : callable
        (parameters, tau0) ↦ ExplicitNetwork, every layer centred.
    solve : callable
        MixtureTask ↦ Solution.
    lipschitz : bool
        Whether every activation of the family is Lipschitz; polynomials are not.
    bounds : pair
        Smallest and largest parameters that refining on data may reach.
    """

    name: str
    parameter_names: tuple[str, ...]
    build: Callable[[FloatArray, float], ExplicitNetwork]
    solve: Callable[[MixtureTask], Solution]
    lipschitz: bool = True
    bounds: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf)
