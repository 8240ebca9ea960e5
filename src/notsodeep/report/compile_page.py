"""The report of a compiled DEQ: one HTML file, from stored results."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from notsodeep.compilation.record import Compilation
from notsodeep.compilation.settings import ROLES
from notsodeep.matching import Match
from notsodeep.models import Conditions
from notsodeep.plotting.canvas import house_style, new_figure
from notsodeep.plotting.matches import (
    draw_activations,
    draw_difference,
    draw_eigenvalue_scatter,
    draw_front,
    draw_spectra,
)
from notsodeep.plotting.predictions import transfer, width_curve
from notsodeep.prediction import WidthCurve, effective_neurons
from notsodeep.report.page import inline_figure, write_page

_COLOURS = {"replaceable": "yes", "not shown": "open", "not replaceable": "no"}
_WORDS = {True: "holds", False: "fails", None: "undecided"}
_DISTANCES = {
    "operator-norm gap": ("gap", "{:.4g}"),
    "relative to the DEQ's kernel, at the best scale": ("scaled_gap", "{:.3%}"),
    "relative to the DEQ's kernel, as they are": ("relative_gap", "{:.3%}"),
    "Frobenius, relative": ("frobenius", "{:.3%}"),
    "spectra, Wasserstein distance": ("spectra", "{:.3g}"),
    "kernel alignment": ("alignment", "{:.6f}"),
    "overlap of the top eigenvectors": ("eigenvector_overlap", "{:.6f}"),
}
_SAME = 0.005  # half a point of accuracy
_NAMES = {"deq": "DEQ", "matched": "matched network", "unmatched": "unmatched network"}


@house_style()
def write_compile_page(compiled: Compilation, path: str | Path) -> Path:
    """Write the page of a compilation; ``compiled.report(path)`` is the same."""
    return write_page(path, "compile.html", _content(compiled))


def _content(compiled: Compilation) -> dict[str, Any]:
    settings, records = compiled.settings.options, compiled.records
    summary, certificate = records["summary"], records["certificate"]
    arrays, verdict = compiled.arrays["certificate"], compiled.verdict
    return {
        **{name: records[name] for name in ("summary", "certificate", "timing", "data")},
        "title": f"{summary['deq']} on {settings['data']}",
        "settings": settings,
        "headline": verdict.headline,
        "colour": _COLOURS[verdict.word],
        "sentences": verdict.reasons,
        "rule": verdict.rule,
        "facts": _facts(summary),
        "match": compiled.match,
        "refinement": _refinement(compiled.match),
        "coefficients": _coefficients(compiled.match),
        "figures": _figures(compiled),
        "widths": _widths(compiled),
        "transfer": _transfer(compiled),
        "front": _front(records["front"]),
        "certified": len(arrays["deq"]),
        "distances": _distances(certificate),
        "trained": _trained(settings),
        "accuracies": _accuracies(summary),
        "times": _times(records["timing"]),
        "conditions": _conditions(verdict.conditions),
        "law": _law(records["spectrum"]),
        "code": _code(compiled.directory),
        "provenance": _provenance(settings, records["data"], records.get("export")),
    }


def _facts(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    accuracy = summary["accuracy"]
    return [
        {"value": f"{summary['relative_gap']:.2%}", "label": "kernel gap, held-out rows"},
        {"value": f"{100 * accuracy['matched']:.1f} %", "label": "accuracy of the network"},
        {"value": f"{100 * accuracy['deq']:.1f} %", "label": "accuracy of the DEQ"},
        {
            "value": f"{summary['inference_ratio']:.1f} ×",
            "label": f"faster than the DEQ at tolerance {summary['tolerance']:g}",
        },
        {"value": str(summary["steps"]), "label": "steps of the DEQ's solver there"},
    ]


def _refinement(match: Match) -> str:
    record = match.refinement
    if record is None:
        return ""
    verb = "kept" if record.kept else "not kept"
    return (
        f"gap on {record.held_out} held-out rows {record.before_relative:.2%} → "
        f"{record.after_relative:.2%}, {verb}"
    )


def _coefficients(match: Match) -> list[dict[str, str]]:
    target, achieved = match.target, match.achieved
    return [
        {
            "name": name.replace("_", " "),
            "target": f"{getattr(target, name):z.6f}",
            "achieved": f"{getattr(achieved, name):z.6f}",
            "residual": f"{residual:+.1e}",
        }
        for name, residual in match.residuals.items()
        if hasattr(target, name) and hasattr(achieved, name)
    ]


def _figures(compiled: Compilation) -> list[dict[str, Any]]:
    arrays, spectrum = compiled.arrays["certificate"], compiled.arrays["spectrum"]
    front, widths = compiled.records["front"], compiled.records.get("widths", {})
    seen = compiled.transfer
    layers = [arrays[name] for name in sorted(arrays) if name.startswith("layer_")]
    law = spectrum["shares"]
    drawings: list[tuple[Callable[[Axes], object], str, str]] = [
        (
            lambda axes: draw_activations(axes, arrays["x"], arrays["phi"], layers),
            "The DEQ's activation and the network's activation, drawn over one another.",
            "The activation of the DEQ and the one that was designed for the network.",
        ),
        (
            lambda axes: draw_spectra(
                axes, spectrum["edges"], arrays["deq"], arrays["matched"], law
            ),
            "Histogram of the eigenvalues of both kernels, with the limiting law as dots.",
            "Eigenvalues of both kernels on held-out rows"
            + (", and what the limiting law predicts." if law.size else "."),
        ),
        (
            lambda axes: draw_eigenvalue_scatter(
                axes, arrays["deq"], arrays["matched"], arrays["unmatched"]
            ),
            "Eigenvalues of the networks against those of the DEQ, on the diagonal if equal.",
            "On the diagonal the eigenvalues agree.",
        ),
        (
            lambda axes: draw_difference(axes, arrays["difference"]),
            "Heat map of the difference of the two kernel matrices, rows sorted by class.",
            "DEQ minus network, rows sorted by class.",
        ),
        (
            lambda axes: draw_front(axes, front),
            "Accuracy of the DEQ against its cost at several tolerances of its solver.",
            "What the DEQ costs, in calls of the network, and how accurate it is, at several "
            "tolerances of its solver; the band is the 95 % interval at the strictest.",
        ),
    ]
    if widths.get("predicted"):
        drawings.append(
            (
                lambda axes: _draw_widths(axes, widths),
                "Accuracy of read-outs over the width: dots on predicted lines.",
                f"Read-outs on {widths['rows']} rows, ridge as above: dots are the mean of "
                f"{widths['draws']} draws, lines were predicted from exact kernels, dashed at "
                "infinite width.",
            )
        )
    if seen is not None:
        rows = f"{seen.rows} training rows and {seen.new_rows} new ones"
        drawings += [
            (
                functools.partial(transfer, seen, accuracy=accuracy),
                f"{what} over epochs at the rate that was tuned for the DEQ.",
                f"{what} on new rows over epochs, at the rate tuned for the DEQ; the line across "
                f"is at its best epoch. Exact kernels, {rows}.",
            )
            for accuracy, what in ((False, "Loss"), (True, "Accuracy"))
        ]
    figures = []
    for index, (draw, alt, caption) in enumerate(drawings):
        figure, axes = new_figure(1, width=4.6, height=3.4)
        draw(axes[0])
        figures.append(inline_figure(figure, index, alt, caption))
    return figures


def _draw_widths(axes: Axes, widths: Mapping[str, Any]) -> None:
    dots = {
        role: (widths["widths"], widths["measured"][role], widths["errors"][role])
        for role in widths["measured"]
    }
    width_curve(WidthCurve.from_dict(widths["predicted"]), axes, measured=dots)


def _widths(compiled: Compilation) -> dict[str, Any]:
    """Tabulate what is predicted, and measured, at the largest width and at infinite width."""
    record = compiled.records.get("widths", {"reason": "This run is older than the prediction."})
    if record["reason"]:
        return {"reason": record["reason"]}
    curve, m = WidthCurve.from_dict(record["predicted"]), record["widths"][-1]
    place = int(abs(curve.widths - m).argmin())
    rows = [
        {
            "name": _NAMES[role],
            "neurons": f"{effective_neurons(model, m, compiled.match.tau0):.0f}",
            "measured": f"{100 * record['measured'][role][-1]:.1f} ± "
            f"{100 * record['errors'][role][-1]:.1f} %",
            "predicted": f"{100 * curve.accuracy[role][place]:.1f} %",
            "limit": f"{100 * curve.limit_accuracy[role]:.1f} %",
        }
        for role, model in _models(compiled.match).items()
    ]
    change = curve.accuracy["matched"][place] - curve.accuracy["deq"][place]
    limits = curve.limit_accuracy
    change_limit = limits["matched"] - limits["deq"]
    plain = limits["unmatched"] - limits["deq"]
    words = "do as well" if abs(plain) < _SAME else "be better" if plain > 0.0 else "be worse"
    return {
        "reason": "",
        "width": m,
        "rows": rows,
        "sentence": f"Predicted change of accuracy by the network: {100 * change:+.1f} points at "
        f"width {m}, {100 * change_limit:+.1f} at infinite width. A plain network of infinite "
        f"width would {words}: {100 * plain:+.1f} points.",
    }


def _transfer(compiled: Compilation) -> dict[str, Any]:
    """Tabulate the networks with the DEQ's hyper-parameters, and with their own."""
    seen = compiled.transfer
    if seen is None:
        record = compiled.records.get("transfer", {"reason": "This run is older than this part."})
        return {"reason": record["reason"]}
    rows = [
        {
            "name": f"{name}, {whose}",
            "rate": f"{tuned.rate:g}",
            "epochs": str(tuned.epochs),
            "loss": f"{tuned.loss:.4f}" if tuned.loss < math.inf else "diverges",
            "accuracy": f"{100 * tuned.accuracy:.1f} %",
            "ridge": f"{tuned.ridge:.3g}",
            "ridge_loss": f"{tuned.ridge_loss:.4f}",
            "ridge_accuracy": f"{100 * tuned.ridge_accuracy:.1f} %",
        }
        for table, whose in ((seen.fixed, "the DEQ's settings"), (seen.own, "its own"))
        for name, tuned in table.items()
        if whose != "its own" or name != seen.names[0]
    ]
    return {
        "reason": "",
        "rows": rows,
        "sentences": [seen.verdict(name) for name in seen.names[1:]],
        "rule": seen.rule,
        "answer": "yes" if seen.holds(seen.names[1]) else "no",
        "plain": "yes" if seen.holds(seen.names[2]) else "no",
    }


