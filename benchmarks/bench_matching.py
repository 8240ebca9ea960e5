"""Matching a DEQ with a shallow network: from its coefficients alone, and refined on data.

Without data the error is the largest residual of the coefficients that the family promises to
meet, relative to the target.  With data it is the distance of the two exact kernels in operator
norm, relative, on held-out rows, and ratios are to the exact kernels of these rows (CK and NTK of
the DEQ) in the same run.  All threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import notsodeep as nsd
from clocks import best_time, best_times, peak_growth
from measure import Results, benchmark_parser
from notsodeep.matching import Match

SIGMA_A2 = 0.2
WITHOUT_DATA: list[tuple[str, str, dict[str, Any]]] = [
    ("relu", "leaky_relu", {"tau0": 1.0}),
    ("relu", "leaky_relu", {"tau0": 1.0, "layers": 2}),
    ("relu", "piecewise_linear", {"tau0": 1.0}),
    ("relu", "quadratic", {"tau0": 1.0}),
    ("tanh", "hard_tanh", {"tau0": 1.0}),
    ("tanh", "piecewise_linear", {"tau0": 1.0}),
    ("normalized_relu", "quadratic", {"sphere": 500}),
    ("normalized_relu", "dual", {"sphere": 500}),
    ("relu", "auto", {"tau0": 1.0}),
    ("tanh", "auto", {"tau0": 1.0}),
]
ON_DATA = [("relu", "leaky_relu"), ("tanh", "hard_tanh"), ("tanh", "piecewise_linear")]


def largest_residual(match: Match) -> float:
    """Of the coefficients, relative to the largest of the target's."""
    target = np.array([abs(v) for v in _numbers(match.target.to_dict())])
    return max(abs(value) for value in match.residuals.values()) / float(target.max())


def _numbers(content: Any) -> list[float]:
    """Every number in a JSON form."""
    if isinstance(content, dict):
        return [x for value in content.values() for x in _numbers(value)]
    if isinstance(content, list):
        return [x for value in content for x in _numbers(value)]
    return [float(content)] if isinstance(content, int | float) else []


def name_of(activation: str, family: str, where: dict[str, Any]) -> str:
    """Name a case."""
    layers = f", {where['layers']} layers" if "layers" in where else ""
    return f"{activation} DEQ, {family}{layers}" + (", sphere" if "sphere" in where else "")


def main() -> None:
    """Measure every family and store the rows."""
    options = benchmark_parser(__doc__).parse_args()
    results = Results("matching", options.results)
    for activation, family, where in WITHOUT_DATA[:: 5 if options.quick else 1]:
        deq = nsd.DeepEquilibrium(activation, SIGMA_A2)
        for kernel in ("ck", "ntk"):

            def work(deq: Any = deq, family: str = family, kernel: Any = kernel,
                     where: dict[str, Any] = where) -> Match:  # fmt: skip
                options = dict(where)
                chosen = family
                if "layers" in options:
                    chosen = nsd.matching.named(family, layers=options.pop("layers"))
                return nsd.match(deq, family=chosen, kind=kernel, **options)

            match = work()
            results.add(
                case=name_of(activation, family, where),
                kind=kernel,
                chosen=match.family,
                seconds=best_time(work, repeats=1 if options.quick else 3),
                error=largest_residual(match),
                feasible=match.feasible,
            )
    n, p = (120, 100) if options.quick else (800, 500)
    mixture = nsd.data.paper_mixture(dimension=p)
    X, _ = mixture.sample(n, rng=0)
    held_out, y = mixture.sample(n, rng=1)
    for activation, family in ON_DATA[:1] if options.quick else ON_DATA:
        deq = nsd.DeepEquilibrium(activation, SIGMA_A2)
        for refine in (False, True):

            def fit(deq: Any = deq, family: str = family, refine: bool = refine) -> Match:
                return nsd.match(deq, X, family=family, refine=refine)

            match = fit()
            seconds, kernels = best_times(
                fit,
                lambda deq=match.model: nsd.kernel(
                    deq, held_out, convention="preactivation", kind="both"
                ),
                repeats=1,
            )
            results.add(
                case=f"{activation} DEQ, {family}, on data" + (", refined" if refine else ""),
                kind="ck",
                seconds=seconds,
                ratio=seconds / kernels,
                error=match.certify(held_out, y).matched.relative_gap,
                mebibytes=peak_growth(fit),
            )
        certifying = best_time(lambda m=match: m.certify(held_out, y), repeats=1)
        results.add(
            case=f"{activation} DEQ, {family}, certificate",
            seconds=certifying,
            ratio=certifying / kernels,
            mebibytes=peak_growth(lambda m=match: m.certify(held_out, y)),
        )
    results.write(sigma_a2=SIGMA_A2, rows=n, features=p)


if __name__ == "__main__":
    main()
