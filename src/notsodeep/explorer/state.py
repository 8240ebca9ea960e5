"""What a person chose on the pages of the explorer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from notsodeep import checks
from notsodeep.explorer.page_state import Choice, Listed, Real, Switch, Text, Whole, chosen

FORMULA, CELL = "formula", "cell"
ACTIVATIONS = (
    "relu", "tanh", "normalized_relu", "leaky_relu", "hard_tanh", "erf", "arctan", "swish", "gelu",
    "elu", "softplus", "sin", "cos", "abs", "identity", FORMULA, CELL,
)  # fmt: skip
OWN = "own"
CELLS = {
    "ring_with_biases": "tanh weight=.5 inject=.6 bias=.1; relu weight=.8 inject=.3 bias=.05",
    "free_variances": "tanh weight=1.3 inject=.9 bias=.15",
    "three_layers": "erf weight=.7 inject=.5; relu weight=.9 bias=.2; tanh weight=.8 inject=.4",
}
"""Cells by name: layers as `notsodeep.Dense.from_text` reads them, between semicolons."""
DRAWN = ("mixture", "sphere")
IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
UPLOAD = "upload"
FAMILIES = (
    "auto",
    "plain",
    "dual",
    "leaky_relu",
    "hard_tanh",
    "scaled",
    "piecewise_linear",
    "two_kinks",
    "quadratic",
)
WIDTHS = tuple(2**k for k in range(5, 14))

_MODEL = {
    FORMULA: ("activation", "formula", "kinks", "sigma_a2"),
    CELL: ("activation", "cell"),
}
_MATCH = ("kind", "convention", "family", "refine")


@dataclass(frozen=True)
class ExplorerState:
    """Settings of the first page; together they decide everything on it but an uploaded file.

    Attributes
    ----------
    activation : str
        A name, "formula", or "cell" for a model with another cell than the vanilla one.
    formula, kinks : str
        A formula in x, and its kinks as numbers between commas.
    sigma_a2 : float
    cell, layers : str
        The name of a cell, or "own" for the layers given by the other.
    data : str
        "mixture", "sphere", the name of a set of images, or "upload".
    samples, dimension : int
        n, of the rows to match on and of as many held-out ones, and p of a drawn set.
    num_classes : int
        K of a mixture.
    means : float
        ‖μ_a‖ of its classes, in directions orthogonal to one another.
    trace_step : float
        C_a = (1 + trace_step·a/√p) C for a = 0 … K − 1.
    spread : float
        C has the eigenvalues 1 + spread and 1 − spread, in equal parts.
    classes : str
        Classes of a set of images, between commas; all if empty.
    upload : str
        The first digits of the SHA-256 of an uploaded file.
    kind, convention, family : str
    refine : bool
    width : int
        Of the finite networks.
    seed : int
    """

    activation: str = chosen("relu", Choice(ACTIVATIONS))
    formula: str = chosen("x / (1 + abs(x))", Text(400))
    kinks: str = chosen("0", Text(100))
    sigma_a2: float = chosen(0.2, Real(0.0, 0.99))
    cell: str = chosen("ring_with_biases", Choice((*CELLS, OWN)))
    layers: str = chosen(CELLS["ring_with_biases"], Text(600))
    data: str = chosen("mixture", Choice((*DRAWN, *IMAGES, UPLOAD)))
    samples: int = chosen(400, Whole(50, 1000))
    dimension: int = chosen(500, Whole(50, 2000))
    num_classes: int = chosen(2, Whole(1, 6))
    means: float = chosen(8.0, Real(0.0, 30.0))
    trace_step: float = chosen(8.0, Real(0.0, 30.0))
    spread: float = chosen(0.0, Real(0.0, 0.95))
    classes: str = chosen("", Text(400))
    upload: str = chosen("", Text(16))
    kind: str = chosen("ck", Choice(("ck", "ntk")))
    convention: str = chosen("feature", Choice(("feature", "preactivation")))
    family: str = chosen("auto", Choice(FAMILIES))
    refine: bool = chosen(False, Switch())
    width: int = chosen(1024, Listed(WIDTHS))
    seed: int = chosen(0, Whole(0, 99_999))

    @property
    def data_fields(self) -> tuple[str, ...]:
        """The settings that decide on the data."""
        own: tuple[str, ...]
        if self.data == "mixture":
            own = ("dimension", "num_classes", "means", "trace_step", "spread")
        elif self.data == "sphere":
            own = ("dimension",)
        else:
            own = ("upload",) if self.data == UPLOAD else ("classes",)
        return ("data", "samples", *own, "seed")

    @property
    def fields_in_use(self) -> tuple[str, ...]:
        """The settings that decide on anything: a formula does so only where it is chosen."""
        model = _MODEL.get(self.activation, ("activation", "sigma_a2"))
        if self.activation == CELL and self.cell == OWN:
            model = (*model, "layers")
        return (*model, *self.data_fields, *_MATCH, "width")

    def key(self, fields: tuple[str, ...]) -> str:
        """Return a text that is the same for states that agree in these fields."""
        content = {name: value for name, value in asdict(self).items() if name in fields}
        return json.dumps(content, sort_keys=True)

    @property
    def view_key(self) -> str:
        """What the numbers on the page depend on: all but the width."""
        return self.key(tuple(name for name in self.fields_in_use if name != "width"))

    @property
    def kink_points(self) -> tuple[float, ...]:
        """The kinks as numbers."""
        pieces = [piece.strip() for piece in self.kinks.split(",") if piece.strip()]
        try:
            return tuple(sorted(float(piece) for piece in pieces))
        except ValueError:
            requirement = "be numbers between commas, such as -1, 1"
            raise checks.invalid("kinks", "the formula", requirement, repr(self.kinks)) from None

    @property
    def layer_texts(self) -> list[str]:
        """The layers of the chosen cell, as text; those of an own one may stand in lines too."""
        text = CELLS.get(self.cell, self.layers)
        pieces = [piece.strip() for piece in text.replace("\n", ";").split(";")]
        return [piece for piece in pieces if piece]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The chosen classes of a set of images; none if all are meant."""
        return tuple(piece.strip() for piece in self.classes.split(",") if piece.strip())


def digest_of(content: bytes) -> str:
    """Return the name of an uploaded file in a link."""
    return hashlib.sha256(content).hexdigest()[:16]


@dataclass(frozen=True)
class PredictionState:
    """Settings of the page "before training".

    Attributes
    ----------
    activation : str
    sigma_a2 : float
    data : str
        What two classes differ in.
    log_ratio, log_ridge : float
        log₂ n/p and log₁₀ λ.
    width : int
        Of the read-outs.
    """

    activation: str = chosen("relu", Choice(("relu", "tanh")))
    sigma_a2: float = chosen(0.5, Real(0.0, 0.95))
    data: str = chosen("means", Choice(("means", "traces", "covariances")))
    log_ratio: float = chosen(1.0, Real(-3.0, 3.0))
    log_ridge: float = chosen(-2.0, Real(-3.0, 1.0))
    width: int = chosen(1024, Listed(WIDTHS))
