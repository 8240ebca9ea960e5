"""The certified hybrid as an ONNX graph in float64: layers, certificate, and the solver in a Loop.

Every product and every slack of `Certifier` is in the graph.  The slacks bound sums in any order,
so that what the graph proves is proved in any runtime that computes in IEEE double precision.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from notsodeep import __version__, checks, extras
from notsodeep.activations import Activation, PiecewiseLinear
from notsodeep.errors import NoOnnxForm
from notsodeep.files import atomic_write
from notsodeep.networks.onnx_graph import GraphBuilder, apply_activation
from notsodeep.trained.resolvent import Resolvent

if TYPE_CHECKING:
    from notsodeep.trained.certificate import Certifier
    from notsodeep.trained.hybrid import HybridEquilibrium

_OWNER = "export_onnx"
_FORMAT_VERSION = 8
_PROBES = 256
_SAME = 1e-9  # relative, of logits of rows that took as many steps
_ROUNDING = 1.0 + 64.0 * float(np.finfo(np.float64).eps)  # as in `Certifier`


def write_hybrid(
    hybrid: HybridEquilibrium,
    path: str | os.PathLike[str],
    *,
    X: Any = None,
    opset: int = 17,
) -> None:
    """Write a hybrid as an ONNX file, if onnxruntime then gives the same answers.

    The input ``x``, shape (batch, p) in float64, are rows as the module takes them.  Outputs are
    ``logits`` (batch, K) in float64, NaN for a row that is neither certified nor solved after the
    module's `max_steps`; ``proved`` (batch,); and ``steps`` (batch,) of the solver.  Rows leave the
    loop as soon as they are certified or solved.

    Parameters
    ----------
    hybrid : HybridEquilibrium
    path : path
    X : array_like of shape (n, p), optional
        Rows on which graph and module are compared; 256 random ones by default.
    opset : int, default 17
        At least 13.

    Raises
    ------
    MissingPackage
        onnx or onnxruntime is not installed.
    NoOnnxForm
        The resolvent of the solver's step has no closed form; the runtime has no double-precision
        form of the activation; or it answers otherwise than the module.  Nothing is written.
    """
    extras.require(_OWNER, "onnx", "onnxruntime")
    import onnx

    checks.integer_at_least(opset, 13, "opset", _OWNER)
    model = _Writer(hybrid, opset).model()
    onnx.checker.check_model(model, full_check=True)
    content = model.SerializeToString()
    _verify(hybrid, content, _probes(hybrid) if X is None else np.asarray(X, dtype=np.float64))
    with atomic_write(Path(path)) as stream:
        stream.write(content)


def _probes(hybrid: HybridEquilibrium) -> Any:
    cell = hybrid.cell
    noise = np.random.default_rng(0).standard_normal((_PROBES, cell.inputs))
    return cell.shift + cell.scale * noise


def _verify(hybrid: HybridEquilibrium, content: bytes, X: Any) -> None:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        logits, _, steps = session.run(None, {"x": X})
    except Exception as error:  # onnxruntime has its own, of no common base
        reason = str(error).strip().splitlines()[0]
        raise NoOnnxForm(f"onnxruntime cannot run this hybrid in float64 ({reason}).") from error
    expected = hybrid(torch.as_tensor(X)).numpy()
    record = hybrid.last_record
    assert record is not None
    same = steps == record.steps
    # A row may be certified one step earlier or later by rounding; its class may not differ.
    worst = np.abs(logits - expected)[same].max(initial=0.0) / max(np.abs(expected).max(), 1e-300)
    unequal = int((logits.argmax(axis=1) != expected.argmax(axis=1)).sum())
    if unequal or not worst <= _SAME:
        raise NoOnnxForm(
            f"onnxruntime answers otherwise than the module: {unequal} of {len(X)} classes, and "
            f"logits by {worst:.2g}."
        )


class _Writer:
    """Appends the parts of a hybrid to a graph."""

    def __init__(self, hybrid: HybridEquilibrium, opset: int) -> None:
        self.hybrid, self.certifier = hybrid, hybrid.certifier
        self.graph = GraphBuilder(opset, np.float64)

    def model(self) -> Any:
        from onnx import TensorProto, helper, numpy_helper

        graph, cell = self.graph, self.hybrid.cell
        x = graph.apply("Sub", "x", graph.constant(np.array(cell.shift), "shift"))
        x = graph.apply("Div", x, graph.constant(np.array(cell.scale), "scale"))
        sizes = _norms(graph, x)
        drive = _linear(graph, x, cell.injection.T, cell.bias)
        # (rows, their h and ‖x‖), logits, steps, proved
        outputs = self._rest(*self._layers(drive, sizes))
        kinds: dict[str, tuple[int, list[str | int]]] = {
            "logits": (TensorProto.DOUBLE, ["batch", self.classes]),
            "proved": (TensorProto.BOOL, ["batch"]),
            "steps": (TensorProto.INT64, ["batch"]),
        }
        for (name, _), source in zip(kinds.items(), outputs, strict=True):
            graph.nodes.append(helper.make_node("Identity", [source], [name]))
        whole = helper.make_graph(
            graph.nodes,
            "certified_hybrid",
            [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", cell.inputs])],
            [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()],
            [numpy_helper.from_array(v, k) for k, v in graph.constants.items()],
        )
        model = helper.make_model(
            whole,
            opset_imports=[helper.make_opsetid("", graph.opset)],
            ir_version=_FORMAT_VERSION,
            producer_name="notsodeep",
            producer_version=__version__,
        )
        facts = {"tolerance": self.hybrid.tolerance, "max_steps": self.hybrid.max_steps}
        helper.set_model_props(model, {"hybrid": json.dumps(facts)})
        return model

    @property
    def classes(self) -> int:
        readout = self.hybrid.cell.readout
        assert readout is not None
        return len(readout[1])

    def _layers(self, drive: str, sizes: str) -> tuple[str, list[str], list[str]]:
        """Append the layers; return the rows left, [t, h, ‖x‖] of these, [logits, proved, steps].

        t is zero without layers, as in the module.
        """
        graph, hybrid = self.graph, self.hybrid
        rows = _row_numbers(graph, drive)
        # Zeros from the row numbers, not from data: of a row that is not finite 0·x is NaN, which
        # as a truth value would say that its class is proved.
        none = graph.apply("Mul", rows, _zero(graph))
        column = graph.apply("Cast", graph.apply("Unsqueeze", none, _axis(graph)), to=11)  # DOUBLE
        filled = graph.constant(np.full((1, self.classes), np.nan), "open")
        results = [
            graph.apply("Add", column, filled),
            graph.apply("Cast", none, to=9),  # BOOL
            none,
        ]
        t = graph.apply("Mul", drive, 0.0)
        states: list[str] = []
        for k, (weight, bias) in enumerate(hybrid._weights):
            inputs = graph.apply("Concat", drive, *reversed(states), axis=1) if states else drive
            s = _linear(graph, inputs, weight.numpy(), bias.numpy())
            t = self._preimage(graph, hybrid._resolvents[k], s)
            if k + 1 < hybrid.first_check or hybrid._widths[k] != hybrid.cell.width:
                states.append(apply_activation(graph, hybrid.cell.activation, t))
                continue
            proved, scores, z, _ = self._certified(graph, t, drive, sizes)
            results = self._leave(graph, rows, proved, proved, scores, results, 0)
            rows, t, drive, sizes, *states = _kept(
                graph, proved, [rows, t, drive, sizes, *states, z]
            )
        return rows, [t, drive, sizes], results

    def _rest(self, rows: str, own: list[str], results: list[str]) -> list[str]:
        """Append the loop that solves the rows which are left."""
        from onnx import TensorProto, helper

        graph, hybrid = self.graph, self.hybrid
        splitting, cell = hybrid.splitting, hybrid.cell
        resolvent = splitting.resolvent
        share, step = resolvent.share, resolvent.step
        s = graph.apply("Mul", own[0], step)
        if share != 0.0:
            z = apply_activation(graph, cell.activation, own[0])
            s = graph.apply("Add", s, graph.apply("Mul", z, share))
        body = graph.loop_body()
        names = [
            "s",
            "t",
            "drive",
            "sizes",
            "rows",
            "logits_so_far",
            "proved_so_far",
            "steps_so_far",
        ]
        z = apply_activation(body, cell.activation, "t")
        if splitting.method == "peaceman_rachford":
            reflected = body.apply("Sub", body.apply("Mul", z, 2.0), "s")
            moved = body.apply("Add", reflected, body.apply("Mul", "drive", step))
            inner = _linear(body, moved, splitting.inverse.numpy())
            following = body.apply("Sub", body.apply("Mul", inner, 2.0), reflected)
        elif splitting.method == "forward_backward":
            force = body.apply("Sub", _linear(body, z, splitting.operator.numpy()), "drive")
            following = body.apply("Sub", z, body.apply("Mul", force, step))
        else:
            image = body.apply("Add", _linear(body, z, splitting.recurrent.numpy()), "drive")
            following = body.apply("Mul", image, step)
        t = self._preimage(body, resolvent, following)
        proved, scores, z, preactivations = self._certified(body, t, "drive", "sizes")
        image = apply_activation(body, cell.activation, preactivations)
        gap = _norms(body, body.apply("Sub", z, image))
        within = body.apply("Mul", _norms(body, image), hybrid.tolerance)
        solved = _flat(body, body.apply("LessOrEqual", gap, within))
        done = body.apply("Or", proved, solved)
        count = body.apply("Add", "step", body.constant(np.array(1), "one"))
        after = self._leave(body, "rows", done, proved, scores, names[5:], count)
        kept = _kept(body, done, [following, t, "drive", "sizes", "rows"])
        left = body.apply("Squeeze", body.apply("Shape", kept[-1]))
        goes_on = body.apply("Greater", left, body.constant(np.array(0), "none"))

        kinds = [TensorProto.DOUBLE] * 4 + [TensorProto.INT64, TensorProto.DOUBLE, TensorProto.BOOL]
        kinds.append(TensorProto.INT64)
        width, scalar = cell.width, helper.make_tensor_value_info
        shapes: list[Any] = [[None, width], [None, width], [None, width], [None, 1], [None]]
        shapes += [[None, self.classes], [None], [None]]
        inside = helper.make_graph(
            body.nodes,
            "solver_step",
            [
                scalar("step", TensorProto.INT64, []),
                scalar("goes_on", TensorProto.BOOL, []),
                *map(scalar, names, kinds, shapes),
            ],
            [scalar(goes_on, TensorProto.BOOL, []), *map(scalar, [*kept, *after], kinds, shapes)],
        )
        left = graph.apply("Squeeze", graph.apply("Shape", rows))
        start = (
            graph.constant(np.array(hybrid.max_steps), "most_steps"),
            graph.apply("Greater", left, graph.constant(np.array(0), "none")),
            s,
            *own,
            rows,
            *results,
        )
        return graph.apply_many("Loop", start, len(names), body=inside)[5:]

    def _preimage(self, graph: GraphBuilder, resolvent: Resolvent, s: str) -> str:
        """Append t of R_α(s) = φ(t)."""
        if resolvent.step == resolvent.beta:
            return graph.apply("Div", s, resolvent.step)
        if not isinstance(resolvent.activation, PiecewiseLinear):
            raise NoOnnxForm(
                f"The solver takes steps of {resolvent.step:.4g}, and the resolvent of "
                f"{resolvent.activation} has no closed form for them: it is found by Newton's "
                "iteration. Export the explicit network, or a hybrid of a piecewise-linear "
                "activation."
            )
        inverse: Activation = resolvent._linear_preimage
        return apply_activation(graph, inverse, s)

    def _certified(
        self, graph: GraphBuilder, u: str, drive: str, sizes: str
    ) -> tuple[str, str, str, str]:
        """Append `Certifier.classes`; return proved (n,), scores, z and Wz + h."""
        certifier: Certifier = self.certifier
        beta, of_state = certifier.margin.beta, certifier._of_state
        recurrent, injection, bias = certifier._sizes
        z = apply_activation(graph, self.hybrid.cell.activation, u)
        preactivations = graph.apply("Add", _linear(graph, z, certifier._recurrent.numpy()), drive)
        residual = graph.apply("Sub", u, preactivations)
        state = graph.apply("Add", _norms(graph, z), graph.apply("Mul", _norms(graph, u), beta))
        known = graph.apply("Add", graph.apply("Mul", sizes, injection), bias)
        error = graph.apply(
            "Sum",
            graph.apply("Mul", state, of_state * (recurrent + 1.0 + 1.0 / beta)),
            graph.apply("Mul", known, certifier._of_input + of_state),
            graph.apply("Mul", _norms(graph, drive), of_state),
        )
        bound = graph.apply(
            "Sum",
            _norms(graph, _linear(graph, residual, certifier._root.numpy())),
            graph.apply("Mul", _norms(graph, residual), certifier._root_error),
            graph.apply("Mul", error, certifier._root_size),
        )
        bound = graph.apply("Mul", bound, _ROUNDING)
        weights, offsets = (v.numpy() for v in certifier._readout)
        scores = _linear(graph, z, weights, offsets)
        largest, level = certifier._readout_sizes
        slack = graph.apply("Mul", state, 2.0 * of_state * largest)
        slack = graph.apply("Add", slack, 2.0 * of_state * level)
        best = graph.reduce_rows("ReduceMax", scores)
        lead = graph.apply("Sub", graph.apply("Sub", best, scores), slack)
        classes = graph.apply("ArgMax", scores, axis=1, keepdims=1)
        distances = graph.constant(certifier._distances.numpy(), "distances")
        apart = graph.apply("Gather", distances, _flat(graph, classes), axis=0)
        needed = graph.apply("Mul", apart, bound)
        numbers = graph.constant(np.arange(self.classes)[None], "classes")
        own = graph.apply("Equal", numbers, classes)  # no class is its own rival
        ahead = graph.apply("Or", graph.apply("Less", needed, lead), own)
        # Comparisons with NaN are false, and so is "all of them".
        all_ahead = graph.reduce_rows("ReduceMin", graph.apply("Cast", ahead, to=6))  # INT32
        finite = graph.apply("Less", bound, float(np.finfo(np.float64).max))
        proved = graph.apply("And", graph.apply("Cast", all_ahead, to=9), finite)
        return _flat(graph, proved), scores, z, preactivations

    def _leave(
        self,
        graph: GraphBuilder,
        rows: str,
        done: str,
        proved: str,
        scores: str,
        results: list[str],
        step: int | str,
    ) -> list[str]:
        """Append the answers of rows that are done to [logits, proved, steps]."""
        count = graph.constant(np.array(step), "step") if isinstance(step, int) else step
        places = graph.apply("Unsqueeze", graph.apply("Compress", rows, done, axis=0), _axis(graph))
        given = graph.apply("Compress", proved, done, axis=0)
        taken = graph.apply("Add", graph.apply("Mul", _flat(graph, places), _zero(graph)), count)
        values = [graph.apply("Compress", scores, done, axis=0), given, taken]
        return [
            graph.apply("ScatterND", result, places, value)
            for result, value in zip(results, values, strict=True)
        ]


def _linear(graph: GraphBuilder, x: str, weight: Any, bias: Any = None) -> str:
    """Append x @ weight + bias."""
    product = graph.apply("MatMul", x, graph.constant(np.array(weight), "weight"))
    return (
        product
        if bias is None
        else graph.apply("Add", product, graph.constant(np.array(bias), "bias"))
    )


def _norms(graph: GraphBuilder, rows: str) -> str:
    squares = graph.reduce_rows("ReduceSum", graph.apply("Mul", rows, rows))
    return graph.apply("Sqrt", squares)


def _axis(graph: GraphBuilder) -> str:
    return graph.constant(np.array([1]), "axis")


def _zero(graph: GraphBuilder) -> str:
    return graph.constant(np.array(0), "zero")


def _flat(graph: GraphBuilder, column: str) -> str:
    return graph.apply("Squeeze", column, _axis(graph))


def _row_numbers(graph: GraphBuilder, rows: str) -> str:
    """Append 0, 1, … of the rows."""
    count = graph.apply("Gather", graph.apply("Shape", rows), _zero(graph))
    one = graph.constant(np.array(1), "one")
    return graph.apply("Range", _zero(graph), count, one)


def _kept(graph: GraphBuilder, done: str, values: list[str]) -> list[str]:
    """Append the rows that are not done."""
    keep = graph.apply("Not", done)
    return [graph.apply("Compress", value, keep, axis=0) for value in values]
