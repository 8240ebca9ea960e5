"""The simplex ETF, and the one nearest to a set of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.records import Record


@dataclass(frozen=True, eq=False, repr=False)
class NearestETF(Record):
    """The scaled, turned and shifted simplex ETF nearest to a set of vectors."""

    vertices: FloatArray  # (K, d): the points centre + scale·E, E a simplex ETF
    centre: FloatArray  # (d,): mean of the rows
    scale: float  # length of the vertices, seen from the centre
    distance: float  # ‖M − vertices‖_F/‖M − centre‖_F, in [0, 1]; 0 for an ETF


def simplex_etf(num_classes: int, num_features: int, rng: int | np.random.Generator) -> FloatArray:
    """Draw a simplex ETF in a random position, shape (K, d), with rows of unit length.

    E Eᵀ = K/(K−1)·(I − 11ᵀ/K).  As it stands it is a fixed ETF classifier, with logits ``h @ E.T``.

    Parameters
    ----------
    num_classes : int
        K ≥ 2.
    num_features : int
        d ≥ K − 1.
    rng : int or numpy.random.Generator
        Decides the position; it is uniform among all rotations and reflections.

    Examples
    --------
    >>> E = simplex_etf(4, 16, rng=0)
    >>> (E @ E.T).round(3)[0]
    array([ 1.   , -0.333, -0.333, -0.333])
    """
    K = checks.integer_at_least(num_classes, 2, "num_classes", "simplex_etf")
    d = checks.positive_integer(num_features, "num_features", "simplex_etf")
    _require_room(K, d)
    normal = checks.random_generator(rng, "simplex_etf").standard_normal((d, K - 1))
    basis, triangle = np.linalg.qr(normal)
    basis *= np.sign(np.diag(triangle))  # makes the law of the basis uniform
    return np.asarray(simplex_coordinates(K) @ basis.T)


def nearest_etf(vectors: object) -> NearestETF:
    """Find the simplex ETF nearest to K vectors in the Frobenius norm, up to shift and scale.

    Orthogonal Procrustes: with E₀ a fixed ETF and E₀ᵀ(M − centre) = U S Vᵀ, the nearest ETF is
    tr(S)/K·E₀ U Vᵀ.  Relabelling the classes turns E₀, so their order does not matter.

    Parameters
    ----------
    vectors : array-like of shape (K, d)
        Class means or classifier rows, d ≥ K − 1.

    Examples
    --------
    >>> nearest_etf(3.0 * simplex_etf(5, 8, rng=1) + 1.0).distance < 1e-14
    True
    """
    M = checks.samples(host_array(vectors), "vectors", "nearest_etf")
    K, d = M.shape
    checks.integer_at_least(K, 2, "num_classes", "nearest_etf")
    _require_room(K, d)
    centre = M.mean(axis=0)
    centred = M - centre
    size = float(np.linalg.norm(centred))
    if size <= 4.0 * np.finfo(np.float64).eps * float(np.linalg.norm(M)):
        raise InvalidInput("vectors must have rows that differ, got rows that coincide.")
    coordinates = simplex_coordinates(K)
    left, singular, right = np.linalg.svd(coordinates.T @ centred, full_matrices=False)
    scale = float(singular.sum()) / K
    # ‖E₀‖_F² = K, so that the best factor is ⟨M, E₀UVᵀ⟩/K = tr S/K.
    vertices = scale * (coordinates @ left @ right)
    distance = float(np.linalg.norm(centred - vertices)) / size
    return NearestETF(centre + vertices, centre, scale, distance)


def simplex_coordinates(num_classes: int) -> FloatArray:
    """Return a simplex ETF in K − 1 dimensions, shape (K, K − 1), the same on every call.

    Column j is a Helmert contrast: class j + 1 against the classes before it.
    """
    K = num_classes
    j = np.arange(1, K)
    contrasts = np.triu(np.ones((K, K - 1)))
    contrasts[j, j - 1] = -j
    return contrasts * np.sqrt(K / ((K - 1.0) * j * (j + 1.0)))


def simplex_gram(num_classes: int) -> FloatArray:
    """T = (I − 11ᵀ/K)/√(K−1): the Gram matrix of a simplex ETF, of Frobenius norm one."""
    K = num_classes
    return np.asarray((np.eye(K) - 1.0 / K) / np.sqrt(K - 1.0))


def host_array(value: Any) -> Any:
    """Turn a torch tensor into a NumPy array (float64 if it holds floats); pass on the rest.

    Recognised by its methods, so that torch need not be imported.
    """
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def _require_room(num_classes: int, num_features: int) -> None:
    if num_features < num_classes - 1:
        raise InvalidInput(
            f"num_features must be at least {num_classes - 1}, which a simplex of {num_classes} "
            f"points spans, got {num_features}."
        )
