"""Put the stored results into docs/benchmarks.md, as tables between comments.

    python benchmarks/tables.py            # bring the page up to date
    python benchmarks/tables.py --print    # show the tables

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from measure import RESULTS
from notsodeep.files.atomic_files import atomic_write

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", flags=re.DOTALL)

Record = dict[str, Any]
Column = tuple[str, str, Callable[[Any], str]]
"""Heading, key of the row, and how the value is written."""


def seconds(value: float) -> str:
    """Write a time with three digits, in the largest unit of which there is one."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 0.9995:
            return f"{value * factor:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    return f"{value * 1e6:.3g} µs"


def error(value: float) -> str:
    """Write an error with two digits."""
    return "0" if value == 0.0 else f"{value:.1e}".replace("e-0", "e-")


def number(value: Any) -> str:
    """Write a ratio or a count."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if value >= 1e6:
        return f"{value:.1e}".replace("e+0", "e")
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """Write a share."""
    return f"{100 * value:.0f} %"


def mebibytes(value: float) -> str:
    """Write a size."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


CASE: Column = ("case", "case", str)
TIME: Column = ("time", "seconds", seconds)
RATIO: Column = ("ratio", "ratio", number)
ERROR: Column = ("error", "error", error)
MEMORY: Column = ("MiB", "mebibytes", mebibytes)


