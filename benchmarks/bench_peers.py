"""Exact kernels of DEQs here, against deep approximations of them in neural-tangents.

Rows of 784 features with norms spread over a factor of e, float64, CK and NTK.  Every library and
case has a process of its own, with one thread for linear algebra; seconds are the processor's, of
all threads together, and ratios are to X @ X.T in the same process.  Errors are against quadrature
on a few rows.
The network that stands for a DEQ has weights of its own in each layer and sees the input again.
Arguments: --peer DIRECTORY, the environment that peers/make_environment.py made;
--most-seconds T, longer calls are left out; --largest N, the largest n.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import notsodeep as nsd
from bench_kernels import P, near_orthogonal
from measure import Results, benchmark_parser
from peers.make_environment import default_directory, interpreter
from reference_kernels import SAMPLE, reference_pair, relative_errors

SIZES = (50, 100, 300, 500, 1000, 2000, 5000, 10_000)
PEERS = Path(__file__).parent / "peers"
DEGREE = 25
"""Of the peer's Gauss–Hermite rule for activations without a closed form: 625 nodes for a pair."""
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NOTSODEEP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}


@dataclass(frozen=True)
class Case:
    """A pair of kernels that both libraries compute.

    Attributes
    ----------
    name : str
    model : DeepEquilibrium or ExplicitNetwork
        With one hidden layer, if explicit.
    depths : tuple of int
        Numbers of layers by which the peer approximates a DEQ; (1,) for an explicit network.
    peer_largest : int
        No larger n for the peer.
    """

    name: str
    model: nsd.DeepEquilibrium | nsd.ExplicitNetwork
    depths: tuple[int, ...]
    peer_largest: int = max(SIZES)

    @property
    def request(self) -> dict[str, Any]:
        """What a child has to know."""
        if isinstance(self.model, nsd.DeepEquilibrium):
            return {"activation": self.model.activation.name, "sigma_a2": self.model.sigma_a2}
        return {"activation": self.model.activations[0].name, "sigma_a2": 0.0}


# At σa² = 0.2 sixteen layers are enough already; sixty are what a cautious user takes.  The peer's
# quadrature costs some hundred Gram products for each layer: few layers and rows tell enough.
CASES = [
    Case("DEQ, relu, σa² = 0.2", nsd.DeepEquilibrium("relu", 0.2), (16, 60)),
    Case("DEQ, erf, σa² = 0.2", nsd.DeepEquilibrium("erf", 0.2), (60,)),
    Case("DEQ, gelu, σa² = 0.2", nsd.DeepEquilibrium("gelu", 0.2), (60,)),
    Case("DEQ, tanh, σa² = 0.2", nsd.DeepEquilibrium("tanh", 0.2), (4,), 500),
    Case(
        "DEQ, normalised relu, σa² = 0.9",
        nsd.DeepEquilibrium("normalized_relu", 0.9),
        (60,),
        1000,
    ),
    Case("one layer, relu", nsd.ExplicitNetwork(["relu"]), (1,)),
    Case("one layer, erf", nsd.ExplicitNetwork(["erf"]), (1,)),
    Case("one layer, tanh", nsd.ExplicitNetwork(["tanh"]), (1,), 1000),
]


def run_child(python: Path, script: str, request: dict[str, Any]) -> dict[str, Any]:
    """Start a child, wait for it, and return its answer, or why there is none."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "answer.json"
        command = [str(python), str(PEERS / script), json.dumps({**request, "answer": str(path)})]
        child = subprocess.run(
            command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False
        )
        if child.returncode:
            reason = (child.stderr.strip().splitlines() or [f"ended with {child.returncode}"])[-1]
            return {"rows": [{"not_measured": reason}], "entries": [], "versions": {}}
        answer: dict[str, Any] = json.loads(path.read_text())
        return answer


def growth(rows: list[dict[str, Any]]) -> float | None:
    """Exponent of n in the seconds, by least squares of the logarithms, from n = 1000 on."""
    points = [(r["n"], r["seconds"]) for r in rows if "seconds" in r and r["n"] >= 1000]
    if len(points) < 2:
        return None
    n, seconds = np.log(np.array(points)).T
    return float(np.polyfit(n, seconds, 1)[0])


def measured(
    case: Case, X: np.ndarray, request: dict[str, Any], there: Path
) -> Iterator[dict[str, Any]]:
    """Rows of a case: this package, then the peer with each of its numbers of layers."""
    reference = reference_pair(case.model, X[:SAMPLE])
    own_depth = 1 if isinstance(case.model, nsd.ExplicitNetwork) else 0
    here, sizes = Path(sys.executable), request["sizes"]
    runs = [("notsodeep", here, "notsodeep_times.py", own_depth, sizes)]
    peer_sizes = [n for n in sizes if n <= case.peer_largest]
    runs += [
        ("neural-tangents", there, "neural_tangents_times.py", depth, peer_sizes)
        for depth in case.depths
    ]
    for library, python, script, depth, chosen in runs:
        about: dict[str, Any] = {"case": case.name, "library": library, "layers": depth}
        if not python.exists():
            remedy = "no environment; peers/make_environment.py neural-tangents makes it"
            yield {**about, "not_measured": remedy}
            continue
        own = {**request, **case.request, "layers": depth, "sizes": chosen}
        answer = run_child(python, script, own)
        if answer["entries"]:
            conjugate, tangent = (np.array(kernel) for kernel in answer["entries"])
            about |= relative_errors((conjugate, tangent), reference)
        about["exponent"] = growth(answer["rows"])
        for row in answer["rows"]:
            yield {**about, **row, "versions": answer["versions"]}


def main() -> None:
    """Run every case in every library and store the rows."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--peer", type=Path, default=default_directory("neural-tangents"))
    parser.add_argument("--most-seconds", type=float, default=150.0)
    parser.add_argument("--most-gibibytes", type=float, default=8.0)
    parser.add_argument("--largest", type=int, default=max(SIZES))
    options = parser.parse_args()
    sizes = [60, 120] if options.quick else [n for n in SIZES if n <= options.largest]
    results = Results("peers", options.results)
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        X = near_orthogonal(max(sizes), unit=False)
        data = Path(place) / "samples.npz"
        np.savez(data, X=X)
        request = {
            "data": str(data),
            "degree": DEGREE,
            "sizes": sizes,
            "sample": SAMPLE,
            "repeats": 2 if options.quick else 5,
            "most_seconds": options.most_seconds,
            "most_mebibytes": 1024 * options.most_gibibytes,
        }
        for case in CASES[:: 5 if options.quick else 1]:
            for row in measured(case, X, request, interpreter(options.peer)):
                versions |= row.pop("versions", {})
                results.add(**row)
    results.write(features=P, versions=versions, threads=1, clock="processor", degree=DEGREE)


if __name__ == "__main__":
    main()