def _models(match: Match) -> dict[str, Any]:
    return {"deq": match.model, "matched": match.network, "unmatched": match.unmatched}


def _distances(certificate: Mapping[str, Any]) -> list[dict[str, str]]:
    sides = {"matched": certificate["matched"], "unmatched": certificate["unmatched"]}
    rows = [
        {"label": label, **{side: form.format(record[name]) for side, record in sides.items()}}
        for label, (name, form) in _DISTANCES.items()
    ]
    accuracy = certificate["accuracy"]
    if accuracy is not None:
        rows.append(
            {
                "label": f"kernel ridge accuracy (DEQ: {accuracy['deq']:.2%})",
                "matched": f"{accuracy['matched']:.2%}",
                "unmatched": f"{accuracy['unmatched']:.2%}",
            }
        )
    return rows


def _trained(settings: Mapping[str, Any]) -> str:
    if settings["train"] == "readout":
        return "The read-outs were fitted by ridge regression on random features."
    return f"All weights were trained for {settings['epochs']} epochs."


def _accuracies(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Tabulate the networks as columns: mean and deviation, and every draw."""
    by_role = summary["accuracies"]
    draws = [
        {"label": f"draw {index + 1}", "values": [f"{100 * value:.2f} %" for value in draw]}
        for index, draw in enumerate(zip(*(by_role[role] for role in ROLES), strict=True))
    ]
    means = [
        f"{100 * summary['accuracy'][role]:.2f} ± {100 * summary['accuracy_deviation'][role]:.2f} %"
        for role in ROLES
    ]
    return {"roles": [_NAMES[role] for role in ROLES], "means": means, "draws": draws}


def _times(timing: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = []
    for label, name in (("inference", "inference"), ("training step", "training_step")):
        row = timing[name]
        if row is None:
            continue
        low, high = row["quartiles"]
        rows.append(
            {
                "label": label,
                "deq": f"{1e3 * row['deq_seconds']:.2f} ms",
                "network": f"{1e3 * row['explicit_seconds']:.2f} ms",
                "ratio": f"{row['ratio']:.1f} × ({low:.1f}–{high:.1f})",
                "solver": f"{row['solver'].replace('_', ' ')}, {row['steps']} steps",
            }
        )
    return rows


def _front(front: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = []
    for index, point in enumerate(front["points"]):
        work = point["inference"]
        low, high = work["quartiles"]
        rows.append(
            {
                "tolerance": f"{point['tolerance']:g}",
                "steps": f"{work['steps']} ({work['solver'].replace('_', ' ')})",
                "accuracy": f"{100 * point['accuracy']:.2f} %",
                "ratio": f"{work['ratio']:.1f} × ({low:.1f}–{high:.1f})",
                "mark": "headline" if index == front["chosen"] else "",
            }
        )
    return rows


def _conditions(verdicts: Conditions) -> list[dict[str, str]]:
    return [
        {
            "name": verdict.name,
            "statement": verdict.statement,
            "value": _number(verdict.value),
            "bound": _number(verdict.bound),
            "verdict": _WORDS[verdict.holds],
        }
        for verdict in verdicts
    ]


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "–"


def _law(spectrum: Mapping[str, Any]) -> str:
    if spectrum["law"] is None:
        return f"No limiting law is drawn: {spectrum['reason'].rstrip('.')}."
    law = spectrum["law"]
    spikes = [f"{spike['value']:.3g}" for spike in law["spikes"]]
    listed = f" It predicts isolated eigenvalues at {', '.join(spikes)}." if spikes else ""
    return f"The limiting law uses {spectrum['reason']}.{listed}"


def _code(directory: Path | None) -> str:
    place = Path("runs/mine") if directory is None else directory
    return (
        ("" if directory else f'compiled.save("{place}")  # what `compile` has returned\n')
        + "import torch, notsodeep as nsd\n"
        f'net = nsd.load("{place / "network.safetensors"}")\n'
        'X = torch.as_tensor(net.preprocessing.apply(raw_rows, "float32"))\n'
        "scores = net(X)\n"
        "print([net.classes[k] for k in scores.argmax(dim=1)])"
    )


def _provenance(
    settings: Mapping[str, Any], data: Mapping[str, Any], export: Mapping[str, Any] | None
) -> list[dict[str, str]]:
    apart = data["provenance"]["options"].get("set_apart")
    note = f" ({apart} rows were set apart to test with)" if apart else ""
    files = "nothing; see above"
    if export is not None:
        files = f"{export['safetensors']}; ONNX: {export['onnx']}"
    return [
        {"name": "data", "value": f"{data['samples']} training and {data['test_samples']} test "
         f"samples, {data['features']} features, {len(data['classes'])} classes{note}"},
        {"name": "settings", "value": ", ".join(f"{k} = {v}" for k, v in settings.items())},
        {"name": "exported", "value": files},
    ]  # fmt: skip
