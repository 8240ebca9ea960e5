"""Trainable heads z = G h between a backbone and a classifier, each with one bounded matrix.

===========  =============================  ===========  =======================
head         G                              constraint   gain sup ‖G‖₂
===========  =============================  ===========  =======================
explicit     M                              ‖M‖₂ ≤ s     s
residual     I + M                          ‖M‖₂ ≤ s     1 + s
equilibrium  (I − A)⁻¹, from z = A z + h    ‖A‖₂ ≤ ρ     1/(1 − ρ)
truncated    I + A + … + A^{T−1}            ‖A‖₂ ≤ ρ     (1 − ρ^T)/(1 − ρ)
===========  =============================  ===========  =======================

All have d² parameters.  A step of an optimiser may leave the ball of matrices; `constrain` goes to
the nearest point of it, so that training is projected gradient descent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from notsodeep import checks
from notsodeep.activations import named
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.arrays import FloatArray
from notsodeep.networks import requirements
from notsodeep.networks.backbones import Perceptron, ResNet18, draw_weights
from notsodeep.networks.equilibrium_map import EquilibriumMap
from notsodeep.networks.equilibrium_solvers import FixedPointIteration, Solver, as_solver
from notsodeep.networks.gradient_choices import Implicit
from notsodeep.networks.implicit_layer import implicit_layer
from notsodeep.networks.modules import PRECISIONS
from notsodeep.networks.solve_records import FailureCount, ImplicitRecord, Report, report_for

HeadKind = Literal["explicit", "residual", "deq", "deq_truncated", "explicit_matched"]
HEAD_KINDS: tuple[HeadKind, ...] = get_args(HeadKind)

TOLERANCE, MOST_STEPS = 1e-3, 20  # of Sun, Shi, arXiv 2410.23391


@torch.no_grad()
def cut_singular_values(matrix: Tensor, budget: float) -> None:
    """Replace a matrix, in place, by the nearest one with ‖M‖₂ ≤ budget."""
    if not matrix.isfinite().all():
        return  # the next loss is not finite either, and ends the training with a message
    left, singular, right = torch.linalg.svd(matrix)
    if float(singular[0]) > budget:
        matrix.copy_((left * singular.clamp(max=budget)) @ right)


class BoundedHead(nn.Module, ABC):
    """A linear map G of features that depends on one matrix of bounded spectral norm.

    The matrix starts as the spectral budget times an orthogonal matrix, the same one for every head
    with the same seed.

    Attributes
    ----------
    num_features : int
        d.
    spectral_budget : float
        s or ρ.
    matrix : Parameter of shape (d, d)
        M or A.
    """

    matrix: nn.Parameter
    _budget_of: ClassVar[str]  # which bound its matrix has

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        requirements.network_dtype(dtype, PRECISIONS, owner)
        self.num_features = checks.positive_integer(num_features, "num_features", owner)
        self.spectral_budget = checks.head_budget(self._budget_of, spectral_budget, owner)
        orthogonal = _orthogonal(self.num_features, checks.random_generator(rng, owner))
        start = self.spectral_budget * orthogonal
        self.matrix = nn.Parameter(torch.from_numpy(start).to(device, dtype))

    @property
    @abstractmethod
    def gain_bound(self) -> float:
        """The largest gain that the spectral budget allows."""

    @abstractmethod
    def operator(self) -> Tensor:
        """Return G, shape (d, d)."""

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """Return z = G h for rows h, shape (n, d)."""

    @torch.no_grad()
    def gain(self) -> float:
        """‖G‖₂ of the matrix as it is now."""
        return float(torch.linalg.matrix_norm(self.operator().double(), 2))

    @torch.no_grad()
    def spectral_norm(self) -> float:
        """‖M‖₂ or ‖A‖₂ of the matrix as it is now."""
        return float(torch.linalg.matrix_norm(self.matrix.double(), 2))

    @torch.no_grad()
    def constrain(self) -> None:
        """Go to the nearest matrix within the budget."""
        cut_singular_values(self.matrix, self.spectral_budget)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"num_features={self.num_features}, spectral_budget={self.spectral_budget:g}"


class ExplicitHead(BoundedHead):
    """z = M h, ‖M‖₂ ≤ s; see `BoundedHead`."""

    _budget_of = "explicit"

    @property
    def gain_bound(self) -> float:
        """Gain s."""
        return self.spectral_budget

    def operator(self) -> Tensor:
        """Return M."""
        return self.matrix

    def forward(self, h: Tensor) -> Tensor:
        """Return M h for every row."""
        return nn.functional.linear(h, self.matrix)


class ResidualHead(BoundedHead):
    """z = (I + M) h, ‖M‖₂ ≤ s; see `BoundedHead`."""

    _budget_of = "residual"

    @property
    def gain_bound(self) -> float:
        """Gain 1 + s."""
        return 1.0 + self.spectral_budget

    def operator(self) -> Tensor:
        """Return I + M."""
        return _identity(self.matrix) + self.matrix

    def forward(self, h: Tensor) -> Tensor:
        """Return h + M h for every row."""
        return h + nn.functional.linear(h, self.matrix)


class EquilibriumHead(BoundedHead):
    """The DEQ head: z = A z + h is solved for, ‖A‖₂ ≤ ρ < 1; see `BoundedHead`.

    Parameters
    ----------
    num_features, spectral_budget, rng, dtype, device
        As for every head.
    solver : str, dict or Solver, optional
        Of the equilibrium and of its gradient.  By default plain iteration to a relative residual
        of 1e-3 in at most 20 steps, or more where ρ > 0.69 may need more: residuals of step k are
        below ρ^k(1 + ρ).

    Attributes
    ----------
    failures : FailureCount
        Solves that failed in training, where the first is warned about; in evaluation one raises.
    last_record : ImplicitRecord or None
        Of the last pass, gradients included.
    """

    _budget_of = "deq"

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        solver: str | Mapping[str, Any] | Solver | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, spectral_budget, rng, **options)
        if solver is None:
            rho = self.spectral_budget
            needed = math.log(TOLERANCE / (1.0 + rho)) / math.log(rho) if rho > 0.0 else 1.0
            solver = FixedPointIteration(TOLERANCE, max(MOST_STEPS, math.ceil(needed)))
        self.solver = as_solver(solver)
        self.failures = FailureCount()
        self.last_record: ImplicitRecord | None = None
        self._problem = EquilibriumMap(torch_twin(named("identity")), 1.0)

    @property
    def gain_bound(self) -> float:
        """Gain 1/(1 − ρ)."""
        return 1.0 / (1.0 - self.spectral_budget)

    def operator(self) -> Tensor:
        """Return (I − A)⁻¹."""
        inverse: Tensor = torch.linalg.inv(_identity(self.matrix) - self.matrix)
        return inverse

    def forward(self, h: Tensor) -> Tensor:
        """Return the equilibrium z of every row."""
        z, self.last_record = implicit_layer(
            self._problem,
            (h, self.matrix),
            h,
            solver=self.solver,
            gradient=Implicit(self.solver),
            on_failure=self._report(),
            subject="the equilibrium of the head",
        )
        return z

    def _report(self) -> Report:
        remedy = "Use more steps, or leave out solver for as many as the spectral budget may need."
        return self.failures.report(remedy) if self.training else report_for("raise", remedy)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"{super().extra_repr()}, solver={self.solver}"


class TruncatedHead(BoundedHead):
    """T steps z ← A z + h from z = 0, differentiated as they are; see `BoundedHead`.

    Parameters
    ----------
    num_features, spectral_budget, rng, dtype, device
        As for every head.
    steps : int
        T; one step is the identity.
    """

    _budget_of = "deq"

    def __init__(
        self,
        num_features: int,
        spectral_budget: float,
        rng: int | np.random.Generator,
        *,
        steps: int,
        **options: Any,
    ) -> None:
        super().__init__(num_features, spectral_budget, rng, **options)
        self.steps = checks.positive_integer(steps, "steps", "TruncatedHead")

    @property
    def gain_bound(self) -> float:
        """Gain 1 + ρ + … + ρ^{T−1}."""
        return sum(self.spectral_budget**k for k in range(self.steps))

    def operator(self) -> Tensor:
        """Return I + A + … + A^{T−1}."""
        identity = _identity(self.matrix)
        total = identity
        for _ in range(self.steps - 1):
            total = identity + self.matrix @ total
        return total

    def forward(self, h: Tensor) -> Tensor:
        """Return the last iterate for every row."""
        z = h
        for _ in range(self.steps - 1):
            z = h + nn.functional.linear(z, self.matrix)
        return z

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        return f"{super().extra_repr()}, steps={self.steps}"


def make_head(
    kind: HeadKind,
    num_features: int,
    spectral_budget: float,
    rng: int | np.random.Generator,
    *,
    truncated_steps: int = 3,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> BoundedHead:
    """Make one of the heads that are compared at one spectral budget.

    Parameters
    ----------
    kind : {"explicit", "residual", "deq", "deq_truncated", "explicit_matched"}
        The last is an explicit head with the gain of the DEQ: s = 1/(1 − ρ).
    num_features : int
        d.
    spectral_budget : float
        s = ρ, in (0, 1).
    rng : int or numpy.random.Generator
        Seed of the matrix.
    truncated_steps : int
        T of "deq_truncated".
    dtype, device
        Of the matrix.

    Examples
    --------
    >>> [make_head(kind, 16, 0.5, rng=0).gain_bound for kind in HEAD_KINDS]
    [0.5, 1.5, 2.0, 1.75, 2.0]
    """
    checks.known_name(kind, HEAD_KINDS, "head")
    options: dict[str, Any] = {"dtype": dtype, "device": device}
    match kind:
        case "explicit":
            return ExplicitHead(num_features, spectral_budget, rng, **options)
        case "residual":
            return ResidualHead(num_features, spectral_budget, rng, **options)
        case "deq":
            return EquilibriumHead(num_features, spectral_budget, rng, **options)
        case "deq_truncated":
            options["steps"] = truncated_steps
            return TruncatedHead(num_features, spectral_budget, rng, **options)
        case "explicit_matched":
            rho = checks.head_budget("deq", spectral_budget, "make_head")
            return ExplicitHead(num_features, 1.0 / (1.0 - rho), rng, **options)


def _orthogonal(size: int, generator: np.random.Generator) -> FloatArray:
    """Draw an orthogonal matrix, uniform among all."""
    basis, triangle = np.linalg.qr(generator.standard_normal((size, size)))
    return np.asarray(basis * np.sign(np.diag(triangle)))


def _identity(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=like.dtype, device=like.device)


class FixedETF(nn.Module):
    """Logits scale·(E z) with the K rows of E fixed.

    Parameters
    ----------
    frame : array-like of shape (K, d)
        A simplex ETF, as `notsodeep.collapse.geometries` draws them.
    scale : float
        Length of the rows of the classifier.
    dtype, device
        Of the frame; it follows ``module.to(…)`` as parameters do.

    Attributes
    ----------
    weight : buffer of shape (K, d)
        scale·E; part of the ``state_dict``, but no parameter.
    bias : None
    in_features, out_features : int
        d and K.

    Examples
    --------
    >>> from notsodeep.collapse import simplex_etf
    >>> classifier = FixedETF(simplex_etf(4, 16, rng=0), scale=2.0)
    >>> classifier(torch.ones(3, 16)).shape, len(list(classifier.parameters()))
    (torch.Size([3, 4]), 0)
    """

    weight: Tensor
    bias: None = None

    def __init__(
        self,
        frame: object,
        scale: float = 1.0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        rows = _simplex_frame(frame, "FixedETF")
        self.scale = checks.positive_number(scale, "scale", "FixedETF")
        self.out_features, self.in_features = rows.shape
        self.register_buffer("weight", torch.from_numpy(self.scale * rows).to(device, dtype))

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        return nn.functional.linear(z, self.weight)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, scale={self.scale:g}"


def _simplex_frame(frame: object, owner: str) -> FloatArray:
    """Require the rows of a simplex ETF: unit vectors whose cosines are all −1/(K − 1)."""
    rows = checks.samples(frame, "frame", owner)
    K = len(rows)
    gap = np.inf
    if K > 1:
        gap = float(np.abs(rows @ rows.T - (K * np.eye(K) - 1.0) / (K - 1.0)).max())
    if not gap < 1e-6:
        remedy = "notsodeep.collapse.geometries(K, d, rng) makes one."
        got = f"a Gram matrix off by {gap:.2g}" if K > 1 else "one row"
        raise checks.refusal("frame", owner, "have the rows of a simplex ETF", got, remedy)
    return rows


class HeadedNetwork(nn.Module):
    """f(x) = W z + b with z = G h, h = backbone(x).

    Parameters
    ----------
    backbone : Perceptron or ResNet18
        Rows (n, p) to features h (n, d).
    head : BoundedHead
        h to z, both (n, d).
    classifier : Linear or FixedETF
        z to logits (n, K).

    Attributes
    ----------
    bounded_names : tuple of str
        The head's matrix: `train` takes it back into its ball after every step, which stands in
        place of weight decay.
    """

    bounded_names = ("head.matrix",)

    def __init__(
        self,
        backbone: Perceptron | ResNet18,
        head: BoundedHead,
        classifier: nn.Linear | FixedETF,
    ) -> None:
        super().__init__()
        _fitting_widths(
            backbone.num_features, head.num_features, classifier.in_features, "HeadedNetwork"
        )
        self.backbone = backbone
        self.head = head
        self.classifier = classifier

    @property
    def last_record(self) -> ImplicitRecord | None:
        """The solves of the last pass; None if the head has no solver."""
        record: ImplicitRecord | None = getattr(self.head, "last_record", None)
        return record

    def constrain(self) -> None:
        """Take the head's matrix back into its norm budget."""
        self.head.constrain()

    def features(self, X: Tensor) -> Tensor:
        """Return z, what the classifier is applied to, shape (n, d)."""
        z: Tensor = self.head(self.backbone(X))
        return z

    def forward(self, X: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        logits: Tensor = self.classifier(self.features(X))
        return logits


def linear_classifier(
    num_features: int, num_classes: int, rng: int | np.random.Generator
) -> nn.Linear:
    """Make a classifier W z without a bias, as in the layer-peeled model, with random rows."""
    classifier: nn.Linear = skip_init(nn.Linear, num_features, num_classes, bias=False)  # type: ignore[no-untyped-call]
    draw_weights(classifier, checks.random_generator(rng, "linear_classifier"))
    return classifier


def _fitting_widths(backbone: int, head: int, classifier: int, owner: str) -> None:
    """Require that each part takes as many features as the part before it gives."""
    if not backbone == head == classifier:
        got = f"{backbone} of the backbone, {head} of the head, {classifier} of the classifier"
        raise checks.refusal("num_features", owner, "be the same for all three parts", got)
