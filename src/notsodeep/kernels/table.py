"""Kernels as polynomials: fitted once for a model and a range of norms, evaluated for all pairs.

Whatever the model, its kernels on two samples depend on three numbers alone: their norms, and the
cosine c between them.  Divided by √(CK_ii CK_jj), both kernels are smooth functions of z = c/reach
and of the two logarithms of norms, away from c = ±1.  So they are computed at Chebyshev points of
the three by the slower loops, and become

    CK, NTK = Σ_k z^k Σ_m α_km(‖x‖) ψ_m(‖y‖),

where the functions ψ are the leading singular vectors of all coefficients together: about half as
many as a polynomial in log ‖y‖ would need.  A pair then costs some 130 multiplications with
additions (tanh, near-orthogonal rows) to 850 (piecewise linear, images), without iteration or
division, and what is known about a sample is a few dozen numbers.  For samples of one norm,
or a positively homogeneous model, the sum over m has one term.  Pairs with |c| > reach are left to
the slower loops.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import cheb2poly
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import compiled
from notsodeep.kernels.cells import CellPairs
from notsodeep.kernels.routes import ExplicitPairs, PairMap, VanillaPairs
from notsodeep.kernels.single_pairs import InputPairs
from notsodeep.models import Convention, ExplicitNetwork, Model, MonotoneEquilibrium
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series

TABLE_BOUND, SINGLE_BOUND = 1e-14, 4e-7
"""Largest difference between a table, in float64 or float32, and the loops that made it.

