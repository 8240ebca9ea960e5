"""The tables of the pages "Gaussian mixtures" and "Matching".

Run ``python -m experiments.theory.mixture``; takes a minute or two, NumPy and SciPy only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, erfc

from experiments.theory.exact import (
    ARCTAN,
    RELU,
    TANH,
    Activation,
    Array,
    equilibrium,
    layer,
    moments,
    norm,
)

Four = tuple[float, float, float, float]  # linear, norm fluctuation, covariance overlap, scale
KERNELS = ("G", "features", "K", "feature K")


@dataclass(frozen=True)
class Sample:
    """Draws of the two-class mixture, its Gram matrix, τ0 and the low-rank terms."""

    gram: Array
    tau0: float
    chi: Array
    overlap: Array

    def equivalent(self, four: Four) -> Array:
        """linear·S + norm_fluctuation·χχᵀ + covariance_overlap·JTJᵀ/p + (scale − τ0² linear)·I."""
        a1, a2, a3, scale = four
        low_rank = a2 * np.outer(self.chi, self.chi) + a3 * self.overlap
        return a1 * self.gram + low_rank + (scale - self.tau0**2 * a1) * np.eye(len(self.chi))


def draw(p: int, seed: int) -> Sample:
    """Draw n = 0.8p samples: μ_a = 8e_{8(a−1)+1}, C_a = (1 + 8(a−1)/√p)I, a = 1, 2."""
    n = 4 * p // 5
    y = np.repeat([0, 1], n // 2)
    variance = 1 + 8 * np.arange(2) / np.sqrt(p)
    mean = np.zeros((2, p))
    mean[0, 0] = mean[1, 8] = 8 / np.sqrt(p)
    noise = np.random.default_rng(seed).standard_normal((n, p)) * np.sqrt(variance[y, None] / p)
    X = mean[y] + noise
    tau02 = variance.mean()
    chi = (noise**2).sum(axis=1) - tau02  # ψ + Jt/√p
    return Sample(X @ X.T, np.sqrt(tau02), chi, np.outer(variance[y], variance[y]) / p)


def centred(phi: Activation, s: float, tau0: float) -> tuple[Activation, float]:
    """φ − E φ(τ*ξ), and τ*."""

    def gap(tau: float) -> float:
        m = moments(phi, tau)
        return s * (m.square - m.mean**2) + (1 - s) * tau0**2 - tau**2

    tau = brentq(gap, 1e-3, 10.0, xtol=1e-15)
    return phi.minus(moments(phi, tau).mean), tau


def coefficients(phi: Activation, s: float, tau0: float) -> dict[str, Four]:
    """Compute the four coefficients of all four kernels of a centred DEQ."""
    inner, tau = centred(phi, s, tau0)
    m = moments(inner, tau)
    b = 1 - s
    q, bend = s * m.slope**2, s * m.curvature**2
    a1, a4 = b / (1 - q), b / (1 - s * m.square_curvature / 2)
    a2, a3 = bend * a4**2 / (4 * (1 - q)), bend * a1**2 / (2 * (1 - q))
    b1 = a1 / (1 - q)
    b2, b3 = a2 / (1 - q), (a3 + bend * a1 * b1) / (1 - q)
    kappa2 = tau**2 / (1 - s * m.slope_square)

    def feature(c1: float, c2: float, c3: float, scale: float) -> Four:
        return (c1 - b) / s, c2 / s, c3 / s, (scale - b * tau0**2) / s

    return {
        "G": (a1, a2, a3, tau**2),
        "features": feature(a1, a2, a3, tau**2),
        "K": (b1, b2, b3, kappa2),
        "feature K": feature(b1, b2, b3, kappa2),
    }


def leaky_relu(four: Four, tau0: float, tangent: bool) -> tuple[float, float]:
    """Slopes a, b of the matched leaky ReLU."""
    excess = four[3] / tau0**2 - four[0]
    total = np.sqrt((2 if tangent else 4) * four[0])
    factor = 2 * np.pi / (np.pi - 1) if tangent else 4 * np.pi / (np.pi - 2)
    difference = np.sqrt(factor * excess)
    return (total + difference) / 2, (total - difference) / 2


def hard_tanh(four: Four, tau0: float, tangent: bool) -> tuple[float, float]:
    """Scale a and clip c of the matched hard tanh."""

    def unit(c: float) -> tuple[float, float]:
        u = c / (tau0 * np.sqrt(2))
        edge = c * tau0 * np.sqrt(2 / np.pi) * np.exp(-u * u)
        return erf(u), tau0**2 * erf(u) + c * c * erfc(u) - edge

    def gap(c: float) -> float:
        slope, square = unit(c)
        reached = (square + tau0**2 * slope) / 2 if tangent else square
        return reached / slope**2 - four[3] / four[0]

    c = brentq(gap, 1e-6, 20 * tau0)
    return np.sqrt(four[0] / (2 if tangent else 1)) / unit(c)[0], c


def one_layer(family: str, parameters: tuple[float, float], tau0: float) -> Activation:
    """Make the activation of a matched network."""
    a, b = parameters
    if family == "leaky_relu":
        shape = Activation(lambda x: np.maximum(a * x, b * x), lambda x: np.where(x > 0, a, b))
        return shape.minus((a - b) * tau0 / np.sqrt(2 * np.pi))
    return Activation(lambda x: a * np.clip(x, -b, b), lambda x: a * (np.abs(x) < b), (-b, b))


def equivalents_table() -> None:
    """How accurate the equivalents are."""
    for name, phi in (("relu", RELU), ("tanh", TANH)):
        for p in (250, 500, 1000, 2000):
            gaps = []
            for seed in range(3 if p < 2000 else 1):
                sample = draw(p, seed)
                exact = equilibrium(centred(phi, 0.2, sample.tau0)[0], 0.2, sample.gram)["G"]
                four = coefficients(phi, 0.2, sample.tau0)["G"]
                gaps.append(norm(exact - sample.equivalent(four)))
            print(name, "p", p, f"gap {np.mean(gaps):.3f}")
    sample = draw(1000, 0)
    for name, phi in (("arctan", ARCTAN), ("tanh", TANH), ("relu", RELU)):
        inner = centred(phi, 0.1, sample.tau0)[0]
        four = coefficients(phi, 0.1, sample.tau0)
        exact = equilibrium(inner, 0.1, sample.gram)
        print("σa² = 0.1", name, *(
            f"{k} {norm(exact[k] - sample.equivalent(four[k])):.3f}" for k in KERNELS
        ))  # fmt: skip
    raw = equilibrium(RELU, 0.2, sample.gram)["G"]
    four = coefficients(RELU, 0.2, sample.tau0)["G"]
    print(f"relu, not centred: gap {norm(raw - sample.equivalent(four)):.1f}")


def two_layers_table() -> None:
    """Test the explicit recursion on two centred ReLU layers."""
    for p in (500, 1000, 2000):
        sample = draw(p, 1)
        alpha, beta = np.array([1.0, 0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0])
        tau2 = kappa2 = sample.tau0**2
        sigma = theta = sample.gram
        for _ in range(2):
            tau = np.sqrt(tau2)
            phi = RELU.minus(moments(RELU, tau).mean)
            m = moments(phi, tau)
            s2, c2 = m.slope**2, m.curvature**2
            new = np.array([
                s2 * alpha[0],
                s2 * alpha[1] + c2 * alpha[3] ** 2 / 4,
                s2 * alpha[2] + c2 * alpha[0] ** 2 / 2,
                m.square_curvature * alpha[3] / 2,
            ])  # fmt: skip
            beta = new[:3] + s2 * beta + [0, 0, c2 * alpha[0] * beta[0]]
            alpha, tau2 = new, m.square
            kappa2 = tau2 + m.slope_square * kappa2
            sigma, theta = layer(phi, sigma, theta)
        gaps = (
            norm(sigma - sample.equivalent((*alpha[:3], tau2))),
            norm(theta - sample.equivalent((*beta, kappa2))),
        )
        print(f"two layers, p {p}: CK {gaps[0]:.3f} NTK {gaps[1]:.3f}")


def matching_tables() -> None:
    """Parameters at τ0 = 1, then gaps of exact kernels at p = 800."""
    families: dict[str, Callable[[Four, float, bool], tuple[float, float]]] = {
        "leaky_relu": leaky_relu,
        "hard_tanh": hard_tanh,
    }
    for name, phi, family in (("relu", RELU, "leaky_relu"), ("tanh", TANH, "hard_tanh")):
        for kernel, four in coefficients(phi, 0.2, 1.0).items():
            first, second = families[family](four, 1.0, "K" in kernel)
            print(name, kernel, family, f"{first:.4f} {second:.4f}")
    sample = draw(800, 0)
    tau0 = sample.tau0
    for name, phi in (("relu", RELU), ("tanh", TANH)):
        exact = equilibrium(centred(phi, 0.2, tau0)[0], 0.2, sample.gram)
        for kernel, four in coefficients(phi, 0.2, tau0).items():
            tangent = "K" in kernel
            nets = {
                f: one_layer(f, make(four, tau0, tangent), tau0) for f, make in families.items()
            }
            nets["plain relu"] = RELU.minus(moments(RELU, tau0).mean)
            nets["plain tanh"] = TANH
            gaps = (
                f"{f} {norm(exact[kernel] - layer(net, sample.gram, sample.gram)[tangent]):.4f}"
                for f, net in nets.items()
            )
            print(name, kernel, *gaps, f"norm {norm(exact[kernel]):.1f}")


def spectrum() -> None:
    """Kolmogorov distance between the spectrum of a tanh kernel and Marchenko–Pastur."""
    p = 1500
    sample = draw(p, 2)
    linear, _, _, scale = coefficients(TANH, 0.2, sample.tau0)["G"]
    exact = equilibrium(centred(TANH, 0.2, sample.tau0)[0], 0.2, sample.gram)["G"]
    tau02 = sample.tau0**2
    values = (np.linalg.eigvalsh(exact) - (scale - tau02 * linear)) / (linear * tau02)
    ratio, n = 0.8, len(values)
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    x = np.linspace(low, high, 20001)
    density = np.sqrt((high - x) * (x - low)) / (2 * np.pi * ratio * x)
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(x))])
    distance = np.abs(np.interp(values, x, mass) - (np.arange(n) + 0.5) / n).max()
    print(f"Kolmogorov distance {distance:.4f}, mass of the law {mass[-1]:.5f}")


if __name__ == "__main__":
    equivalents_table()
    two_layers_table()
    matching_tables()
    spectrum()
