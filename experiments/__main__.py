"""Run an experiment and print its table, or list all of them."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from experiments.runner import MODULES, experiment, keep, run, stored


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser("python -m experiments", description=__doc__)
    parser.add_argument("name", nargs="?", help="without a name, all experiments are listed")
    parser.add_argument("--profile", choices=("smoke", "quick", "paper"), default="quick")
    parser.add_argument("--stored", action="store_true", help="compute nothing, show what is kept")
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell later")
    parser.add_argument("--only", action="append", default=[], metavar="KEY=JSON", help="cells")
    parser.add_argument("--out", type=Path, help="file of new records, JSON lines")
    parser.add_argument("--keep", action="store_true", help="add the records to those stored")
    options = parser.parse_args()
    if options.name is None:
        for name in MODULES:
            work = experiment(name)
            print(f"{name:23} {work.title} ({work.source})")
        return
    work = experiment(options.name)
    out = options.out or Path("runs/experiments") / f"{options.name}-{options.profile}.jsonl"
    if options.stored:
        records = stored(options.name)
    else:
        wanted = {key: json.loads(v) for key, v in (pair.split("=", 1) for pair in options.only)}
        records = run(
            options.name,
            options.profile,
            out,
            processes=options.processes,
            seconds=options.seconds,
            wanted={key: v if isinstance(v, list) else [v] for key, v in wanted.items()},
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        if options.keep:
            keep(options.name, records)
    if not records:
        raise SystemExit("There are no records.")

    from experiments.figures import draw
    from experiments.tables import table

    print(f"{work.title} ({work.source})\n{table(options.name, records)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if picture := draw(options.name, records, out.with_suffix(".png")):
        print(f"figure: {picture}")


if __name__ == "__main__":
    main()
