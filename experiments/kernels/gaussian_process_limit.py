"""Outputs of random DEQs and the Gaussian process of infinite width (arXiv 2310.10767)."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from experiments.runner import Cell, Experiment, Finding, Profile, Record
from notsodeep.arrays import FloatArray
from notsodeep.errors import NotConverged
from notsodeep.kernels import kernel
from notsodeep.models import DeepEquilibrium, Dense

_PAPER = {"tanh": (0.0049, 5.5e-5), "relu": (0.0061, 3.2e-6)}
_REFERENCES = 400  # samples of a true Gaussian that say what a distance of zero looks like
_GRID = np.linspace(-3.0, 3.0, 121)


def _cells(profile: Profile) -> list[Cell]:
    width, networks = {"smoke": (100, 100), "quick": (250, 1000), "paper": (1000, 10_000)}[profile]
    return [
        {
            "activation": activation, "sigma_w": 0.6, "sigma_u": 1.0, "inputs": 2,
            "dimension": 10, "width": width, "networks": networks, "tolerance": 1e-6,
        }
        for activation in ("tanh", "relu")
    ]  # fmt: skip


def _compute(cell: Cell, seed: int) -> Record:
    """Draw networks z* = φ(σ_w W z*/√m + σ_u U x/√p), y = a·z*/√m, and compare y with N(0, K).

    With the features known, y is Gaussian with the covariance Z Zᵀ: the read-out is drawn from
    that law, and the mean of Z Zᵀ is the covariance of y without the noise of the read-outs.
    """
    rng = np.random.default_rng(seed)
    p, n, count = cell["dimension"], cell["inputs"], cell["networks"]
    X = rng.standard_normal((n, p)) / np.sqrt(p)
    layer = Dense(cell["activation"], cell["sigma_w"] ** 2, inject=cell["sigma_u"] ** 2)
    K = np.asarray(kernel(DeepEquilibrium(cell=[layer]), X, convention="feature"))
    features = (_features(layer, X, cell["width"], cell["tolerance"], rng) for _ in range(count))
    grams = np.stack([Z @ Z.T for Z in features])
    noise = rng.standard_normal((count, n, 1))
    outputs = (np.linalg.cholesky(grams) @ noise)[..., 0]
    first = outputs[:, 0]
    references = [_distance(_standard(rng.standard_normal((count,)))) for _ in range(_REFERENCES)]
    spread = grams.mean(axis=0) - K
    errors = grams.std(axis=0, ddof=1) / np.sqrt(count)
    size = float(np.square(K).sum())
    return {
        "kernel": K.tolist(),
        "distance": _distance(_standard(first)),
        "distance_to_kernel": _distance(first / np.sqrt(K[0, 0])),
        "distance_of_gaussians": np.quantile(references, [0.025, 0.5, 0.975]).tolist(),
        "covariance_error": float(np.square(outputs.T @ outputs / count - K).sum()) / size,
        "covariance_error_of_gaussians": (size + float(np.trace(K)) ** 2) / (count * size),
        "feature_error": float(np.square(spread).sum()) / size,
        "feature_noise": float(np.square(errors).sum()) / size,
        "quantiles": np.quantile(_standard(first), norm.cdf(_GRID)).tolist(),
    }


def _features(
    layer: Dense, X: FloatArray, m: int, tolerance: float, rng: np.random.Generator
) -> FloatArray:
    """Draw one network and iterate z ← φ(√w z W + √u x U)/√m from 0; shape (n, m).

    W is drawn where the iteration looks at it: a Gaussian matrix maps every direction that is
    orthogonal to those it was asked about before to a new Gaussian vector, whatever the answers
    were.  For few rows that is the law of a network drawn as a whole, at a tenth of the work.
    """
    n = len(X)
    drive = np.sqrt(layer.inject) * (X @ rng.standard_normal((X.shape[1], m)))
    asked, answers = np.empty((0, m)), np.empty((0, m))
    Z = layer.activation(drive) / np.sqrt(m)
    while len(asked) + n <= m:
        shares = Z @ asked.T
        rest = Z - shares @ asked
        again = rest @ asked.T  # what rounding left of the old directions
        Q, R = np.linalg.qr((rest - again @ asked).T)
        fresh = rng.standard_normal((n, m))
        field = (shares + again) @ answers + R.T @ fresh
        asked, answers = np.vstack([asked, Q.T]), np.vstack([answers, fresh])
        image = layer.activation(np.sqrt(layer.weight) * field + drive) / np.sqrt(m)
        change, size = np.linalg.norm(image - Z, axis=1), np.linalg.norm(image, axis=1)
        Z = image
        if (change <= tolerance * size).all():
            return np.asarray(Z)
    raise NotConverged(
        f"A network of width {m} did not settle within {len(asked) // n} steps, more than it has "
        "directions for. Use a larger width."
    )


def _standard(values: FloatArray) -> FloatArray:
    return np.asarray((values - values.mean()) / values.std())


def _distance(values: FloatArray) -> float:
    """Kolmogorov–Smirnov distance of a sample from the standard normal law."""
    cdf, n = norm.cdf(np.sort(values)), len(values)
    steps = np.arange(n + 1) / n
    return float(max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()))


def _findings(records: list[Record]) -> list[Finding]:
    findings = []
    for record in records:
        cell = record["cell"]
        name = f"{cell['activation']}, {cell['networks']} networks of width {cell['width']}"
        ks, error = _PAPER[cell["activation"]]
        low, middle, high = record["distance_of_gaussians"]
        findings += [
            Finding(
                f"{name}: Kolmogorov–Smirnov distance of a standardised output from normal",
                f"{ks:g}",
                f"{record['distance']:.4f}",
                f"as many true Gaussians: {middle:.4f} ({low:.4f} … {high:.4f})",
            ),
            Finding(
                f"{name}: the same against N(0, K) of the exact kernel",
                "",
                f"{record['distance_to_kernel']:.4f}",
            ),
            Finding(
                f"{name}: relative squared error of the covariance of outputs",
                f"{error:.1e}",
                f"{record['covariance_error']:.1e}",
                f"as many true Gaussians: {record['covariance_error_of_gaussians']:.1e}",
            ),
            Finding(
                f"{name}: the same of features, without the noise of read-outs",
                "",
                f"{record['feature_error']:.1e}",
                f"of which sampling {record['feature_noise']:.1e}",
            ),
        ]
    return findings


EXPERIMENT = Experiment(
    "gaussian-process-limit",
    "Outputs of random DEQs against the Gaussian process of infinite width",
    "Gao, Huo, Liu, Gao 2023, arXiv 2310.10767, figures 1 and 2",
    _cells,
    _compute,
    _findings,
)
