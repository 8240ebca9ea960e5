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
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import cheb2poly
from numpy.typing import NDArray

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.errors import NotSoDeepError
from notsodeep.kernels import loops
from notsodeep.kernels.ring import Ring
from notsodeep.kernels.states import InputPairs, RingStates
from notsodeep.numerics.chebyshev import chebyshev_points, chebyshev_series

Kinds = tuple[int, ...]
"""Which kernels are wanted, in this order: 0 is the conjugate, 1 the tangent kernel."""

Kernels = tuple[NDArray[Any], ...]
"""One matrix for each of the kinds."""

TABLE_BOUND = 1e-14
"""Largest difference between a table and the loops that made it.

Relative to √(CK_ii CK_jj), or to the largest of NTK/√(CK_ii CK_jj) if that is above one.
"""

REACHES = (0.125, 0.25, 0.5, 0.625, 0.75)
"""Values of |c| up to which a table may go: the shorter, the fewer powers."""

# Singularities are at c = ±1, that is z = 1/reach: coefficients fall as ρ⁻ᵏ with ρ = 1/reach +
# √(1/reach² − 1), and ln 10¹⁵/ln ρ = 12, 17, 26, 33 and 43 of them reach rounding.
_POWERS = {0.125: 16, 0.25: 20, 0.5: 32, 0.625: 40, 0.75: 56}  # Chebyshev points in z, by reach
_NODES = (24, 36, 48)  # Chebyshev points in log ‖x‖, tried in turn
_NOISE = 5e-16  # Chebyshev coefficients below this, relative to the values, are rounding
_LEFT_OVER = 1e-15  # what the functions ψ may leave of a coefficient
_CAREFUL = 64  # nodes that the loops may leave to the careful evaluation, which is slow
_TESTED, _TEST_NORMS = 128, 12  # pairs, and their norms, between the nodes: there a table is tested
_ANGLES = (32, 64, 128, 256)  # Chebyshev points in the angle, tried in turn


class Block(NamedTuple):
    """Where the kernels of a block go: matrices, and its first row and column there."""

    kernels: Kernels
    top: int
    side: int


class Samples:
    """What a table knows of samples.

    Attributes
    ----------
    scale : ndarray of shape (n + loops.PADDING,)
        1/‖x‖; NaN outside of the range of the table, which marks all pairs of the sample.
    basis : ndarray of shape (M, n + loops.PADDING)
        √CK_ii ψ_m.
    """

    def __init__(self, scale: NDArray[Any], basis: NDArray[Any]) -> None:
        self.scale, self.basis = scale, basis


@dataclass(frozen=True, eq=False)
class Table:
    """Both kernels of a ring as polynomials.

    Attributes
    ----------
    reach : float
        Largest |c|.
    low, high : float
        Range of the norms; the same for samples of one norm.
    homogeneous : bool
        The model is positively homogeneous: norms are factors, and of any size.
    functions : ndarray of shape (N, 1 + M)
        Chebyshev series in log ‖x‖ of log √CK_ii and the ψ_m.
    core : ndarray of shape (M, numbers)
        What the ψ of a row are multiplied with to give the numbers of `loops.table_block`.
    ranks : ndarray of int
    odd : bool
    """

    reach: float
    low: float
    high: float
    homogeneous: bool
    functions: FloatArray
    core: FloatArray
    ranks: IntArray
    odd: bool

    def _functions(self, norms: FloatArray) -> FloatArray:
        if len(self.functions) == 1:
            values = np.repeat(self.functions, len(norms), axis=0)
            if self.homogeneous:
                values[:, 0] += np.log(norms)
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

    def samples(self, norms: FloatArray) -> Samples:
        """Prepare samples of these norms."""
        covered = self.covers(norms)
        safe = np.where(covered, norms, self.low)
        values = self._functions(safe)
        n = len(norms)
        scale = np.zeros(n + loops.PADDING)
        basis = np.zeros((self.core.shape[0], n + loops.PADDING))
        scale[:n] = np.where(covered, 1.0 / safe, np.nan)
        basis[:, :n] = (np.exp(values[:, :1]) * values[:, 1:]).T
        return Samples(scale, basis)

    def run(
        self,
        inner: FloatArray,
        block: Block,
        first: IntArray,
        samples: tuple[Samples, Samples],
        rows: slice,
        columns: slice,
        kinds: Kinds = (0, 1),
    ) -> int:
        """Turn a block of x·y into kernels; return how many pairs are left, as NaN."""
        one, two = samples
        numbers = one.basis[:, rows].T @ self.core
        if len(kinds) == 1:
            numbers = np.ascontiguousarray(numbers[:, kinds[0] :: 2])
        scale = one.scale[rows] / self.reach
        second = block.kernels[1] if len(block.kernels) == 2 else np.empty((0, 0))
        left: int = loops.table_block(
            inner, block.kernels[0], second, block.top, block.side, first, scale, two.scale,
            columns.start, two.basis, numbers, self.ranks, self.odd,
        )  # fmt: skip
        return left


