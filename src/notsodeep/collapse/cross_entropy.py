"""Mean cross-entropy of class logits, and its derivatives, in logarithms.

At a large budget the loss falls below 1e-300.  Its logarithm does not, and has the same minimisers:
everything here is about log f and ∇f/f, computed without subtraction of nearly equal numbers.

A class (or a group of interchangeable classes) g with share ω_g of the samples has exponents T_gh =
log(number of wrong classes of kind h) + (their logit − own logit); −∞ where there are none.  Then

    S_g = Σ_h exp T_gh,   f = Σ_g ω_g log(1 + S_g).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from notsodeep.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class LogLoss:
    """log f at a matrix of exponents.

    Attributes
    ----------
    value : float
        log f.
    probabilities : ndarray of shape (m, m)
        p_gh, the softmax probability that a sample of g gives all wrong classes of kind h.
    slopes : ndarray of shape (m, m)
        ∂ log f/∂T_gh = ω_g p_gh/f.
    """

    value: float
    probabilities: FloatArray
    slopes: FloatArray

    def change_of_slopes(self, direction: FloatArray) -> FloatArray:
        """Differentiate `slopes` along a direction in T: the Hessian of log f times it."""
        p, q = self.probabilities, self.slopes
        own = np.einsum("gh,gh->g", p, direction)
        return np.asarray(q * (direction - own[:, None] - np.vdot(q, direction)))


def log_loss(exponents: FloatArray, log_shares: FloatArray) -> LogLoss:
    """Evaluate log f and its slopes; shapes (m, m) and (m,)."""
    totals = _log_sum_exp(exponents)  # log S_g
    softplus = np.logaddexp(0.0, totals)
    # log log(1 + S) is log S to the last digit where S < 1e-16.
    log_losses = np.where(totals < -37.0, totals, np.log(np.logaddexp(0.0, totals.clip(-37.0))))
    value = float(_log_sum_exp(log_shares + log_losses))
    log_probabilities = exponents - softplus[:, None]
    return LogLoss(
        value,
        np.exp(log_probabilities),
        np.exp(log_shares[:, None] + log_probabilities - value),
    )


def logit_loss(logits: FloatArray, shares: FloatArray) -> tuple[float, FloatArray]:
    """Return log f and ∇f/f for logits of shape (K, K), row k those of a sample of class k."""
    exponents = logits - np.diag(logits)[:, None]
    np.fill_diagonal(exponents, -np.inf)
    loss = log_loss(exponents, np.log(shares))
    gradient = loss.slopes
    np.fill_diagonal(gradient, -gradient.sum(axis=1))
    return loss.value, gradient


def _log_sum_exp(exponents: FloatArray) -> FloatArray:
    """Sum over the last axis; SciPy's takes ten times as long on matrices this small."""
    largest = exponents.max(axis=-1, keepdims=True)
    total = np.exp(exponents - largest).sum(axis=-1)
    return np.asarray(largest[..., 0] + np.log(total))
