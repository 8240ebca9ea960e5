"""The theory's scaling x = raw/√p, in one place.

The mixture paper writes a sample as x ~ N(μ_a/√p, C_a/p): means and covariances are those of the
raw vector √p·x.  Every factor of √p between the two worlds goes through these functions.
"""

from __future__ import annotations

import math

from notsodeep.checks import FloatArray


def to_theory_scale(raw: FloatArray) -> FloatArray:
    """Scale raw vectors (…, p) with law N(μ_a, C_a) to the theory's x = raw/√p."""
    return raw / math.sqrt(raw.shape[-1])


def from_theory_scale(X: FloatArray) -> FloatArray:
    """Scale theory vectors (…, p) back to raw ones, √p·x."""
    return X * math.sqrt(X.shape[-1])
