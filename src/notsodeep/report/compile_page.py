"""The report of a compiled DEQ: one HTML file, from stored results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from notsodeep.compilation.random_deq import ROLES
from notsodeep.files.run_directory import RunDirectory
from notsodeep.plotting.canvas import new_figure
from notsodeep.plotting.matches import (
    draw_activations,
    draw_difference,
    draw_eigenvalue_scatter,
    draw_spectra,
)
from notsodeep.report.page import NAME, inline_figure, write_page

_WORDS = {True: "holds", False: "fails", None: "undecided"}
_DISTANCES = {
    "operator-norm gap": ("gap", "{:.4g}"),
    "relative to the DEQ's kernel": ("relative_gap", "{:.3%}"),
    "after best rescaling": ("scaled_gap", "{:.3%}"),
    "Frobenius, relative": ("frobenius", "{:.3%}"),
    "spectra, Wasserstein distance": ("spectra", "{:.3g}"),
    "kernel alignment": ("alignment", "{:.6f}"),
    "overlap of the top eigenvectors": ("eigenvector_overlap", "{:.6f}"),
}
_NAMES = {"deq": "DEQ", "matched": "matched network", "unmatched": "unmatched network"}


def write_compile_page(directory: str | Path, path: str | Path | None = None) -> Path:
    """Write the page of a run from the pieces that `compile_deq` stored in `directory`.

    Parameters
    ----------
    directory : path
        Of the run.
    path : path, optional
        The HTML file; ``report.html`` in the directory by default.

    Raises
    ------
    InvalidInput
        The directory holds no compile run.
    DataCorrupted
        A piece is missing or unreadable.
    """
    run = RunDirectory.stored(directory, "compile")
    target = Path(directory) / NAME if path is None else path
    return write_page(target, "compile.html", _content(run))


def _content(run: RunDirectory) -> dict[str, Any]:
    settings = run.settings
    pieces = {
        name: run.read(name)
        for name in ("summary", "match", "certificate", "timing", "data", "spectrum", "export")
    }
    summary, certificate = pieces["summary"], pieces["certificate"]
    arrays = run.stored_arrays("certificate")
    return {
        **pieces,
        "title": f"{summary['deq']} on {settings['data']}",
        "settings": settings,
        "headline": headline(summary),
        "colour": verdict_colour(summary),
        "sentences": sentences(summary, settings),
        "rule": rule(settings),
        "facts": _facts(summary, pieces["timing"]),
        "refinement": _refinement(pieces["match"]),
        "coefficients": _coefficients(pieces["match"]),
        "figures": _figures(arrays, run.stored_arrays("spectrum")),
        "certified": len(arrays["deq"]),
        "distances": _distances(certificate),
        "trained": _trained(settings),
        "accuracies": _accuracies(summary),
        "times": _times(pieces["timing"]),
        "conditions": _conditions(pieces["data"]["conditions"]),
        "law": _law(pieces["spectrum"]),
        "code": _code(run.path),
        "provenance": _provenance(settings, pieces["data"], pieces["export"]),
    }


def headline(summary: Mapping[str, Any]) -> str:
    """Say in one sentence whether the DEQ can be replaced."""
    depth = {1: "one-hidden-layer", 2: "two-hidden-layer"}.get(summary["layers"], "shallow")
    family = str(summary["family"]).replace("_", " ")
    network = f"a {depth} {family} network"
    if summary["replaceable"]:
        return f"This DEQ can be replaced by {network}."
    if not summary["kernel_close"]:
        return f"This DEQ should not be replaced by {network}: their kernels differ too much."
    if verdict_colour(summary) == "open":
        return f"The kernels agree, but {network} is not shown to be as accurate: too few draws."
    return f"This DEQ should not be replaced by {network}: their accuracies differ."


def verdict_colour(summary: Mapping[str, Any]) -> str:
    """Name the verdict for the page's style: yes, no, or open."""
    if summary["replaceable"]:
        return "yes"
    low, high = summary["accuracy_difference"]
    return "open" if summary["kernel_close"] and low <= 0.0 <= high else "no"


