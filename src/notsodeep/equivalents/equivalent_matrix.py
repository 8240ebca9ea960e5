"""The random-matrix equivalent of a kernel, as a matrix that keeps its structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data import MixtureStatistics
from notsodeep.equivalents.expansion import Expansion
from notsodeep.equivalents.mixture_coefficients import Coefficients
from notsodeep.equivalents.structured_matrix import StructuredMatrix
from notsodeep.models import Convention, KernelName, Model
from notsodeep.records import Record


@dataclass(frozen=True, repr=False)
class SphereCoefficients(Record):
    """Coefficients of constant·11ᵀ + linear·XXᵀ + diagonal·I on the unit sphere.

    Attributes
    ----------
    constant : float
        α = g(0) + g″(0)/(2d).
    linear : float
        β = g′(0).
    diagonal : float
        μ = g(1) − g(0) − g′(0).
    value, curvature, end : float
        g(0), g″(0) and g(1), of which the coefficients are made.
    """

    constant: float
    linear: float
    diagonal: float
    value: float
    curvature: float
    end: float

    @property
    def size(self) -> float:
        """The unit in which residuals are judged: the kernel's diagonal."""
        return self.end

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.6g}" for name, value in self.to_dict().items())


class Equivalent(StructuredMatrix):
    """An equivalent kernel a·XXᵀ + V C Vᵀ + γI: a `LinearOperator` with solves and spectra.

    Made by `equivalent` and `sphere_equivalent`.  Besides the attributes it has ``@``, ``solve``,
    ``inverse``, ``logdet``, ``eigvalsh``, ``frobenius_norm``, ``operator_norm``, ``diagonal``,
    ``rows`` and ``to_dense``.

    Attributes
    ----------
    coefficients : Coefficients, Expansion or SphereCoefficients
    limit_core : ndarray
        C for the factors [J/√p, ψ], in which limiting spectra are worked out.
    samples : ndarray of shape (n, p)
        The rows it is about.  X has them rescaled if the order is two.
    order : {1, 2}
    gaps : dict of int to float, or None
        ‖G − Ḡ‖ in operator norm for both orders, if the order was chosen by the exact kernel G.
    statistics : MixtureStatistics or None
        None on the sphere.
    model, kernel, convention
        What it is the equivalent of.
    """

    def __init__(
        self,
        X: FloatArray,
        factors: FloatArray,
        core: FloatArray,
        coefficients: Coefficients | Expansion | SphereCoefficients,
        statistics: MixtureStatistics | None,
        model: Model,
        kind: KernelName,
        convention: Convention,
        limit_core: FloatArray | None = None,
        samples: FloatArray | None = None,
        order: Literal[1, 2] = 1,
    ) -> None:
        super().__init__(X, coefficients.linear, factors, core, coefficients.diagonal)
        self.coefficients = coefficients
        self.limit_core = self.core if limit_core is None else limit_core
        self.samples = self.X if samples is None else samples
        self.order = order
        self.gaps: dict[int, float] | None = None
        self.statistics = statistics
        self.model = model
        self.kind = kind
        self.convention = convention

    @property
    def class_counts(self) -> IntArray:
        """Samples in each class, shape (K,); one class on the sphere."""
        if self.statistics is None:
            return np.array([len(self.X)])
        return self.statistics.counts