def fitted_table(
    ring: Ring, low: float, high: float, homogeneous: bool, reach: float
) -> Table | None:
    """Fit a table, or return None if it does not reach its bound; kept with the activation."""

    def fit() -> Table | None:
        try:
            return _Fit(ring, low, high, homogeneous, reach).table()
        except NotSoDeepError:
            # At the ends of a range that is a little wider than the data there may be no
            # equilibrium.  The slower loops tell the user, if it concerns the data.
            return None

    key = ring, low, high, homogeneous, reach
    table: Table | None = ring.layers[0].activation.cached("tables", key, fit, limit=16)
    return table


class _Fit:
    """The work of fitting a table.

    Arrays of coefficients have the axes [kernel, power, row, column].
    """

    def __init__(
        self, ring: Ring, low: float, high: float, homogeneous: bool, reach: float
    ) -> None:
        self._ring = ring
        self._low, self._high, self._homogeneous, self._reach = low, high, homogeneous, reach
        self._powers = _POWERS[reach]

    def _norms(self, places: FloatArray) -> FloatArray:
        """Norms at places in [−1, 1] on the logarithmic scale."""
        return np.asarray(self._low ** (0.5 - 0.5 * places) * self._high ** (0.5 + 0.5 * places))

    def _evaluate(
        self, norms: FloatArray, rows: IntArray, columns: IntArray, z: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """√CK_ii, and the kernels of pairs of these norms over √(CK_ii CK_jj), (kernels, pairs)."""
        states = RingStates(self._ring, norms**2)
        cosine = self._reach * z
        inner = norms[rows] * norms[columns] * cosine
        *both, left = states.loop(rows, columns, inner)
        if len(left) > _CAREFUL:
            return None
        values = np.stack(both)
        if len(left):
            one, two = rows[left], columns[left]
            rest = 1.0 - np.abs(cosine[left])
            inputs = InputPairs(inner[left], norms[one], norms[two], rest)
            values[:, left] = states.careful(one, two, inputs)
        root = np.sqrt(states.diagonal[0])
        return root, values / (root[rows] * root[columns])

    def table(self) -> Table | None:
        """Do the work, with more nodes if it needs them."""
        if self._low == self._high:
            return self._attempt(1)[0]
        # Fewer cannot resolve a wide range: functions of log ‖x‖ have poles at some distance.
        least = 30.0 * 0.5 * math.log(self._high / self._low)
        for nodes in _NODES:
            if nodes >= least or nodes == _NODES[-1]:
                table, resolved = self._attempt(nodes)
                if table is not None or resolved:
                    return table
        return None

    def _attempt(self, nodes: int) -> tuple[Table | None, bool]:
        """Fit with so many nodes; return a table, if good, and whether there were enough nodes."""
        powers = self._powers
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
        root, values = found
        values, expected = values[:, :-_TESTED], values[:, -_TESTED:]
        series = np.empty((len(values), powers, nodes, nodes))
        flat = chebyshev_series(values.reshape(-1, len(a), powers).transpose(2, 0, 1))
        series[:, :, a, b] = series[:, :, b, a] = flat.transpose(1, 0, 2)
        scale = np.abs(values).max(axis=1)
        if not scale.all():
            return None, False  # a kernel that vanishes has no scale, and the loops are right
        relative = np.abs(series) / scale[:, None, None, None]
        # Two of the last: one vanishes if the kernel is odd or even in c.
        if relative[:, -2:].max() > _LEFT_OVER:
            return None, True  # a shorter reach may do
        across = np.abs(chebyshev_series(series.transpose(2, 0, 1, 3) / scale[:, None, None]))
        if nodes > 1 and across[-2:].max() > _LEFT_OVER:
            return None, False
        basis, ranks = _basis(series, scale, _LEFT_OVER)
        if basis is None:
            return None, True
        table = self._assemble(root[:nodes], norms[:nodes], series, basis, ranks)
        error = _error(table, norms, tested, z, expected, root)
        return (table, True) if error <= TABLE_BOUND else (None, nodes == _NODES[-1])

    def _assemble(
        self,
        root: FloatArray,
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
            missing = -len(order) % loops.TERMS_STEP
            core = np.concatenate([core, np.zeros((len(core), missing, 1, 1))], axis=1)
            needed = np.concatenate([needed, np.ones(missing, dtype=np.int64)])
            order = [*range(kept, kept + missing), *order]
            kept += missing
        used = np.array([_allowed(int(needed[k]), count) for k in order], dtype=np.int64)
        padded = np.zeros((len(core), kept, count, max(int(used.max()), count)))
        padded[..., :count] = core
        numbers = np.concatenate(
            [
                padded[:, k, :, :rank].transpose(1, 2, 0).reshape(count, -1)
                for k, rank in zip(order, used, strict=True)
            ],
            axis=1,
        )
        # The layout of `loops.table_block`: kernels in turn, ψ after ψ, highest power first.
        wide = np.zeros((int(used.max()), numbers.shape[1]))
        wide[:count] = numbers
        functions = np.zeros((nodes, 1 + len(wide)))
        functions[:, 0] = np.log(root) - (np.log(norms) if self._homogeneous else 0.0)
        functions[:, 1 : 1 + count] = basis
        functions = chebyshev_series(functions) if nodes > 1 else functions
        return Table(
            self._reach, self._low, self._high, self._homogeneous, functions,
            np.ascontiguousarray(wide), used, odd,
        )  # fmt: skip


def _error(
    table: Table,
    norms: FloatArray,
    pairs: IntArray,
    z: FloatArray,
    expected: FloatArray,
    root: FloatArray,
) -> float:
    """Largest error at some pairs (2, …) of samples, relative to root_i root_j as `expected`."""
    # As a matrix of which the diagonal is wanted.
    n = len(z)
    samples = table.samples(norms[pairs[0]]), table.samples(norms[pairs[1]])
    inner = np.diag(norms[pairs[0]] * norms[pairs[1]] * table.reach * z)
    kernels = tuple(np.empty((n, n)) for _ in expected)
    whole, none = slice(0, n), np.zeros(n, dtype=np.int64)
    table.run(inner, Block(kernels, 0, 0), none, samples, whole, whole)
    got = np.stack([np.diag(kernel) for kernel in kernels])
    scale = np.maximum(np.abs(expected).max(axis=1), 1.0)
    error = np.abs(got / (root[pairs[0]] * root[pairs[1]]) - expected).max(axis=1)
    return float((error / scale).max())


@lru_cache(maxsize=64)
def _conversion(count: int) -> FloatArray:
    """Matrix that turns Chebyshev coefficients into those of powers."""
    conversion = np.zeros((count, count))
    for k in range(count):
        conversion[: k + 1, k] = cheb2poly(np.eye(count)[k, : k + 1])
    return conversion


def _allowed(rank: int, count: int) -> int:
    """Round a rank up to one that `loops.table_block` takes."""
    return 1 if count == 1 else max(2, rank + rank % 2)


def _basis(
    series: FloatArray, scale: FloatArray, left_over: float
) -> tuple[FloatArray | None, IntArray]:
    """Orthonormal functions ψ on the nodes (nodes, M), and how many each coefficient needs.

    None if more than `loops.MOST_RANKS` are needed.
    """
    _, powers, nodes, _ = series.shape
    relative = series / scale[:, None, None, None]
    vectors = np.linalg.svd(relative.reshape(-1, nodes), full_matrices=False)[2].T
    ranks = np.zeros(powers, dtype=np.int64)
    most = min(nodes, loops.MOST_RANKS)
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


def angle_series(ring: Ring, norm: float) -> FloatArray | None:
    """Chebyshev series in the angle of both kernels of samples of one norm; shape (terms, 2).

    In θ = arccos c, on [0, π], a kink leaves no singularity: these serve pairs beyond the reach of
    a table.  None if they do not resolve.
    """
    activation = ring.layers[0].activation
    key = ring, norm
    series: FloatArray | None = activation.cached(
        "angles", key, lambda: _angle_series(ring, norm), limit=64
    )
    return series


def _angle_series(ring: Ring, norm: float) -> FloatArray | None:
    states = RingStates(ring, np.array([norm**2]))
    for size in _ANGLES:
        angle = 0.5 * math.pi * (1.0 + chebyshev_points(size))
        cosine = np.cos(angle)
        # 1 − |cos θ| = 2 sin²(θ/2), or the same of π − θ, with all its digits.
        rest = 2.0 * np.sin(0.5 * np.minimum(angle, math.pi - angle)) ** 2
        inner, same = norm**2 * cosine, np.zeros(size, dtype=np.int64)
        *both, left = states.loop(same, same, inner)
        values = np.stack(both)
        if left.size:
            norms = np.full(left.size, norm)
            inputs = InputPairs(inner[left], norms, norms, rest[left])
            values[:, left] = states.careful(same[left], same[left], inputs)
        series = chebyshev_series(values.T)
        small = (np.abs(series) <= 8.0 * _NOISE * np.abs(values).max(axis=1)).all(axis=1)
        if small[-4:].all():
            kept = int(np.flatnonzero(~small).max(initial=0)) + 1
            return np.ascontiguousarray(series[:kept])
    return None
