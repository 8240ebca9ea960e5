"""The page of a reproduced experiment: findings beside the paper's, figure, settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from notsodeep.files.manifests import versions
from notsodeep.papers.reproduction import Experiment
from notsodeep.report.page import NAME, inline_figure, write_page

Record = dict[str, Any]


def write_reproduction_page(
    work: Experiment, records: list[Record], figure: Figure, directory: str | Path, profile: str
) -> Path:
    """Write ``report.html`` beside the pieces of an experiment.

    Parameters
    ----------
    work : Experiment
    records : list of dict
        As `reproduce` returned them.
    figure : Figure
        As `reproduction_figure` drew it.
    directory : path
        Of the run.
    profile : str
        With which it was run.
    """
    findings = work.findings(records)
    told = [finding for finding in findings if finding.paper]
    content = {
        "title": f"{work.name}, {profile} profile",
        "headline": work.title,
        "source": f"Source: {work.source}.",
        "rule": (
            f"{len(findings)} findings, {len(told)} of them with a number or statement of the "
            "paper beside ours."
            if told
            else f"{len(findings)} findings; there are no printed numbers to set beside them."
        ),
        "findings": findings,
        "told": bool(told),
        "figures": [inline_figure(figure, 0, f"Figure of the experiment: {work.title}.", "")],
        "provenance": [
            {"name": "profile", "value": profile},
            *_varied([record["cell"] for record in records]),
            {"name": "versions", "value": ", ".join(f"{k} {v}" for k, v in versions().items())},
        ],
    }
    return write_page(Path(directory) / NAME, "reproduction.html", content)


def _varied(cells: list[Record]) -> list[dict[str, str]]:
    """List every setting with the values that it takes over the cells."""
    values: dict[str, dict[str, None]] = {}
    for cell in cells:
        for key, value in cell.items():
            text = value if isinstance(value, str) else json.dumps(value)
            values.setdefault(key, {})[text] = None
    rows = [{"name": "cells", "value": str(len(cells))}]
    return rows + [
        {"name": key.replace("_", " "), "value": ", ".join(_shortened(list(found)))}
        for key, found in values.items()
    ]


def _shortened(values: list[str]) -> list[str]:
    """Keep the ends of a long list."""
    values = [value if len(value) <= 120 else f"{value[:60]} … {value[-40:]}" for value in values]
    return values if len(values) <= 12 else [*values[:6], "…", *values[-3:]]
