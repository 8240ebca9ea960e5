"""The implicit layer against a bare fixed-point loop with the same number of products.

Width 1024, 256 samples of 784 features, 10 outputs, float32; forward alone, and forward with
gradients.  One thread, and seconds of processor time: other work on the machine counts less.
The error is that of the outputs, against 200 steps in double precision.
Arguments: --peer DIRECTORY, the environment with torchdeq that peers/make_environment.py made.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

import notsodeep as nsd
from clocks import once, peak_growth
from measure import Results, benchmark_parser
from notsodeep.networks.random import Network, build
from peers.make_environment import default_directory, interpreter

SIGMA_A2 = 0.2
REPEATS = 40
SOLVERS = ("plain", "anderson", "broyden")
TERMS = (5, 1)  # of approximate gradients


def network(activation: str, size: dict[str, int], **options: Any) -> Network:
    """Build the DEQ that is measured."""
    deq = nsd.DeepEquilibrium(activation, SIGMA_A2)
    return build(deq, size["features"], size["width"], size["outputs"], rng=0, **options)


class BareLoop:
    """The products and activations that the layer cannot do without, and nothing else."""

    def __init__(self, module: Network, X: torch.Tensor, steps: tuple[int, int]) -> None:
        self.A, self.B, self.C = (p.detach() for p in module.parameters())
        self.X, self.steps = X, steps
        self.activation = {"tanh": torch.tanh, "relu": torch.relu}[module.model.activation.name]
        self.scale = math.sqrt(SIGMA_A2 / module.width)

    @torch.no_grad()
    def forward(self) -> torch.Tensor:
        """Iterate; return the last pre-activations."""
        drive = math.sqrt(1 - SIGMA_A2) * (self.X @ self.B.mT)
        h = drive
        for _ in range(self.steps[0]):
            h = torch.addmm(drive, self.activation(h), self.A.mT, alpha=self.scale)
        self.activation(h) @ self.C.mT
        return h

    @torch.no_grad()
    def exact_outputs(self) -> torch.Tensor:
        """Return the outputs after 200 steps in double precision."""
        A, B, C, X = (matrix.double() for matrix in (self.A, self.B, self.C, self.X))
        h = drive = math.sqrt(1 - SIGMA_A2) * (X @ B.mT)
        for _ in range(200):
            h = torch.addmm(drive, self.activation(h), A.mT, alpha=self.scale)
        return self.activation(h) @ C.mT / math.sqrt(len(A))

    @torch.no_grad()
    def training(self) -> None:
        """Iterate, iterate backward, and form the gradients of A, B and C."""
        h = self.forward()
        v = self.activation(h)
        slope = self.scale * ((1 - v * v) if self.activation is torch.tanh else (h > 0))
        g = torch.ones(len(self.X), len(self.C)) @ self.C * slope
        u = g
        for _ in range(self.steps[1]):
            u = torch.addcmul(g, slope, u @ self.A)
        u.mT @ v, u.mT @ self.X, torch.ones(len(self.X), len(self.C)).mT @ v


def layer_row(activation: str, size: dict[str, int], repeats: int) -> list[dict[str, Any]]:
    """Measure a network in evaluation and in training, each beside its bare loop."""
    module = network(activation, size)
    X = torch.randn(size["samples"], size["features"], generator=torch.Generator().manual_seed(0))
    X /= math.sqrt(size["features"])

    def training() -> None:
        module.zero_grad()
        module(X).sum().backward()

    @torch.no_grad()
    def forward() -> None:
        module(X)

    training()
    record = module.record
    assert record is not None
    bare = BareLoop(module, X, (record.steps, record.derivatives[0].steps))
    with torch.no_grad():
        exact = bare.exact_outputs()
        error = float((module(X).double() - exact).norm() / exact.norm())
    rows = []
    for name, ours, theirs in (
        ("forward", forward, bare.forward),
        ("forward and gradients", training, bare.training),
    ):
        # In turns, so that a busy moment hits both.
        pairs = [
            (once(ours, time.process_time), once(theirs, time.process_time)) for _ in range(repeats)
        ]
        seconds, least = map(min, zip(*pairs, strict=True))
        rows.append(
            {
                "case": f"{activation}, {name}",
                "seconds": seconds,
                "bare_loop": least,
                "ratio": seconds / least,
                "steps": list(bare.steps),
                "error": error,
                "mebibytes": peak_growth(ours),
            }
        )
    return rows


def choice_rows(size: dict[str, int]) -> list[dict[str, Any]]:
    """Measure the solvers and the gradients, on the tanh network."""
    X = torch.randn(size["samples"], size["features"], generator=torch.Generator().manual_seed(0))
    X /= math.sqrt(size["features"])
    rows = []
    solvers: list[Any] = [("solver", name) for name in SOLVERS]
    for option, value in [*solvers, *(("terms", terms) for terms in TERMS)]:
        module = network("tanh", size, **({"solver": value} if option == "solver" else {}))
        module.backward = value if option == "terms" else None

        def training(module: Network = module) -> None:
            module.zero_grad()
            module(X).sum().backward()

        training()
        seconds = min(once(training, time.process_time) for _ in range(5))
        record = module.record
        assert record is not None
        backward = [each.steps for each in record.derivatives] or [value - 1]
        steps = [record.steps, *backward]
        rows.append({"case": f"{option} {value}", "seconds": seconds, "steps": steps})
    return rows


def peer_rows(folder: Path, size: dict[str, int], repeats: int) -> list[dict[str, Any]]:
    """Run the same network in another library, in an environment that has it."""
    script = Path(__file__).parent / "peers" / "torchdeq_times.py"
    request = {**size, "sigma_a2": SIGMA_A2, "tolerance": 1e-6, "repeats": repeats}
    python = interpreter(folder)
    if not python.exists():
        reason = "no environment; peers/make_environment.py torchdeq makes it"
        return [{"case": "torchdeq", "not_measured": reason}]
    command = [str(python), str(script), json.dumps(request)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        return [{"case": "torchdeq", "not_measured": answer.stderr.strip().splitlines()[-1]}]
    rows: list[dict[str, Any]] = json.loads(answer.stdout)
    return rows


def main() -> None:
    """Measure every case and store the rows."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--peer", type=Path, default=default_directory("torchdeq"))
    options = parser.parse_args()
    size = {"width": 1024, "samples": 256, "features": 784, "outputs": 10}
    if options.quick:
        size = {"width": 128, "samples": 64, "features": 100, "outputs": 10}
    repeats = 3 if options.quick else REPEATS
    torch.set_num_threads(1)
    results = Results("implicit_layer", options.results)
    for activation in ("tanh", "relu"):
        for row in layer_row(activation, size, repeats):
            results.add(**row)
    for row in [*choice_rows(size), *peer_rows(options.peer, size, repeats)]:
        results.add(**row)
    results.write(**size, threads=1)


if __name__ == "__main__":
    main()
