"""The report of a compiled DEQ with given weights: one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from notsodeep.compilation.trained_record import CellCompilation, TrainedCompilation
from notsodeep.plotting.canvas import house_style, new_figure
from notsodeep.plotting.trained import fidelities, front
from notsodeep.report.page import inline_figure, write_page
from notsodeep.trained.fidelity import Fidelity

_BLACK_BOX_CODE = (
    "scores = compiled.network(torch.as_tensor(rows))  # what `compile` has returned; f itself is "
    "code, and is not saved"
)
_COLOURS = {"replaceable": "yes", "not shown": "open", "not replaceable": "no"}


@house_style()
def write_trained_page(compiled: CellCompilation, path: str | Path) -> Path:
    """Write the page of a compilation; ``compiled.report(path)`` is the same."""
    return write_page(path, "trained.html", _content(compiled))


def _content(compiled: CellCompilation) -> dict[str, Any]:
    verdict, own = compiled.verdict, compiled.fidelity
    given = compiled if isinstance(compiled, TrainedCompilation) else None
    of_kind = "A" if given is None else str(given.cell.activation)
    return {
        "title": f"{of_kind} DEQ of width {compiled.cell.width}",
        "headline": verdict.headline,
        "colour": _COLOURS[verdict.word],
        "sentences": verdict.reasons,
        "rule": verdict.rule,
        "facts": [
            {"value": f"{own.agreement:.2%}", "label": "same class as the DEQ"},
            {"value": f"{own.agreement_bound:.2%}", "label": "at least, with 95 % confidence"},
            {"value": _share(own.certified), "label": "of the rows proved"},
            {"value": f"{own.logit_error:.3g}", "label": "relative logit error"},
        ],
        "test_rows": own.rows,
        "fidelities": [
            *(
                _fidelity(f"{k} explicit layer{'s' * (k > 1)}{_refit(given, k)}", f)
                for k, f in compiled.fidelity_by_layers.items()
            ),
            *(_fidelity(name, f) for name, f in compiled.baselines.items()),
        ],
        "figures": _figures(compiled),
        "front": compiled.front,
        "points": [
            {
                "name": p.name,
                "agreement": f"{p.agreement:.2%}",
                "proved": _share(p.certified),
                "steps": f"{p.steps:.1f}",
                "work": f"{p.work:.2f}",
                "time": f"{p.ratio:.2f}",
                "quartiles": f"{p.quartiles[0]:.2f}–{p.quartiles[1]:.2f}",
            }
            for p in compiled.front.points
        ],
        "layers": [
            {
                "number": k,
                "kind": layer.kind,
                "units": len(layer.bias),
                "step": f"{layer.step:.4g}",
                "ridge": "–" if layer.ridge is None else f"{layer.ridge:g}",
                "score": f"{layer.score:.3g}",
            }
            for k, layer in enumerate(given.layers if given else (), 1)
        ],
        "distilled": given.evidence.distilled if given else "",
        "deq": [{"name": name, "value": value} for name, value in compiled.facts()],
        "code": _code(given.directory) if given else _BLACK_BOX_CODE,
    }


def _refit(compiled: TrainedCompilation | None, layers: int) -> str:
    refitted = compiled is not None and compiled.evidence.refitted[layers - 1]
    return ", read-out refitted" if refitted else ""


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _fidelity(name: str, fidelity: Fidelity) -> dict[str, str]:
    return {
        "name": name,
        "agreement": f"{fidelity.agreement:.2%}",
        "bound": f"{fidelity.agreement_bound:.2%}",
        "error": f"{fidelity.logit_error:.3g}",
        "quantile": f"{fidelity.logit_quantile:.3g}",
        "proved": _share(fidelity.certified),
        "accuracy": "–" if fidelity.accuracy is None else f"{fidelity.accuracy:.2%}",
    }


def _figures(compiled: CellCompilation) -> list[dict[str, Any]]:
    first, (left,) = new_figure(1, width=5.2, height=3.8)
    front(compiled.front, left)
    second, (right,) = new_figure(1, width=5.2, height=3.8)
    fidelities(compiled.fidelity_by_layers, compiled.baselines, right)
    return [
        inline_figure(
            first,
            0,
            "Share of rows with another class than the DEQ's, against time.",
            "The DEQ at tolerances 1e-1 to 1e-6, its solver cut off after some steps, explicit "
            "layers, and the certified hybrid.",
        ),
        inline_figure(
            second,
            1,
            "Agreement and certified share against the number of layers.",
            "Bars end at the lower 95 % bound; grey lines are the baselines.",
        ),
    ]


def _code(directory: Path | None) -> str:
    place = Path("runs/mine") if directory is None else directory
    return (
        ("" if directory else f'compiled.save("{place}")  # what `compile` has returned\n')
        + "import torch, notsodeep as nsd\n"
        f'compiled = nsd.load("{place}")\n'
        "scores = compiled.network(torch.as_tensor(rows, dtype=torch.float32))\n"
        "exact = compiled.hybrid()(torch.as_tensor(rows))  # the DEQ's own classes"
    )
