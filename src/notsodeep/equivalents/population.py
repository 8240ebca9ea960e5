"""What the limiting spectrum needs to know about the population: covariances and means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.data import MixtureStatistics
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.silverstein import SilversteinEquation
from notsodeep.errors import InvalidInput

PopulationSource = Literal["exact", "deconvolved"]
ComplexArray = NDArray[np.complex128]

_ATOMS = 120  # candidate eigenvalues of the deconvolution
_POINTS = 80  # points z at which it compares Stieltjes transforms


@dataclass(frozen=True, eq=False)
class Population:
    """Covariances of the noise, and the class means as they meet it.

    Attributes
    ----------
    equation : SilversteinEquation
        For the noise W = X − E X; its K' columns are the distinct class covariances.
    column : ndarray of shape (K,)
        The column of the equation that each class belongs to.
    means : ndarray of shape (p, K)
        Coordinates of the means of x, in a basis that diagonalises the covariances.
    group : ndarray of shape (p,)
        The group of directions of the equation that each coordinate belongs to; empty if
        `scatter` stands in its place.
    scatter : ndarray of shape (p,)
        Eigenvalues of WᵀW, where the basis is that of the sample; empty otherwise.
    origin : str
        How it was obtained, as a phrase.
    """

    equation: SilversteinEquation
    column: NDArray[np.intp]
    means: FloatArray
    group: NDArray[np.intp]
    scatter: FloatArray
    origin: str

    @property
    def is_exact(self) -> bool:
        """Whether covariances and means are known, not estimated."""
        return not self.scatter.size

    def beyond(self, edge: float) -> float:
        """Return where the search for eigenvalues right of the bulk begins.

        Forms made from a sample are those of the limit only clear of its eigenvalues, the largest
        of which is off the edge by a share of the order of p^{-2/3}.
        """
        if self.is_exact:
            # At the edge itself δ need not be real.
            return edge * (1.0 + 1e-9)
        clear: float = 1.0 + len(self.scatter) ** (-2.0 / 3.0)
        return max(edge, float(self.scatter[-1])) * clear

    def class_form(self, z: NDArray[Any], delta: ComplexArray) -> ComplexArray:
        """Return J_aᵀ(WWᵀ − z)⁻¹J_a/n_a, J_a the members of class a: shape (points, K)."""
        if not self.is_exact:  # the sample's own class means leave J_aᵀW = 0
            return np.repeat(-1.0 / z[:, None], len(self.column), axis=1)
        return self.equation.resolvent(z, delta)[:, self.column]

    def mean_form(self, z: NDArray[Any], delta: ComplexArray) -> ComplexArray:
        """Return B(I + z(WᵀW − z)⁻¹)Bᵀ, B the class means: shape (points, K, K)."""
        if not self.is_exact:
            shares = self.scatter / (self.scatter - z[:, None])
        else:
            directions = self.equation.directions(delta)
            shares = (directions / (directions - z[:, None]))[:, self.group]
        return np.stack([self.means.T @ (share[:, None] * self.means) for share in shares])


def population_of(eq: Equivalent, source: PopulationSource | None) -> Population:
    """Gather what is known, or estimate it if `source` says so.

    Raises
    ------
    InvalidInput
        The statistics are estimates and `source` is None.
    """
    n, p = eq.X.shape
    stats = eq.statistics
    if stats is None:
        return _sphere(n, p)
    classes = stats.covariance_spectrum.classes
    if source == "exact" and classes is None:
        raise InvalidInput(
            "population='exact' of limiting_spectrum needs the statistics of a known mixture. "
            "Got estimated ones. Use population='deconvolved'."
        )
    if classes is None or source == "deconvolved":
        if source is None:
            raise InvalidInput(
                "population of limiting_spectrum must be named for estimated statistics: the "
                "eigenvalues of a sample covariance are not those of the population. Use "
                "population='deconvolved' to estimate them, or eq.eigvalsh() for the spectrum of "
                "the equivalent itself."
            )
        return _deconvolved(eq.samples, stats)
    columns, column = np.unique(classes.eigenvalues, axis=1, return_inverse=True)
    ratios = np.bincount(column.reshape(-1), stats.counts, minlength=columns.shape[1]) / p
    origin = "the exact covariances and means of the mixture"
    if not classes.shared_basis:
        origin += (
            "; the class covariances do not commute, so that their mean stands for each of them"
        )
    return Population(
        SilversteinEquation(columns, classes.weights, ratios),
        column.reshape(-1),
        classes.means / np.sqrt(p),
        classes.group,
        np.empty(0),
        origin,
    )


def _sphere(n: int, d: int) -> Population:
    equation = SilversteinEquation(np.ones((1, 1)), np.ones(1), np.array([n / d]))

    one, none = np.zeros(1, np.intp), np.zeros(d, np.intp)
    return Population(
        equation, one, np.zeros((d, 1)), none, np.empty(0), "points uniform on the sphere"
    )


def _deconvolved(X: FloatArray, stats: MixtureStatistics) -> Population:
    """Estimate the spectrum of C° from the class-centred sample, one for all classes.

    The quadratic forms of the means are those of the sample itself, which needs the p × p scatter
    matrix.
    """
    n, p = X.shape
    K = len(stats.counts)
    checks.enough_memory(
        3 * 8 * p * p,
        "The scatter matrix of the features",
        "Reduce the number of features, by a random projection for instance.",
    )
    # The sample's own means, also where those of the mixture are known: J is then orthogonal to W.
    means = (stats.J / stats.counts).T @ X
    centred = X - means[stats.J.argmax(axis=1)]
    eigenvalues, basis = np.linalg.eigh(centred.T @ centred)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    atoms, weights = _spectrum_behind(eigenvalues, n - K)
    return Population(
        SilversteinEquation(atoms[:, None], weights, np.array([n / p])),
        np.zeros(K, np.intp),
        basis.T @ means.T,
        np.empty(0, np.intp),
        eigenvalues,
        f"eigenvalues of C° deconvolved from {n} samples ({len(atoms)} atoms), one covariance for "
        "all classes, and the means of the sample",
    )


def _spectrum_behind(eigenvalues: FloatArray, rows: int) -> tuple[FloatArray, FloatArray]:
    """Estimate atoms and weights of C° from the p eigenvalues of WᵀW (El Karoui, 2008).

    With m(z) of the sample known, Silverstein's equation Σ_k w_k t_k/(1 + c t_k m) = z + 1/m is
    linear in the weights w_k of candidate eigenvalues t_k: non-negative least squares over
    complex z.
    """
    p = len(eigenvalues)
    ratio = rows / p
    top = float(eigenvalues[-1])
    x = np.concatenate([np.quantile(eigenvalues, np.linspace(0.0, 1.0, _POINTS // 2)),
                        np.linspace(0.0, 1.2 * top, _POINTS // 2)])  # fmt: skip
    # High enough above the axis to average over many eigenvalues, low enough to tell atoms apart.
    z = x + 1j * (0.05 * np.maximum(x, float(eigenvalues.mean())))
    # The companion transform, of the matrix WWᵀ.
    transform = (1.0 / (eigenvalues - z[:, None])).sum(axis=1)
    # WWᵀ has the nonzero eigenvalues of WᵀW, and rows − p zeros more (or fewer).
    transform = (transform - (rows - p) / z) / rows
    # WᵀW is about (n/p) C°, and noise only widens a spectrum: no eigenvalue of C° is far above.
    largest = top / ratio * 1.2
    atoms = np.append(0.0, np.geomspace(1e-4 * largest, largest, _ATOMS))
    table = atoms / (1.0 + ratio * atoms * transform[:, None])
    right = z + 1.0 / transform
    # Relative errors: |z + 1/m| ranges over decades.
    weight = 1.0 / np.abs(right)
    stacked = np.concatenate([(table * weight[:, None]).real, (table * weight[:, None]).imag])
    target = np.concatenate([(right * weight).real, (right * weight).imag])
    # Weights sum to one, and have the sample's first moment.
    mean = float(eigenvalues.sum()) / rows
    # Two rows of this weight outweigh all others together, and so act as equality constraints.
    heavy = 10.0 * len(target)
    stacked = np.concatenate([stacked, [heavy * atoms / mean, np.full(len(atoms), heavy)]])
    target = np.append(target, [heavy, heavy])
    # Less than half an eigenvalue is noise: those atoms are left out, and the others found again.
    kept = nnls(stacked, target)[0] > 0.5 / p
    atoms, weights = atoms[kept], nnls(stacked[:, kept], target)[0]
    atoms, weights = atoms[weights > 0.0], weights[weights > 0.0]
    return atoms, weights / weights.sum()
