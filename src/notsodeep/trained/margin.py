"""Why a given network has one fixed point: the margin S = sym(Λ(β⁻¹I − W)) ≻ 0.

With slopes of φ in [0, β] the equation z = φ(Wz + h) reads 0 ∈ F(z) + Gz − h, where
G = β⁻¹I − W and F = φ⁻¹ − β⁻¹I, a monotone map of each entry by itself.  If a positive diagonal
matrix Λ makes sym(ΛG) positive definite, there is exactly one solution, for every h (Winston,
Kolter, *Monotone operator equilibrium networks*, 2020, have Λ = I; Revay, Wang, Manchester,
*Lipschitz bounded equilibrium networks*, 2020, have any Λ).  A contraction, ‖W‖ < 1/β, is a
special case of Λ = I.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import minimize

from notsodeep.activations.slopes import SlopeRange
from notsodeep.arrays import FloatArray
from notsodeep.networks.affine import AffineDEQ
from notsodeep.records import Record

Kind = Literal["monotone", "scaled", "contraction", "none"]

# Times m‖G‖ it covers the errors of eigenvalues: a margin above is not rounding.
_ROUNDING = 64.0 * np.finfo(np.float64).eps
_SHARPNESS = (4.0, 16.0, 64.0, 256.0)  # of the soft minimum of eigenvalues, in units of 1/‖G‖


@dataclass(frozen=True, repr=False)
class Margin(Record):
    """Whether a network provably has one fixed point, and by how much.

    The kinds are: "monotone", S ≻ 0 with Λ = I; "scaled", with another Λ; "contraction", φ has
    negative slopes, but ‖W‖·sup|φ′| < 1; "none", nothing was found.

    Examples
    --------
    >>> from notsodeep.networks.cell import EquilibriumCell
    >>> stiff = EquilibriumCell.from_weights([[-3.0, 2.0], [-2.0, -5.0]], np.eye(2))
    >>> margin = margin_of(stiff)
    >>> margin.kind, round(margin.value, 6), round(margin.norm, 3)
    ('monotone', 4.0, 5.472)
    >>> print(margin_of(EquilibriumCell.from_weights([[1.5]], [[1.0]])).reason)
    No Λ makes S positive definite: W has the eigenvalue 1.5, and 1/β is 1.
    """

    kind: Kind
    # The smallest eigenvalue of Λ^(−1/2) S Λ^(−1/2), the strong monotonicity of G in the norm of Λ;
    # of a contraction, 1 − ‖W‖·sup|φ′|.  Not positive if nothing was found.
    value: float
    lipschitz: float  # ‖Λ^(1/2) G Λ^(−1/2)‖, by which step sizes are scaled
    norm: float  # ‖W‖
    scaling: FloatArray  # the diagonal of Λ
    low: float  # all slopes of φ lie between low and high
    high: float
    proven: bool  # False if the slopes were sampled
    reason: str

    @property
    def slopes(self) -> SlopeRange:
        """The range of the slopes of φ."""
        return SlopeRange(self.low, self.high, self.proven)

    @property
    def unique(self) -> bool:
        """Whether there is one fixed point for every input, provably."""
        return self.kind != "none" and self.proven

    @property
    def beta(self) -> float:
        """β, the largest slope (at least of those that are not negative)."""
        return self.slopes.beta


def margin_of(cell: AffineDEQ) -> Margin:
    """Find the margin of a network; Λ is searched for where the identity does not do.

    The time is that of a few eigenvalue decompositions, O(m³), and of up to 300 if Λ has to be
    searched for.
    """
    slopes, beta = cell.slopes, cell.slopes.beta
    W = cell.arrays()["W"]
    norm = float(np.linalg.norm(W, 2))
    ones = np.ones(cell.width)
    G = np.eye(cell.width) / beta - W
    length = float(np.linalg.norm(G, 2))
    if not slopes.monotone:
        return _contraction(norm, length, ones, slopes)
    note = "" if slopes.proven else " The slopes of φ were sampled: this proves nothing."
    value = _strength(G, ones)
    if value > _ROUNDING * cell.width * length:
        words = f"S = sym(I/β − W) is positive definite, by {value:.4g}, with β = {beta:.4g}."
        return Margin("monotone", value, length, norm, ones, *slopes, words + note)
    refuted = _no_scaling_can_work(W, beta)
    if refuted:
        return Margin("none", value, length, norm, ones, *slopes, refuted + note)
    scaling, found = _searched_scaling(G)
    length = float(np.linalg.norm(_balanced(G, scaling), 2))
    if found > _ROUNDING * cell.width * length:
        words = (
            f"S is not positive definite with Λ = I ({value:.4g}), but it is, by {found:.4g}, with "
            f"a Λ whose entries lie between {scaling.min():.3g} and {scaling.max():.3g}."
        )
        return Margin("scaled", found, length, norm, scaling, *slopes, words + note)
    words = (
        f"S is not positive definite with Λ = I ({value:.4g}), and the best Λ that was found "
        f"leaves {found:.4g}."
    )
    length = float(np.linalg.norm(G, 2))
    return Margin("none", value, length, norm, ones, *slopes, words + note)


def _contraction(norm: float, length: float, ones: FloatArray, slopes: SlopeRange) -> Margin:
    value = 1.0 - norm * slopes.largest
    words = (
        f"φ has slopes down to {slopes.low:.4g}: no margin can be had from monotonicity, only from "
        f"contraction, and ‖W‖·sup|φ′| = {1.0 - value:.4g} "
    )
    if value > _ROUNDING * len(ones):
        return Margin("contraction", value, length, norm, ones, *slopes, words + "is below 1.")
    return Margin("none", value, length, norm, ones, *slopes, words + "is not below 1.")


def _no_scaling_can_work(W: FloatArray, beta: float) -> str:
    """Say why no Λ can make S positive definite, if that is certain; empty otherwise.

    sym(ΛG) ≻ 0 makes −G stable (Lyapunov) and the diagonal of ΛG positive.
    """
    limit = 1.0 / beta
    k = int(np.argmax(np.diag(W)))
    if W[k, k] >= limit and len(W) > 1:
        return (
            f"No Λ makes S positive definite: W[{k}, {k}] = {W[k, k]:.4g} is not below 1/β = "
            f"{limit:.4g}."
        )
    eigenvalues = np.linalg.eigvals(W)
    worst = eigenvalues[np.argmax(eigenvalues.real)]
    if worst.real >= limit:
        shown = f"{worst.real:.4g}" if abs(worst.imag) < 1e-12 else f"{worst:.4g}"
        return (
            f"No Λ makes S positive definite: W has the eigenvalue {shown}, and 1/β is {limit:.4g}."
        )
    return ""


def _balanced(G: FloatArray, scaling: FloatArray) -> FloatArray:
    root = np.sqrt(scaling)
    return np.asarray(root[:, None] * G / root)


def _strength(G: FloatArray, scaling: FloatArray) -> float:
    """Return the smallest eigenvalue of Λ^(−1/2) sym(ΛG) Λ^(−1/2)."""
    balanced = _balanced(G, scaling)
    return float(np.linalg.eigvalsh(0.5 * (balanced + balanced.T))[0])


def _searched_scaling(G: FloatArray) -> tuple[FloatArray, float]:
    """Maximise the strength over Λ; return the best Λ (geometric mean one) and its strength.

    The sets {Λ : sym(ΛG) ⪰ cΛ} are convex, so the strength has no false maxima in Λ.  It is a
    smallest eigenvalue, which has kinks: a soft minimum, made sharper in turn, is climbed by
    L-BFGS in the logarithms of Λ.
    """
    unit = float(np.linalg.norm(G, 2))
    G = G / unit

    def descend(logarithms: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        balanced = _balanced(G, np.exp(2.0 * logarithms))
        symmetric = 0.5 * (balanced + balanced.T)
        values, vectors = np.linalg.eigh(symmetric)
        # Less the smallest, so that the exponentials never overflow.
        weights = np.exp(-sharpness * (values - values[0]))
        total = weights.sum()
        soft = values[0] - np.log(total) / sharpness
        density = (vectors * (weights / total)) @ vectors.T
        # B = DGD⁻¹ with D = exp(l) has ∂B_ij = B_ij(∂l_i − ∂l_j); `density` is symmetric.
        gradient = (density * (balanced - balanced.T)).sum(axis=1)
        return -soft, -gradient

    best, strength = np.ones(len(G)), _strength(G, np.ones(len(G)))
    last = np.zeros(len(G))
    # The bounds keep entries of the balanced matrix within e¹² = 1.6e5 of those of G, so that its
    # eigenvalues are known to ten digits.
    for sharpness in _SHARPNESS:
        last = minimize(
            descend,
            last,
            args=(sharpness,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-6.0, 6.0)] * len(G),
            options={"maxiter": 60},
        ).x
        scaling = np.exp(2.0 * (last - last.mean()))
        value = _strength(G, scaling)
        if value > strength:
            best, strength = scaling, value
    return best, strength * unit
