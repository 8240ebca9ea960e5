"""Reports of compiled DEQs: one HTML file each, with everything in it and every value escaped."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib.axes import Axes

from notsodeep import __version__
from notsodeep._files import atomic_write
from notsodeep.compilation.evidence import ROLES, Fidelity, Front
from notsodeep.compilation.record import NETWORK, Compilation
from notsodeep.plotting.canvas import house_style, new_figure, svg_text
from notsodeep.plotting.matches import (
    draw_activations,
    draw_difference,
    draw_eigenvalue_scatter,
    draw_spectra,
)
from notsodeep.plotting.predictions import transfer as draw_transfer
from notsodeep.plotting.trained import fidelities as draw_fidelities
from notsodeep.plotting.trained import front as draw_front

if TYPE_CHECKING:
    from notsodeep.compilation.trained_record import TrainedCompilation

Drawing = tuple[Callable[[Axes], object], str, str]
Table = dict[str, Any]

_COLOURS = {"replaceable": "yes", "not shown": "open", "not replaceable": "no"}
_HOLDS = {True: "holds", False: "fails", None: "undecided"}
_DISTANCES = {
    "operator-norm gap": ("gap", "{:.4g}"),
    "relative, as they are": ("relative_gap", "{:.3%}"),
    "relative, at the best scale": ("scaled_gap", "{:.3%}"),
    "relative, without the constant part": ("centred_gap", "{:.3%}"),
    "relative, scale and constant free": ("readout_gap", "{:.3%}"),
    "Frobenius, relative": ("frobenius", "{:.3%}"),
    "spectra, Wasserstein distance": ("spectra", "{:.3g}"),
    "kernel alignment": ("alignment", "{:.6f}"),
    "overlap of the top eigenvectors": ("eigenvector_overlap", "{:.6f}"),
}


@house_style()
def write_report(compiled: Compilation | TrainedCompilation, path: str | Path) -> Path:
    """Write the report of a compilation; ``compiled.report(path)`` is the same."""
    of_random = isinstance(compiled, Compilation)
    content = _random(compiled) if isinstance(compiled, Compilation) else _trained(compiled)
    environment = Environment(
        loader=PackageLoader("notsodeep.report"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    verdict = compiled.verdict
    page = environment.get_template("compile.html" if of_random else "trained.html").render(
        version=__version__,
        date=datetime.now(UTC).date().isoformat(),
        verdict=verdict,
        colour=_COLOURS[verdict.word],
        front=_front_table(compiled.front),
        note=f"Medians and quartiles of {compiled.front.repeats} repeats in one run, in units of "
        f"{compiled.front.reference}; {compiled.front.solver}.",
        **content,
    )
    target = Path(path)
    with atomic_write(target) as stream:
        stream.write(page.encode())
    return target


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table for the macro of the same name: the first column is text."""
    return {"head": list(head), "rows": [list(map(str, row)) for row in rows]}


