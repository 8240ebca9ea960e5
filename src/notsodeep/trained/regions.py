"""Whether a network's class is the same in a whole region of inputs: certified robustness.

Let (u, z = φ(u)) be a state at the centre of the region, v = u − (Wz + h) its residual, and Δu and
Δz the ways to the fixed point at another input of the region.  If |Δu_k| ≤ r_k, the secant slope of
unit k lies in [a_k, b_k]; with D₀ = (a + b)/2, R = (b − a)/2 and M = (I − WD₀)⁻¹

    Δu = M(Uδ − v + Ww),  Δz = D₀Δu + w,  |w_k| ≤ R_k |Δu_k|,

which bounds Δu anew: by |w| ≤ Rr, unit by unit, or by all of these inequalities together: with a
diagonal T, y = Tw, q = TRMUδ and G = TRMWT⁻¹ they give ‖y‖ ≤ ‖q + Gy‖, an ellipsoid wherever
P = I − GᵀG ≻ 0: y ∈ P⁻¹Gᵀq + {‖·‖_P ≤ ‖q‖_N}, N = I + GP⁻¹Gᵀ.  r is first a bound of the
certificate for all of the region, and every step is sound, so that it may end at any time.

Everything is a proof in float64 arithmetic.  M is any matrix near the inverse: what it misses,
(I − M(I − WD₀))Δu, is bounded through r; so are v, and the rounding of every product (γ_k times the
product of absolute values).  Together they are one vector ζ with |ζ| ≤ η, added to Uδ's part.
Powers of two in T make its products exact; matrices that are factorised are lowered, or raised, by
more than the backward error.  Secants are widened by what φ may be off.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cholesky, solve_triangular

from notsodeep.activations import Activation, Custom, Elementary, PiecewiseLinear
from notsodeep.activations.formulas import Apply, Formula, Variable
from notsodeep.arrays import FloatArray
from notsodeep.errors import InvalidInput
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import real_tensor
from notsodeep.progress import progress_bar
from notsodeep.records import Record
from notsodeep.trained.certificate import Certifier

Norm = Literal["linf", "l2"]

_EPS = float(np.finfo(np.float64).eps)
_TINY = 1e-150  # squares of what is smaller underflow
_RANGE = 1e-60, 1e60  # of the largest entries; beyond, nothing is proved
_STEPS = 12  # of shrinking r
_GAIN = 0.995  # a step that shrinks nothing further is the last
_SMOOTH = ("tanh", "erf", "arctan")  # increasing, with slopes that fall with |x|
_POWER_STEPS = 12  # of the weights of a box


@dataclass(frozen=True, repr=False)
class Robustness(Record):
    """What is proved of the classes in regions about rows; see `certify`."""

    norm: Norm
    radius: FloatArray
    certified: NDArray[np.bool_]  # rows whose class is proved for the whole region, (n,)
    classes: NDArray[np.int64]  # at the centres
    bounds: FloatArray  # the largest lead of another class, proved; negative where certified
    unstable: NDArray[np.int64]  # units whose slope is not known in the region
    seconds: FloatArray
    accuracy: float | None = None  # with labels: of the centres
    certified_accuracy: float | None = None  # right in the whole region, proved
    attacked_accuracy: float | None = None  # right wherever the attack looked: an upper limit
    attack: str = ""
    broken: NDArray[np.bool_] | None = None  # rows for which the attack found another class

    def __str__(self) -> str:
        text = (
            f"{self.certified.mean():.1%} of {len(self.certified)} rows certified in "
            f"{self.norm} balls of {np.median(self.radius):.4g} (median); "
            f"{np.median(self.unstable):.0f} unstable units, {np.median(self.seconds):.2f} s a row."
        )
        if self.accuracy is None or self.attacked_accuracy is None:
            return text
        return (
            f"{text} Accuracy {self.accuracy:.1%}; certified {self.certified_accuracy:.1%}, "
            f"{self.attacked_accuracy:.1%} after {self.attack}."
        )


def certify(
    cell: AffineDEQ,
    X: ArrayLike,
    radius: ArrayLike,
    norm: Norm = "linf",
    *,
    clip: tuple[ArrayLike, ArrayLike] | None = None,
    y: ArrayLike | None = None,
    attack_steps: int = 40,
    rng: int = 0,
    progress: bool = True,
) -> Robustness:
    """Prove that a network's class is the same at all inputs within a radius of each row.

    Parameters
    ----------
    cell : AffineDEQ
        With a read-out and a margin; piecewise linear, tanh, erf, arctan or sigmoid.
    X : array_like of shape (n, p)
    radius : float or array_like of shape (p,)
        In the units of X; one number for "l2".
    norm : {"linf", "l2"}
    clip : tuple of (low, high), optional
        Of what inputs can be, numbers or vectors; a box is cut off there, and its centre is the
        nominal point.
    y : array_like of int, optional
        Labels, for accuracies and an attack.
    attack_steps : int
        Of projected gradients, from the centre and from one random point.
    rng : int
        Of that point.
    progress : bool
        Show a bar on a terminal.

    Examples
    --------
    >>> from notsodeep.networks.cell import EquilibriumCell
    >>> cell = EquilibriumCell.from_weights([[-9.0]], [[1.0]], readout=([[1.0], [0.0]], [0, 0.2]))
    >>> result = certify(cell, [[1.0], [3.0]], radius=0.5)  # z* = x/10: classes part at x = 2
    >>> result.certified, result.classes
    (array([ True,  True]), array([1, 0]))
    >>> certify(cell, [[1.0], [3.0]], radius=1.01).certified
    array([False, False])
    """
    if norm not in ("linf", "l2"):
        raise InvalidInput(f"norm must be linf or l2, got {norm!r}.")
    rows = real_tensor(X, "X").numpy()
    if rows.ndim != 2 or rows.shape[1] != cell.inputs:
        raise InvalidInput(f"X must have {cell.inputs} features, got shape {rows.shape}.")
    shape = () if norm == "l2" else (cell.inputs,)
    size = real_tensor(radius, "radius", *shape).numpy()
    if (size < 0.0).any() or (norm == "l2" and size.ndim):
        raise InvalidInput(f"radius must not be negative, one number for l2, got {size}.")
    centres, widths = _regions(rows, size, norm, clip)
    labels = None if y is None else _labels(y, cell, len(rows))
    problem = _Problem(cell, norm)
    states = problem.states(centres)
    results = []
    with progress_bar("Certificates", enabled=progress, unit="work") as advance:
        for i, u in enumerate(states):
            start = time.perf_counter()
            results.append((*problem.row(u, centres[i], widths[i]), time.perf_counter() - start))
            advance(i + 1, len(rows))
    classes, bounds, unstable, seconds = (np.array(part) for part in zip(*results, strict=True))
    certified = bounds < 0.0
    accuracies: dict[str, Any] = {}
    if labels is not None:
        right = classes == labels
        box = _region_of(rows, size, norm, clip)
        broken = _attacked(cell, centres, labels, norm, box, attack_steps, rng)
        accuracies = {
            "accuracy": float(right.mean()),
            "certified_accuracy": float((certified & right).mean()),
            "attacked_accuracy": float((right & ~broken).mean()),
            "attack": f"{attack_steps} projected gradient steps from 2 starts",
            "broken": broken,
        }
    return Robustness(
        norm,
        np.atleast_1d(size),
        certified,
        classes.astype(np.int64),
        bounds,
        unstable.astype(np.int64),
        seconds,
        **accuracies,
    )


def certified_radius(
    cell: AffineDEQ, X: ArrayLike, norm: Norm = "linf", *, steps: int = 10
) -> FloatArray:
    """Return a radius for which `certify` proves each row's class, by bisection; zero if none.

    Parameters
    ----------
    cell, X, norm
        As of `certify`.
    steps : int
        Of bisection, after the first radius that is not proved: 1e-3 times a power of two.

    Examples
    --------
    >>> from notsodeep.networks.cell import EquilibriumCell
    >>> cell = EquilibriumCell.from_weights([[-9.0]], [[1.0]], readout=([[1.0], [0.0]], [0, 0.2]))
    >>> certified_radius(cell, [[1.0], [3.0]]).round(3)  # z* = x/10: classes part at x = 2
    array([1., 1.])
    """
    rows = real_tensor(X, "X").numpy()
    problem = _Problem(cell, norm)
    radii = np.zeros(len(rows))
    for i, u in enumerate(problem.states(rows)):

        def proved(radius: float, u: FloatArray = u, x: FloatArray = rows[i]) -> bool:
            width = np.full(cell.inputs if norm == "linf" else (), radius)
            return problem.row(u, x, width)[1] < 0.0

        high = 1e-3
        while high < 1e9 and proved(high):
            high *= 2.0
        low = 0.5 * high if high > 1e-3 else 0.0
        for _ in range(steps):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if proved(middle) else (low, middle)
        radii[i] = low
    return radii


def _region_of(
    X: FloatArray, size: FloatArray, norm: Norm, clip: tuple[ArrayLike, ArrayLike] | None
) -> tuple[FloatArray, FloatArray, float]:
    """Return the ends of the boxes, and the radius of balls."""
    low = np.full(X.shape[1], -np.inf)
    high = -low
    if clip is not None:
        low, high = (
            np.broadcast_to(np.asarray(end, dtype=np.float64), X.shape[1:]) for end in clip
        )
        if not (low < high).all() or ((low > X) | (high < X)).any():
            raise InvalidInput("clip must be (low, high) with all rows of X in between.")
    if norm == "l2":
        return low + 0.0 * X, high + 0.0 * X, float(size)
    return np.maximum(X - size, low), np.minimum(X + size, high), np.inf


def _regions(
    X: FloatArray, size: FloatArray, norm: Norm, clip: tuple[ArrayLike, ArrayLike] | None
) -> tuple[FloatArray, FloatArray]:
    """Return centres, and half-widths of boxes or radii of balls, no region too small."""
    low, high, ball = _region_of(X, size, norm, clip)
    if norm == "l2":  # what is cut off a ball is proved along with it
        return X, np.full(len(X), ball)
    centres = 0.5 * (low + high)
    widths = np.maximum(high - centres, centres - low)
    # The ends, the centre and the widths are each off by a rounding.
    return centres, widths * (1.0 + 4.0 * _EPS) + 4.0 * _EPS * (np.abs(low) + np.abs(high))


def _labels(y: ArrayLike, cell: AffineDEQ, rows: int) -> NDArray[np.int64]:
    labels = np.asarray(y)
    classes = len(cell.arrays()["C"]) if cell.has_readout else 0
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise InvalidInput(f"y must be a vector of {rows} whole numbers, got {labels.shape}.")
    if rows and not 0 <= labels.min() <= labels.max() < classes:
        raise InvalidInput(f"y must be indices of the {classes} logits.")
    return labels.astype(np.int64)


class _Problem:
    """One network, and the bounds for one region of its inputs."""

    def __init__(self, cell: AffineDEQ, norm: Norm) -> None:
        cell.require_readout()
        if len(cell.arrays()["C"]) < 2:
            raise InvalidInput("the cell must have two logits at least, got one.")
        self.cell, self.norm = cell, norm
        self.certifier = Certifier(cell)  # names what is missing, if there is no margin
        if self.certifier._factor is None or not cell.slopes.monotone:
            raise InvalidInput("the cell must have increasing units and a margin, got neither.")
        self.slopes = _sector_of(cell.activation)
        arrays = cell.arrays()
        self.W, self.U, self.b, self.C = (arrays[k] for k in ("W", "U", "b", "C"))
        self.shift, self.scale = arrays["shift"], arrays["scale"]
        m, p = self.U.shape
        # Of sums of up to that many products, with a factor for what is made of them.
        self.gamma = 4.0 * (m + p + 16) * _EPS
        inverse = solve_triangular(self.certifier._factor, np.eye(m), lower=True)
        spread = 1.1 * (m + 4) * _EPS * _length(inverse) * _length(self.certifier._factor)
        self.unit_norms = _length(inverse, axis=0) + spread * _length(inverse)
        self.root = self.certifier._root.numpy().T  # K with ‖Λv‖_{S⁻¹} = ‖Kv‖

    def states(self, X: FloatArray) -> FloatArray:
        """Return pre-activations near the fixed points: any will do."""
        with torch.no_grad():
            double = self.cell if self.cell.bias.dtype == torch.float64 else None
            cell = double or AffineDEQ(
                self.W, self.U, self.b, self.cell.activation, shift=self.shift, scale=self.scale
            )
            drive = cell.drive(X)
            z = cell.solve(drive, 1e-12).z
            return np.asarray(torch.addmm(drive, z, cell.recurrent.mT).numpy())

    def row(self, u: FloatArray, x: FloatArray, width: FloatArray) -> tuple[int, float, int]:
        """Return the class at the centre, the largest lead of another one, and unstable units."""
        state, inputs = torch.as_tensor(u)[None], self.certifier.rows(x[None])
        scores, widths = (t.numpy()[0] for t in self.certifier.outputs(state, *inputs))
        best = int(scores.argmax())
        others = np.arange(len(scores)) != best
        UR = self.U * (width / self.scale)
        weights = UR, self.W, self.C, self.b, self.root
        if not (np.isfinite(u).all() and np.isfinite(widths).all() and _in_range(*weights)):
            return best, np.inf, len(u)
        local = self.neighbourhood(u, x, UR)
        gaps = self.C[others] - self.C[best]
        # The logits at z = φ(u) itself, not at the centre of the certificate's ball.
        z = self.cell.activation(u)
        ahead = gaps @ z + (self.cell.arrays()["c"][others] - self.cell.arrays()["c"][best])
        size = np.abs(self.C).max(axis=0) @ (np.abs(z) + self._of_phi(u, z) / _EPS)
        ahead = ahead + 4.0 * self.gamma * (size + 2.0 * np.abs(self.cell.arrays()["c"]).max())
        if local is None:
            return best, np.inf, len(u)
        # C_j − C_i is off by a rounding, too.
        rounding = (
            4.0 * _EPS * np.abs(self.C).max(axis=0) @ ((local.middle + local.spread) * local.r)
        )
        leads = ahead + local(gaps) + rounding + _TINY
        return best, float(leads.max()), int((local.spread > 0.0).sum())

    def neighbourhood(self, u: FloatArray, x: FloatArray, UR: FloatArray) -> _Local | None:
        """Return bounds about the state u at x, for |Δu| ≤ r with r as small as it gets."""
        state, inputs = torch.as_tensor(u)[None], self.certifier.rows(x[None])
        v = self._residual(u, x)
        local = self._local(u, self._start(inputs, state, UR, v), UR, v)
        for _ in range(_STEPS):
            if local is None:
                break
            smaller = np.minimum(local.r, local(None))
            if (smaller > _GAIN * local.r).all():
                break
            local = self._local(u, smaller, UR, v)
        return local

    def _of_phi(self, u: FloatArray, z: FloatArray) -> FloatArray:
        """Return what φ(u) may be off by, unit by unit."""
        certifier = self.certifier
        constant = certifier._of_constant / len(u) ** 0.5
        sizes = np.abs(z) + certifier._steepness * np.abs(u) + constant
        return np.asarray(32.0 * _EPS * sizes + _TINY)

    def _residual(self, u: FloatArray, x: FloatArray) -> FloatArray:
        """Return a bound of |u − (Wφ(u) + h)|, unit by unit."""
        z, inputs = self.cell.activation(u), (x - self.shift) / self.scale
        v = u - (self.W @ z + self.U @ inputs + self.b)
        sizes = np.abs(u) + np.abs(self.W) @ np.abs(z) + np.abs(self.b)
        sizes = sizes + np.abs(self.U) @ ((np.abs(x) + np.abs(self.shift)) / self.scale)
        off = np.abs(self.W) @ self._of_phi(u, z)
        return np.asarray(np.abs(v) + self.gamma * sizes + (1.0 + self.gamma) * off + _TINY)

    def _start(
        self,
        inputs: tuple[torch.Tensor, torch.Tensor],
        state: torch.Tensor,
        UR: FloatArray,
        v: FloatArray,
    ) -> FloatArray:
        """Return r for the whole region: ‖Δz‖_S ≤ ‖Λ(v − Uδ)‖_{S⁻¹}."""
        nominal = float(self.certifier.bounds(state, *inputs)[0])
        image = self.root @ UR
        error = self.gamma * _length(np.abs(self.root) @ np.abs(UR), axis=0).sum()
        error += self.certifier._root_error * _length(UR, axis=0).sum()
        ball = nominal + self._sup(image) + error
        dz = self.unit_norms * ball
        r = np.abs(self.W) @ dz + self._dual(UR) + v
        return np.asarray(r * (1.0 + self.gamma) + _TINY)

    def _dual(self, A: FloatArray) -> FloatArray:
        """Return sup |A δ| of every row of A, rounded up."""
        sup = np.abs(A).sum(axis=-1) if self.norm == "linf" else _length(A, axis=-1)
        return np.asarray(sup * (1.0 + self.gamma) + _TINY)

    def _sup(self, K: FloatArray) -> float:
        """Return an upper bound of sup ‖K δ‖₂."""
        if not K.size:
            return 0.0
        if self.norm == "l2":
            return _spectral_norm(K) + _TINY
        best = _length(np.abs(K).sum(axis=1))
        weights = _length(K, axis=0) + 1e-12 * _length(K) + _TINY
        for step in range(_POWER_STEPS):
            # ‖Kδ‖² ≤ ‖K D^(−1/2)‖²·Σ d for any weights d > 0.
            scaled = K / np.sqrt(weights)
            values, vectors = np.linalg.eigh(scaled @ scaled.T)
            top = values[-1] + 4.0 * len(values) * self.gamma * _length(scaled) ** 2
            best = min(best, float(np.sqrt(max(top, 0.0) * weights.sum())))
            share = np.exp((values - values[-1]) / (0.02 * values[-1] + _TINY))
            new = np.sqrt(((vectors.T @ K) ** 2 * (share / share.sum())[:, None]).sum(axis=0))
            new = new / (new.sum() + _TINY) * weights.sum() + 1e-9 * weights.mean()
            weights = np.sqrt(weights * new) if step < _POWER_STEPS // 2 else 0.5 * (weights + new)
        sup: float = best * (1.0 + 4.0 * self.gamma) + _TINY
        return sup

    def _local(self, u: FloatArray, r: FloatArray, UR: FloatArray, v: FloatArray) -> _Local | None:
        """Linearise about u for |Δu| ≤ r; None if that fails."""
        if not np.isfinite(r).all():
            return None
        return _Local.of(self, u, r, UR, v)


@dataclass(frozen=True)
class _Local:
    """Bounds for |Δu| ≤ r: Δu = Qδ + Γw + ζ, |ζ| ≤ η, |w| ≤ R|Δu|."""

    problem: _Problem
    middle: FloatArray  # D₀
    spread: FloatArray  # R
    r: FloatArray
    Q: FloatArray
    gain: FloatArray  # Γ, columns of the unstable units
    unstable: NDArray[np.bool_]
    error: FloatArray  # η
    ellipsoids: tuple[_Ellipsoid, ...]

    @classmethod
    def of(
        cls, problem: _Problem, u: FloatArray, r: FloatArray, UR: FloatArray, v: FloatArray
    ) -> _Local | None:
        """Return the bounds, or None if I − WD₀ is not inverted."""
        W, gamma, m = problem.W, problem.gamma, len(u)
        low, high = problem.slopes(u, r)
        middle = 0.5 * (low + high)
        spread = np.maximum(high - middle, middle - low) * (1.0 + 4.0 * _EPS)
        system = np.eye(m) - W * middle
        try:
            M = np.linalg.inv(system)
        except LinAlgError:
            return None
        size = np.abs(M)
        missed = np.abs(np.eye(m) - M @ system)
        missed = missed + gamma * (np.eye(m) + size @ (np.eye(m) + np.abs(W) * middle))
        if not np.isfinite(missed).all() or missed.sum(axis=1).max() > 0.1:
            return None
        Q, MW = M @ UR, M @ W
        dual = np.abs(UR).sum(axis=1)
        rounding = gamma * (size @ (dual + np.abs(W) @ (spread * r)))
        error = size @ v + missed @ r + rounding
        error = error * (1.0 + gamma) + _TINY
        unstable = spread > 0.0
        local = cls(problem, middle, spread, r, Q, MW[:, unstable], unstable, error, ())
        return local._with_ellipsoids()

    def _with_ellipsoids(self) -> _Local:
        shapes = []
        if self.unstable.any():
            for power in (0.0, 0.5):
                R, r = self.spread[self.unstable], self.r[self.unstable]
                weight = R**-0.5 * np.maximum(r, 1e-9 * r.max()) ** -power
                scaling = np.exp2(np.round(np.log2(weight / np.exp(np.log(weight).mean()))))
                shape = _Ellipsoid.of(self, scaling)
                if shape is not None:
                    shapes.append(shape)
        return _Local(**{**self.__dict__, "ellipsoids": tuple(shapes)})

    def __call__(self, functionals: FloatArray | None) -> FloatArray:
        """Return upper bounds of g·Δz for rows g; of |Δu| without them."""
        gamma, U = self.problem.gamma, self.unstable
        if functionals is None:
            linear, box, rest = self.Q, self.gain, self.error
        else:
            g = functionals * self.middle
            linear, box = g @ self.Q, g @ self.gain + functionals[:, U]
            rest = np.abs(g) @ self.error
            rest = rest + gamma * (np.abs(g) @ np.abs(self.Q)).sum(axis=1)
            size = np.abs(g) @ np.abs(self.gain) + np.abs(functionals[:, U])
            rest = rest + gamma * (size @ (self.spread * self.r)[U])
        best = self.problem._dual(linear) + np.abs(box) @ (self.spread * self.r)[U]
        for shape in self.ellipsoids:
            best = np.minimum(best, shape.bound(linear, box))
        return np.asarray((best + rest) * (1.0 + gamma) + _TINY)


@dataclass(frozen=True)
class _Ellipsoid:
    """‖y‖ ≤ ‖q + Gy + ζ‖ for y = Tw, q = K δ: y = Xq + … in the norm of P = I − GᵀG ⪰ LLᵀ."""

    problem: _Problem
    scaling: FloatArray  # T, powers of two
    K: FloatArray  # (k, p)
    X: FloatArray  # near P⁻¹Gᵀ
    inverse: FloatArray  # L⁻¹
    inverse_error: float
    reach: float  # sup ‖q + ζ‖_N
    slack: float  # times ‖T⁻¹f‖: what X misses, and what it makes of ζ
    size: FloatArray

    @classmethod
    def of(cls, local: _Local, scaling: FloatArray) -> _Ellipsoid | None:
        """Return the ellipsoid, or None if P is not positive definite beyond rounding."""
        problem, U = local.problem, local.unstable
        gamma, R = problem.gamma, local.spread[U]
        weight = scaling * R  # exact up to the rounding of R, which is rounded up
        K = weight[:, None] * local.Q[U]
        G = weight[:, None] * local.gain[U] / scaling
        k, norm = len(R), _length(G)
        reach_of_y = _length(weight * local.r[U]) * (1.0 + gamma)
        length = 1.0 if problem.norm == "l2" else K.shape[1] ** 0.5
        # ζ: the vector η, and the roundings of K and G.
        zeta = _length(weight * local.error[U]) * (1.0 + gamma)
        zeta += gamma * (_length(K) * length + norm * reach_of_y) + _TINY
        P = np.eye(k) - G.T @ G
        lowered = gamma * (1.0 + norm**2) * (k + 4)
        try:
            L = cholesky(P - lowered * np.eye(k), lower=True)
        except LinAlgError:
            return None
        inverse = solve_triangular(L, np.eye(k), lower=True)
        condition = _length(inverse) * _length(L)
        inverse_error = 2.0 * gamma * condition * _length(inverse)
        least = (_length(inverse) + inverse_error) ** 2  # at least ‖P⁻¹‖
        X = inverse.T @ (inverse @ G.T)
        missed = _length(P @ X - G.T) + lowered * _length(X)
        missed += gamma * (norm + (1.0 + norm**2) * _length(X))
        # N = I + GP⁻¹Gᵀ ⪯ I + (L⁻¹Gᵀ)ᵀ(L⁻¹Gᵀ), raised by what L⁻¹ may be off.
        image = inverse @ G.T
        off = inverse_error * norm + gamma * _length(inverse) * norm
        N = np.eye(k) + image.T @ image
        raised = 2.0 * off * (_length(image) + off)
        raised += gamma * (k + 4) * (k**0.5 + _length(image) ** 2)
        try:
            root = cholesky(N + raised * np.eye(k), lower=True)
        except LinAlgError:
            return None
        top = _length(root) * (1.0 + gamma)
        reach = problem._sup(root.T @ K)
        reach += gamma * _length(np.abs(root.T) @ np.abs(K)) * length + top * zeta
        all_q = _length(K) * length + zeta
        slack = float(missed) * least * all_q + _length(X) * zeta
        if not np.isfinite(reach + slack):
            return None
        size = np.abs(X) @ np.abs(K)
        return cls(problem, scaling, K, X, inverse, inverse_error, reach, slack, size)

    def bound(self, linear: FloatArray, box: FloatArray) -> FloatArray:
        """Return upper bounds of linear·δ + box·w."""
        f = box / self.scaling
        gamma = self.problem.gamma
        total = self.problem._dual(linear + f @ (self.X @ self.K))
        total = total + 2.0 * gamma * (np.abs(linear) + np.abs(f) @ self.size).sum(axis=1)
        length = _length(f, axis=1)
        radius = _length(f @ self.inverse.T, axis=1) + self.inverse_error * length
        radius = radius + gamma * _length(self.inverse) * length
        return np.asarray((total + radius * self.reach + length * self.slack) * (1.0 + gamma))


def _length(A: FloatArray, axis: int | None = None) -> Any:
    """Return norms, of all of A or along an axis, rounded up."""
    return np.linalg.norm(A, axis=axis) * (1.0 + 1e-9) + _TINY


def _in_range(*arrays: FloatArray) -> bool:
    """Whether no square of an entry that counts underflows or overflows."""
    sizes = [float(np.abs(array).max(initial=0.0)) for array in arrays]
    return all(size == 0.0 or _RANGE[0] <= size <= _RANGE[1] for size in sizes)


def _spectral_norm(K: FloatArray) -> float:
    """Return an upper bound of ‖K‖₂."""
    slack = 8.0 * max(K.shape) * _EPS * _length(K)
    bound: float = float(np.linalg.norm(K, 2)) * (1.0 + 8.0 * _EPS) + slack
    return bound


def _sector_of(
    activation: Activation,
) -> Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """Return (u, r) ↦ bounds of the secant slopes of φ from u within r."""
    match activation:
        case PiecewiseLinear():
            return lambda u, r: _linear_sector(activation, u, r)
        case Elementary(name=name) if name in _SMOOTH:
            return lambda u, r: _smooth_sector(activation, u, r)
        case Custom(
            function=Formula(expression=Apply(operation="sigmoid", arguments=(Variable(),)))
        ):
            return lambda u, r: _smooth_sector(activation, u, r)
    raise InvalidInput(
        "activation must be piecewise linear, tanh, erf, arctan or sigmoid, got "
        f"{activation}: its secants are not known."
    )


def _linear_sector(
    phi: PiecewiseLinear, u: FloatArray, r: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Secants are monotone between knots: their ends are at ±r, at knots, and at u itself."""
    slopes, knots = np.array(phi.slopes), np.array(phi.knots)
    # Beside a knot by less than rounding counts as on both sides of it.
    room = 4.0 * _EPS * (np.abs(u) + r) + _TINY
    first = np.searchsorted(knots, u - r - room)
    last = np.searchsorted(knots, u + r + room)
    low = high = slopes[np.searchsorted(knots, u)]
    here = phi(u)
    points = [u - r, u + r, *(np.where(np.abs(k - u) <= r + room, k, u + r) for k in knots)]
    sizes = np.abs(slopes).max() + np.abs(np.diff(slopes)).sum()
    constant = abs(phi.value_at_zero) + float(np.abs(np.diff(slopes)) @ np.abs(knots))
    for point in points:
        gap = point - u
        # φ and the gap are each off by roundings of their terms.
        off = 64.0 * _EPS * (sizes * (np.abs(u) + np.abs(point)) + constant) + _TINY
        far = np.abs(gap) > 2.0 * room
        secant = (phi(point) - here) / np.where(far, gap, 1.0)
        off = off / np.where(far, np.abs(gap), 1.0)
        low = np.minimum(low, np.where(far, secant - off, slopes.min()))
        high = np.maximum(high, np.where(far, secant + off, slopes.max()))
    inside = first == last  # no knot within reach: one slope
    low = np.where(inside, slopes[first], np.clip(low, slopes.min(), slopes.max()))
    high = np.where(inside, slopes[first], np.clip(high, slopes.min(), slopes.max()))
    # A unit that reaches a knot has the slopes of both sides near it.
    near = ~inside & (r <= 4.0 * room)
    return np.where(near, slopes.min(), low), np.where(near, slopes.max(), high)


