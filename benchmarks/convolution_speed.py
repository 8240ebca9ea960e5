"""Processor time of both kernels of a convolutional DEQ, per pair of pixels and scaled to n = 1000.

Processor seconds, not those of a clock: other work on the machine lengthens the latter.  The ratio
is to iterating the same equations plainly with NumPy's vector operations, in the same run.

    python benchmarks/convolution_speed.py --samples 1000
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import notsodeep as nsd
from notsodeep.kernels.convolution import window_mean

SHAPES = ((8, 8, 1), (14, 14, 1), (28, 28, 1), (32, 32, 3))


def plain_iteration(X: np.ndarray, shape: tuple[int, int, int], weight: float) -> float:
    """Time G ← w M Φ + u M S and Θ ← G + w M(D ∘ Θ) for a few pairs; seconds per pair."""
    images = X.reshape(-1, *shape)
    first, second = images[:1], images
    start = time.process_time()
    drive, own1, own2 = (
        (1.0 - weight) * window_mean(np.einsum("nhwc,nhwc->nhw", a, b), 3, "circular")
        for a, b in ((first, second), (first, first), (second, second))
    )
    q1, q2, G = own1, own2, drive
    theta = G
    while True:
        s = np.sqrt(q1 * q2)
        rho = np.clip(G / s, -1.0, 1.0)
        angle = np.arccos(rho)
        phi = s * (np.sqrt(1.0 - rho**2) + (np.pi - angle) * rho) / (2.0 * np.pi)
        slope = (np.pi - angle) / (2.0 * np.pi)
        q1 = own1 + weight * window_mean(0.5 * q1, 3, "circular")
        q2 = own2 + weight * window_mean(0.5 * q2, 3, "circular")
        new = drive + weight * window_mean(phi, 3, "circular")
        after = new + weight * window_mean(slope * theta, 3, "circular")
        change = max(np.abs(new - G).max(), np.abs(after - theta).max())
        G, theta = new, after
        if change < 1e-13:
            return (time.process_time() - start) / len(X)


def main() -> None:
    """Measure all shapes and activations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--activations", nargs="+", default=["relu", "tanh"])
    parser.add_argument("--sigma-a2", type=float, default=0.2)
    options = parser.parse_args()
    n, weight = options.samples, options.sigma_a2
    print("image        activation   CPU s   ns/pixel pair   at n = 1000   plain NumPy/ours")
    for shape in SHAPES:
        pixels = shape[0] * shape[1]
        X = np.random.default_rng(0).normal(size=(n, np.prod(shape))) / shape[2] ** 0.5
        plain = plain_iteration(X[:32], shape, weight)
        for activation in options.activations:
            layer = nsd.Convolution(activation, weight=weight, inject=1.0 - weight)
            model = nsd.ConvolutionalEquilibrium([layer], shape)
            nsd.kernel_pair(model, X[:16])  # compiled code is loaded
            start = time.process_time()
            nsd.kernel_pair(model, X)
            seconds = time.process_time() - start
            pairs = n * (n + 1) / 2
            name = "×".join(map(str, shape))
            print(
                f"{name:10} {activation:>12} {seconds:7.2f} {1e9 * seconds / pairs / pixels:15.1f}"
                f" {seconds / pairs * 500500:13.1f} {plain / (seconds / pairs):18.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