def _random(compiled: Compilation) -> dict[str, Any]:
    settings, data, accuracy = compiled.settings, compiled.data, compiled.accuracy
    certificate, match = compiled.certificate, compiled.match
    cheap = compiled.front.chosen_point
    return {
        "title": f"{match.model} on {data.name}",
        "facts": {
            "kernel gap, held-out rows": f"{certificate.matched.relative_gap:.2%}",
            "gap with scale and constant free": f"{certificate.matched.readout_gap:.2%}",
            "accuracy of the network": f"{100 * accuracy.mean['matched']:.1f} %",
            "accuracy of the DEQ": f"{100 * accuracy.mean['deq']:.1f} %",
            f"multiplications of the DEQ at tolerance {cheap.parameter:g}, over the network's":
                f"{cheap.products:.1f} ×",
        },
        "networks": {
            "deep equilibrium model": str(match.model),
            "shallow network": str(match.network),
            "family": f"{match.family}: {match.reason}",
            **({"refinement": str(match.refinement)} if match.refinement else {}),
        },
        "coefficients": _coefficients(compiled),
        "figures": _figures(_random_drawings(compiled)),
        "certified": len(certificate.difference),
        "distances": _distances(compiled),
        "plain": certificate.verdict,
        "accuracies": _table(
            [f"width {settings.width}", *_named_roles()],
            [
                [
                    "test accuracy, mean ± deviation",
                    *(
                        f"{100 * accuracy.mean[r]:.2f} ± {100 * accuracy.deviation[r]:.2f} %"
                        for r in ROLES
                    ),
                ]
            ],
        ),
        "draws": _table(
            ["draw", *_named_roles()],
            (
                [k, *(f"{100 * value:.2f} %" for value in values)]
                for k, values in enumerate(zip(*(accuracy.draws[r] for r in ROLES), strict=True), 1)
            ),
        ),
        "trained": "The read-outs were fitted by ridge regression on random features."
        if settings.train == "readout"
        else f"All weights were trained for {settings.epochs} epochs.",
        "transfer": _transfer(compiled),
        "conditions": _table(
            ["condition", "requires", "value", "bound", "verdict"],
            (
                [v.name, v.statement, _number(v.value), _number(v.bound), _HOLDS[v.holds]]
                for v in data.conditions
            ),
        ),
        "law": _law(compiled),
        "code": _network_code(compiled.directory),
        "provenance": {
            "data": str(data),
            "settings": ", ".join(
                f"{k} = {v}" for k, v in settings.to_dict().items() if k != "model"
            ),
        },
    }  # fmt: skip


def _named_roles() -> list[str]:
    return ["DEQ", "matched network", "unmatched network"]


def _coefficients(compiled: Compilation) -> Table:
    target, achieved = compiled.match.target, compiled.match.achieved
    return _table(
        ["coefficient", "DEQ", "network", "difference"],
        (
            [
                name.replace("_", " "),
                f"{getattr(target, name):z.6f}",
                f"{getattr(achieved, name):z.6f}",
                f"{residual:+.1e}",
            ]
            for name, residual in compiled.match.residuals.items()
            if hasattr(target, name) and hasattr(achieved, name)
        ),
    )


def _distances(compiled: Compilation) -> Table:
    certificate = compiled.certificate
    sides = certificate.matched, certificate.unmatched
    rows = [
        [label, *(form.format(getattr(side, name)) for side in sides)]
        for label, (name, form) in _DISTANCES.items()
    ]
    if (accuracy := certificate.accuracy) is not None:
        label = f"kernel ridge accuracy (DEQ {accuracy['deq']:.2%})"
        rows.append([label, *(f"{accuracy[r]:.2%}" for r in ("matched", "unmatched"))])
    head = f"{certificate.kind} kernel, {certificate.convention}"
    return _table([head, "matched", "unmatched"], rows)


def _transfer(compiled: Compilation) -> dict[str, Any]:
    """Tabulate the networks with the DEQ's hyper-parameters, and with their own."""
    seen = compiled.transfer
    if seen is None:
        return {"reason": compiled.transferred.reason}
    rows = [
        [
            f"{name}, {whose}",
            f"{tuned.rate:g}",
            tuned.epochs,
            f"{tuned.loss:.4f}" if tuned.loss < math.inf else "diverges",
            f"{100 * tuned.accuracy:.1f} %",
            f"{tuned.ridge:.3g}",
            f"{tuned.ridge_loss:.4f}",
            f"{100 * tuned.ridge_accuracy:.1f} %",
        ]
        for tuning, whose in ((seen.fixed, "the DEQ's settings"), (seen.own, "its own"))
        for name, tuned in tuning.items()
        if whose != "its own" or name != seen.names[0]
    ]
    head = f"{compiled.certificate.kind} kernel"
    columns = ["rate", "epochs", "loss", "accuracy", "ridge", "loss", "accuracy"]
    return {
        "reason": "",
        "table": _table([head, *columns], rows),
        "matched": "yes" if seen.holds(seen.names[1]) else "no",
        "unmatched": "yes" if seen.holds(seen.names[2]) else "no",
        "rule": seen.rule,
    }