def markdown(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table; the first column is words, the others are numbers."""
    head = list(headings)
    rows = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    rows += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(rows)


def plain(record: Record, columns: list[Column], needed: str = "seconds") -> str:
    """Make a table with a line for each row that has what is needed."""
    chosen = [row for row in record["rows"] if needed in row]
    lines = [[write(row[key]) if key in row else "" for _, key, write in columns] for row in chosen]
    return markdown([heading for heading, _, _ in columns], lines)


def peers_table(record: Record) -> str:
    """Ratios by n, growth and errors; a line for each library and case."""
    rows = record["rows"]
    sizes = sorted({row["n"] for row in rows if "n" in row})
    runs = dict.fromkeys((row["case"], row["library"], row["layers"]) for row in rows)
    lines = []
    for case, library, layers in runs:
        own = [r for r in rows if (r["case"], r["library"], r["layers"]) == (case, library, layers)]
        name = library if library == "notsodeep" or layers == 1 else f"{library}, {layers} layers"
        ratios = {row["n"]: number(row["ratio"]) for row in own if "ratio" in row}
        first = own[0]
        exponent = f"{first['exponent']:.2f}" if "exponent" in first else ""
        errors = [
            error(first[key]) if key in first else first.get("not_measured", "")
            for key in ("error_conjugate", "error_tangent", "error_tangent_diagonal")
        ]
        lines.append([case, name, *(ratios.get(n, "") for n in sizes), exponent, *errors])
    sizes_text = [f"n = {n:,}" for n in sizes]
    headings = ["case", "library", *sizes_text, "exponent", "CK error", "NTK error", "diagonal"]
    return markdown(headings, lines)


def peer_costs(record: Record) -> str:
    """Seconds and memory of each library and case, at the largest n up to 2000."""
    chosen: dict[tuple[str, str, int], Record] = {}
    for row in record["rows"]:
        if "seconds" in row and row["n"] <= 2000:
            chosen[row["case"], row["library"], row["layers"]] = row  # n grows
    lines = []
    for (case, library, layers), row in chosen.items():
        deep = library != "notsodeep" and layers > 1
        memory = mebibytes(row["mebibytes"]) if "mebibytes" in row else ""
        times = [seconds(row["seconds"]), memory, seconds(row["first_call"])]
        name = f"{library}, {layers} layers" if deep else library
        lines.append([case, name, number(row["n"]), *times])
    return markdown(["case", "library", "n", "time", "MiB", "first call"], lines)


def _optional_error(row: Record) -> str:
    return error(row["error"]) if "error" in row else ""


def networks_table(record: Record) -> str:
    """DEQ in units of its network: width × tolerance, inference and training."""
    rows = [row for row in record["rows"] if "ratio" in row]
    lines = []
    for row in rows:
        low, high = row["ratio_quartiles"]
        steps = f"{row['steps']}" + (f" + {row['backward_steps']}" if row["backward_steps"] else "")
        memory = [
            f"{r['mebibytes']:.0f}"
            for r in record["rows"]
            if "mebibytes" in r and r["width"] == row["width"] and row["work"] != "inference"
        ]
        lines.append(
            [f"{row['work']}, width {row['width']:,}", f"{row['tolerance']:g}",
             f"{row['ratio']:.1f} ({low:.1f} to {high:.1f})", seconds(row["deq_seconds"]),
             seconds(row["explicit_seconds"]), steps, _optional_error(row), " / ".join(memory)]
        )  # fmt: skip
    headings = ["work", "tolerance", "ratio (quartiles)", "DEQ", "network", "steps", "error", "MiB"]
    return markdown(headings, lines)


def runs_table(folder: Path) -> str:
    """When and under what load each benchmark ran."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        if "rows" not in record:  # results of another kind, with a page of their own
            continue
        loads = [row["load"] for row in record["rows"] if row.get("load") is not None]
        load = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not recorded"
        lines.append([f"`{path.stem}`", record["environment"].get("date", "earlier"), load])
    return markdown(["benchmark", "measured", "load average"], lines)


def machine_table(folder: Path) -> str:
    """Processor, packages, and what the machine can do at the most."""
    record = json.loads((folder / "kernels.json").read_text())
    about = record["environment"]
    limits = record["about"]["machine_limits"]
    libraries = ", ".join(f"{k}: {v} threads" for k, v in about["linear_algebra_threads"].items())
    lines = [
        ["processor", f"{about['processor']}, {about['cores']} cores"],
        ["Python", about["python"]],
        *([name, str(text)] for name, text in about["packages"].items()),
        ["linear algebra", libraries],
        ["matrix product, float64", f"{limits['gigaflops']:.0f} Gflop/s"],
        ["copying memory", f"{limits['gigabytes_per_second']:.1f} GB/s"],
    ]
    peers = folder / "peers.json"
    if peers.exists():
        versions = json.loads(peers.read_text())["about"]["versions"]
        words = ", ".join(f"{k} {v}" for k, v in versions.items() if k not in about["packages"])
        lines.append(["peers' environments", words])
    return markdown(["", ""], lines)


def versions_table(record: Record, begin: str) -> str:
    """Before and after, of the cases whose names begin like this, or like no other kind of case."""
    kinds = ("float32, ", "random networks, ")
    columns: list[Column] = [
        CASE, ("n", "rows", number), ("threads", "threads", number),
        ("before", "before_seconds", seconds), ("after", "after_seconds", seconds),
        ("gain", "gain", number), ("ratio before", "before_ratio", number),
        ("ratio after", "after_ratio", number), ("new model", "after_new_model_seconds", seconds),
        ("difference", "difference", error), ("route", "route", str),
    ]  # fmt: skip
    rows = [
        {**row, "case": row["case"].removeprefix(begin)}
        for row in record["rows"]
        if (row["case"].startswith(begin) if begin else not row["case"].startswith(kinds))
    ]
    rows.sort(key=lambda row: (row["case"].startswith("match"), row["threads"]))
    shown = [column for column in columns if any(column[1] in row for row in rows)]
    return plain({**record, "rows": rows}, shown, "gain")


def _steps(value: Any) -> str:
    if isinstance(value, int):
        return number(value)
    return " + ".join(map(str, value))


TABLES: dict[str, Callable[[Record], str]] = {
    "kernels": lambda r: plain(
        r,
        [CASE, TIME, RATIO, ("CK error", "error_conjugate", error),
         ("NTK error", "error_tangent", error), ("route", "route", str), MEMORY],
    ),
    "versions": partial(versions_table, begin=""),
    "versions-networks": partial(versions_table, begin="random networks, "),
    "whole-runs": lambda r: plain(
        r,
        [CASE, ("before", "before_seconds", seconds), ("after", "after_seconds", seconds),
         ("gain", "gain", number), ("GiB before", "before_gibibytes", number),
         ("GiB after", "after_gibibytes", number)],
        "gain",
    ),
    "bounds": lambda r: plain(
        r,
        [CASE, ("flops per pair", "flops_per_pair", number),
         ("beyond Gram", "flops_per_pair_beyond_gram", number),
         ("share of peak flops", "share_of_peak_flops", percent),
         ("the same, beyond Gram", "share_of_peak_beyond_gram", percent),
         ("share of bandwidth", "share_of_bandwidth", percent)],
        "flops_per_pair",
    ),
    "peers": peers_table,
    "peer-costs": peer_costs,
    "monte-carlo": lambda r: plain(
        r,
        [CASE, ("width", "width", number), ("networks", "networks", number), TIME, ERROR,
         ("ratio at 1e-2", "ratio_at_0.01", number), ("at 1e-3", "ratio_at_0.001", number),
         ("at 1e-6", "ratio_at_1e-06", number)],
    ),
    "matching": lambda r: plain(
        r,
        [CASE, ("kernel", "kernel", str), TIME, RATIO, ERROR, ("met", "feasible", number),
         MEMORY],
    ),
    "networks": networks_table,
    "implicit-layer": lambda r: plain(
        r,
        [CASE, TIME, ("bare loop", "bare_loop", seconds), RATIO, ("steps", "steps", _steps), ERROR,
         MEMORY],
    ),
    "equivalents": lambda r: plain(r, [CASE, TIME, RATIO, ERROR, MEMORY]),
    "solvers": lambda r: plain(
        r,
        [("case", "case", str), ("λ", "ridge", str), ("preconditioner", "preconditioner", str),
         ("steps", "steps", number), ("setup", "setup_seconds", seconds), TIME, RATIO, ERROR,
         MEMORY],
    ),
    "collapse": lambda r: plain(r, [CASE, TIME, RATIO, ERROR, MEMORY]),
    "hermite-coefficients": lambda r: plain(r, [CASE, TIME, RATIO, ERROR, MEMORY]),
    "scale": lambda r: plain(
        r,
        [("samples", "samples", number), ("blocks", "blocks", number), TIME,
         ("processor", "processor", seconds), ("product with 10", "product_with_10", seconds),
         ERROR],
    ),
    "cold-start": lambda r: plain(
        r,
        [CASE, ("median", "seconds", seconds), RATIO, ("fastest", "fastest", seconds),
         ("slowest", "slowest", seconds)],
    ),
    "explorer": lambda r: plain(
        r,
        [CASE, ("median", "median_seconds", seconds), ("longest", "longest_seconds", seconds),
         ("processor", "median_processor_seconds", seconds)],
        "median_seconds",
    ),
}  # fmt: skip
"""By name; results are in the file of the same name, with underscores, unless `SOURCES` says."""

SOURCES = {
    "bounds": "kernels", "peer-costs": "peers",
    "versions-networks": "versions",
}  # fmt: skip
WHOLE: dict[str, Callable[[Path], str]] = {"runs": runs_table, "machine": machine_table}


def table(name: str, folder: Path) -> str:
    """Make one table; say so where there are no results."""
    if name in WHOLE:
        return WHOLE[name](folder)
    path = folder / f"{SOURCES.get(name, name).replace('-', '_')}.json"
    return TABLES[name](json.loads(path.read_text())) if path.exists() else "*Not measured.*"


def main() -> None:
    """Print the tables, or put them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    if options.print:
        for name in [*WHOLE, *TABLES]:
            print(f"\n{name}\n\n{table(name, options.results)}")
        return

    def filled(place: re.Match[str]) -> str:
        return f"{place[1]}\n{table(place[2], options.results)}\n\n{place[3]}"

    text = PLACE.sub(filled, options.page.read_text())
    with atomic_write(options.page) as stream:
        stream.write(text.encode())
    print(options.page)


if __name__ == "__main__":
    main()