Relative to √(CK_ii CK_jj), or to the largest of NTK/√(CK_ii CK_jj) if that is above one.
"""

REACHES = (0.125, 0.25, 0.5, 0.625, 0.75)
"""Values of |c| up to which a table may go: the shorter, the fewer powers."""

ALL_TRAINED = (1.0, 1.0, 1.0, 1.0)
"""Factors of weights, inputs, biases and read-out in a tangent kernel with everything trained."""

# Singularities are at c = ±1, that is z = 1/reach: coefficients fall as ρ⁻ᵏ with ρ = 1/reach +
# √(1/reach² − 1), and ln 10¹⁵/ln ρ = 12, 17, 26, 33 and 43 of them reach rounding.
_POWERS = {0.125: 16, 0.25: 20, 0.5: 32, 0.625: 40, 0.75: 56}  # Chebyshev points in z, by reach
_NODES = (24, 36, 48)  # Chebyshev points in log ‖x‖, tried in turn
_SINGLE_POWERS = {0.125: 10, 0.25: 12, 0.5: 20, 0.625: 24, 0.75: 32}  # the same for float32
_SINGLE_NODES = (12, 24, 48)
_NOISE = 5e-16  # Chebyshev coefficients below this, relative to the values, are rounding
_LEFT_OVER, _SINGLE_LEFT_OVER = 1e-15, 2e-8  # what the functions ψ may leave of a coefficient
_CAREFUL = 64  # nodes that the loops may leave to the careful evaluation, which is slow
_TESTED, _TEST_NORMS = 128, 12  # pairs, and their norms, between the nodes: there a table is tested
_OUTER_SIZES = (32, 64, 128)


def pair_map(
    model: Model,
    squares1: FloatArray,
    squares2: FloatArray | None,
    convention: Convention,
    train: tuple[float, ...] = ALL_TRAINED,
    *,
    unstable: bool = False,
) -> PairMap:
    """Return the pair map of a model between samples of these squared norms.

    With `unstable` also of a model without a stable equilibrium, see `conjugate_kernel`.
    """
    if isinstance(model, ExplicitNetwork):
        return ExplicitPairs(model, squares1, squares2, convention)
    if not isinstance(model, MonotoneEquilibrium) and model.is_vanilla and train == ALL_TRAINED:
        return VanillaPairs(model, squares1, squares2, convention, unstable=unstable)
    return CellPairs(model, squares1, squares2, convention, train, unstable=unstable)


class Results(NamedTuple):
    """Where the two kernels of a block go: two matrices, and its first row and column there."""

    conjugate: NDArray[Any]
    tangent: NDArray[Any]
    top: int
    side: int


class Samples:
    """What a table knows of samples.

    Attributes
    ----------
    scale : ndarray of shape (n + compiled.PADDING,)
        1/‖x‖; NaN outside of the range of the table, which marks all pairs of the sample.
    basis : ndarray of shape (M, n + compiled.PADDING)
        √CK_ii ψ_m.
    """

    def __init__(self, scale: NDArray[Any], basis: NDArray[Any]) -> None:
        self.scale, self.basis = scale, basis


@dataclass(frozen=True, eq=False)
class Table:
    """Both kernels of a model as polynomials.

    Attributes
    ----------
    reach : float
        Largest |c|.
    low, high : float
        Range of the norms; the same for samples of one norm.
    homogeneous : bool
        The model is positively homogeneous: norms are factors, and of any size.
    functions : ndarray of shape (N, 3 + M)
        Chebyshev series in log ‖x‖ of log CK_ii, log NTK_ii, log √CK_ii and the ψ_m.
    core : ndarray of shape (M, numbers)
        What the ψ of a row are multiplied with to give the numbers of `compiled.table_block`.
    ranks : ndarray of int
    odd : bool
    dtype : type
        float64, or float32 with polynomials that are right to `SINGLE_BOUND`.
    """

    reach: float
    low: float
    high: float
    homogeneous: bool
    functions: FloatArray
    core: FloatArray
    ranks: IntArray
    odd: bool
    dtype: type[Any] = np.float64

    def _functions(self, norms: FloatArray) -> FloatArray:
        if len(self.functions) == 1:
            values = np.repeat(self.functions, len(norms), axis=0)
            if self.homogeneous:
                logarithm = np.log(norms)[:, None]
                values[:, :3] += logarithm * [2.0, 2.0, 1.0]
            return values
        middle, half = 0.5 * math.log(self.low * self.high), 0.5 * math.log(self.high / self.low)
        places = np.clip((np.log(norms) - middle) / half, -1.0, 1.0)
        angles = np.arccos(places)[:, None] * np.arange(len(self.functions))
        return np.asarray(np.cos(angles) @ self.functions)

    def covers(self, norms: FloatArray) -> NDArray[np.bool_]:
        """Which norms are in range."""
        if self.homogeneous:
            return np.asarray(norms > 0.0)
        # A norm that is an end of the range may come out of another sum.
        slack = 1.0 + 1e-12
        return np.asarray((norms >= self.low / slack) & (norms <= self.high * slack))

    def diagonal(self, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """CK and NTK of samples with themselves."""
        # Logarithms are what was fitted: the diagonal has a relative error, over any range of
        # norms.
        values = np.exp(self._functions(norms)[:, :2])
        return values[:, 0], values[:, 1]

    def samples(self, norms: FloatArray) -> Samples:
        """Prepare samples of these norms."""
        covered = self.covers(norms)
        safe = np.where(covered, norms, self.low)
        values = self._functions(safe)
        n = len(norms)
        scale = np.zeros(n + compiled.PADDING)
        basis = np.zeros((self.core.shape[0], n + compiled.PADDING))
        scale[:n] = np.where(covered, 1.0 / safe, np.nan)
        basis[:, :n] = (np.exp(values[:, 2:3]) * values[:, 3:]).T
        return Samples(scale.astype(self.dtype), basis.astype(self.dtype))

    def run(
        self,
        inner: NDArray[Any],
        results: Results,
        first: IntArray,
        one: Samples,
        rows: slice,
        two: Samples,
        columns: slice,
    ) -> int:
        """Turn a block of x·y into both kernels; return how many pairs are left, as NaN."""
        numbers = one.basis[:, rows].T @ self.core
        scale = one.scale[rows] / self.dtype(self.reach)
        left: int = compiled.table_block(
            inner, *results, first, scale, two.scale, columns.start,
            two.basis, numbers, self.ranks, self.odd,
        )  # fmt: skip
        return left


@lru_cache(maxsize=64)
def fitted_table(
    model: Model,
    convention: Convention,
    train: tuple[float, ...],
    low: float,
    high: float,
    homogeneous: bool,
    reach: float,
    dtype: type[Any] = np.float64,
) -> Table | None:
    """Fit a table, or return None if it does not reach the bound of its precision."""
    try:
        return _Fit(model, convention, train, low, high, homogeneous, reach, dtype).table()
    except NotSoDeepError:
        # At the ends of a range that is a little wider than the data there may be no equilibrium.
        # The slower loops tell the user, if it concerns the data.
        return None


class _Fit:
    """The work of fitting a table."""

    def __init__(
        self,
        model: Model,
        convention: Convention,
        train: tuple[float, ...],
        low: float,
        high: float,
        homogeneous: bool,
        reach: float,
        dtype: type[Any],
    ) -> None:
        single = self._single = dtype is np.float32
        self._powers = (_SINGLE_POWERS if single else _POWERS)[reach]
        self._nodes = _SINGLE_NODES if single else _NODES
        self._left_over = _SINGLE_LEFT_OVER if single else _LEFT_OVER
        self._bound = SINGLE_BOUND if single else TABLE_BOUND
        self._model, self._convention, self._train = model, convention, train
        self._low, self._high, self._homogeneous, self._reach = low, high, homogeneous, reach

    def _norms(self, places: FloatArray) -> FloatArray:
        """Norms at places in [−1, 1] on the logarithmic scale."""
        return np.asarray(self._low ** (0.5 - 0.5 * places) * self._high ** (0.5 + 0.5 * places))

    def _evaluate(
        self, norms: FloatArray, rows: IntArray, columns: IntArray, z: FloatArray
    ) -> tuple[PairMap, FloatArray] | None:
        """Both kernels of pairs of these norms, over √(CK_ii CK_jj); shape (2, pairs)."""
        pairs = pair_map(self._model, norms**2, None, self._convention, self._train)
        cosine = self._reach * z
        inner = norms[rows] * norms[columns] * cosine
        conjugate, tangent, left = pairs.loop(rows, columns, inner)
        if len(left) > _CAREFUL:
            return None
        if len(left):
            inputs = InputPairs(
                inner[left], norms[rows[left]], norms[columns[left]], 1.0 - np.abs(cosine[left])
            )
            careful = pairs.careful(rows[left], columns[left], inputs, conjugate[left])
            conjugate[left], tangent[left] = careful
        root = np.sqrt(pairs.diagonal()[0])
        return pairs, np.stack([conjugate, tangent]) / (root[rows] * root[columns])

    def table(self) -> Table | None:
        """Do the work, with more nodes if it needs them."""
        powers = self._powers
        if self._low == self._high:
            return self._attempt(1, powers)[0]
        # Fewer cannot resolve a wide range: functions of log ‖x‖ have poles at some distance.
        least = (16.0 if self._single else 30.0) * 0.5 * math.log(self._high / self._low)
        for nodes in self._nodes:
            if nodes >= least or nodes == self._nodes[-1]:
                table, resolved = self._attempt(nodes, powers)
                if table is not None or resolved:
                    return table
        return None

    def _attempt(self, nodes: int, powers: int) -> tuple[Table | None, bool]:
        """Fit with so many nodes; return a table, if good, and whether there were enough nodes."""
        # Nodes, and pairs between them for the test, are computed together.
        rng = np.random.default_rng(0)
        between = self._norms(rng.uniform(-1.0, 1.0, size=_TEST_NORMS))
        norms = np.concatenate(
            [self._norms(chebyshev_points(nodes) if nodes > 1 else np.zeros(1)), between]
        )
        a, b = np.triu_indices(nodes)
        tested = rng.integers(nodes, nodes + _TEST_NORMS, size=(2, _TESTED))
        z = rng.uniform(-1.0, 1.0, size=_TESTED)
        found = self._evaluate(
            norms,
            np.concatenate([np.repeat(a, powers), tested[0]]),
            np.concatenate([np.repeat(b, powers), tested[1]]),
            np.concatenate([np.tile(chebyshev_points(powers), len(a)), z]),
        )
        if found is None:
            return None, True
        pairs, values = found
        values, expected = values[:, :-_TESTED], values[:, -_TESTED:]
        # Coefficients [kernel, power, row, column] of the Chebyshev series in z.
        series = np.empty((2, powers, nodes, nodes))
        flat = chebyshev_series(values.reshape(2, len(a), powers).transpose(2, 0, 1))
        series[:, :, a, b] = series[:, :, b, a] = flat.transpose(1, 0, 2)
        scale = np.abs(values).max(axis=1)
        if not scale.all():
            return None, False  # a kernel that vanishes has no scale, and the loops are right
        relative = np.abs(series) / scale[:, None, None, None]
        # Two of the last: one vanishes if the kernel is odd or even in c.
        if relative[:, -2:].max() > self._left_over:
            return None, True  # a shorter reach may do
        across = np.abs(chebyshev_series(series.transpose(2, 0, 1, 3) / scale[:, None, None]))
        if nodes > 1 and across[-2:].max() > self._left_over:
            return None, False
        basis, ranks = _basis(series, scale, self._left_over)
        if basis is None:
            return None, True
        diagonal = pairs.diagonal()
        own = diagonal[0][:nodes], diagonal[1][:nodes]
        table = self._assemble(own, norms[:nodes], series, basis, ranks)
        root = np.sqrt(diagonal[0])
        error = _error(table, norms, tested, z, expected * root[tested[0]] * root[tested[1]], root)
        return (table, True) if error <= self._bound else (None, nodes == self._nodes[-1])

    def _assemble(
        self,
        diagonal: tuple[FloatArray, FloatArray],
        norms: FloatArray,
        series: FloatArray,
        basis: FloatArray,
        ranks: IntArray,
    ) -> Table:
        """Make the table of coefficients on the nodes."""
        nodes, count = basis.shape
        # F(x_a, y_b) = Σ ψ_m(a) core[m, m′] ψ_m′(b): orthonormal functions on the nodes.
        core = basis.T @ series @ basis
        for k, rank in enumerate(ranks):
            core[:, k, :, rank:] = 0.0
        kept = int(np.flatnonzero(ranks).max(initial=0)) + 1
        core, ranks = core[:, :kept], ranks[:kept]
        odd = bool(kept > 1 and (ranks[::2] == 0).all())
        # Highest power first; a power needs what the Chebyshev terms from its degree on need.
        needed = np.maximum.accumulate(ranks[::-1])[::-1]
        # Horner's rule in powers has one operation for each where Clenshaw's has two.  Coefficients
        # of powers are larger by up to (1 + √2)ᵏ, against which the series fall as ρ⁻ᵏ, ρ ≥ 2.2;
        # what is lost shows in the test of the table.
        conversion = _conversion(kept)
        core = np.stack([np.tensordot(conversion, part, 1) for part in core])
        order = [k for k in range(kept - 1, -1, -1) if not odd or k % 2]
        if count == 1:  # powers go four at a time: with zeros in front
            missing = -len(order) % compiled.TERMS_STEP
            core = np.concatenate([core, np.zeros((2, missing, 1, 1))], axis=1)
            needed = np.concatenate([needed, np.ones(missing, dtype=np.int64)])
            order = [*range(kept, kept + missing), *order]
            kept += missing
        used = np.array([_allowed(int(needed[k]), count) for k in order], dtype=np.int64)
        padded = np.zeros((2, kept, count, max(int(used.max()), count)))
        padded[..., :count] = core
        numbers = np.concatenate(
            [
                padded[:, k, :, :rank].transpose(1, 2, 0).reshape(count, -1)
                for k, rank in zip(order, used, strict=True)
            ],
            axis=1,
        )
        # The layout of `compiled.table_block`: CK and NTK in turn, ψ after ψ, highest power first.
        wide = np.zeros((int(used.max()), numbers.shape[1]))
        wide[:count] = numbers
        logarithms = [np.log(diagonal[0]), np.log(diagonal[1]), 0.5 * np.log(diagonal[0])]
        if self._homogeneous:
            unit = np.log(norms)
            logarithms = [v - f * unit for v, f in zip(logarithms, (2, 2, 1), strict=True)]
        functions = np.zeros((nodes, 3 + len(wide)))
        functions[:, :3] = np.stack(logarithms, axis=1)
        functions[:, 3 : 3 + count] = basis
        functions = chebyshev_series(functions) if nodes > 1 else functions
        return Table(
            self._reach, self._low, self._high, self._homogeneous, functions,
            np.ascontiguousarray(wide, dtype=np.float32 if self._single else np.float64), used, odd,
            np.float32 if self._single else np.float64,
        )  # fmt: skip


def _error(
    table: Table,
    norms: FloatArray,
    pairs: IntArray,
    z: FloatArray,
    expected: FloatArray,
    root: FloatArray,
) -> float:
    """Largest error at some pairs (2, …) of samples, relative to root_i root_j."""
    # As a matrix of which the diagonal is wanted.
    n = len(z)
    one, two = table.samples(norms[pairs[0]]), table.samples(norms[pairs[1]])
    inner = np.diag((norms[pairs[0]] * norms[pairs[1]] * table.reach * z).astype(table.dtype))
    conjugate, tangent = np.empty((2, n, n), table.dtype)
    whole, none = slice(0, n), np.zeros(n, dtype=np.int64)
    table.run(inner, Results(conjugate, tangent, 0, 0), none, one, whole, two, whole)
    got = np.stack([np.diag(conjugate), np.diag(tangent)])
    size = root[pairs[0]] * root[pairs[1]]
    scale = np.maximum(np.abs(expected / size).max(axis=1), 1.0)
    return float(((np.abs(got - expected) / size).max(axis=1) / scale).max())


@lru_cache(maxsize=64)
def _conversion(count: int) -> FloatArray:
    """Matrix that turns Chebyshev coefficients into those of powers."""
    conversion = np.zeros((count, count))
    for k in range(count):
        conversion[: k + 1, k] = cheb2poly(np.eye(count)[k, : k + 1])
    return conversion


def _allowed(rank: int, count: int) -> int:
    """Round a rank up to one that `compiled.table_block` takes."""
    return 1 if count == 1 else max(2, rank + rank % 2)


def _basis(
    series: FloatArray, scale: FloatArray, left_over: float
) -> tuple[FloatArray | None, IntArray]:
    """Orthonormal functions ψ on the nodes (nodes, M), and how many each coefficient needs.

    None if more than `compiled.MOST_RANKS` are needed.
    """
    _, powers, nodes, _ = series.shape
    relative = series / scale[:, None, None, None]
    vectors = np.linalg.svd(relative.reshape(-1, nodes), full_matrices=False)[2].T
    ranks = np.zeros(powers, dtype=np.int64)
    most = min(nodes, compiled.MOST_RANKS)
    for k in range(powers):
        rest = relative[:, k].copy()
        while np.abs(rest).max() > left_over and ranks[k] < most:
            vector = vectors[:, ranks[k]]
            rest -= (rest @ vector)[..., None] * vector
            ranks[k] += 1
        # Not resolved by the most functions that the loop takes; a little above the goal is left to
        # the test of the whole table.
        if np.abs(rest).max() > 10.0 * left_over:
            return None, ranks
    return np.ascontiguousarray(vectors[:, : max(int(ranks.max()), 1)]), ranks


class OuterPieces:
    """For samples of one norm, or a homogeneous model: the kernels beyond the table's reach.

    Polynomials in √(1 ∓ c), in which a kink leaves no singularity, up to c = ±1.  They are made
    when first asked for.
    """

    def __init__(
        self,
        model: Model,
        convention: Convention,
        train: tuple[float, ...],
        norm: float,
        reach: float,
    ) -> None:
        self._pairs = pair_map(model, np.array([norm**2]), None, convention, train)
        self._norm, self._reach = norm, reach
        self._extending = threading.Lock()
        self._made = False
        self._pieces: tuple[FloatArray, ...] | None = None

    def pieces(self) -> tuple[FloatArray, ...] | None:
        """Powers of both kernels for c > reach, and for c < −reach; None if they do not resolve."""
        with self._extending:
            if not self._made:
                span = math.sqrt(1.0 - self._reach)

                def rest(x: FloatArray) -> FloatArray:
                    return np.asarray((0.5 * span * (1.0 + x)) ** 2)

                upper = self._fit(lambda x: (1.0 - rest(x), rest(x)))
                lower = self._fit(lambda x: (rest(x) - 1.0, rest(x)))
                self._pieces = None if upper is None or lower is None else (*upper, *lower)
                self._made = True
        return self._pieces

    def run(self, cosine: FloatArray, factor: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Both kernels at cosines beyond the reach, times a factor for each pair."""
        pieces = self.pieces()
        if pieces is None:
            return None
        conjugate, tangent = np.empty((2, len(cosine)))
        compiled.cosine_pairs(conjugate, tangent, cosine, factor, self._reach, *pieces)
        return conjugate, tangent

    def _fit(
        self, cosine_and_rest: Callable[[FloatArray], tuple[FloatArray, FloatArray]]
    ) -> tuple[FloatArray, FloatArray] | None:
        """Polynomials in x ∈ [−1, 1] for both kernels, or None if they do not reach rounding."""
        for size in _OUTER_SIZES:
            points = chebyshev_points(size)
            values = np.stack(self._evaluate(*cosine_and_rest(points)), axis=1)
            series = chebyshev_series(values)
            scale = np.abs(values).max(axis=0)
            small = (np.abs(series) <= 8.0 * _NOISE * scale).all(axis=1)
            if small[-4:].all():
                kept = int(np.flatnonzero(~small).max(initial=0)) + 1
                powers = _powers(series[:kept])
                # In powers the coefficients grow; rounding must not grow with them.
                if (np.abs(powers).sum(axis=0) <= 100.0 * scale).all():
                    return np.ascontiguousarray(powers[:, 0]), np.ascontiguousarray(powers[:, 1])
                return None
        return None

    def _evaluate(self, cosine: FloatArray, rest: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Both kernels at given cosines, 1 − |cosine| = rest being known apart."""
        inner = self._norm**2 * cosine
        same = np.zeros(len(cosine), dtype=np.int64)
        conjugate, tangent, left = self._pairs.loop(same, same, inner)
        if left.size:
            norms = np.full(left.size, self._norm)
            inputs = InputPairs(inner[left], norms, norms, rest[left])
            careful = self._pairs.careful(same[left], same[left], inputs, conjugate[left])
            conjugate[left], tangent[left] = careful
        return conjugate, tangent


@lru_cache(maxsize=64)
def outer_pieces(
    model: Model, convention: Convention, train: tuple[float, ...], norm: float, reach: float
) -> OuterPieces:
    """Return the outer pieces of a model; the same object for the same arguments."""
    return OuterPieces(model, convention, train, norm, reach)


def _powers(series: FloatArray) -> FloatArray:
    """Turn Chebyshev series (columns) into powers, padded as the compiled loop wants them."""
    length = compiled.TERMS_STEP * -(-len(series) // compiled.TERMS_STEP)
    powers = np.zeros((length, series.shape[1]))
    for column in range(series.shape[1]):
        converted = cheb2poly(series[:, column])
        powers[: len(converted), column] = converted
    return powers