def _random_drawings(compiled: Compilation) -> list[Drawing]:
    certificate, spectrum, match = compiled.certificate, compiled.spectrum, compiled.match
    deq, matched = certificate.matched.eigenvalues, certificate.matched.other_eigenvalues
    x = np.linspace(-3.0 * match.tau0, 3.0 * match.tau0, 301)
    phi, layers = match.model.cell[-1].activation(x), [a(x) for a in match.network.activations]
    drawings: list[Drawing] = [
        (
            lambda axes: draw_activations(axes, x, phi, layers),
            "The DEQ's activation and the network's activation, drawn over one another.",
            "The activation of the DEQ and the one that was designed for the network.",
        ),
        (
            lambda axes: draw_spectra(axes, spectrum.edges, deq, matched, spectrum.shares),
            "Histogram of the eigenvalues of both kernels, with the limiting law as dots.",
            "Eigenvalues of both kernels on held-out rows"
            + (", and what the limiting law predicts." if spectrum.shares.size else "."),
        ),
        (
            lambda axes: draw_eigenvalue_scatter(
                axes, deq, matched, certificate.unmatched.other_eigenvalues
            ),
            "Eigenvalues of the networks against those of the DEQ, on the diagonal if equal.",
            "On the diagonal the eigenvalues agree.",
        ),
        (
            lambda axes: draw_difference(axes, certificate.difference),
            "Heat map of the difference of the two kernel matrices, rows sorted by class.",
            "DEQ minus network, rows sorted by class.",
        ),
        (
            lambda axes: draw_front(compiled.front, axes),
            "Accuracy of the DEQ against its cost at several tolerances of its solver.",
            "What the DEQ costs, in calls of the network, and how accurate it is, at several "
            "tolerances of its solver.",
        ),
    ]
    if (seen := compiled.transfer) is not None:
        drawings += [
            (
                functools.partial(draw_transfer, seen, accuracy=accuracy),
                f"{what} over epochs at the rate that was tuned for the DEQ.",
                f"{what} on new rows over epochs, at the rate tuned for the DEQ; the line across "
                f"is at its best epoch. Exact kernels, {seen.rows} training rows and "
                f"{seen.new_rows} new ones.",
            )
            for accuracy, what in ((False, "Loss"), (True, "Accuracy"))
        ]
    return drawings


def _law(compiled: Compilation) -> str:
    spectrum = compiled.spectrum
    if not spectrum.shares.size:
        return f"No limiting law is drawn: {spectrum.reason}"
    spikes = ", ".join(f"{value:.3g}" for value in spectrum.spikes)
    predicted = f" It predicts isolated eigenvalues at {spikes}." if spikes else ""
    return f"The limiting law uses {spectrum.reason}.{predicted}"


