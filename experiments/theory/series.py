"""The numbers of the page "Gaussian calculus": truncated series and quadrature at a kink.

Run ``python -m experiments.theory.series``; a second, NumPy only.
"""

from __future__ import annotations

import numpy as np

from experiments.theory.exact import RELU, TANH, Activation, hermite, moments, rule


def truncation(name: str, phi: Activation, q: tuple[float, float], rho: float, kept: int) -> None:
    """Compare the error of Σ_{k ≤ kept} with the bound |ρ|^{kept+1} √(r₁ r₂)."""
    x, w = rule()
    a, b = ((hermite(x, 61) * w) @ phi.value(np.sqrt(v) * x) for v in q)
    powers = rho ** np.arange(61)
    angle = np.arccos(rho)
    # tanh at this ρ: 61 terms are exact to rounding.  ReLU: arc-cosine kernel at q = 1.
    full = a @ (b * powers)
    exact = full if phi is TANH else (np.sin(angle) + (np.pi - angle) * rho) / (2 * np.pi)
    part = slice(kept + 1)
    error = abs(exact - a[part] @ (b[part] * powers[part]))
    rests = [
        moments(phi, np.sqrt(v)).square - (c[part] ** 2).sum()
        for v, c in zip(q, (a, b), strict=True)
    ]
    bound = rho ** (kept + 1) * np.sqrt(rests[0] * rests[1])
    print(f"{name} ρ {rho:.2f} K {kept}: error {error:.1e} bound {bound:.1e}")


if __name__ == "__main__":
    truncation("tanh", TANH, (0.7, 1.3), 0.4 / np.sqrt(0.7 * 1.3), 12)
    for rho, kept in ((0.5, 20), (0.8, 40), (0.95, 40)):
        truncation("relu", RELU, (1.0, 1.0), rho, kept)
    x, w = np.polynomial.hermite_e.hermegauss(200)
    whole = abs((w / w.sum()) @ RELU.value(x) - 1 / np.sqrt(2 * np.pi))
    split = abs(moments(RELU, 1.0).mean - 1 / np.sqrt(2 * np.pi))
    print(f"mean of ReLU: Gauss–Hermite off by {whole:.1e}, split rule by {split:.1e}")
