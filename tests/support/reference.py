"""A slow, obvious reference: iterate the recursion, with split two-dimensional quadrature."""

from __future__ import annotations

import numpy as np

from notsodeep.activations import Activation
from notsodeep.activations.pairs import LEAST_SCALE, quadrature_pairs
from notsodeep.models import DeepEquilibrium, ExplicitNetwork


def pinned(odd: bool, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Correlations known exactly: 1 for bit-equal rows, −1 for opposite ones if all is odd, or NaN.

    Rounding would put these pairs 1e-16 away, which a kinked φ turns into 1e-8 of E[φ′φ′].
    """
    equal = (X[:, None, :] == Y[None, :, :]).all(axis=2)
    opposite = (X[:, None, :] == -Y[None, :, :]).all(axis=2) & odd
    return np.where(equal, 1.0, np.where(opposite, -1.0, np.nan))


def quadrature(activation: Activation, q1: np.ndarray, q2: np.ndarray, g: np.ndarray):
    """E[φφ] and E[φ′φ′] by quadrature only, never by series or closed form."""
    q1, q2, g = np.broadcast_arrays(q1, q2, g)
    scale1, scale2 = (np.maximum(np.sqrt(q).ravel(), LEAST_SCALE) for q in (q1, q2))
    rho = np.clip(g.ravel() / (scale1 * scale2), -1.0, 1.0)
    rho = np.where(1.0 - np.abs(rho) < 1e-15, np.sign(rho), rho)
    pairs = quadrature_pairs(activation, scale1, scale2, rho, 1.0 - np.abs(rho))
    return pairs.value.reshape(g.shape), pairs.derivative.reshape(g.shape)


def equilibrium_kernels(
    deq: DeepEquilibrium, X: np.ndarray, Y: np.ndarray, layers: int = 200, tolerance: float = 4e-16
) -> dict[str, np.ndarray]:
    """All four kernels of a DEQ, by iterating the weight-untied recursion G ← σa² E[φφ] + σb² S."""
    a, b, phi = deq.sigma_a2, deq.sigma_b2, deq.activation
    n, m = len(X), len(Y)
    gram = X @ Y.T
    q1, q2 = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
    norms = np.concatenate([q1, q2])
    q = b * norms
    for _ in range(20_000):
        moments = phi.moments(np.sqrt(np.maximum(q, 1e-60)))
        new = a * moments.square + b * norms
        done = np.abs(new - q).max() <= 1e-15 * max(new.max(), 1e-300)
        q = new
        if done:
            break
    v1, v2 = (np.broadcast_to(z, (n, m)) for z in (q[:n, None], q[None, n:]))
    known = pinned(phi.parity == "odd" or a == 0.0, X, Y)
    g = b * gram
    for _ in range(layers):
        value, derivative = quadrature(phi, v1, v2, g)
        new = np.where(np.isnan(known), a * value + b * gram, known * v1)
        done = np.abs(new - g).max() <= tolerance * np.abs(new).max()
        g = new
        if done:
            break
    value, derivative = quadrature(phi, v1, v2, g)
    dot = a * derivative
    return {
        "preactivation ck": g,
        "feature ck": value,
        "preactivation ntk": g / (1 - dot),
        "feature ntk": value + g * derivative / (1 - dot),
    }


def explicit_kernels(
    network: ExplicitNetwork, X: np.ndarray, Y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Σ_L and Θ_L by the layer recursion."""
    sigma = theta = X @ Y.T
    q1, q2 = (np.einsum("ij,ij->i", Z, Z) for Z in (X, Y))
    odd = True
    for activation in network.activations:
        v1, v2 = (np.broadcast_to(z, sigma.shape) for z in (q1[:, None], q2[None, :]))
        known = pinned(odd, X, Y)
        sigma = np.where(np.isnan(known), sigma, known * v1)
        value, derivative = quadrature(activation, v1, v2, sigma)
        theta = value + theta * derivative
        sigma = value
        odd = odd and activation.parity == "odd"
        q1, q2 = (activation.moments(np.sqrt(np.maximum(q, 1e-60))).square for q in (q1, q2))
    return sigma, theta
