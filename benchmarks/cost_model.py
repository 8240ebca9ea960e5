"""Tables of the cost model, from the figures of one block in benchmarks/results/scale.json.

Run ``python cost_model.py`` to bring ``docs/cost-model.md`` up to date: what stands between its
comments is replaced.  Standard library only.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks/results/scale.json", ROOT / "docs/cost-model.md"
FEATURES, VECTORS, SIDE = 784, 10, 1920
Row = dict[str, Any]


def power(n: int) -> str:
    """Write 60000 as 6·10⁴."""
    exponent = int(math.log10(n))
    digit = n // 10**exponent
    return f"{'' if digit == 1 else f'{digit}·'}10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[exponent]}"


def seconds(value: float) -> str:
    """Two digits, and none behind the point from ten on."""
    return f"{value:.0f} s" if value >= 10.0 else f"{value:.2g} s"


def gigabytes(value: float) -> str:
    """Two digits, in gigabytes or megabytes."""
    return f"{value / 1e6:.0f} MB" if value < 1e8 else f"{value / 1e9:.2g} GB"


def blocks_of(n: int) -> int:
    """Blocks on and above the diagonal."""
    across = math.ceil(n / SIDE)
    return across * (across + 1) // 2


def pairs_in_blocks(n: int) -> float:
    """Half of all pairs, in units of a block."""
    return n * n / (2 * SIDE * SIDE)


def block_table(block: Row) -> str:
    """Tabulate one block."""
    per_sample = 1e6 * block["prepare_samples"] / block["samples"]
    lines = {
        f"x·y for all pairs, 2·p·{SIDE}² = {block['gram_flops']:.1e} flops": block["gram"],
        "both kernels from them, that product included": block["compute"],
        "written, with checksums": block["write"],
        "read, checksum compared (the file was in the page cache)": block["read"],
        f"multiplied with {VECTORS} vectors, for both of its places": block["product_with_10"],
    }
    rows = [f"| {words} | {value:.3f} s |" for words, value in lines.items()]
    rows += [
        f"| bytes | {block['bytes'] / 1e6:.1f} MB |",
        f"| once per process: what is known about each sample | {per_sample:.0f} µs a sample |",
    ]
    return "\n".join(["| one block | |", "|---|---|", *rows])


def core_table(block: Row, stores: dict[int, Row]) -> str:
    """Tabulate one core for several n."""
    rows = []
    for n in (1_000, 4_000, 10_000, 60_000, 100_000):
        share = pairs_in_blocks(n)
        prepare = block["prepare_samples"] * n / block["samples"]
        store = share * (block["compute"] + block["write"]) + prepare
        multiply = share * (block["read"] + block["product_with_10"])
        afresh = share * (block["compute"] + block["product_with_10"]) + prepare
        kept, product = seconds(store), seconds(multiply)
        if n in stores:
            kept = f"{seconds(stores[n]['processor'])} *m* ({kept} from the block)"
            product = f"{seconds(stores[n]['product_with_10'])} *m*"
        cells = (
            power(n),
            str(blocks_of(n)),
            f"{n * n * FEATURES:.1e}",
            gigabytes(2.0 * n * n),
            kept,
            product,
            seconds(afresh),
        )
        rows.append("| " + " | ".join(cells) + " |")
    head = "| n | blocks | flops of x·y | bytes, float32 | store it | "
    head += f"product with {VECTORS} vectors, from disk | the same, computed afresh |"
    return "\n".join([head, "|---" * 7 + "|", *rows])


def worker_table(block: Row) -> str:
    """Tabulate many workers, by extrapolation."""
    rows = []
    for n in (10_000, 60_000, 100_000):
        for workers in (10, 100, 1000):
            if n == 10_000 and workers == 1000:
                continue  # there are fewer blocks than workers of the row before
            each = math.ceil(blocks_of(n) / workers)
            prepare = block["prepare_samples"] * n / block["samples"]
            cells = (
                power(n),
                str(workers),
                str(each),
                seconds(each * (block["compute"] + block["write"]) + prepare),
                seconds(each * block["product_with_10"]),
                gigabytes(8.0 * n * FEATURES + each * block["bytes"]),
            )
            rows.append("| " + " | ".join(cells) + " |")
    head = "| n | workers | blocks each | store the kernel | "
    head += f"product with {VECTORS} vectors, blocks kept | samples and kept blocks, a worker |"
    return "\n".join([head, "|---" * 6 + "|", *rows])


if __name__ == "__main__":
    found = json.loads(RESULTS.read_bytes())["rows"]
    one = next(row for row in found if row["case"] == "one block")
    whole = {row["samples"]: row for row in found if row["case"] == "whole store"}
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (
        ("block", block_table(one)),
        ("core", core_table(one, whole)),
        ("workers", worker_table(one)),
    ):
        place = re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        text = place.sub(lambda m, t=table: f"{m[1]}\n{t}\n\n{m[2]}", text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")