def _smooth_sector(phi: Activation, u: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Secants of a function that is concave on one side of zero and convex on the other.

    They lie between the slopes farthest from zero and nearest to it.  As the other end goes away
    from u, secants have one maximum: the least is at an end, and the largest at the end towards
    zero if that is not beyond zero.
    """
    widened = 64.0 * _EPS
    near = np.maximum(np.abs(u) - r, 0.0) * (1.0 - 4.0 * _EPS)
    low = phi.derivative((np.abs(u) + r) * (1.0 + 4.0 * _EPS)) * (1.0 - widened) - widened
    high = phi.derivative(near) * (1.0 + widened) + widened
    here, sign = phi(u), np.where(u < 0.0, -1.0, 1.0)
    safe = np.maximum(r, _TINY)
    # Differences are off by the roundings of both values and of the ends.
    off = widened * (np.abs(here) + np.abs(u) + safe + 1.0) / safe
    inner, outer = (
        (sign * side * (phi(u + sign * side * r) - here)) / safe for side in (-1.0, 1.0)
    )
    low = np.maximum(low, np.minimum(inner, outer) - off)
    high = np.where(np.abs(u) > r * (1.0 + widened), np.minimum(high, inner + off), high)
    return np.maximum(low, 0.0), high


def _attacked(
    cell: AffineDEQ,
    centres: FloatArray,
    labels: NDArray[np.int64],
    norm: Norm,
    box: tuple[FloatArray, FloatArray, float],
    steps: int,
    rng: int,
) -> NDArray[np.bool_]:
    """Return the rows for which projected gradients find another class than the label."""
    low, high, ball = (torch.as_tensor(end) for end in box)
    middle, target = torch.as_tensor(centres), torch.as_tensor(labels)
    dtype, broken = cell.bias.dtype, torch.zeros(len(labels), dtype=torch.bool)
    generator = torch.Generator().manual_seed(rng)
    noise = torch.rand(middle.shape, generator=generator, dtype=torch.float64) - 0.5
    size = ball if norm == "l2" else 0.5 * (high - low)
    for start in (0.0 * noise, noise):
        x = middle + start * 2.0 * (size / middle.shape[1] ** 0.5 if norm == "l2" else size)
        for step in range(steps + 1):
            x = x.detach().requires_grad_(True)
            scores = cell(x.to(dtype))
            broken |= (scores.argmax(dim=1) != target).cpu()
            if step == steps:
                break
            rivals = scores.scatter(1, target[:, None], -torch.inf).amax(dim=1)
            lead = rivals - scores.gather(1, target[:, None])[:, 0]
            (g,) = torch.autograd.grad(lead.sum(), x)
            rate = 2.5 / steps
            with torch.no_grad():
                if norm == "l2":
                    move = x + rate * ball * g / g.norm(dim=1, keepdim=True).clamp_min(1e-300)
                    away = move.clamp(low, high) - middle
                    x = middle + away * (ball / away.norm(dim=1, keepdim=True)).clamp_max(1.0)
                    x = x.clamp(low, high)
                else:
                    x = torch.minimum(torch.maximum(x + rate * size * g.sign(), low), high)
    return np.asarray(broken.numpy())
