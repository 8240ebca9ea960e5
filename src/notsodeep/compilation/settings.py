"""What a compilation is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from notsodeep import checks
from notsodeep.errors import InvalidInput
from notsodeep.matching import FAMILIES
from notsodeep.models import (
    Convention,
    ConvolutionalEquilibrium,
    DeepEquilibrium,
    KernelName,
    checked_choice,
    require_varying,
)

Training = Literal["readout", "all"]

FORMAT = 2
"""Of the pieces of a run.  Since 2 there are a front of tolerances and the rows each draw gets."""

ROLES = ("deq", "matched", "unmatched")
DESCENT: dict[str, Any] = {
    "optimiser": "momentum",
    "learning_rate": 10.0,
    "momentum": 0.9,
    "schedule": "cosine",
}
"""Gradient descent on all weights.

In the theory's scaling a rate serves all widths: kernels do not depend on the width, and a DEQ's
recurrent weights move so little that it stays a contraction.  (Adam moves every entry by its rate,
which the wider a DEQ is drives it the faster to where its solver needs many steps.)
"""

SCALE_ROWS = 256
"""By which the size of features is measured, to which the ridge is relative."""


class NetworkSettings(Protocol):
    """What of a job's settings concerns a finite network."""

    @property
    def width(self) -> int: ...  # noqa: D102
    @property
    def train(self) -> Any: ...  # noqa: D102
    @property
    def epochs(self) -> int: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def ridge(self) -> float: ...  # noqa: D102
    @property
    def tolerance(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class CompileSettings:
    """What to compile, on which data, and how much evidence to gather.

    Parameters
    ----------
    deq : DeepEquilibrium or ConvolutionalEquilibrium
    data : str
        Name of a data set, path of one's own, or ``"arrays"``.
    samples, test_samples : int, optional
        How many were asked of `notsodeep.data.load`; all if left out.
    family : str
        See `match`.
    kind, convention : str
        Which kernel to match.
    refine : bool
        Refine the match on data.
    width : int
        Of all finite networks.
    train : {"readout", "all"}
        Ridge regression of the read-out on fixed random features, or gradient descent on every
        weight.
    epochs : int
        Of the latter.
    seeds : int
        Draws of the networks, at least 2.
    seed : int
        Of everything random.
    ridge : float
        Relative to the mean squared norm of the features.
    tolerance : float
        Relative, of the DEQ's solver.
    gap_limit : float
        Largest relative kernel gap of a network that may replace the DEQ.
    accuracy_limit : float
        Largest difference of accuracy, in percentage points, of such a network.
    centre : bool, optional
        Whether to match the centred DEQ; see `match`.
    selection : Mapping[str, Any]
        How else the data were selected and prepared, where that is not what `notsodeep.data.load`
        does by itself.
    """

    deq: DeepEquilibrium | ConvolutionalEquilibrium
    data: str = "digits"
    samples: int | None = None
    test_samples: int | None = None
    family: str = "auto"
    kind: KernelName = "ck"
    convention: Convention = "feature"
    refine: bool = True
    width: int = 1024
    train: Training = "readout"
    epochs: int = 10
    seeds: int = 30
    seed: int = 0
    ridge: float = 1e-2
    tolerance: float = 1e-5
    gap_limit: float = 0.05
    accuracy_limit: float = 0.5
    centre: bool | None = None
    selection: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = "compile"
        dense = self.deq.dense if isinstance(self.deq, ConvolutionalEquilibrium) else self.deq
        checked_choice(dense, self.kind, self.convention, owner)
        checks.known_name(self.family, FAMILIES, "family")
        checks.known_name(self.train, get_args(Training), "train")
        for name in ("width", "epochs"):
            checks.positive_integer(getattr(self, name), name, owner)
        checks.integer_at_least(self.seeds, 2, "seeds", owner, "An interval needs two or more.")
        checks.integer_at_least(self.seed, 0, "seed", owner)
        for name in ("ridge", "tolerance", "gap_limit", "accuracy_limit"):
            checks.positive_number(getattr(self, name), name, owner)
        for layer in dense.cell:
            require_varying(layer.activation, 1.0, owner)  # the scale of preprocessed data

    @property
    def options(self) -> dict[str, Any]:
        """All but the model, as plain JSON values; `centre` and `selection` only if given."""
        content = {name: value for name, value in vars(self).items() if name != "deq"}
        if not content["selection"]:
            del content["selection"]
        if content["centre"] is None:
            del content["centre"]
        return content

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"deq": self.deq.to_dict(), **self.options, "format": FORMAT}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CompileSettings:
        """Turn the form made by `to_dict` back.

        Raises
        ------
        InvalidInput
            The run is of an earlier version, which measured less.
        """
        options = dict(content)
        if options.pop("format", None) != FORMAT:
            raise InvalidInput(
                "This compile run was made by another version of notsodeep, and lacks what is "
                "measured now. Compile again into a new directory, or with force=True (--force)."
            )
        images = options["deq"]["kind"] == "convolutional_equilibrium"
        kind = ConvolutionalEquilibrium if images else DeepEquilibrium
        return cls(**{**options, "deq": kind.from_dict(options["deq"])})
