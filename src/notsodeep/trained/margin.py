"""Why a given network has one fixed point: the margin S = sym(Λ(β⁻¹I − W)) ≻ 0.

With slopes of φ in [0, β] the equation z = φ(Wz + h) reads 0 ∈ F(z) + Gz − h, where
G = β⁻¹I − W and F = φ⁻¹ − β⁻¹I, a monotone map of each entry by itself.  If a positive diagonal
matrix Λ makes sym(ΛG) positive definite, there is exactly one solution, for every h (Winston,
Kolter, *Monotone operator equilibrium networks*, 2020, have Λ = I; Revay, Wang, Manchester,
*Lipschitz bounded equilibrium networks*, 2020, have any Λ).  A contraction, ‖W‖ < 1/β, is a
special case of Λ = I.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import expm
from scipy.optimize import minimize

from notsodeep.activations import (
    Activation,
    Centred,
    Custom,
    Elementary,
    PiecewiseLinear,
    Scaled,
)
from notsodeep.activations.formulas import Apply, Formula, Variable
from notsodeep.arrays import FloatArray
from notsodeep.records import Record
from notsodeep.trained.cell import AffineCell

# Functions that a formula may consist of, with the exact range of their slopes.
_OF_X = {
    "abs": (-1.0, 1.0),
    "arctan": (0.0, 1.0),
    "cos": (-1.0, 1.0),
    "erf": (0.0, 2.0 / np.sqrt(np.pi)),
    "relu": (0.0, 1.0),
    "sigmoid": (0.0, 0.25),
    "sin": (-1.0, 1.0),
    "softplus": (0.0, 1.0),
    "tanh": (0.0, 1.0),
}
_SAMPLES = np.concatenate([np.linspace(-40.0, 40.0, 80_001), np.geomspace(40.0, 1e6, 2_000)])


@dataclass(frozen=True, repr=False)
class SlopeRange(Record):
    """Numbers between which all slopes of an activation lie.

    Attributes
    ----------
    low, high : float
    proven : bool
        False where they were only sampled: good enough to choose a solver by, not for a proof.

    Examples
    --------
    >>> from notsodeep.activations import named
    >>> slope_range(named("normalized_relu")).high
    1.4142135623730951
    >>> slope_range(named("gelu")).monotone
    False
    """

    low: float
    high: float
    proven: bool

    @property
    def monotone(self) -> bool:
        """Whether no slope is negative."""
        return self.low >= 0.0 and self.high > 0.0

    @property
    def largest(self) -> float:
        """The Lipschitz constant."""
        return max(abs(self.low), abs(self.high))


def slope_range(activation: Activation) -> SlopeRange:
    """Return the range of φ′: proven for what is known by name, sampled for other functions.

    Examples
    --------
    >>> from notsodeep.activations import from_formula, leaky_relu
    >>> slope_range(leaky_relu(1.4, 0.1))
    SlopeRange(low=0.1, high=1.4, proven=True)
    >>> slope_range(from_formula("sigmoid(x)"))
    SlopeRange(low=0, high=0.25, proven=True)
    """
    match activation:
        case PiecewiseLinear(slopes=slopes):
            return SlopeRange(float(min(slopes)), float(max(slopes)), True)
        case Elementary(name="swish" | "gelu", lipschitz=steepest):
            # φ′(−x) = 1 − φ′(x) for both.  The constants are known to nine digits; rounded up.
            return SlopeRange(1.0 - steepest - 1e-9, steepest + 1e-9, True)
        case Elementary(name=name) if name in _OF_X:
            return SlopeRange(*_OF_X[name], True)
        case Elementary(name="elu", parameters=((_, alpha),)):
            return SlopeRange(min(0.0, alpha), max(1.0, alpha), True)
        case Centred(base=base):
            return slope_range(base)
        case Scaled(base=base, gain=gain, steepness=steepness):
            own = slope_range(base)
            ends = sorted((gain * steepness * own.low, gain * steepness * own.high))
            return SlopeRange(ends[0], ends[1], own.proven)
        case Custom(
            function=Formula(expression=Apply(operation=name, arguments=(Variable(),)))
        ) if name in _OF_X:
            return SlopeRange(*_OF_X[name], True)
    sampled = activation.derivative(np.concatenate([-_SAMPLES[::-1], _SAMPLES]))
    low, high = float(np.min(sampled)), float(np.max(sampled))
    # A slope of −1e-17 at a place where φ is flat is rounding.
    low = 0.0 if -1e-12 < low < 0.0 else low
    return SlopeRange(low, max(high, activation.lipschitz) if high > 0.0 else high, False)


Kind = Literal["monotone", "scaled", "contraction", "none"]

# Times m‖G‖ it covers the errors of eigenvalues: a margin above is not rounding.
_ROUNDING = 64.0 * np.finfo(np.float64).eps
_SHARPNESS = (4.0, 16.0, 64.0, 256.0)  # of the soft minimum of eigenvalues, in units of 1/‖G‖


@dataclass(frozen=True, repr=False)
class Margin(Record):
    """Whether a network provably has one fixed point, and by how much.

    Attributes
    ----------
    kind : {"monotone", "scaled", "contraction", "none"}
        "monotone": S ≻ 0 with Λ = I.  "scaled": with another Λ.  "contraction": φ has negative
        slopes, but ‖W‖·sup|φ′| < 1.  "none": nothing was found.
    value : float
        The smallest eigenvalue of Λ^(−1/2) S Λ^(−1/2), the strong monotonicity of G in the norm of
        Λ; of a contraction, 1 − ‖W‖·sup|φ′|.  Not positive if nothing was found.
    lipschitz : float
        ‖Λ^(1/2) G Λ^(−1/2)‖, by which step sizes are scaled.
    norm : float
        ‖W‖.
    scaling : ndarray of shape (m,)
        The diagonal of Λ.
    slopes : SlopeRange
        Of φ.
    reason : str
        What was found, in words.

    Examples
    --------
    >>> from notsodeep.trained import EquilibriumCell
    >>> stiff = EquilibriumCell.from_weights([[-3.0, 2.0], [-2.0, -5.0]], np.eye(2))
    >>> margin = margin_of(stiff)
    >>> margin.kind, round(margin.value, 6), round(margin.norm, 3)
    ('monotone', 4.0, 5.472)
    >>> print(margin_of(EquilibriumCell.from_weights([[1.5]], [[1.0]])).reason)
    No Λ makes S positive definite: W has the eigenvalue 1.5, and 1/β is 1.
    """

    kind: Kind
    value: float
    lipschitz: float
    norm: float
    scaling: FloatArray
    slopes: SlopeRange
    reason: str

    @property
    def unique(self) -> bool:
        """Whether there is one fixed point for every input, provably."""
        return self.kind != "none" and self.slopes.proven

    @property
    def beta(self) -> float:
        """β, the largest slope (at least of those that are not negative)."""
        return self.slopes.high if self.slopes.monotone else self.slopes.largest


def margin_of(cell: AffineCell, *, max_seconds: float = math.inf) -> Margin:
    """Find the margin of a network; Λ is searched for where the identity does not do.

    The time is that of a few eigenvalue decompositions, O(m³), and of up to 500 if Λ has to be
    searched for.

    Parameters
    ----------
    cell : AffineCell
    max_seconds : float
        After which the search for Λ ends with the best that it has; the reason says so.
    """
    slopes = slope_range(cell.activation)
    W = cell.recurrent
    norm = float(np.linalg.norm(W, 2))
    ones = np.ones(cell.width)
    beta = slopes.high if slopes.monotone else slopes.largest
    if beta == 0.0:  # a constant φ: whatever W is, one step solves it
        return Margin("contraction", 1.0, 1.0, norm, ones, slopes, "φ is constant.")
    G = np.eye(cell.width) / beta - W
    length = float(np.linalg.norm(G, 2))
    if not slopes.monotone:
        return _contraction(norm, length, ones, slopes)
    note = "" if slopes.proven else " The slopes of φ were sampled: this proves nothing."
    value = _strength(G, ones)
    if value > _ROUNDING * cell.width * length:
        words = f"S = sym(I/β − W) is positive definite, by {value:.4g}, with β = {beta:.4g}."
        return Margin("monotone", value, length, norm, ones, slopes, words + note)
    refuted = _no_scaling_can_work(W, beta)
    if refuted:
        return Margin("none", value, length, norm, ones, slopes, refuted + note)
    scaling, found, ended = _searched_scaling(G, max_seconds)
    note += " The search was ended by the clock." * ended
    length = float(np.linalg.norm(_balanced(G, scaling), 2))
    if found > _ROUNDING * cell.width * length:
        words = (
            f"S is not positive definite with Λ = I ({value:.4g}), but it is, by {found:.4g}, with "
            f"a Λ whose entries lie between {scaling.min():.3g} and {scaling.max():.3g}."
        )
        return Margin("scaled", found, length, norm, scaling, slopes, words + note)
    words = (
        f"S is not positive definite with Λ = I ({value:.4g}), and the best Λ that was found "
        f"leaves {found:.4g}."
    )
    length = float(np.linalg.norm(G, 2))
    return Margin("none", value, length, norm, ones, slopes, words + note)


def _contraction(norm: float, length: float, ones: FloatArray, slopes: SlopeRange) -> Margin:
    value = 1.0 - norm * slopes.largest
    words = (
        f"φ has slopes down to {slopes.low:.4g}: no margin can be had from monotonicity, only from "
        f"contraction, and ‖W‖·sup|φ′| = {1.0 - value:.4g} "
    )
    if value > _ROUNDING * len(ones):
        return Margin("contraction", value, length, norm, ones, slopes, words + "is below 1.")
    return Margin("none", value, length, norm, ones, slopes, words + "is not below 1.")


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


class _TimeUp(Exception):  # it ends a search, and is no error
    pass


def _searched_scaling(G: FloatArray, max_seconds: float) -> tuple[FloatArray, float, bool]:
    """Maximise the strength over Λ; return the best Λ (geometric mean one) and its strength.

    The last value says whether time was up.

    The sets {Λ : sym(ΛG) ⪰ cΛ} are convex, so the strength has no false maxima in Λ.  It is a
    smallest eigenvalue, which has kinks: a soft minimum, made sharper in turn, is climbed by
    L-BFGS in the logarithms of Λ.
    """
    unit = float(np.linalg.norm(G, 2))
    G = G / unit

    deadline = time.monotonic() + max_seconds
    last = np.zeros(len(G))

    def descend(logarithms: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        nonlocal last
        if time.monotonic() > deadline:
            raise _TimeUp
        last = logarithms
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
    ended = False
    # The bounds keep entries of the balanced matrix within e¹² = 1.6e5 of those of G, so that its
    # eigenvalues are known to ten digits.
    for start in (np.zeros(len(G)), _perron_start(G)):
        last = start
        for sharpness in _SHARPNESS:
            try:
                last = minimize(
                    descend,
                    last,
                    args=(sharpness,),
                    jac=True,
                    method="L-BFGS-B",
                    bounds=[(-6.0, 6.0)] * len(G),
                    options={"maxiter": 60},
                ).x
            except _TimeUp:
                ended = True
            scaling = np.exp(2.0 * (last - last.mean()))
            value = _strength(G, scaling)
            if value > strength:
                best, strength = scaling, value
            if ended:
                break
    return best, strength * unit, ended


def _perron_start(G: FloatArray) -> FloatArray:
    """Return ½ log of (left over right) Perron vectors of |G − diag G|: exact for M-matrices."""
    coupling = np.abs(G - np.diag(np.diag(G)))
    # Powers of a positive matrix tend to its Perron vectors.
    # exp of a coupling is positive wherever units are connected at all; 1e-12 makes it so for the
    # others.
    spread = expm(coupling / max(float(coupling.sum(axis=1).max()), 1e-300)) + 1e-12
    right, left = np.ones(len(G)), np.ones(len(G))
    for _ in range(100):
        right = spread @ right
        right /= right.sum()
        left = left @ spread
        left /= left.sum()
    return np.asarray(np.clip(0.5 * np.log(left / right), -6.0, 6.0))
