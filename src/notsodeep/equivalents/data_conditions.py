"""The theorems' assumptions as verdicts on a model and, if given, on data."""

from __future__ import annotations

import math
import warnings
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from notsodeep import checks
from notsodeep.data import MixtureStatistics
from notsodeep.data.mixture_statistics import statistics_of
from notsodeep.models import (
    Conditions,
    ConvolutionalEquilibrium,
    DeepEquilibrium,
    MonotoneEquilibrium,
    Verdict,
)
from notsodeep.models import conditions as model_conditions

# The theorems speak of orders of growth.  One sample shows sizes only, so each bound below is a
# convention: the size beyond which finite-sample corrections are no longer small.
_ASPECT = 20.0
_SHARE = 0.25
_SPREAD = 0.1
_GAUSSIAN = 2.0


def conditions(
    deq: DeepEquilibrium | ConvolutionalEquilibrium | MonotoneEquilibrium,
    X: ArrayLike | None = None,
    stats: MixtureStatistics | ArrayLike | None = None,
    *,
    tau0: float | None = None,
) -> Conditions:
    """Judge whether the theory's assumptions hold for a DEQ, and for data if it is given.

    About the model: contraction, existence and uniqueness of τ*, a finite NTK, centring.  About
    the data (mixture paper, arXiv 2402.02697, assumption 1): sizes p and n are comparable, class
    means and differences of class traces are small beside the noise, no direction carries a fixed
    share of the variance, and norms fluctuate as those of Gaussian vectors do.  The theorems state
    rates; a bound on one sample is a convention, and each verdict shows its number.

    Parameters
    ----------
    deq : DeepEquilibrium, ConvolutionalEquilibrium or MonotoneEquilibrium
        About a convolution the theory has no assumption on data but the scale of pixels.
    X : array_like of shape (n, p), optional
        Adds the verdict on p/n.
    stats : MixtureStatistics or array_like of shape (n,), optional
        Statistics, or the labels of X from which they are estimated.  Adds the verdicts on means,
        traces, covariances and norms.
    tau0 : float, optional
        √(tr C°/p); that of `stats`, else the root mean squared norm of X, else 1.  Of images, the
        root mean squared norm of a pixel.

    Examples
    --------
    >>> print(conditions(DeepEquilibrium("tanh", sigma_a2=0.3), tau0=1.0)["contraction"])
    contraction: fails (σa² < 1/(4L²): 0.3 against 0.25)
    """
    owner = "conditions"
    if isinstance(X, Real):
        warnings.warn(
            "conditions(deq, tau0) is deprecated; write conditions(deq, tau0=...).  The second "
            "argument is the data.",
            DeprecationWarning,
            stacklevel=2,
        )
        X, tau0 = None, float(X)
    if isinstance(deq, ConvolutionalEquilibrium):
        if tau0 is None:
            tau0 = 1.0 if X is None else deq.pixel_scale(deq.rows(X, "X", owner))
        return model_conditions(deq, tau0)
    if not isinstance(deq, DeepEquilibrium | MonotoneEquilibrium):
        raise checks.invalid("deq", owner, "be a DEQ", repr(deq))
    rows = None if X is None else checks.samples(X, "X", owner)
    if stats is not None and not isinstance(stats, MixtureStatistics):
        if rows is None:
            raise checks.invalid("X", owner, "be given with the labels of its rows", None)
        stats = statistics_of(rows, stats)
    if rows is not None and stats is not None:
        theirs = (len(stats.psi), stats.means.shape[1])
        if theirs != rows.shape:
            requirement = f"be those of X, of shape {rows.shape}"
            raise checks.invalid("stats", owner, requirement, f"statistics of shape {theirs}")
    if tau0 is None:
        tau0 = 1.0
        if stats is not None:
            tau0 = stats.tau0
        elif rows is not None:
            tau0 = float(np.sqrt(np.einsum("ij,ij->", rows, rows) / len(rows)))
    verdicts = list(model_conditions(deq, tau0))
    if rows is not None:
        n, p = rows.shape
        verdicts.append(_aspect(n, p))
    if stats is not None:
        if rows is None:
            verdicts.append(_aspect(len(stats.psi), stats.means.shape[1]))
        verdicts += _mixture_verdicts(stats)
    return Conditions(tuple(verdicts))


def _aspect(n: int, p: int) -> Verdict:
    ratio = max(p / n, n / p)
    return Verdict(
        "comparable sizes",
        ratio <= _ASPECT,
        "max(p/n, n/p) not large",
        ratio,
        _ASPECT,
        "the theorems let p and n grow together",
    )


def _mixture_verdicts(stats: MixtureStatistics) -> list[Verdict]:
    K, p = stats.means.shape
    noise = stats.tau0**2
    proportions = stats.counts / stats.counts.sum()
    centred = stats.means - proportions @ stats.means
    means = float(np.square(centred).sum(axis=1).max()) / (p * noise)
    offset = float(np.square(proportions @ stats.means).sum()) / (p * noise)
    traces = float(np.abs(stats.t).max()) / (math.sqrt(p) * noise)
    spread = float(stats.covariance_spectrum.eigenvalues.max()) / (p * noise)
    labels = stats.J.argmax(axis=1)
    fluctuation = np.bincount(labels, stats.psi**2, minlength=K) / stats.counts
    gaussian = 2.0 * np.maximum(np.diag(stats.T), 1e-300) / p
    ratio = math.sqrt(float(fluctuation @ proportions / (gaussian @ proportions)))
    return [
        Verdict(
            "small class means",
            means <= _SHARE,
            "max ‖μ_a − μ°‖²/(pτ0²) small",
            means,
            _SHARE,
            "class means are a perturbation of the noise, not the other way round",
        ),
        Verdict(
            "centred data",
            offset <= _SHARE,
            "‖μ°‖²/(pτ0²) small",
            offset,
            _SHARE,
            "the global mean is subtracted; data.load does it",
        ),
        Verdict(
            "small trace differences",
            traces <= _SHARE,
            "max |tr(C_a − C°)|/(pτ0²) small",
            traces,
            _SHARE,
            "all classes have about one norm, so that one scale τ0 serves them all",
        ),
        Verdict(
            "spread covariance",
            spread <= _SPREAD,
            "‖C°‖/(pτ0²) small",
            spread,
            _SPREAD,
            "no direction carries a fixed share of the variance, so that x_i·x_j is small",
        ),
        Verdict(
            "Gaussian norms",
            1.0 / _GAUSSIAN <= ratio <= _GAUSSIAN,
            "rms ψ/√(2T/p) near 1",
            ratio,
            _GAUSSIAN,
            "norms fluctuate as those of a Gaussian mixture with these covariances",
        ),
    ]