def sentences(summary: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Give the evidence in words."""
    accuracy, deviation = summary["accuracy"], summary["accuracy_deviation"]
    low, high = summary["accuracy_difference"]
    return [
        f"Kernel gap on {certified_rows(summary)} {summary['relative_gap']:.2%} "
        f"(an unmatched network: {summary['unmatched_relative_gap']:.2%}).",
        f"Test accuracy {100 * accuracy['matched']:.1f} % against {100 * accuracy['deq']:.1f} "
        f"± {100 * deviation['deq']:.1f} % of the DEQ over {settings['seeds']} draws; the "
        f"difference lies between {low:+.2f} and {high:+.2f} points (95 % interval).",
        f"Inference is {summary['inference_ratio']:.1f} times faster and a training step "
        f"{summary['training_ratio']:.1f} times, at tolerance {settings['tolerance']:g}.",
    ]


def certified_rows(summary: Mapping[str, Any]) -> str:
    """Say which rows the kernels were compared on."""
    number = summary.get("certified_rows")  # not in runs of earlier versions
    return "held-out rows" if number is None else f"{number} held-out rows"


def rule(settings: Mapping[str, Any]) -> str:
    """State the rule behind the verdict."""
    return (
        f"Rule: replaceable if the relative kernel gap on held-out rows is at most "
        f"{settings['gap_limit']:.1%} and the 95 % interval of the accuracy difference lies within "
        f"± {settings['accuracy_limit']:g} points."
    )


def _facts(summary: Mapping[str, Any], timing: Mapping[str, Any]) -> list[dict[str, str]]:
    accuracy = summary["accuracy"]
    return [
        {"value": f"{summary['relative_gap']:.2%}", "label": "kernel gap, held-out rows"},
        {"value": f"{100 * accuracy['matched']:.1f} %", "label": "accuracy of the network"},
        {"value": f"{100 * accuracy['deq']:.1f} %", "label": "accuracy of the DEQ"},
        {"value": f"{summary['inference_ratio']:.1f} ×", "label": "faster in inference"},
        {"value": str(timing["inference"]["steps"]), "label": "steps of the DEQ's solver"},
    ]


def _refinement(match: Mapping[str, Any]) -> str:
    record = match["refinement"]
    if record is None:
        return ""
    verb = "kept" if record["kept"] else "not kept"
    return (
        f"gap on {record['held_out']} held-out rows {record['before_relative']:.2%} → "
        f"{record['after_relative']:.2%}, {verb}"
    )


def _coefficients(match: Mapping[str, Any]) -> list[dict[str, str]]:
    target, achieved = match["target"], match["achieved"] or {}
    return [
        {
            "name": name.replace("_", " "),
            "target": f"{target[name]:.6f}",
            "achieved": f"{achieved[name]:.6f}",
            "residual": f"{residual:+.1e}",
        }
        for name, residual in match["residuals"].items()
        if name in target and name in achieved
    ]


def _figures(arrays: Mapping[str, Any], spectrum: Mapping[str, Any]) -> list[dict[str, Any]]:
    layers = [arrays[name] for name in sorted(arrays) if name.startswith("layer_")]
    law = spectrum["shares"]
    drawings: list[tuple[Callable[[Axes], None], str, str]] = [
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
    ]
    figures = []
    for index, (draw, alt, caption) in enumerate(drawings):
        figure, axes = new_figure(1, width=4.6, height=3.4)
        draw(axes[0])
        figures.append(inline_figure(figure, index, alt, caption))
    return figures


def _distances(certificate: Mapping[str, Any]) -> list[dict[str, str]]:
    sides = {"matched": certificate["matched"], "unmatched": certificate["baseline"]}
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
                "unmatched": f"{accuracy['baseline']:.2%}",
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


def _conditions(verdicts: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "statement": verdict["statement"],
            "value": _number(verdict["value"]),
            "bound": _number(verdict["bound"]),
            "verdict": _WORDS[verdict["holds"]],
        }
        for name, verdict in verdicts.items()
    ]


def _number(value: float | str | None) -> str:
    return "–" if value is None else f"{float(value):.4g}"  # "Infinity" is a string there


def _law(spectrum: Mapping[str, Any]) -> str:
    if spectrum["law"] is None:
        return f"No limiting law is drawn: {spectrum['reason']}"
    law = spectrum["law"]
    spikes = [f"{spike['value']:.3g}" for spike in law["spikes"]]
    listed = f" It predicts isolated eigenvalues at {', '.join(spikes)}." if spikes else ""
    place, mass = law["point_mass"]
    atom = (
        f" With more samples than features it puts {mass:.0%} of the eigenvalues at {place:.3g}, "
        "where the exact kernel has them spread out; the picture leaves that out."
        if mass
        else ""
    )
    return f"The limiting law uses {spectrum['reason']}.{listed}{atom}"


def _code(directory: Path) -> str:
    return (
        "import torch, notsodeep as nsd\n"
        f'net = nsd.load("{directory / "network.safetensors"}")\n'
        'X = torch.as_tensor(net.preprocessing.apply(raw_rows, "float32"))\n'
        "scores = net(X)\n"
        "print([net.classes[k] for k in scores.argmax(dim=1)])"
    )


def _provenance(
    settings: Mapping[str, Any], data: Mapping[str, Any], export: Mapping[str, Any]
) -> list[dict[str, str]]:
    shown = {key: value for key, value in settings.items() if key != "deq"}
    return [
        {"name": "data", "value": f"{data['samples']} training and {data['test_samples']} test "
         f"samples, {data['features']} features, {len(data['classes'])} classes"},
        {"name": "settings", "value": ", ".join(f"{k} = {v}" for k, v in shown.items())},
        {"name": "exported", "value": f"{export['safetensors']}; ONNX: {export['onnx']}"},
    ]  # fmt: skip
