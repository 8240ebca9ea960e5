"""The public functions: exact conjugate and tangent kernels as matrices."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.arrays import FloatArray
from notsodeep.kernels.convolution import ConvolutionPlan
from notsodeep.kernels.plan import Explanation, HardPairs, Plan, Tile
from notsodeep.models import (
    Convention,
    ConvolutionalModel,
    ExplicitNetwork,
    KernelModel,
    KernelName,
    checked_choice,
    kernel_name,
)
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.threads import map_threads

KernelMatrix = NDArray[np.floating[Any]]
Unstable = Literal["raise", "mark"]
Trained = Literal["weights", "inputs", "bias", "readout"]

EVERYTHING: tuple[Trained, ...] = ("weights", "inputs", "bias", "readout")
"""What is trained, unless said otherwise."""

_LONG = 40_000_000  # pairs beyond which a progress bar is worth showing


@dataclass(frozen=True, repr=False)
class KernelPair(Plotted):
    """Both kernels of a model on data.

    Attributes
    ----------
    ck, ntk : ndarray of shape (n, n) or (n, m)
    explanation : Explanation
        How they were computed.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> pair = nsd.kernel_pair(nsd.DeepEquilibrium("relu", sigma_a2=0.2), np.eye(2))
    >>> pair.explanation.route, bool((pair.ntk >= pair.ck).all())
    ('univariate', True)
    """

    _drawing = "kernel_pair"

    ck: KernelMatrix
    ntk: KernelMatrix
    explanation: Explanation


def conjugate_kernel(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None = None,
    *,
    convention: Convention = "feature",
    dtype: Any = np.float64,
    out: KernelMatrix | None = None,
    unstable: Unstable = "raise",
) -> KernelMatrix:
    """Compute the exact conjugate kernel (CK) of an infinitely wide network.

    For a DEQ with convention "preactivation": G, the solution of
    G_ij = σa² E[φ(u)φ(v)] + σb² x_i·x_j, (u, v) centred Gaussian with variances q_i, q_j and
    covariance G_ij, where q_i = σa² E φ²(√q_i ξ) + σb² ‖x_i‖².  With convention "feature":
    Φ_ij = E[φ(u)φ(v)] at that solution, the Gram matrix of the features z*.
    In a cell of several layers: G_l = w_l E[φ_{l−1}(u)φ_{l−1}(v)] + u_l x_i·x_j + b_l around the
    ring; the kernels are those of the last layer.
    For an explicit network: Σ_L, where Σ_0 = X Xᵀ and Σ_l = E[σ_l(u)σ_l(v)] under Σ_{l−1}.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
        Or a `ConvolutionalEquilibrium` or `ConvolutionalNetwork`, whose rows are flattened images.
    X : array_like of shape (n, p)
    Y : array_like of shape (m, p), optional
        Without it the kernel is that of X with itself, exactly symmetric.
    convention : {"preactivation", "feature"}
        Concerns DEQs only.
    dtype : float64 or float32
        Type of the result.  With float32 the products of rows are in float32 too, and polynomials
        with fewer terms follow: about twice as fast, with errors of at most
        (4e-7 + p·6e-8)·√(K_ii K_jj)·κ, κ the largest slope of the kernel in the cosine (1 to 4),
        and mostly below 5e-7.  Where digits would cancel, above |cos| = 0.75 at the latest, pairs
        are computed in float64 and rounded.  Convolutions: 2.5 times as fast, with errors mostly
        below 1e-6·√(K_ii K_jj), 4e-6 at the most in all that was tried; nearly critical models and
        pairs that ask for more digits are computed in float64.
    out : ndarray, optional
        Where to put the result, for instance a `numpy.memmap`.
    unstable : {"raise", "mark"}
        What to do where Π_l w_l E φ_l′² ≥ 1, the threshold beyond which no wide network settles.
        With "mark" the solution of the equations is returned with a warning, `TheoryDoubtful`,
        that says for how many samples it is the kernel of no network; tangent kernels are NaN
        there, and ``kernel_pair(…).explanation`` has the numbers.

    Returns
    -------
    ndarray of shape (n, n) or (n, m)

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.eye(2)
    >>> nsd.conjugate_kernel(nsd.ExplicitNetwork(["relu"]), X) * 2 * np.pi
    array([[3.14159265, 1.        ],
           [1.        , 3.14159265]])
    """
    choice = (True, False)
    pair = _evaluate(model, X, Y, convention, dtype, (out, None), choice, unstable=unstable)
    return pair.ck


def tangent_kernel(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None = None,
    *,
    convention: Convention = "feature",
    dtype: Any = np.float64,
    out: KernelMatrix | None = None,
    train: Sequence[Trained] = EVERYTHING,
    unstable: Unstable = "raise",
) -> KernelMatrix:
    """Compute the exact neural tangent kernel (NTK) of an infinitely wide network.

    For a DEQ with convention "preactivation": K = G/(1 − Ġ), Ġ_ij = σa² E[φ′(u)φ′(v)], the NTK of
    √σa² aᵀz* + √σb² bᵀx with a, b, A and B trained.  With convention "feature":
    Φ + G Ġ/(σa²(1 − Ġ)), the NTK of aᵀz* with a, A and B trained.
    For an explicit network: Θ_L, where Θ_l = Σ_l + Θ_{l−1}·E[σ_l′(u)σ_l′(v)] and Θ_0 = X Xᵀ, the
    NTK of L hidden layers and a read-out, all trained.

    In a general cell layer l has Θ_l = T_l + w_l E[φ′φ′]_{l−1} Θ_{l−1}, where T_l is the trained
    part of its covariance w_l E[φφ]_{l−1} + u_l x·y + b_l.

    Parameters and result as for `conjugate_kernel`; moreover

    train : sequence of {"weights", "inputs", "bias", "readout"}
        The parameters of a DEQ that are trained: by default all of them.  The read-out is that of
        convention "feature"; with "preactivation" the last layer is itself the read-out.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> nsd.tangent_kernel(nsd.DeepEquilibrium("normalized_relu", 0.2), X).round(6)
    array([[1.25    , 0.720711],
           [0.720711, 1.25    ]])
    """
    choice = (False, True)
    pair = _evaluate(model, X, Y, convention, dtype, (None, out), choice, train, unstable)
    return pair.ntk


def kernel(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None = None,
    *,
    kind: KernelName = "ck",
    convention: Convention = "feature",
    dtype: Any = None,
    out: KernelMatrix | None = None,
    sigma_a2: Any = None,
) -> Any:
    """Compute the exact kernel of the given kind: `conjugate_kernel` or `tangent_kernel` by name.

    Torch tensors give a tensor on their device and of their type.  On the processor, and if no
    gradient is wanted, the compiled loops do it; otherwise plain tensor operations, see
    `notsodeep.kernels.tensors` for the models that they cover.

    Parameters
    ----------
    model : DeepEquilibrium or ExplicitNetwork
    X : array_like of shape (n, p)
        Samples.
    Y : array_like of shape (m, p), optional
    kind : {"ck", "ntk"}
    convention : {"preactivation", "feature"}
        Concerns DEQs only.
    dtype : float64 or float32, optional
        Of an array; by default float64.
    out : ndarray, optional
        Where to put an array.
    sigma_a2 : Tensor of shape (), optional
        With tensors: takes the place of the model's σa², so that gradients reach it.

    Returns
    -------
    ndarray or Tensor of shape (n, n) or (n, m)

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> nsd.kernel(nsd.DeepEquilibrium("normalized_relu", 0.2), X, kind="ntk").round(6)
    array([[1.25    , 0.720711],
           [0.720711, 1.25    ]])
    """
    named = kernel_name(kind, "kind of kernel")
    compute = conjugate_kernel if named == "ck" else tangent_kernel
    # Not imported for this: who has a tensor has torch.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(X, torch.Tensor):
        if sigma_a2 is not None:
            requirement = "be None unless X is a tensor"
            remedy = "Describe another model: DeepEquilibrium(activation, sigma_a2)."
            raise checks.invalid("sigma_a2", "kernel", requirement, repr(sigma_a2), remedy)
        return compute(model, X, Y, convention=convention, dtype=dtype or np.float64, out=out)
    if dtype is not None or out is not None:
        requirement = "be None for a tensor, whose kernel has its type"
        which, got = ("out", "an array") if dtype is None else ("dtype", repr(dtype))
        raise checks.invalid(which, "kernel", requirement, got)
    gradient = torch.is_grad_enabled() and any(
        isinstance(part, torch.Tensor) and part.requires_grad for part in (X, Y)
    )
    if sigma_a2 is None and not gradient and X.device.type == "cpu":
        kind_of = np.float32 if X.dtype == torch.float32 else np.float64
        return torch.from_numpy(compute(model, X, Y, convention=convention, dtype=kind_of))
    from notsodeep.kernels.tensors import tensor_kernel

    other: Any = Y
    return tensor_kernel(model, X, other, kind=named, convention=convention, sigma_a2=sigma_a2)


def kernel_pair(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None = None,
    *,
    convention: Convention = "feature",
    dtype: Any = np.float64,
    out: tuple[KernelMatrix, KernelMatrix] | None = None,
    train: Sequence[Trained] = EVERYTHING,
    unstable: Unstable = "raise",
) -> KernelPair:
    """Compute `conjugate_kernel` and `tangent_kernel` in one pass, and say how.

    Parameters as for `conjugate_kernel`; `out` is a pair of arrays,
    and `train` is as for `tangent_kernel`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = nsd.data.sphere(50, 10, rng=0)
    >>> pair = nsd.kernel_pair(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), X, X[:3])
    >>> pair.ck.shape, pair.ntk[0].round(4)
    ((50, 3), array([ 0.9687, -0.4952, -0.5136]))
    >>> print(pair.explanation)
    univariate route (inputs of one norm), 3 pairs one by one
    """
    places = out or (None, None)
    return _evaluate(model, X, Y, convention, dtype, places, (True, True), train, unstable)


def checked_plan(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None,
    convention: Convention,
    owner: str,
    kind: KernelName = "ntk",
    train: Sequence[Trained] = EVERYTHING,
    unstable: Unstable = "raise",
    dtype: Any = np.float64,
) -> Plan | ConvolutionPlan:
    """Check everything a user may have got wrong, then make the plan."""
    factors = _train_factors(model, train, owner)
    checks.known_name(unstable, get_args(Unstable), f"unstable of {owner}")
    computed = np.float32 if dtype == np.float32 else np.float64
    if isinstance(model, ConvolutionalModel):
        if unstable != "raise":
            requirement = "be 'raise' for a convolution"
            raise checks.invalid("unstable", owner, requirement, repr(unstable))
        return ConvolutionPlan.checked(model, X, Y, convention, owner, computed)
    checked_choice(model, kind, convention, owner)
    left = checks.samples(X, "X", owner)
    right = None if Y is None else checks.samples(Y, "Y", owner)
    if right is not None and right.shape[1] != left.shape[1]:
        requirement = f"have as many features as X ({left.shape[1]})"
        raise checks.invalid("Y", owner, requirement, right.shape[1])
    checks.kernel_resolved(left, right, owner)
    return Plan(model, left, right, convention, factors, unstable == "mark", computed)


def _train_factors(model: KernelModel, train: Sequence[Trained], owner: str) -> tuple[float, ...]:
    """Turn the names of the trained parameters into factors of their shares."""
    known = get_args(Trained)
    if isinstance(train, str) or not train or not set(train) <= set(known):
        requirement = f"name some of {', '.join(known)}"
        raise checks.invalid("train", owner, requirement, repr(train))
    if set(train) != set(known) and isinstance(model, ConvolutionalModel | ExplicitNetwork):
        requirement = "be everything, unless the model is a DEQ of dense layers"
        raise checks.invalid("train", owner, requirement, repr(train))
    return tuple(float(name in train) for name in known)


def make_plan(
    model: KernelModel, X: FloatArray, Y: FloatArray | None, convention: Convention
) -> Plan | ConvolutionPlan:
    """Make the plan of what was checked before."""
    if isinstance(model, ConvolutionalModel):
        return ConvolutionPlan(model, X, Y, convention)
    return Plan(model, X, Y, convention)


def _evaluate(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None,
    convention: Convention,
    dtype: Any,
    out: tuple[KernelMatrix | None, KernelMatrix | None],
    wanted: tuple[bool, bool],
    train: Sequence[Trained] = EVERYTHING,
    unstable: Unstable = "raise",
) -> KernelPair:
    owner = "a kernel"
    kind = checks.kernel_dtype(dtype, owner)
    kernel: KernelName = "ntk" if wanted[1] else "ck"
    plan = checked_plan(model, X, Y, convention, owner, kernel, train, unstable, kind)
    shape = plan.shape
    missing = sum(w and o is None for w, o in zip(wanted, out, strict=True))
    checks.enough_memory(
        missing * shape[0] * shape[1] * kind.itemsize,
        f"a {shape} kernel",
        "Use dtype=numpy.float32, out=numpy.memmap(…) for a result on disk, or "
        "KernelOperator, which never holds the whole kernel.",
    )
    results = []
    for given, needed in zip(out, wanted, strict=True):
        if given is not None:
            _output_array(given, shape, owner)
        results.append(given if given is not None else np.empty(shape if needed else (0, 0), kind))
    _fill(plan, [(k, r) for k, r in enumerate(results) if wanted[k]])
    plan.report()
    return KernelPair(results[0], results[1], plan.explanation)


def _fill(plan: Plan | ConvolutionPlan, results: list[tuple[int, KernelMatrix]]) -> None:
    """Compute the results, given with their places in a pair, tile by tile on all threads."""
    symmetric = plan.Y is None
    tiles = plan.tiles()
    # Tiles are made where they belong, if both results are wanted as the loops make them.
    kind = plan.dtype if isinstance(plan, Plan) else None
    plain = [r for _, r in results if r.dtype == kind and r.flags.c_contiguous]
    left: list[HardPairs] = []

    def work(tile: Tile) -> None:
        if isinstance(plan, Plan) and len(plain) == 2:
            plan.fill(tile, plain[0], plain[1], left)
            return
        both = plan.tile(tile)
        for which, result in results:
            result[tile.rows, tile.columns] = both[which]
            if symmetric and tile.rows != tile.columns:
                result[tile.columns, tile.rows] = both[which].T

    n, m = plan.shape
    work_in_all = plan.work if isinstance(plan, ConvolutionPlan) else n * m
    with progress_bar("kernel tiles", enabled=work_in_all > _LONG) as advance:
        for done, _ in enumerate(map_threads(work, tiles), start=1):
            advance(done, len(tiles))
    if isinstance(plan, Plan) and len(plain) == 2:
        plan.fill_left(left, plain[0], plain[1])


def _output_array(out: object, shape: tuple[int, int], owner: str) -> None:
    """Require a writable float array of the given shape to put a result into."""
    if not isinstance(out, np.ndarray) or out.shape != shape:
        got = f"shape {np.shape(out)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise checks.invalid("out", owner, f"be an array of shape {shape}", got)
    if out.dtype not in (np.float64, np.float32) or not out.flags.writeable:
        state = "" if out.flags.writeable else ", read-only"
        raise checks.invalid(
            "out", owner, "be writable, of float64 or float32", f"{out.dtype}{state}"
        )
