"""Networks as ONNX files, built operator by operator, with the preprocessing inside."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from notsodeep import __version__, checks, extras
from notsodeep.activations.torch_twins import TensorFunction, torch_twin
from notsodeep.data import Preprocessing
from notsodeep.errors import NotConverged
from notsodeep.files import atomic_write
from notsodeep.networks import requirements
from notsodeep.networks.cell_module import CellNetwork, MonotoneNetwork
from notsodeep.networks.convolutional import ConvolutionalModule
from notsodeep.networks.equilibrium_map import EquilibriumMap
from notsodeep.networks.equilibrium_solvers import DEFAULT_TOLERANCE, FixedPointIteration, solve
from notsodeep.networks.modules import (
    EquilibriumNetwork,
    ExplicitModule,
    FeatureNetwork,
    ImplicitNetwork,
)
from notsodeep.networks.onnx_graph import GraphBuilder, apply_activation
from notsodeep.networks.onnx_images import append_images
from notsodeep.networks.persistence import attached

_LEAST_OPSET = 13  # sums take their axes as an input since then
_FORMAT_VERSION = 8  # of the file; the oldest that fits these operator sets
_PROBES = 16
_LARGEST = float(np.finfo(np.float32).max)
_DENORMAL = float(np.finfo(np.float32).smallest_subnormal)

Output = tuple[str, int, Sequence[str | int]]
"""The name that an output has inside the graph, its element type and its shape."""


def export_onnx(
    module: torch.nn.Module,
    path: str | Path,
    *,
    preprocessing: Preprocessing | None = None,
    classes: Sequence[str | int] | None = None,
    steps: int | None = None,
    opset: int = 17,
) -> None:
    """Write a network as an ONNX file, atomically.

    The input ``x``, shape (batch, p) in float32, is a batch of raw rows if there is a
    preprocessing, which then is part of the graph; the output ``logits`` has shape (batch, K).
    The graph computes in float32 whatever the module's dtype: runtimes lack double-precision
    versions of several functions.  Class names go into the metadata as JSON under ``classes``.

    A DEQ becomes a loop h ← √σb² B x + √(σa²/m) A φ(h), from h = √σb² B x (a general cell one over
    its units, from zero; a convolutional one over all pixels, from √u U ∗ x; a monotone network one
    of its splitting), which ends by the
    module's own rule: ‖change of h‖ ≤ tolerance·‖h‖ for every row, with the tolerance of its
    solver but not below 1e-6, or after the most steps of its solver.  Two more outputs tell how it
    went: ``residual``, the largest relative change in the last step (infinite if a row is not
    finite), and ``steps``.

    Parameters
    ----------
    module : ImplicitNetwork or ExplicitModule
        As made by `build`; or the network of a compiled DEQ.
    path : path
    preprocessing : Preprocessing, optional
        Without it, the one that the module was loaded with, if any.
    classes : sequence of str or int, optional
        Names of the outputs.  Without it, those that the module was loaded with.
    steps : int, optional
        Take exactly so many steps of a DEQ's loop and have no stopping rule.
    opset : int, default 17
        Version of the ONNX operators, at least 13.

    Raises
    ------
    MissingPackage
        The package onnx is not installed.
    NoOnnxForm
        An activation made from a Python function.
    NotConverged
        The DEQ's loop, a plain iteration, does not converge on random rows of norm one.

    Examples
    --------
    >>> import tempfile, notsodeep as nsd, onnxruntime
    >>> net = nsd.build(nsd.DeepEquilibrium("tanh", 0.2), 4, 32, 2, rng=0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     nsd.export_onnx(net, f"{directory}/net.onnx")
    ...     session = onnxruntime.InferenceSession(f"{directory}/net.onnx")
    >>> logits, residual, steps = session.run(None, {"x": np.ones((3, 4), np.float32)})
    >>> expected = net(torch.ones(3, 4)).detach().numpy()
    >>> np.allclose(logits, expected, atol=1e-5), bool(residual <= 1e-6)
    (True, True)
    """
    owner = "export_onnx"
    drawn = hasattr(module, "append_to")  # a network that appends itself to a graph
    requirements.own_network(module, drawn or isinstance(module, FeatureNetwork), owner)
    network: Any = module
    preprocessing, names = attached(network, preprocessing, classes, owner)
    if steps is not None:
        checks.positive_integer(steps, "steps", owner)
    extras.require(owner, "onnx")
    import onnx

    version = _opset(opset, _LEAST_OPSET, onnx.defs.onnx_opset_version(), owner)
    graph = GraphBuilder(version)
    rows = "x" if preprocessing is None else _preprocess(graph, preprocessing)
    features, residual, count = "", "", ""
    if isinstance(module, CellNetwork):
        features, residual, count = _cell(graph, module, rows, steps)
    elif isinstance(module, MonotoneNetwork):
        features, residual, count = _monotone(graph, module, rows, steps)
    elif isinstance(module, EquilibriumNetwork):
        features, residual, count = _equilibrium(graph, module, rows, steps)
    elif isinstance(module, ConvolutionalModule):
        features, residual, count = _images(graph, module, rows, steps)
    elif not drawn:
        features = _explicit(graph, network, rows)
    diagnostics: dict[str, Output] = {}
    if residual:
        diagnostics = {
            "residual": (residual, onnx.TensorProto.FLOAT, []),
            "steps": (count, onnx.TensorProto.INT64, []),
        }
    else:
        _steps_for_equilibrium(steps, owner)
    if drawn:
        logits = network.append_to(graph, rows)
    else:
        logits = _linear(graph, features, _array(network.readout), "readout")
        if network.readout_bias is not None:
            bias = graph.constant(_array(network.readout_bias), "readout_bias")
            logits = graph.apply("Add", logits, bias)
    outputs: dict[str, Output] = {
        "logits": (logits, onnx.TensorProto.FLOAT, ["batch", network.out_features]),
        **diagnostics,
    }
    _one_message(sum(a.nbytes for a in graph.constants.values()), owner)
    metadata = {"description": json.dumps(network.description.to_dict())}
    if names is not None:
        metadata["classes"] = json.dumps(names)
    model = _model(graph, network.in_features, outputs, version, metadata)
    with atomic_write(Path(path)) as stream:
        stream.write(model.SerializeToString())


def _preprocess(graph: GraphBuilder, preprocessing: Preprocessing) -> str:
    """Append the map of raw rows, in float64 as `Preprocessing.apply` computes it."""
    from onnx import TensorProto

    if preprocessing.kind == "none":
        return "x"
    x = graph.apply("Cast", "x", to=TensorProto.DOUBLE)
    if preprocessing.mean is not None:
        x = graph.apply("Sub", x, graph.constant(preprocessing.mean, "mean"))
        divisor = graph.constant(np.array(preprocessing.scale), "scale")
    else:
        divisor = _norms(graph, x)
    return graph.apply("Cast", graph.apply("Div", x, divisor), to=TensorProto.FLOAT)


def _explicit(graph: GraphBuilder, module: ExplicitModule, x: str) -> str:
    """Append x_l = σ_l(W_l x_{l−1})/√m."""
    for name, activation in zip(module.hidden_names, module.description.activations, strict=True):
        hidden = _linear(graph, x, _array(getattr(module, name)), name)
        x = graph.apply("Mul", apply_activation(graph, activation, hidden), module.width**-0.5)
    return x


def _equilibrium(
    graph: GraphBuilder, module: EquilibriumNetwork, x: str, steps: int | None
) -> tuple[str, str, str]:
    """Append the loop; return the names of the features, the residual and the steps taken."""
    deq, width = module.description, module.width
    injection = math.sqrt(deq.sigma_b2) * module.input_scale * _array(module.injection)
    recurrent = math.sqrt(deq.sigma_a2 / width) * _array(module.recurrent)
    drive = _linear(graph, x, injection, "injection")
    if steps is None:
        _require_convergence(module, *_plain_map(module))

    def step(body: GraphBuilder) -> str:
        activated = apply_activation(body, deq.activation, "h")
        return body.apply("Add", drive, _linear(body, activated, recurrent, "recurrent"))

    h, residual, taken = _loop(graph, module, drive, step, steps)
    features = graph.apply("Mul", apply_activation(graph, deq.activation, h), width**-0.5)
    return features, residual, taken


def _cell(
    graph: GraphBuilder, module: CellNetwork, x: str, steps: int | None
) -> tuple[str, str, str]:
    """Append the loop of a general cell over the units of its last layer, from zero."""
    cell, width = module.description.cell, module.width
    if steps is None:
        _require_convergence(module, *_cell_map(module))
    zero = _linear(graph, x, np.zeros((width, module.in_features)), "no_units")
    drives = []
    for number, layer in enumerate(cell, start=1):
        drive = zero
        if layer.inject > 0.0:
            injection = _array(getattr(module, f"injection_{number}"))
            drive = _linear(graph, x, math.sqrt(layer.inject) * injection, f"injection_{number}")
        if layer.bias > 0.0:
            shift = math.sqrt(layer.bias) * _array(getattr(module, f"shift_{number}"))[:, 0]
            constant = graph.constant(shift.astype(np.float32), f"shift_{number}")
            drive = graph.apply("Add", drive, constant)
        drives.append(drive)

    def step(body: GraphBuilder) -> str:
        units = "h"
        for number, (layer, drive) in enumerate(zip(cell, drives, strict=True), start=1):
            weight = math.sqrt(layer.weight / width) * _array(getattr(module, f"weight_{number}"))
            field = body.apply("Add", drive, _linear(body, units, weight, f"weight_{number}"))
            if layer.normalise == "preactivation":
                field = _normalised(body, field, width)
            units = apply_activation(body, layer.activation, field)
            if layer.normalise == "feature":
                units = _normalised(body, units, width)
        return units

    units, residual, taken = _loop(graph, module, zero, step, steps)
    return graph.apply("Mul", units, width**-0.5), residual, taken


def _monotone(
    graph: GraphBuilder, module: MonotoneNetwork, x: str, steps: int | None
) -> tuple[str, str, str]:
    """Append the loop of a monotone network over its pre-activations, from the drive."""
    with torch.no_grad():
        own = module.scaled({name: getattr(module, name) for name in module.hidden_names})
        resolvent = module.resolvent(own)
    if steps is None:
        narrow = {name: weight.cpu().float() for name, weight in own.items()}
        start, inverse = module.drive(_random_rows(module), narrow), resolvent.cpu().float()
        _require_convergence(module, lambda h: module.turn(h, start, inverse), start)
    drive = _linear(graph, x, _array(own["injection"]), "injection")
    if "shift" in own:
        shift = graph.constant(_array(own["shift"])[:, 0].astype(np.float32), "shift")
        drive = graph.apply("Add", drive, shift)
    phi = module.description.activation

    def step(body: GraphBuilder) -> str:
        units = apply_activation(body, phi, "h")
        reflected = body.apply("Sub", body.apply("Add", units, units), "h")
        driven = body.apply("Add", reflected, drive)
        moved = _linear(body, driven, 2.0 * _array(resolvent), "resolvent")
        return body.apply("Sub", moved, reflected)

    h, residual, taken = _loop(graph, module, drive, step, steps)
    return graph.apply("Mul", apply_activation(graph, phi, h), module.width**-0.5), residual, taken


def _images(
    graph: GraphBuilder, module: ConvolutionalModule, x: str, steps: int | None
) -> tuple[str, str, str]:
    """Append a convolutional network, with a loop over all pixels at once if it is a DEQ."""

    def loop(start: str, step: Callable[[GraphBuilder], str], units: int) -> tuple[str, str, str]:
        if steps is None:
            _require_convergence(module, *_image_map(module))
        return _loop(graph, module, start, step, steps, units)

    return append_images(graph, module, x, loop)


def _normalised(graph: GraphBuilder, rows: str, width: int) -> str:
    """Append layer normalisation over the units, without gains."""
    mean = graph.apply("Div", graph.reduce_rows("ReduceSum", rows), float(width))
    centred = graph.apply("Sub", rows, mean)
    spread = graph.apply("Mul", _norms(graph, centred), width**-0.5)
    return graph.apply("Div", centred, spread)


def _loop(
    graph: GraphBuilder,
    module: ImplicitNetwork,
    start: str,
    step: Callable[[GraphBuilder], str],
    steps: int | None,
    units: int | None = None,
) -> tuple[str, str, str]:
    """Append h ← step(h) until ‖change‖ ≤ tolerance·‖h‖; return h, the residual and the count."""
    from onnx import TensorProto, helper

    body = graph.loop_body()
    following = step(body)
    residual = _relative_residual(body, following)
    goes_on = body.apply("Identity", "goes_on")
    if steps is None:
        met = body.apply("LessOrEqual", residual, _tolerance(module))
        goes_on = body.apply("Not", met)
    count = body.apply("Add", "step", body.constant(np.array(1), "one"))

    def value(name: str, kind: int, shape: Sequence[str | int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    real, whole, truth = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    hidden: list[str | int] = ["batch", units or module.width]
    inside = helper.make_graph(
        body.nodes,
        "fixed_point_step",
        [
            value("step", whole, []),
            value("goes_on", truth, []),
            value("h", real, hidden),
            value("last_residual", real, []),
            value("last_count", whole, []),
        ],
        [
            value(goes_on, truth, []),
            value(following, real, hidden),
            value(residual, real, []),
            value(count, whole, []),
        ],
    )
    inputs = (
        graph.constant(np.array(steps or module.solver.max_steps), "most_steps"),
        graph.constant(np.array(True), "true"),
        start,
        graph.constant(math.inf, "infinity"),
        graph.constant(np.array(0), "zero"),
    )
    h, last_residual, taken = graph.apply_many("Loop", inputs, 3, body=inside)
    return h, last_residual, taken


def _tolerance(module: ImplicitNetwork) -> float:
    return max(module.solver.tolerance or 0.0, DEFAULT_TOLERANCE[torch.float32])


def _random_rows(module: FeatureNetwork) -> torch.Tensor:
    rows = np.random.default_rng(0).standard_normal((_PROBES, module.in_features))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return torch.as_tensor(rows, dtype=torch.float32)


@torch.no_grad()
def _plain_map(module: EquilibriumNetwork) -> tuple[TensorFunction, torch.Tensor]:
    """Return what the loop of a vanilla model iterates on random rows, and its start."""
    deq = module.description
    scale = math.sqrt(deq.sigma_b2) * module.input_scale
    injection, recurrent = (w.cpu().float() for w in (module.injection, module.recurrent))
    drive = scale * (_random_rows(module) @ injection.mT)
    problem = EquilibriumMap(torch_twin(deq.activation), math.sqrt(deq.sigma_a2 / module.width))
    return lambda h: problem.value(h, drive, recurrent), drive


@torch.no_grad()
def _cell_map(module: CellNetwork) -> tuple[TensorFunction, torch.Tensor]:
    """Return the same for a general cell."""
    weights = {name: getattr(module, name).cpu().float() for name in module.hidden_names}
    drives, _ = module.drives(_random_rows(module), weights)
    matrices = [weights[f"weight_{number}"] for number in range(1, len(drives) + 1)]
    return lambda units: module.turn(units, *drives, *matrices), torch.zeros_like(drives[0])


@torch.no_grad()
def _image_map(module: ConvolutionalModule) -> tuple[TensorFunction, torch.Tensor]:
    """Return the same for a convolutional model."""
    weights = {name: getattr(module, name).cpu().float() for name in module.hidden_names}
    drives = module.drives(_random_rows(module), weights)
    shape = drives[0].shape
    return (
        lambda flat: module.turn(flat.reshape(shape), drives, weights)[1].flatten(1),
        drives[0].flatten(1),
    )


@torch.no_grad()
def _require_convergence(
    module: ImplicitNetwork,
    step: TensorFunction,
    start: torch.Tensor,
) -> None:
    """Require that the plain iteration of the graph converges."""
    solver = FixedPointIteration(_tolerance(module), module.solver.max_steps)
    _, record = solve(step, start, solver)
    if not record.converged:
        raise NotConverged(
            f"The loop of the ONNX graph takes plain steps, and on random rows of norm one there "
            f"was {record.reason} (residual {record.residual:.2g}). Pass steps=… to take a fixed "
            "number of them all the same, or export the matched explicit network.",
            record,
        )


def _linear(graph: GraphBuilder, x: str, weight: NDArray[Any], name: str) -> str:
    """Append x Wᵀ."""
    transposed = np.ascontiguousarray(weight.T.astype(np.float32))
    return graph.apply("MatMul", x, graph.constant(transposed, name))


def _relative_residual(graph: GraphBuilder, following: str) -> str:
    """Append the largest ‖f(h) − h‖/‖f(h)‖ of all rows, infinite where a row is not finite.

    As in `equilibrium_solvers.relative_residuals` every row is measured in units of its own:
    squares are zero in float32 for rows of 1e-23, which would look solved, and infinite for 1e20.
    """
    change = graph.apply("Sub", following, "h")
    sizes = (graph.reduce_rows("ReduceMax", graph.apply("Abs", x)) for x in (change, following))
    largest = graph.apply("Max", *sizes)
    unit = _one_for_zero(graph, largest)
    gap, size = (_norms(graph, graph.apply("Div", x, unit)) for x in (change, following))
    # A row that is zero and stays zero is solved; denormal rows are known to their grid only, and
    # the functions of some runtimes take them for zero.
    grid = graph.apply("Div", graph.apply("Min", largest, _DENORMAL), unit)
    residuals = graph.apply("Max", graph.apply("Div", gap, _one_for_zero(graph, size)), grid)
    # Runtimes differ in what the maximum of NaN and a number is.
    finite = graph.apply("LessOrEqual", residuals, _LARGEST)
    residuals = graph.apply("Where", finite, residuals, math.inf)
    return graph.apply("ReduceMax", residuals, keepdims=0)


def _one_for_zero(graph: GraphBuilder, x: str) -> str:
    return graph.apply("Where", graph.apply("Equal", x, 0.0), 1.0, x)


def _norms(graph: GraphBuilder, rows: str) -> str:
    """Append the Euclidean norms of rows, shape (batch, 1)."""
    squares = graph.reduce_rows("ReduceSum", graph.apply("Mul", rows, rows))
    return graph.apply("Sqrt", squares)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()


def _model(
    graph: GraphBuilder,
    in_features: int,
    outputs: dict[str, Output],
    opset: int,
    metadata: dict[str, str],
) -> Any:
    """Put the parts together and have them checked."""
    import onnx
    from onnx import helper, numpy_helper

    results = []
    for name, (source, kind, shape) in outputs.items():
        graph.nodes.append(helper.make_node("Identity", [source], [name]))
        results.append(helper.make_tensor_value_info(name, kind, shape))
    rows = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", in_features])
    constants = [numpy_helper.from_array(v, k) for k, v in graph.constants.items()]
    whole = helper.make_graph(graph.nodes, "network", [rows], results, constants)
    model = helper.make_model(
        whole,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=_FORMAT_VERSION,
        producer_name="notsodeep",
        producer_version=__version__,
    )
    helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    return model


def _opset(value: object, least: int, most: int, owner: str) -> int:
    """Require an ONNX operator set that has what we use and that the package knows."""
    number = checks.integer_at_least(value, least, "opset", owner)
    if number > most:
        remedy = "Install a newer onnx package for it."
        raise checks.invalid("opset", owner, f"be at most {most}", number, remedy)
    return number


def _steps_for_equilibrium(steps: int | None, owner: str) -> None:
    """Reject a number of solver steps for a network without a solver."""
    if steps is not None:
        remedy = "An explicit network has no fixed point to solve for."
        raise checks.invalid("steps", owner, "be left out for an explicit network", steps, remedy)


def _one_message(size: int, owner: str) -> None:
    """Require weights that fit into one protocol-buffers message."""
    if size >= 2**31 - 2**20:
        requirement = "have weights of less than 2 GiB, the most that one ONNX file holds"
        raise checks.invalid("module", owner, requirement, f"{size / 2**30:.1f} GiB")
