"""The description of a DEQ whose weights are given, and whether they look like the theory's.

The theory is about A and B with independent, identically distributed entries of mean zero.  Random
initial weights are of that kind; trained ones carry structure, which shows in the tests below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigvals, svdvals

from notsodeep import checks
from notsodeep.activations import Activation
from notsodeep.arrays import FloatArray
from notsodeep.models.conditions import Conditions, Verdict
from notsodeep.models.equilibrium import DeepEquilibrium
from notsodeep.records import Plotted

# I.i.d. matrices from 32 × 32 to 1024 × 1024 (Gaussian, uniform, signs, Laplace; 20 of each) stayed
# well within these bounds; only the tails of small Laplace ones came near theirs.
_DEVIATIONS = 5.0
_TAILS = 6.0
_FEW = 1000  # entries; with fewer, a single large one says nothing about tails
_LAW = 10.0
_LAW_IN_PRACTICE = 0.02
_EDGE = 5.0
_RADIUS = 4.0

_CONTRACTION = "contraction by these weights"


@dataclass(frozen=True, repr=False)
class WeightAnalysis(Plotted):
    """What the weights of a DEQ z = φ(A z + B x) say about it.

    Attributes
    ----------
    model : DeepEquilibrium
        φ and σa² = m·mean(A_ij²).
    input_scale : float
        s = √(mean(B_ij²)/σb²), σb² = 1 − σa²: the given DEQ on x is the model on s·x.
    verdicts : Conditions
        One for each test.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.normal(size=(100, 100)) * 0.04 + 0.02, rng.normal(size=(100, 50))
    >>> analysis = analyse_weights(A, B, "tanh")
    >>> analysis.verdicts["mean of A"].holds, analysis.verdicts["mean of B"].holds
    (False, True)
    >>> round(analysis.input_scale, 2)
    1.12
    """

    _drawing = "conditions"

    model: DeepEquilibrium
    input_scale: float
    verdicts: Conditions

    @property
    def summary(self) -> str:
        """How far the theory applies, in words."""
        failed = [v for v in self.verdicts if v.holds is False and v.name != _CONTRACTION]
        if failed:
            reasons = "; ".join(f"{verdict.name} ({verdict.meaning})" for verdict in failed)
            words = (
                "The weights do not look like independent draws of mean zero, so the kernels of "
                "the model are those of a random network with the same variances, not of this "
                f"one. What fails: {reasons}."
            )
        else:
            words = (
                "The weights look like independent draws: the kernels of the model are those of "
                "this network, up to fluctuations that fall with its width."
            )
        contraction = self.verdicts[_CONTRACTION]
        if contraction.holds:
            return words
        return (
            f"{words} These weights do not contract ({contraction.statement} fails: "
            f"{contraction.value:.4g}): a fixed point need not exist, or be unique."
        )

    def __str__(self) -> str:
        return (
            f"{self.model}, inputs scaled by {self.input_scale:.6g}\n{self.verdicts}\n"
            f"{self.summary}"
        )


def analyse_weights(
    recurrent: ArrayLike, injection: ArrayLike, activation: str | Activation
) -> WeightAnalysis:
    """Estimate the variances of a DEQ from its weights, and test what the theory assumes of them.

    Parameters
    ----------
    recurrent : array_like of shape (m, m)
        A as it is used in z = φ(A z + B x).
    injection : array_like of shape (m, p)
        B.
    activation : str or Activation
        φ.

    Notes
    -----
    The features z of such a network are √m z* in the theory's notation, so A_ij has variance
    σa²/m, and B_ij variance σb² for inputs of the theory's scale.  The time is that of an
    eigenvalue and two singular value decompositions, O(m³ + m²p).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.normal(size=(200, 200)) * 0.03, rng.normal(size=(200, 50)) * 0.5
    >>> analysis = analyse_weights(A, B, "tanh")
    >>> round(analysis.model.sigma_a2, 2), analysis.verdicts.hold
    (0.18, True)
    """
    A, B, model, input_scale = estimate_model(recurrent, injection, activation, "analyse_weights")
    verdicts = [*_entries(A, "A"), *_entries(B, "B")]
    singular_values = svdvals(A)
    verdicts += _singular_values(A, singular_values, "A")
    verdicts += _singular_values(B, svdvals(B), "B")
    verdicts += [_spectral_radius(A), _contraction(float(singular_values[0]), model.activation)]
    return WeightAnalysis(model, input_scale, Conditions(tuple(verdicts)))


def estimate_model(
    recurrent: ArrayLike, injection: ArrayLike, activation: str | Activation, owner: str
) -> tuple[FloatArray, FloatArray, DeepEquilibrium, float]:
    """Check the weights of z = φ(A z + B x); return them, the model and the scale of its inputs."""
    B = checks.samples(injection, "injection", owner)
    m = len(B)
    A = checks.matrix_of_shape(recurrent, (m, m), "recurrent", owner)
    sigma_a2 = m * float(np.mean(A**2))
    if sigma_a2 >= 1.0:
        requirement = "have m·mean(A²) < 1, the theory's σa²"
        remedy = (
            "With larger weights σa² + σb² = 1 cannot be had by a change of units, and the layer "
            "need not have a fixed point."
        )
        raise checks.invalid("recurrent", owner, requirement, f"{sigma_a2:.4g}", remedy)
    strength = float(np.mean(B**2))
    if strength == 0.0:
        raise checks.invalid("injection", owner, "have entries other than zero", "zeros only")
    return A, B, DeepEquilibrium(activation, sigma_a2), math.sqrt(strength / (1.0 - sigma_a2))


def _entries(W: FloatArray, name: str) -> list[Verdict]:
    """Test the moments of the entries: mean, tails, and variances of rows and columns."""
    square = float(np.mean(W**2))
    if square == 0.0:  # no recurrence: there is nothing to test
        return []
    deviations = abs(float(W.mean())) / math.sqrt(square / W.size)
    kurtosis = float(np.mean(W**4)) / square**2
    spreads = []
    for axis in (0, 1):
        variances = np.mean(W**2, axis=axis) / square
        count = len(variances)
        # Var of a mean of N squares is (κ − 1)/N in units of the square; the spread of `count` such
        # variances has itself a relative error of √(2/(count − 1)), which the margin allows for.
        expected = math.sqrt((kurtosis - 1.0) / W.shape[axis]) if kurtosis > 1.0 else 0.0
        margin = math.sqrt(1.0 + _DEVIATIONS * math.sqrt(2.0 / max(count - 1, 1)))
        # Signs have rows of equal variance, up to rounding.
        spreads.append((float(variances.std()), expected * margin + 1e-9))
    value, bound = max(spreads, key=lambda pair: pair[0] / pair[1])
    return [
        Verdict(
            f"mean of {name}",
            deviations <= _DEVIATIONS,
            "|mean| in standard errors",
            deviations,
            _DEVIATIONS,
            "a common mean is one large singular value that the theory does not have",
        ),
        Verdict(
            f"tails of {name}",
            True if kurtosis - 3.0 <= _TAILS else None if W.size < _FEW else False,
            "excess kurtosis",
            kurtosis - 3.0,
            _TAILS,
            "a few large entries carry the variance, and pre-activations are not Gaussian",
        ),
        Verdict(
            f"variances of {name}",
            value <= bound,
            "relative spread of the variances of rows, or of columns",
            value,
            bound,
            "some units or features are weighted more than others",
        ),
    ]


def _singular_values(W: FloatArray, singular_values: FloatArray, name: str) -> list[Verdict]:
    """Compare the singular values with the law of Marchenko and Pastur, and with its edge."""
    square = float(np.mean(W**2))
    if square == 0.0:
        return []
    few, many = sorted(W.shape)
    eigenvalues = np.sort(singular_values**2) / (many * square)
    distance = _kolmogorov(eigenvalues, *_marchenko_pastur(few / many))
    bound = max(_LAW / few, _LAW_IN_PRACTICE)
    edge = math.sqrt(float(eigenvalues[-1])) / (1.0 + math.sqrt(few / many))
    return [
        Verdict(
            f"singular values of {name}",
            distance <= bound if bound < 1.0 else None,  # too few to tell
            "Kolmogorov distance to Marchenko–Pastur",
            distance,
            bound,
            "the entries depend on each other",
        ),
        Verdict(
            f"largest singular value of {name}",
            edge <= 1.0 + _EDGE * few ** (-2.0 / 3.0),
            "over the edge of Marchenko–Pastur",
            edge,
            1.0 + _EDGE * few ** (-2.0 / 3.0),
            "there are directions that stand out of the noise, as after training",
        ),
    ]


def _spectral_radius(A: FloatArray) -> Verdict:
    """Compare the largest |eigenvalue| with the radius of the circular law, √(m·mean(A²))."""
    m = len(A)
    radius = math.sqrt(m * float(np.mean(A**2)))
    largest = float(np.abs(eigvals(A)).max())
    ratio = largest / radius if radius > 0.0 else 0.0
    bound = 1.0 + _RADIUS / math.sqrt(m)
    return Verdict(
        "spectral radius of A",
        ratio <= bound,
        "over the radius of the circular law",
        ratio,
        bound,
        "some modes of the recurrence last longer than those of a random one",
    )


def _contraction(norm: float, activation: Activation) -> Verdict:
    lipschitz = activation.lipschitz
    value = lipschitz * norm if norm > 0.0 else 0.0
    return Verdict(
        _CONTRACTION,
        value < 1.0,
        "L‖A‖ < 1",
        value,
        1.0,
        "for these very weights a fixed point exists and is unique",
    )


def _marchenko_pastur(ratio: float, nodes: int = 4000) -> tuple[FloatArray, FloatArray]:
    """Return points and the distribution function there, for k × n matrices, k/n = ratio ≤ 1.

    Of the eigenvalues of W Wᵀ/n, for entries of variance one.
    """
    low, high = (1.0 - math.sqrt(ratio)) ** 2, (1.0 + math.sqrt(ratio)) ** 2
    angle = (np.arange(nodes) + 0.5) * (math.pi / nodes)
    x = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(angle)
    # x = middle − half·cos θ: the roots of the density meet sin θ, and the midpoint rule in θ
    # converges quickly; at ratio 1 the pole at x = 0 is cancelled too.
    weight = np.sqrt((high - x) * (x - low)) * np.sin(angle) / x
    cumulative = (np.cumsum(weight) - 0.5 * weight) / weight.sum()
    return x, cumulative


def _kolmogorov(ordered: FloatArray, x: FloatArray, distribution: FloatArray) -> float:
    """Return the largest gap between an empirical and a given distribution function."""
    expected = np.interp(ordered, x, distribution, left=0.0, right=1.0)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))
