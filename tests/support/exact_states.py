"""Fixed points of relu networks in extended precision, on the known activation pattern."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from given_networks import FloatArray, Reference
from notsodeep.networks.affine import AffineDEQ

Extended = NDArray[np.longdouble]  # 64 bits of mantissa, exponents to ±4932


def solved(A: Extended, b: Extended) -> Extended:
    """Solve A x = b for many systems, (n, m, m) and (n, m), by Gauss with row pivots."""
    A, b = A.copy(), b.copy()
    n, m = b.shape
    every = np.arange(n)
    for k in range(m):
        pivot = k + np.abs(A[:, k:, k]).argmax(axis=1)
        A[every, k], A[every, pivot] = A[every, pivot].copy(), A[every, k].copy()
        b[every, k], b[every, pivot] = b[every, pivot].copy(), b[every, k].copy()
        factor = A[:, k + 1 :, k] / A[:, k, k, None]
        A[:, k + 1 :] -= factor[..., None] * A[:, k, None, :]
        b[:, k + 1 :] -= factor * b[:, k, None]
    x = np.zeros_like(b)
    for k in reversed(range(m)):
        x[:, k] = (b[:, k] - (A[:, k, k + 1 :] * x[:, k + 1 :]).sum(axis=1)) / A[:, k, k]
    return x


def extended_logits(cell: AffineDEQ, X: FloatArray, start: FloatArray) -> tuple[Extended, Extended]:
    """Return u* and the logits of rows of X; `start` has the signs of u*, but for a few.

    Newton's method on the pattern ends at the fixed point: it is exact once the signs agree.
    """
    ref = Reference(cell)
    W, U, b, C, c = (getattr(ref, k).astype(np.longdouble) for k in ("W", "U", "b", "C", "c"))
    h = (X.astype(np.longdouble) - ref.shift) / ref.scale.astype(np.longdouble) @ U.T + b
    active = np.asarray(start) > 0
    for _ in range(20):
        systems = np.eye(len(W), dtype=np.longdouble) - W * active[:, None, :]
        u = solved(systems, h)
        if ((u > 0) == active).all():
            break
        active = u > 0
    else:
        raise AssertionError("no pattern agrees with its own signs")
    return u, np.maximum(u, 0) @ C.T + c
