"""Does one designed activation replace the recurrence of a convolutional DEQ?  `compile` says.

For each DEQ: the kernel gap of its explicit twin on held-out images, matched and unmatched, the
accuracies of finite networks and the ratio of their times.  Every compilation is stored in --work
and resumes there; rows go to benchmarks/results/convolutions/twins.json as they are done.

    python benchmarks/convolution_twins.py --work runs/twins
    python benchmarks/convolution_twins.py --table          # for docs/convolutions.md
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import notsodeep as nsd
from measure import RESULTS, environment
from notsodeep.files.atomic_files import write_json
from tables import markdown

PLACE = RESULTS / "convolutions" / "twins.json"
SEEDS = 5
SIZES: dict[str, dict[str, Any]] = {
    "digits": {},
    "mnist": {"samples": 1000, "test_samples": 2000},
}


@dataclass(frozen=True)
class Twin:
    """A convolutional DEQ of one layer on some data."""

    data: str
    activation: str = "relu"
    sigma_a2: float = 0.2
    size: int = 3
    padding: str = "circular"
    pooling: str | int = "flatten"
    input_pooling: int = 1
    kernel: str = "conjugate"
    channels: int = 32

    @property
    def name(self) -> str:
        """Of the directory."""
        return "-".join(str(v) for v in asdict(self).values())


# Finite networks tend to their kernels with more channels, and their accuracies with them.
TWINS = (
    *(Twin("digits", "relu", s) for s in (0.1, 0.2, 0.4, 0.6, 0.8)),
    *(Twin("digits", "tanh", s) for s in (0.2, 0.4)),
    Twin("mnist", input_pooling=2),
    Twin("digits", "tanh", channels=128),
    Twin("digits", padding="zero"),
    Twin("digits", size=5),
    Twin("digits", pooling=3),
    Twin("mnist", "tanh", input_pooling=2),
    Twin("digits", kernel="tangent"),
    Twin("digits", pooling="average"),
    Twin("mnist", sigma_a2=0.6, input_pooling=2),
    # With 32 channels a draw of this one reaches its fixed point too slowly for the solver.
    Twin("digits", "tanh", 0.8, channels=128),
    Twin("mnist"),
)


def measured(twin: Twin, work: Path) -> dict[str, Any]:
    """Compile, and return the numbers of the summary."""
    data = nsd.data.load(twin.data, rng=0, **SIZES[twin.data]).images_last()
    assert data.image_shape is not None
    layer = nsd.Convolution(
        twin.activation,
        weight=twin.sigma_a2,
        inject=1.0 - twin.sigma_a2,
        size=twin.size,
        padding=twin.padding,
    )
    deq = nsd.ConvolutionalEquilibrium(
        [layer], data.image_shape, twin.pooling, input_pooling=twin.input_pooling
    )
    start = time.perf_counter()
    compiled = nsd.compile(
        deq, data, kernel=twin.kernel, width=twin.channels, seeds=SEEDS, out=work / twin.name
    )
    summary = compiled.records["summary"]
    named = ("relative_gap", "unmatched_relative_gap", "unmatched_scaled_gap", "scaled_gap")
    timed = ("inference_ratio", "inference_quartiles", "strict_inference_ratio", "tolerance")
    about = ("family", "accuracy", "accuracy_deviation", "accuracy_difference", "certified_rows")
    refinement = compiled.match.refinement
    return {
        **asdict(twin),
        **{name: summary[name] for name in (*named, *about, *timed)},
        "unrefined_gap": refinement.before_relative,
        "refined_gap": refinement.after_relative,
        "parameters": compiled.match.parameters,
        "verdict": compiled.verdict.word,
        "seconds": time.perf_counter() - start,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Make the table of the page on convolutions."""
    lines = []
    for row in rows:
        pixels = {"digits": 8, "mnist": 28}[row["data"]] // row["input_pooling"]
        pooling = row["pooling"] if isinstance(row["pooling"], str) else f"{row['pooling']}-pooled"
        what = [f"{row['size']} × {row['size']}", row["padding"], pooling]
        what += ["NTK"] if row["kernel"] == "tangent" else []
        what += [f"{row['channels']} channels"] if row["channels"] != Twin.channels else []
        low, high = row["accuracy_difference"]
        lines.append(
            [
                f"{row['data']} {pixels} × {pixels}, {row['activation']} {row['sigma_a2']:g}, "
                + ", ".join(what),
                f"{row['relative_gap']:.1%}",
                f"{row['unrefined_gap']:.1%}",
                f"{row['unmatched_relative_gap']:.1%}",
                f"{row['unmatched_scaled_gap']:.1%}",
                f"{100 * row['accuracy']['deq']:.1f}",
                f"{100 * row['accuracy']['matched']:.1f}",
                f"{low:+.1f} … {high:+.1f}",
                f"{row['inference_ratio']:.1f}",
                f"{row['strict_inference_ratio']:.0f}",
            ]
        )
    head = ("DEQ", "matched", "before refining", "unmatched", "rescaled", "DEQ %", "twin %")
    return markdown((*head, "difference", "× at loose", "× at 1e-5"), lines)


def main() -> None:
    """Measure what is not stored yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="directory of the compilations")
    parser.add_argument("--table", action="store_true", help="print the table of what is stored")
    options = parser.parse_args()
    rows = json.loads(PLACE.read_text())["rows"] if PLACE.exists() else []
    if options.table or options.work is None:
        print(table(rows))
        return
    known = [{key: row[key] for key in asdict(TWINS[0])} for row in rows]
    for twin in TWINS:
        if asdict(twin) in known:
            continue
        rows.append(measured(twin, options.work))
        row = rows[-1]
        print(
            f"{twin.name}: gap {row['relative_gap']:.2%}, unmatched "
            f"{row['unmatched_relative_gap']:.2%}, {row['accuracy']}, {row['seconds']:.0f} s",
            flush=True,
        )
        about = {"seeds": SEEDS, "sizes": SIZES}
        PLACE.parent.mkdir(exist_ok=True)
        write_json(PLACE, {"environment": environment(), "about": about, "rows": rows})


if __name__ == "__main__":
    main()
