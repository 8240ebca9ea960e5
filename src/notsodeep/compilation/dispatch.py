"""The doors of the product: `compile` a model, `load` what was written."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from notsodeep import checks, extras
from notsodeep.compilation.image_rows import image_rows
from notsodeep.compilation.labelled_rows import labelled_rows
from notsodeep.compilation.pieces import TRAINED
from notsodeep.compilation.random_deq import compile_random_deq
from notsodeep.compilation.record import Compilation
from notsodeep.compilation.settings import CompileSettings, Training
from notsodeep.data import Dataset
from notsodeep.data.preprocessing import PreprocessingKind
from notsodeep.files.run_directory import RunRecord
from notsodeep.models import Convention, ConvolutionalEquilibrium, DeepEquilibrium, KernelName
from notsodeep.models.kernel_kind import kernel_name
from notsodeep.trained.cell import AffineCell, EquilibriumCell, FunctionCell

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from notsodeep.compilation.black_box_cell import BlackBoxCompilation
    from notsodeep.compilation.trained_record import TrainedCompilation
    from notsodeep.networks.modules import ExplicitModule, ImplicitNetwork
    from notsodeep.trained.explicit_layers import Kinds

Progress = bool | Callable[[str], None]


def compile(
    model: DeepEquilibrium | ConvolutionalEquilibrium | EquilibriumCell,
    X: ArrayLike | Dataset,
    y: ArrayLike | None = None,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    family: str = "auto",
    kind: KernelName = "ck",
    convention: Convention = "feature",
    refine: bool | Literal["distil"] = True,
    centre: bool | None = None,
    layers: int | None = None,
    kinds: Kinds = "auto",
    fit: Literal["least_squares", "moments"] = "least_squares",
    width: int | None = None,
    train: Training = "readout",
    epochs: int = 10,
    seeds: int = 30,
    random_state: int = 0,
    ridge: float = 1e-2,
    tolerance: float | None = None,
    agreement_limit: float = 0.99,
    gap_limit: float = 0.05,
    accuracy_limit: float = 0.5,
    preprocessing: PreprocessingKind | Literal["auto"] = "auto",
    out: str | Path | None = None,
    force: bool = False,
    progress: Progress = False,
) -> Compilation | TrainedCompilation | BlackBoxCompilation:
    """Find the shallow network that behaves as a DEQ does, and gather the evidence.

    A random DEQ is described by its activation and variances, a trained one by its weights
    (`EquilibriumCell`).  For a trained one fixed points of the rows are solved, explicit layers are
    fitted to them in closed form, without labels, and their fidelity is measured, and where it can
    be proved, on held-out rows.  For a random one the network is matched on the training rows
    (`match`), its exact kernel is compared with the DEQ's on held-out rows, and both are drawn at a
    finite width, trained and timed.  A printed rule says whether one may replace the other.

    Parameters
    ----------
    model : DeepEquilibrium, ConvolutionalEquilibrium or EquilibriumCell
    X : array_like of shape (n, p), or Dataset
        Training rows: an array, a table such as a DataFrame, or what `notsodeep.data.load` returns,
        which has labels and test rows of its own.  The order of the rows does not matter.  For a
        convolutional model they are images, flattened or (n, height, width, channels).
    y : array_like of shape (n,)
        Their labels: whole numbers, truth values or strings.  The read-out of a random DEQ is
        trained on them; a trained one needs none, and labels (indices of its logits) add
        accuracies.
    X_test, y_test : array_like of shape (m, p) and (m,), optional
        Held-out rows, 20 or more.  Without them a quarter of the rows, and 20 at the least, is
        set apart: the same share of each class, drawn by `random_state`.  ``records["data"]`` of
        the answer says how many.
    family : str, default "auto"
        Of the network's activation; see `match`.
    kind : {"ck", "ntk"}
    convention : {"feature", "preactivation"}
        Which kernel to match: the conjugate one is that of a trained read-out, the tangent one that
        of a wide network all of whose weights are trained.
    refine : bool or "distil", default True
        Refine the match on data.  "distil" refines the layers of a trained DEQ by gradient descent
        on its outputs, and keeps that if it wins on rows set apart.
    centre : bool, optional
        True to compile the centred DEQ, φ − E φ(τ*ξ), in place of the given one, False for the one
        that was given.  If left out, the one given, unless the family is about centred ones alone;
        the verdict names the model that was compared.
    layers : int, optional
        Explicit layers for a trained DEQ; as many as rows set apart call for, at most 4, if it is
        left out.
    kinds : {"auto", "least_squares", "solver_step"}
        Of these layers: fitted, steps of a solver, or each the better of both.
    fit : {"least_squares", "moments"}
        "moments" makes them from mean and covariance of the inputs alone: nothing is solved.
    width : int, optional
        Of all finite networks, 1024 by default; of convolutional ones the channels, 32.  For a
        trained DEQ, of the layers before the last; its own by default.
    train : {"readout", "all"}
        Ridge regression of the read-out on fixed random features, or gradient descent on every
        weight, for `epochs` epochs.
    epochs : int, default 10
    seeds : int, default 30
        Draws of each network, 2 or more.  Few draws give a wide interval of the accuracies'
        difference, and the verdict "not shown".
    random_state : int, default 0
        Of everything random.
    ridge : float, default 1e-2
        Relative to the mean squared norm of the features.
    tolerance : float, optional
        Relative, of the DEQ's solver: 1e-5 by default for a random one, 1e-10 for a trained one.
    agreement_limit : float, default 0.99
        Least agreement, by its lower bound, of a network that may replace a trained DEQ.
    gap_limit : float, default 0.05
        Largest relative kernel gap of a network that may replace the DEQ.
    accuracy_limit : float, default 0.5
        Largest difference of accuracy, in percentage points, of such a network.
    preprocessing : {"auto", "none", "theory", "pixels", "unit_norm"}
        "auto" is "pixels" for images of a convolutional model, which gives pixels norm one in the
        mean square, and "none" otherwise.  "none" uses rows as they are: right for rows that the
        DEQ is meant to take, such as features that were scaled before.  "theory" subtracts the
        training mean and divides by the training root mean squared norm, as `notsodeep.data.load`
        does: right for raw measurements, pixels for instance, on which most activations saturate.
        "unit_norm" is for theory on the sphere.  The map is stored with the network.
        ``verdict.conditions`` warns if the scale is far off.
    out : path, optional
        Directory in which every piece is stored as soon as it is done, with the network as
        safetensors and ONNX; the same call resumes a run that was stopped, and one with other
        `seeds`, `gap_limit` or `accuracy_limit` resumes from it.  In memory without it.
    force : bool
        Replace what `out` holds of other settings, or on other data.
    progress : bool or callable
        True writes what is being done to the standard error stream; a function is called with it.

    Returns
    -------
    Compilation, TrainedCompilation or BlackBoxCompilation
        With ``match``, ``certificate``, ``accuracy``, ``timing``, ``verdict`` and ``network``;
        ``plot()``, ``report(path)`` and ``save(directory)``.  For a trained DEQ with ``fidelity``,
        ``fidelity_by_layers``, ``baselines``, ``front``, ``network``, ``verdict``, ``hybrid()``.
        For any other f(z, x), steps of f from a linear start: fidelity, nothing proved.

    Raises
    ------
    InvalidInput
        `y` is missing; rows are too few, or do not fit each other; `out` holds something else.
    MissingPackage
        PyTorch, the extra ``torch``, is not installed: trained DEQs and ``train="all"`` need it.
        Read-outs are then trained in NumPy, and ``network`` alone needs it.
    RunInUse
        Another process works in `out`.

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
    >>> compiled.records["data"]["samples"], compiled.records["data"]["test_samples"]
    (1348, 449)
    """
    if isinstance(model, EquilibriumCell):
        _left_out(
            "a trained DEQ",
            family=family,
            kind=kind,
            convention=convention,
            centre=centre,
            train=train,
            epochs=epochs,
            seeds=seeds,
            ridge=ridge,
            gap_limit=gap_limit,
            accuracy_limit=accuracy_limit,
            preprocessing=preprocessing,
        )
        extras.require("compile", "torch")
        from notsodeep.compilation.black_box_cell import compile_function
        from notsodeep.compilation.trained_cell import compile_cell

        if isinstance(model, FunctionCell):
            _left_out("a function f(z, x)", kinds=kinds, fit=fit, width=width)
            if refine == "distil":
                requirement = "be a bool for a function f(z, x)"
                raise checks.invalid("refine", "compile", requirement, refine)
            return compile_function(
                model,
                *_cell_rows(model, X, y, X_test, y_test),
                out=out,
                layers=layers,
                tolerance=1e-8 if tolerance is None else tolerance,
                agreement_limit=agreement_limit,
                random_state=random_state,
                say=progress if callable(progress) else _reporter(progress),
            )
        return compile_cell(
            model,
            *_cell_rows(model, X, y, X_test, y_test),
            layers=layers,
            kinds=kinds,
            fit=fit,
            distil=refine == "distil",
            width=width,
            tolerance=1e-10 if tolerance is None else tolerance,
            agreement_limit=agreement_limit,
            random_state=random_state,
            out=out,
            force=force,
            say=progress if callable(progress) else _reporter(progress),
        )
    images = isinstance(model, ConvolutionalEquilibrium)
    if not isinstance(model, DeepEquilibrium | ConvolutionalEquilibrium):
        remedy = (
            "Describe it, as in DeepEquilibrium('relu', sigma_a2=0.2), or take the weights of a "
            "torch module with EquilibriumCell.from_module(module)."
        )
        raise checks.invalid(
            "model", "compile", "be a DeepEquilibrium or an EquilibriumCell", repr(model), remedy
        )
    if refine == "distil":
        remedy = "Networks for random DEQs are refined on exact kernels: refine=True."
        raise checks.invalid("refine", "compile", "be a bool for a random DEQ", refine, remedy)
    _left_out("a random DEQ", layers=layers, kinds=kinds, fit=fit, agreement_limit=agreement_limit)
    if images:
        _left_out("a convolution", centre=centre)
    if images and not refine:
        requirement = "be True for a convolution, which is matched on images alone"
        raise checks.invalid("refine", "compile", requirement, refine)
    if train == "all" or images:
        extras.require("compile of convolutions, or with train='all',", "torch")
    settings = CompileSettings(
        model,
        family=family,
        kind=kernel_name(kind, "kernel of compile"),
        convention=convention,
        refine=bool(refine),
        width=(32 if images else 1024) if width is None else width,
        train=train,
        epochs=epochs,
        seeds=seeds,
        seed=random_state,
        ridge=ridge,
        tolerance=1e-5 if tolerance is None else tolerance,
        gap_limit=gap_limit,
        accuracy_limit=accuracy_limit,
        centre=centre,
    )
    rows = X, y, X_test, y_test
    if isinstance(model, ConvolutionalEquilibrium):
        data = image_rows(model, *rows, preprocessing=preprocessing, seed=random_state)
    else:
        scaling = "none" if preprocessing == "auto" else preprocessing
        data = labelled_rows(*rows, preprocessing=scaling, seed=random_state)
    say = progress if callable(progress) else _reporter(progress)
    return compile_random_deq(settings, data, out, force=force, say=say)


def _cell_rows(
    cell: EquilibriumCell, X: Any, y: Any, X_test: Any, y_test: Any
) -> tuple[Any, Any, Any, Any]:
    """Take rows, labels and test rows out of a data set, which has its own."""
    if not isinstance(X, Dataset):
        return X, y, X_test, y_test
    kind = X.preprocessing.kind
    scaled = isinstance(cell, AffineCell) and (
        (cell.shift != 0.0).any() or (cell.scale != 1.0).any()
    )
    if kind != "none" and scaled:
        requirement = "have the units of the network's own inputs, which it shifts and scales"
        remedy = (
            "Load them as they are: data.pixel_data(...), or data.load(..., preprocessing='none')."
        )
        raise checks.invalid("X", "compile", requirement, f"rows prepared as {kind!r}", remedy)
    # Labels of chosen classes are numbered anew: they are not the logits of a network any more.
    if X.provenance.options.get("classes"):
        requirement = "have all classes of the set, in the order of the network's logits"
        remedy = "Load it without classes=, or pass its arrays, with labels that are the logits."
        got = f"only {', '.join(X.classes)}"
        raise checks.invalid("X", "compile", requirement, got, remedy)
    return X.X, X.y, X.X_test, X.y_test


def _scales_inputs(cell: AffineCell) -> bool:
    return bool((cell.shift != 0.0).any() or (cell.scale != 1.0).any())


def load(
    path: str | Path,
) -> Compilation | TrainedCompilation | ImplicitNetwork | ExplicitModule:
    """Read a compilation from its directory, or a network from its file.

    Parameters
    ----------
    path : path
        A directory that ``Compilation.save``, `compile` with `out` or ``notsodeep compile`` has
        written; or a file of `notsodeep.save`, see `notsodeep.networks.load`.

    Raises
    ------
    DataNotFound
        There is nothing of that name.
    InvalidInput
        It is something else, or of a newer format.
    DataCorrupted
        It is not complete, or has been altered.

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
        stored = RunRecord.read(Path(path))
        if stored is not None and stored.kind == TRAINED:
            from notsodeep.compilation.trained_record import TrainedCompilation

            return TrainedCompilation.load(path)
        return Compilation.load(path)
    from notsodeep.networks.persistence import load as load_network

    return load_network(path)


def _left_out(model: str, **options: object) -> None:
    """Reject options that are about the other kind of model: they would do nothing."""
    parameters = inspect.signature(compile).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            raise checks.invalid(name, "compile", f"be left out for {model}", repr(value))


def _reporter(on: bool) -> Callable[[str], Any]:
    if on:
        return lambda message: sys.stderr.write(f"· {message}\n")
    return lambda message: None