def _trained(compiled: TrainedCompilation) -> dict[str, Any]:
    own, layers = compiled.fidelity, compiled.fidelity_by_layers
    named = {
        **{f"{k} explicit layer{'s' * (k > 1)}": f for k, f in layers.items()},
        **compiled.baselines,
    }
    return {
        "title": f"{compiled.cell!r}",
        "facts": {
            "same class as the DEQ": f"{own.agreement:.2%}",
            "at least, with 95 % confidence": f"{own.agreement_bound:.2%}",
            "of the rows proved": _share(own.certified),
            "relative logit error": f"{own.logit_error:.3g}",
        },
        "test_rows": own.rows,
        "fidelities": _table(
            ["network", "same class", "at least (95 %)", "logit error", "95 % quantile", "proved",
             "accuracy"],
            ([name, *_fidelity_row(fidelity)] for name, fidelity in named.items()),
        ),
        "figures": _figures(
            [
                (
                    lambda axes: draw_front(compiled.front, axes),
                    "Share of rows with another class than the DEQ's, against time.",
                    "The DEQ at several tolerances, its solver cut off after some steps, explicit "
                    "layers, and the certified hybrid.",
                ),
                (
                    lambda axes: draw_fidelities(layers, compiled.baselines, axes),
                    "Agreement and certified share against the number of layers.",
                    "Bars end at the lower 95 % bound; grey lines are the baselines.",
                ),
            ]
        ),
        "layers": _table(
            ["layer", "kind", "units", "step α", "ridge", "bound/margin, median"],
            (
                [k, layer.kind, len(layer.bias), f"{layer.step:.4g}", _number(layer.ridge),
                 f"{layer.score:.3g}"]
                for k, layer in enumerate(compiled.layers, 1)
            ),
        ),
        "deq": compiled.facts(),
        "code": _cell_code(compiled.directory),
    }  # fmt: skip


def _fidelity_row(fidelity: Fidelity) -> list[str]:
    return [
        f"{fidelity.agreement:.2%}",
        f"{fidelity.agreement_bound:.2%}",
        f"{fidelity.logit_error:.3g}",
        f"{fidelity.logit_quantile:.3g}",
        _share(fidelity.certified),
        "–" if fidelity.accuracy is None else f"{fidelity.accuracy:.2%}",
    ]


def _front_table(front: Front) -> Table:
    quality = "test accuracy" if front.points[0].agreement is None else "same class"
    proofs = any(point.certified is not None for point in front.points)
    rows = [
        [
            point.name + (" (headline)" if k == front.chosen else ""),
            f"{point.steps:.1f}",
            f"{point.products:.2f} ×",
            point.time,
            f"{point.accuracy if point.agreement is None else point.agreement:.2%}",
            *([_share(point.certified)] if proofs else []),
        ]
        for k, point in enumerate(front.points)
    ]
    head = f"batches of {front.batch}, {front.threads} threads, {front.library}"
    columns = ["solver steps", "multiplications", "time", quality, *(["proved"] if proofs else [])]
    return _table([head, *columns], rows)


def _figures(drawings: Iterable[Drawing]) -> list[dict[str, Any]]:
    figures = []
    for index, (draw, alt, caption) in enumerate(drawings):
        figure, (axes,) = new_figure(1, width=4.6, height=3.4)
        draw(axes)
        svg = Markup(_inline(svg_text(figure), f"figure{index}-"))
        figures.append({"svg": svg, "alt": alt, "caption": caption})
    return figures


def _inline(svg: str, prefix: str) -> str:
    """Take an SVG file into a page: without its header, ids made unique on the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r'\bid="([^"]+)"', lambda m: f'id="{prefix}{m.group(1)}"', body)
    body = re.sub(r'="#([^"]+)"', lambda m: f'="#{prefix}{m.group(1)}"', body)
    return re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{prefix}{m.group(1)})", body)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _network_code(directory: Path | None) -> str:
    path = Path("runs/mine") if directory is None else directory
    return (
        ("" if directory else f'compiled.save("{path}")  # what `compile` has returned\n')
        + "import torch, notsodeep as nsd\n"
        f'net = nsd.load("{path / NETWORK}")\n'
        'X = torch.as_tensor(net.preprocessing.apply(raw_rows, "float32"))\n'
        "scores = net(X)\n"
        "print([net.classes[k] for k in scores.argmax(dim=1)])"
    )


def _cell_code(directory: Path | None) -> str:
    path = Path("runs/mine") if directory is None else directory
    return (
        ("" if directory else f'compiled.save("{path}")  # what `compile` has returned\n')
        + "import torch, notsodeep as nsd\n"
        f'compiled = nsd.load("{path}")\n'
        "scores = compiled.network(torch.as_tensor(rows, dtype=torch.float32))"
    )
