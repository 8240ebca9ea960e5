"""The statistics of a sample that the random-matrix equivalents stand on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from notsodeep import checks
from notsodeep.arrays import FloatArray, IntArray
from notsodeep.data.preprocessing import from_theory_scale

SpectrumOrigin = Literal["population", "pooled within-class sample covariance"]


@dataclass(frozen=True, eq=False)
class ClassCovariances:
    """The covariances C_1 … C_K and the means in a basis that diagonalises every C_a.

    Attributes
    ----------
    eigenvalues : ndarray of shape (m, K)
        The distinct rows (λ_1, …, λ_K): one eigenvalue of each class, for m groups of directions.
    weights : ndarray of shape (m,)
        The share of the p directions in each group.
    group : ndarray of shape (p,)
        The group of each direction.
    means : ndarray of shape (p, K)
        Coordinates of the raw means μ_a in these directions.
    shared_basis : bool
        False if the C_a do not commute: then no such basis exists, the directions are those of C°,
        and every column of `eigenvalues` is that of C°.
    """

    eigenvalues: FloatArray
    weights: FloatArray
    group: IntArray
    means: FloatArray
    shared_basis: bool

    @classmethod
    def from_directions(
        cls, values: FloatArray, means: FloatArray, *, shared_basis: bool = True
    ) -> ClassCovariances:
        """Group p directions, given by their eigenvalues (p, K) and mean coordinates (p, K).

        Eigenvalues that agree to 1e-12 of the largest are one, and below that they are zero:
        computed ones of a full matrix are no more exact.
        """
        grain = 1e-12 * max(float(values.max()), 1e-300)
        clean = np.where(values > grain, values, 0.0)
        _, first, group, counts = np.unique(
            np.rint(clean / grain), axis=0, return_index=True, return_inverse=True,
            return_counts=True,
        )  # fmt: skip
        return cls(clean[first], counts / counts.sum(), group.reshape(-1), means, shared_basis)


@dataclass(frozen=True, eq=False)
class CovarianceSpectrum:
    """A discrete law Σ_k w_k δ(λ_k) of the eigenvalues of C°, raw scale (not divided by p).

    Attributes
    ----------
    eigenvalues : ndarray of shape (m,)
        The distinct atoms λ_k ≥ 0, ascending.
    weights : ndarray of shape (m,)
        The share of the p eigenvalues at each atom; they sum to one.
    origin : str
        ``"population"``: exact, from a known mixture.  ``"pooled within-class sample
        covariance"``: eigenvalues of an estimate, which sampling spreads out (by about the
        factor (1 ± √(p/n))² of Marchenko and Pastur); they estimate the trace of C° without
        bias, but not its spectrum.
    classes : ClassCovariances or None
        The covariance of each class by itself; known for a mixture only.

    Examples
    --------
    >>> from notsodeep.data import paper_mixture
    >>> mixture = paper_mixture(dimension=100)
    >>> spectrum = mixture.statistics(*mixture.sample(80, rng=0)).covariance_spectrum
    >>> spectrum.eigenvalues, spectrum.weights, spectrum.is_population
    (array([1.4]), array([1.]), True)
    """

    eigenvalues: FloatArray
    weights: FloatArray
    origin: SpectrumOrigin
    classes: ClassCovariances | None = None

    @classmethod
    def from_eigenvalues(
        cls, values: FloatArray, origin: SpectrumOrigin, classes: ClassCovariances | None = None
    ) -> CovarianceSpectrum:
        """Collect p eigenvalues, in any order, into atoms and weights.

        Rounding can leave eigenvalues of a semi-definite matrix slightly below zero; they are
        set to zero.
        """
        atoms, counts = np.unique(np.maximum(values, 0.0), return_counts=True)
        return cls(atoms, counts / counts.sum(), origin, classes)

    @property
    def is_population(self) -> bool:
        """Whether these are the eigenvalues of the true C°."""
        return self.origin == "population"

    def mean(self) -> float:
        """First moment, tr C°/p = τ0²."""
        return float(self.weights @ self.eigenvalues)


_BLOCK = 256


@dataclass(frozen=True, eq=False)
class WithinClassScatter:
    """Sums over class-centred rows, in the scale of X.

    Attributes
    ----------
    means : ndarray of shape (K, p)
        Class means x̄_a.
    squared_norms : ndarray of shape (n,)
        ‖z_i‖², in the order of X.
    overlaps : ndarray of shape (K, K)
        tr(A_a A_b).
    pooled : ndarray of shape (min(n, p), min(n, p))
        A symmetric matrix with the non-zero eigenvalues of Σ_a w_a A_a.
    """

    means: FloatArray
    squared_norms: FloatArray
    overlaps: FloatArray
    pooled: FloatArray


def within_class_scatter(
    X: FloatArray, labels: IntArray, counts: IntArray, pooling: FloatArray
) -> WithinClassScatter:
    """Collect the scatter of every class.

    Parameters
    ----------
    X : ndarray of shape (n, p)
        Samples.
    labels : ndarray of shape (n,)
        Class of each sample, 0 … K − 1; no class is empty.
    counts : ndarray of shape (K,)
        Samples in each class.
    pooling : ndarray of shape (K,)
        The weights w_a of the pooled matrix.
    """
    order = np.argsort(labels, kind="stable")
    centred = X[order]
    ends = np.cumsum(counts)
    classes = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    means = np.empty((len(counts), X.shape[1]))
    for a, rows in enumerate(classes):
        means[a] = centred[rows].mean(axis=0)
        centred[rows] -= means[a]
    squared_norms = np.empty(len(X))
    squared_norms[order] = np.einsum("ij,ij->i", centred, centred)
    # tr(A_aA_b) from p × p scatter matrices or from n × n Gram matrices, whichever is smaller; both
    # in strips, so that neither all K scatters nor the squared Gram matrix are held.
    if X.shape[1] <= len(X):
        overlaps, pooled = _by_features(centred, classes, pooling)
    else:
        overlaps, pooled = _by_samples(centred, labels[order], pooling)
    return WithinClassScatter(means, squared_norms, overlaps, pooled)


def _by_features(
    centred: FloatArray, classes: list[slice], pooling: FloatArray
) -> tuple[FloatArray, FloatArray]:
    n, p = centred.shape
    K = len(classes)
    overlaps = np.zeros((K, K))
    pooled = np.empty((p, p))
    # K·width·p numbers are held at a time: no more than a quarter of X.
    width = max(1, min(_BLOCK, n // (4 * K)))
    for start in range(0, p, width):
        stop = min(start + width, p)
        #    start  stop       p
        #      ├─────┼─────────┤
        #      │ sq. │ counted │   one strip of every A_a: the upper triangle from row `start` on;
        #      └─────┴─────────┘   by symmetry entries right of the square stand for two.
        strip = np.empty((K, stop - start, p - start))
        for a, rows in enumerate(classes):
            np.matmul(centred[rows, start:stop].T, centred[rows, start:], out=strip[a])
        # The strip is the upper triangle; what lies right of its square counts twice.
        square = strip[:, :, : stop - start].reshape(K, -1)
        whole = strip.reshape(K, -1)
        overlaps += 2.0 * (whole @ whole.T) - square @ square.T
        pooled[start:stop, start:] = np.tensordot(pooling, strip, axes=1)
        pooled[start:, start:stop] = pooled[start:stop, start:].T
    return overlaps, pooled


def _by_samples(
    centred: FloatArray, labels: IntArray, pooling: FloatArray
) -> tuple[FloatArray, FloatArray]:
    n = len(centred)
    K = len(pooling)
    membership = np.equal.outer(labels, np.arange(K)).astype(np.float64)
    root = np.sqrt(pooling)[labels]
    overlaps = np.zeros((K, K))
    pooled = np.empty((n, n))
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        strip = centred[start:stop] @ centred[start:].T
        pooled[start:stop, start:] = strip * np.outer(root[start:stop], root[start:])
        pooled[start:, start:stop] = pooled[start:stop, start:].T
        np.square(strip, out=strip)
        here = membership[start:stop]
        upper = here.T @ strip @ membership[start:]
        overlaps += upper + upper.T - here.T @ strip[:, : stop - start] @ here
    return overlaps, pooled


@dataclass(frozen=True, eq=False)
class MixtureStatistics:
    """Statistics of n samples of a K-class mixture x ~ N(μ_a/√p, C_a/p).

    Mixture paper (arXiv 2402.02697), section 2.  C° = Σ_a (n_a/n) C_a, with the class sizes n_a of
    this sample.  Made by `GaussianMixture.statistics` (exact) or `MixtureStatistics.estimate`.

    Attributes
    ----------
    tau0 : float
        τ0 = √(tr C°/p).
    t : ndarray of shape (K,)
        t_a = tr(C_a − C°)/√p.
    T : ndarray of shape (K, K)
        T_ab = tr(C_a C_b)/p, raw covariances.
    J : ndarray of shape (n, K)
        One-hot class membership.
    psi : ndarray of shape (n,)
        ψ_i = ‖x_i − E x_i‖² − E‖x_i − E x_i‖².
    means : ndarray of shape (K, p)
        The raw means μ_a, that is √p times the means of x.
    classes : ndarray of shape (K,)
        The label that each column of J stands for.
    provenance : {"exact", "estimated"}
        Whether τ0, t, T and the means are those of the population, or estimates from this sample.
    make_spectrum : callable
        Computes `covariance_spectrum` when it is first asked for.

    Examples
    --------
    >>> from notsodeep.data import paper_mixture
    >>> mixture = paper_mixture(dimension=200)
    >>> X, y = mixture.sample(400, rng=0)
    >>> exact, estimated = mixture.statistics(X, y), MixtureStatistics.estimate(X, y)
    >>> round(exact.tau0, 3), round(estimated.tau0, 3)
    (1.133, 1.132)
    >>> exact.T.round(2), estimated.T.round(2)
    (array([[1.  , 1.57],
           [1.57, 2.45]]), array([[0.99, 1.55],
           [1.55, 2.42]]))
    """

    tau0: float
    t: FloatArray
    T: FloatArray
    J: FloatArray
    psi: FloatArray
    means: FloatArray
    classes: IntArray
    provenance: Literal["exact", "estimated"]
    make_spectrum: Callable[[], CovarianceSpectrum] = field(repr=False)

    @functools.cached_property
    def covariance_spectrum(self) -> CovarianceSpectrum:
        """Eigenvalues of C°, and whether they are the population's; computed on first use."""
        return self.make_spectrum()

    @property
    def counts(self) -> IntArray:
        """Samples n_a in each class, shape (K,)."""
        return np.asarray(self.J.sum(axis=0), dtype=np.int64)

    @classmethod
    def estimate(cls, X: object, y: object, *, num_classes: int | None = None) -> MixtureStatistics:
        """Estimate the statistics from samples and labels alone.

        With z_i = x_i − x̄_a the class-centred rows, S_a = Σ_{i∈a} z_i z_iᵀ/(n_a − 1):

        - ``t`` and ``tau0`` from tr C_a = p·tr S_a, unbiased;
        - T_ab = p·tr(S_a S_b) for a ≠ b, unbiased since the classes are independent;
        - T_aa by the U-statistic of Chen, Zhang and Zhong (JASA 2010), unbiased for every law
          with fourth moments: p·(Y1 − 2 Y2 + Y3), Y1 the mean of (x_i·x_j)², Y2 of
          (x_i·x_j)(x_j·x_k) and Y3 of (x_i·x_j)(x_k·x_l) over distinct indices of the class.
          It is evaluated in the equal form of Himeno and Yamada (JMVA 2014),
          (n−1)/(n(n−2)(n−3)) [(n−1)(n−2) tr S² + (tr S)² − n Q], Q = Σ‖z_i‖⁴/(n−1), n = n_a.
          The plug-in p·tr(S_a²) would be too large by about (tr C_a/p)² p/n_a;
        - ψ_i = ‖z_i‖² minus its mean over the class;
        - the spectrum of C° is that of Σ_a (n_a/n) p S_a: a *sample* covariance, so it is wider
          than the population's, and is marked as such.

        Takes n·p·min(n, p) multiplications and memory of the order of X.

        Parameters
        ----------
        X : array-like of shape (n, p)
            Samples, centred and scaled to the theory's convention (τ0 ≈ 1).
        y : array-like of shape (n,)
            Integer labels; the classes are the values that occur, in ascending order.
        num_classes : int, optional
            Expect the labels 0 … K − 1 and reject an empty class.

        Raises
        ------
        InvalidInput
            Labels that do not match X, a class with fewer than four samples, or τ0 = 0.

        Examples
        --------
        >>> from notsodeep.data import load
        >>> data = load("digits", rng=0)
        >>> stats = MixtureStatistics.estimate(data.X, data.y)
        >>> round(stats.tau0, 3), stats.means.shape, stats.provenance
        (0.758, (10, 64), 'estimated')
        """
        owner = "MixtureStatistics.estimate"
        rows = checks.samples(X, "X", owner)
        checks.powers_nonzero(rows, "X", owner)
        given = checks.class_labels(y, len(rows), owner, num_classes)
        if num_classes is None:
            classes, labels = np.unique(given, return_inverse=True)
        else:
            classes, labels = np.arange(num_classes), given
        counts = np.bincount(labels, minlength=len(classes))
        checks.class_sizes(counts, 1, owner, "that num_classes promises")
        checks.class_sizes(counts, 4, owner, "(the unbiased estimate of tr C_a² needs four)")

        n, p = rows.shape
        proportions = counts / n
        scatter = within_class_scatter(rows, labels, counts, proportions * p / (counts - 1))
        totals = np.bincount(labels, scatter.squared_norms)
        traces = totals / (counts - 1)  # tr C_a/p
        # Class-centring leaves rounding errors of 1e-16 of the class means.
        rounding = 1e-26 * float(np.square(scatter.means).sum(axis=1).max())
        tau0 = checks.nonzero_scale(float(proportions @ traces), owner, rounding)
        overlaps = p * scatter.overlaps / np.outer(counts - 1, counts - 1)
        quartics = np.bincount(labels, scatter.squared_norms**2) / (counts - 1)
        np.fill_diagonal(
            overlaps, _unbiased_self_overlap(counts, p, np.diag(overlaps) / p, traces, quartics)
        )

        def spectrum() -> CovarianceSpectrum:
            nonzero = np.linalg.eigvalsh(scatter.pooled)
            values = np.concatenate([nonzero, np.zeros(p - len(nonzero))])
            return CovarianceSpectrum.from_eigenvalues(
                values, "pooled within-class sample covariance"
            )

        return cls(
            tau0=tau0,
            t=(traces - proportions @ traces) * np.sqrt(p),
            T=overlaps,
            J=np.equal.outer(labels, np.arange(len(classes))).astype(np.float64),
            psi=scatter.squared_norms - (totals / counts)[labels],
            means=from_theory_scale(scatter.means),
            classes=classes,
            provenance="estimated",
            make_spectrum=spectrum,
        )


def _unbiased_self_overlap(
    counts: IntArray, p: int, square_trace: FloatArray, trace: FloatArray, quartic: FloatArray
) -> FloatArray:
    """T_aa = p·(unbiased tr Σ_a²), Σ_a = C_a/p, from tr S², tr S and Q of each class."""
    n = counts.astype(np.float64)
    bracket = (n - 1.0) * (n - 2.0) * square_trace + trace**2 - n * quartic
    return p * (n - 1.0) / (n * (n - 2.0) * (n - 3.0)) * bracket


def statistics_of(X: FloatArray, given: object | None) -> MixtureStatistics:
    """Return statistics as they are given, or estimate them: from labels, or of a single class."""
    if isinstance(given, MixtureStatistics):
        return given
    labels = np.zeros(len(X), dtype=np.int64) if given is None else given
    return MixtureStatistics.estimate(X, labels)
