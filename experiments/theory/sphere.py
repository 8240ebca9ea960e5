"""The table of the page "Data on the unit sphere": √2 ReLU, σa² = 0.2.  NumPy only.

Run ``python -m experiments.theory.sphere``.
"""

from __future__ import annotations

import numpy as np

from experiments.theory.exact import Array, norm

S = 0.2


def dual(G: Array) -> Array:
    """f(G) = (√(1−G²) + (π − arccos G) G)/π, also for complex G."""
    return (np.sqrt(1 - G * G) + (np.pi / 2 + np.arcsin(G)) * G) / np.pi


def dual_slope(G: Array) -> Array:
    """f′(G)."""
    return (np.pi / 2 + np.arcsin(G)) / np.pi


def solve(t: Array) -> Array:
    """Solve G = σa² f(G) + σb² t by Newton's method."""
    G = (1 - S) * t
    for _ in range(50):
        G = G - (G - S * dual(G) - (1 - S) * t) / (1 - S * dual_slope(G))
        if np.isrealobj(G):
            G = np.clip(G, -1, 1)
    return G


def taylor(nodes: int = 256, radius: float = 0.9) -> tuple[Array, Array]:
    """Taylor coefficients of g and k, by one FFT on a circle."""
    t = radius * np.exp(2j * np.pi * np.arange(nodes) / nodes)
    G = solve(t)
    K = G / (1 - S * dual_slope(G))
    scale = radius ** np.arange(nodes)
    return (np.fft.fft(G) / nodes).real / scale, (np.fft.fft(K) / nodes).real / scale


def main() -> None:
    """Print one line for each size."""
    rng = np.random.default_rng(0)
    g, k = taylor()
    for n, d in ((250, 300), (500, 600), (1000, 1200), (2000, 2400)):
        X = rng.standard_normal((n, d))
        X /= np.linalg.norm(X, axis=1)[:, None]
        t = np.clip(X @ X.T, -1, 1)
        np.fill_diagonal(t, 1.0)
        G = solve(t)
        np.fill_diagonal(G, 1.0)
        K = G / (1 - S * dual_slope(G))
        line = [f"n {n} d {d}"]
        for exact, c, end in ((G, g, 1.0), (K, k, 1 / (1 - S))):
            mu = end - c[0] - c[1]
            asymptotic = c[0] + c[2] / d + c[1] * t + mu * np.eye(n)
            terms = np.polynomial.polynomial.polyval(t, c[:12])
            np.fill_diagonal(terms, end)
            line.append(f"asymptotic {norm(exact - asymptotic):.1e}")
            line.append(f"12 terms {norm(exact - terms):.1e}")
        mu = 1 - g[0] - g[1]
        quadratic = g[0] + g[2] / d - mu / d + g[1] * t + mu * t**2
        line += [f"quadratic {norm(G - quadratic):.1e}", f"norm {norm(G):.1f}"]
        print("  ".join(line))


if __name__ == "__main__":
    main()
