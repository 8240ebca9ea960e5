"""The entry points of the product: `compile` a model, `load` what was written."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from notsodeep import extras
from notsodeep._runs import kind_of
from notsodeep.compilation.random_deq import compile_random_deq
from notsodeep.compilation.record import Compilation, RandomSettings, Step
from notsodeep.compilation.rows import rows_for_model
from notsodeep.data import Dataset
from notsodeep.data.preprocessing import PreprocessingKind
from notsodeep.errors import InvalidInput
from notsodeep.models import Convention, ConvolutionalEquilibrium, DeepEquilibrium, KernelName

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import nn

    from notsodeep.compilation.trained_record import TrainedCompilation
    from notsodeep.networks.cell import EquilibriumCell

Progress = bool | Callable[[Step], object]
RandomModel = DeepEquilibrium | ConvolutionalEquilibrium


class RandomOptions(TypedDict, total=False):
    """Options of `compile` for a random DEQ."""

    family: str
    kind: KernelName
    convention: Convention
    refine: bool
    width: int
    train: Literal["readout", "all"]
    epochs: int
    seeds: int
    ridge: float
    tolerance: float
    gap_limit: float
    accuracy_limit: float
    preprocessing: PreprocessingKind | Literal["auto"]


class CellOptions(TypedDict, total=False):
    """Options of `compile` for a given network."""

    layers: int | None
    tolerance: float
    agreement_limit: float
    accuracy_limit: float
    unsettled_limit: float


@overload
def compile(
    model: RandomModel,
    X: ArrayLike | Dataset,
    y: ArrayLike | None = None,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    random_state: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress = False,
    **options: Unpack[RandomOptions],
) -> Compilation: ...


@overload
def compile(
    model: EquilibriumCell,
    X: ArrayLike | Dataset,
    y: ArrayLike | None = None,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    random_state: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress = False,
    **options: Unpack[CellOptions],
) -> TrainedCompilation: ...


def compile(
    model: RandomModel | EquilibriumCell,
    X: ArrayLike | Dataset,
    y: ArrayLike | None = None,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    random_state: int = 0,
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress = False,
    **options: Any,
) -> Compilation | TrainedCompilation:
    """Find the shallow network that behaves as a DEQ does, and gather the evidence.

    A random DEQ is described by its activation and variances: a network is matched with it on the
    training rows (`match`), its exact kernel is compared with the DEQ's on held-out rows, and both
    are drawn at a finite width, trained and timed.  A given DEQ has weights (`EquilibriumCell`):
    explicit layers are fitted to its fixed points in closed form, without labels, and their
    fidelity is measured, and where it can be proved, on held-out rows.  A printed rule says whether
    the network can replace the DEQ.

    Parameters
    ----------
    model : DeepEquilibrium, ConvolutionalEquilibrium or EquilibriumCell
    X : array_like of shape (n, p), or Dataset
        Training rows, whose order does not matter; images, flattened or (n, height, width,
        channels), for a convolutional model.  A data set has labels and test rows of its own.
    y : array_like of shape (n,)
        Labels: whole numbers, truth values or strings.  A given DEQ needs none; indices of its
        logits add accuracies.
    X_test, y_test : array_like of shape (m, p) and (m,), optional
        Held-out rows, 20 or more.  Without them a quarter of the rows is held out.
    random_state : int, default 0
        Of everything random.
    out : path, optional
        Directory in which every result is stored as soon as it is there, with the network as
        safetensors and ONNX.  The same call resumes a run that was stopped, and one with other
        `seeds` or limits extends it.
    force : bool
        Replace what `out` holds of other settings, or on other data.
    progress : bool or callable
        True writes what is being done to the standard error stream; a function is called with it,
        a `Step` with ``message``, ``done`` and ``total``.
    **options
        Of a random DEQ: ``family``, ``kind``, ``convention`` and ``refine`` of the match, see
        `match`; ``width`` (1024, or 32 channels); ``train``, "readout" (ridge regression on fixed
        random features, ``ridge`` relative to their mean squared norm, 1e-2) or "all" (gradient
        descent on every weight for ``epochs``); ``seeds`` draws of each network (30);
        ``tolerance`` of the DEQ's solver (1e-5); ``gap_limit`` (.05) and ``accuracy_limit`` (.5
        points) of the rule; ``preprocessing``, "none" for rows that the DEQ is meant to take,
        "theory", "unit_norm" or, for images, "pixels".

        Of a given DEQ: ``layers``, or steps of a function (as many as the rule asks for);
        ``tolerance`` of its fixed points (1e-10); ``agreement_limit`` (.99) and ``accuracy_limit``
        (.5 points) of the rule; ``unsettled_limit``, the largest share of rows without a fixed
        point (.05).

    Returns
    -------
    Compilation or TrainedCompilation
        A random DEQ's has ``match``, ``certificate``, ``accuracy``, ``front``, ``transfer``,
        ``network`` and ``verdict``; a given one's ``fidelity``, ``front``, ``network``,
        ``verdict`` and ``hybrid()``.  Both have ``plot()``, ``report(path)``, ``save(directory)``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> deq = nsd.DeepEquilibrium("relu", sigma_a2=0.2)
    >>> compiled = nsd.compile(
    ...     deq, X, y, preprocessing="theory", family="leaky_relu", refine=False, width=64, seeds=2
    ... )
    >>> compiled.match.network.depth, compiled.certificate.matched.relative_gap < 0.05
    (1, True)
    >>> compiled.data.samples, compiled.data.test_samples
    (1348, 449)
    """
    log = progress if callable(progress) else _log_of(progress)
    if not isinstance(model, RandomModel):
        _require_cell(model)
        from notsodeep.compilation.trained_deq import compile_cell
        from notsodeep.compilation.trained_record import CellSettings

        _require_options(options, CellOptions, "a given DEQ")
        asked = CellSettings(random_state=random_state, **options)
        return compile_cell(model, (X, y, X_test, y_test), asked, out, force=force, log=log)
    _require_options(options, RandomOptions, "a random DEQ")
    preprocessing = options.pop("preprocessing", "auto")
    settings = RandomSettings(model, random_state=random_state, **options)
    if settings.train == "all" or isinstance(model, ConvolutionalEquilibrium):
        extras.require("compile of images, or with train='all',", "torch")
    data = rows_for_model(
        model, X, y, X_test, y_test, preprocessing=preprocessing, seed=random_state
    )
    return compile_random_deq(settings, data, out, force=force, log=log)


def load(
    path: str | Path, *, cell: EquilibriumCell | None = None
) -> Compilation | TrainedCompilation | nn.Module:
    """Read a compilation from its directory, or a network from its file.

    Parameters
    ----------
    path : path
        A directory that `compile` with `out`, ``save`` or ``notsodeep compile`` has written; or a
        file of `notsodeep.save`.
    cell : EquilibriumCell, optional
        The function of a compiled f(z, x), which is code, and not data.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> net = nsd.build(nsd.ExplicitNetwork(["relu"]), 4, 8, 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     nsd.save(net, f"{directory}/net.safetensors", classes=("cat", "dog"))
    ...     nsd.load(f"{directory}/net.safetensors").classes
    ('cat', 'dog')
    """
    if Path(path).is_dir():
        return load_compilation(path, cell)
    from notsodeep.networks import load as load_network

    network: nn.Module = load_network(path)
    return network


def load_compilation(
    directory: str | Path, cell: EquilibriumCell | None = None
) -> Compilation | TrainedCompilation:
    """Read a compilation of either kind from its directory."""
    if kind_of(directory) == "compile-trained":
        from notsodeep.compilation.trained_record import TrainedCompilation

        return TrainedCompilation.load(directory, cell)
    return Compilation.load(directory)


def _require_cell(model: object) -> None:
    """Require a given DEQ, which cannot be without torch; a random one compiles without."""
    if extras.is_installed("torch"):
        from notsodeep.networks.cell import EquilibriumCell

        if isinstance(model, EquilibriumCell):
            return
    raise InvalidInput(
        f"model must be a DeepEquilibrium or an EquilibriumCell, got {model!r}. Describe it, as in "
        "DeepEquilibrium('relu', sigma_a2=0.2), or take the weights of a torch module with "
        "EquilibriumCell.from_module(module)."
    )


def _require_options(options: dict[str, Any], known: type, model: str) -> None:
    """Reject options of the other kind of model, which would do nothing."""
    for name in options:
        if name not in known.__annotations__:
            names = ", ".join(known.__annotations__)
            raise InvalidInput(f"{name} is no option for {model}; its options are {names}.")


def _log_of(on: bool) -> Callable[[Step], object]:
    return (lambda step: sys.stderr.write(f"· {step}\n")) if on else (lambda step: None)
