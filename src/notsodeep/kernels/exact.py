"""The public function: exact conjugate and tangent kernels as matrices."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from notsodeep import checks
from notsodeep.errors import TheoryDoubtful
from notsodeep.kernels.image_states import state_size
from notsodeep.kernels.images import ImagePlan
from notsodeep.kernels.plan import Plan
from notsodeep.kernels.ring import ring_of
from notsodeep.kernels.table import Kinds
from notsodeep.models import (
    Convention,
    ConvolutionalModel,
    KernelModel,
    checked_choice,
    kernel_name,
)
from notsodeep.models.images import MIN_PIXEL
from notsodeep.progress import progress_bar
from notsodeep.records import Plotted
from notsodeep.threads import map_threads

KernelMatrix = NDArray[np.floating[Any]]
Wanted = Literal["ck", "ntk", "both"]

_LONG = 40_000_000  # pairs beyond which a progress bar is worth showing


@dataclass(frozen=True, repr=False)
class KernelPair(Plotted):
    """Both kernels of a model on data, (n, n) or (n, m).

    Examples
    --------
    >>> import notsodeep as nsd
    >>> pair = nsd.kernel(nsd.DeepEquilibrium("relu", sigma_a2=0.2), np.eye(2), kind="both")
    >>> bool((pair.ntk >= pair.ck).all())
    True
    """

    _drawing = "kernel_pair"

    ck: KernelMatrix
    ntk: KernelMatrix


def kernel(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None = None,
    *,
    kind: str = "ck",
    convention: Convention = "feature",
    dtype: Any = None,
    out: KernelMatrix | None = None,
) -> Any:
    """Compute the exact conjugate (CK) or tangent (NTK) kernel of an infinitely wide network.

    For a DEQ, G solves G_ij = σa² E[φ(u)φ(v)] + σb² x_i·x_j, (u, v) centred Gaussian with variances
    q_i, q_j and covariance G_ij, where q_i = σa² E φ²(√q_i ξ) + σb² ‖x_i‖².  With Φ = E[φ(u)φ(v)]
    at that solution, and Ġ = σa² E[φ′(u)φ′(v)],

    * convention "feature": the CK is Φ, the Gram matrix of the features z*, and the NTK
      Φ + G Ġ/(σa²(1 − Ġ)), that of aᵀz* with a, A and B trained;
    * convention "preactivation": the CK is G and the NTK G/(1 − Ġ), that of √σa² aᵀz* + √σb² bᵀx
      with a, b, A and B trained.

    In a cell of several layers G_l = w_l E[φ_{l−1}(u)φ_{l−1}(v)] + u_l x_i·x_j + b_l and
    Θ_l = G_l + w_l E[φ′φ′]_{l−1} Θ_{l−1} around the ring; the kernels are those of the last layer.
    For an explicit network: Σ_L and Θ_L, where Σ_l = E[σ_l(u)σ_l(v)] under Σ_{l−1},
    Θ_l = Σ_l + Θ_{l−1}·E[σ_l′(u)σ_l′(v)], and Σ_0 = Θ_0 = X Xᵀ.

    Torch tensors give a tensor on their device, differentiable in X and Y.  On the processor, and
    if no gradient is wanted, the compiled loops do it; otherwise plain tensor operations, see
    `notsodeep.kernels.torch_kernels` for the models that they cover.

    Parameters
    ----------
    model : DeepEquilibrium, ExplicitNetwork, MonotoneEquilibrium or a convolutional model
        Rows of a convolutional model are flattened images.
    X : array_like or Tensor of shape (n, p)
    Y : array_like or Tensor of shape (m, p), optional
        Without it the kernel is that of X with itself, exactly symmetric.
    kind : {"ck", "ntk", "both"}
        Also "conjugate" or "nngp", and "tangent".  With "both" a `KernelPair` in one pass.
    convention : {"feature", "preactivation"}
        Concerns DEQs only.
    dtype : float64 or float32, optional
        Of the result, which is computed in float64; by default float64.
    out : ndarray, optional
        Where to put one kernel, for instance a `numpy.memmap`.

    Returns
    -------
    ndarray or Tensor of shape (n, n) or (n, m), or KernelPair

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = np.array([[1.0, 0.0], [0.6, 0.8]])
    >>> nsd.kernel(nsd.ExplicitNetwork(["relu"]), np.eye(2)) * 2 * np.pi
    array([[3.14159265, 1.        ],
           [1.        , 3.14159265]])
    >>> deq = nsd.DeepEquilibrium("normalized_relu", sigma_a2=0.2)
    >>> nsd.kernel(deq, X, kind="ntk", convention="preactivation").round(6)
    array([[1.25    , 0.720711],
           [0.720711, 1.25    ]])
    """
    kinds = kinds_of(kind)
    torch = sys.modules.get("torch")  # torch is loaded if X is a tensor
    if torch is not None and isinstance(X, torch.Tensor):
        if dtype is not None or out is not None:
            which = "dtype" if dtype is not None else "out"
            requirement = "be None for a tensor, whose kernel has its type"
            raise checks.invalid(which, "kernel", requirement, repr(dtype or "an array"))
        return _of_tensors(model, X, Y, kinds, convention)
    number_type = checks.kernel_dtype(np.float64 if dtype is None else dtype, "kernel")
    plan = make_plan(model, X, Y, kinds, convention)
    if out is not None:
        if len(kinds) > 1:
            raise checks.invalid("out", "kernel", "be None for both kernels", "an array")
        _require_output(out, plan.shape)
    else:
        checks.enough_memory(
            len(kinds) * plan.shape[0] * plan.shape[1] * number_type.itemsize,
            f"a {plan.shape} kernel",
            "Use dtype=numpy.float32, out=numpy.memmap(…) for a result on disk, or "
            "KernelOperator, which never holds the whole kernel.",
        )
    results = [np.empty(plan.shape, number_type) if out is None else out for _ in kinds]
    _fill(plan, results)
    plan.report()
    return KernelPair(*results) if len(results) > 1 else results[0]


def kinds_of(kind: str) -> Kinds:
    """Return which kernels are meant: 0 is the conjugate, 1 the tangent kernel.

    Examples
    --------
    >>> kinds_of("NTK"), kinds_of("both")
    ((1,), (0, 1))
    """
    if kind == "both":
        return (0, 1)
    return (("ck", "ntk").index(kernel_name(kind, "kind")),)


def make_plan(
    model: KernelModel,
    X: ArrayLike,
    Y: ArrayLike | None,
    kinds: Kinds,
    convention: Convention,
    owner: str = "kernel",
) -> Plan | ImagePlan:
    """Check everything that may be wrong, then make the plan."""
    if isinstance(model, ConvolutionalModel):
        checks.known_name(convention, get_args(Convention), f"convention of {owner}")
        left = model.rows(X, "X", owner)
        right = None if Y is None else model.rows(Y, "Y", owner)
        checks.kernel_resolved(left, right, owner)
        count = len(left) + (0 if right is None else len(right))
        checks.enough_memory(
            8 * count * state_size(model),
            f"What a kernel of {count} images holds at their pixels",
            "Use fewer images, or smaller ones.",
        )
        ring = ring_of(model, convention)
        images = ImagePlan(ring, model, left, right, kinds)
        square = model.pixel_scale(left) ** 2
        if 0.0 < square < MIN_PIXEL and not ring.closed_form:
            warnings.warn(
                f"The pixels of X have a mean squared norm of {square:.3g}: the {model} is "
                "effectively linear there. Scale the images with preprocessing='pixels'.",
                TheoryDoubtful,
                stacklevel=3,
            )
        images.announce()
        return images
    checked_choice(model, "ntk" if 1 in kinds else "ck", convention, owner)
    left = checks.samples(X, "X", owner)
    right = None if Y is None else checks.samples(Y, "Y", owner)
    if right is not None and right.shape[1] != left.shape[1]:
        requirement = f"have as many features as X ({left.shape[1]})"
        raise checks.invalid("Y", owner, requirement, right.shape[1])
    checks.kernel_resolved(left, right, owner)
    return Plan(ring_of(model, convention), left, right, kinds)


def _of_tensors(model: KernelModel, X: Any, Y: Any, kinds: Kinds, convention: Convention) -> Any:
    """Compute the kernels of tensors, by the compiled loops where no gradient is wanted."""
    import torch

    parts = [part for part in (X, Y) if isinstance(part, torch.Tensor)]
    gradient = torch.is_grad_enabled() and any(part.requires_grad for part in parts)
    if gradient or X.device.type != "cpu":
        from notsodeep.kernels.torch_kernels import tensor_kernel

        results: list[Any] = [tensor_kernel(model, X, Y, kind, convention) for kind in kinds]
    else:
        left, right = (Z.detach().numpy() if isinstance(Z, torch.Tensor) else Z for Z in (X, Y))
        plan = make_plan(model, left, right, kinds, convention)
        arrays: list[KernelMatrix] = [np.empty(plan.shape) for _ in kinds]
        _fill(plan, arrays)
        kept = X.dtype if X.dtype.is_floating_point else torch.float64
        results = [torch.from_numpy(array).to(kept) for array in arrays]
    return KernelPair(*results) if len(results) > 1 else results[0]


def _fill(plan: Plan | ImagePlan, results: list[KernelMatrix]) -> None:
    """Put the kernels into matrices of any floating type, on all threads."""
    plain = all(
        result.dtype == np.float64 and result.flags.c_contiguous and type(result) is np.ndarray
        for result in results
    )
    if isinstance(plan, Plan) and plain and plan.work <= _LONG:
        plan.fill(tuple(results))
        return
    tiles = plan.tiles()

    def work(number: int) -> None:
        tile = tiles[number]
        for result, block in zip(results, plan.tile(tile), strict=True):
            result[tile.rows, tile.columns] = block
            if plan.Y is None and tile.rows != tile.columns:
                result[tile.columns, tile.rows] = block.T

    with progress_bar("kernel tiles", enabled=plan.work > _LONG) as advance:
        for done, _ in enumerate(map_threads(work, range(len(tiles))), start=1):
            advance(done, len(tiles))


def _require_output(out: object, shape: tuple[int, int]) -> None:
    """Require a writable float array of the given shape to put a result into."""
    if not isinstance(out, np.ndarray) or out.shape != shape:
        got = f"shape {np.shape(out)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise checks.invalid("out", "kernel", f"be an array of shape {shape}", got)
    if out.dtype not in (np.float64, np.float32) or not out.flags.writeable:
        state = "" if out.flags.writeable else ", read-only"
        raise checks.invalid(
            "out", "kernel", "be writable, of float64 or float32", f"{out.dtype}{state}"
        )
