"""The implicit layer against a bare fixed-point loop with the same number of products.

Width 1024, 256 samples of 784 features, 10 outputs, float32; forward alone, and forward with
gradients.  One thread, and seconds of processor time: other work on the machine counts less.
Arguments: --quick for a small size; --peer PYTHON for the same network in torchdeq, if
the interpreter PYTHON has it (see peers/torchdeq_times.py).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import store

import notsodeep as nsd
from notsodeep.networks import EquilibriumNetwork, build

SIGMA_A2 = 0.2
REPEATS = 40
SOLVERS = ("fixed_point", "anderson", "broyden")
GRADIENTS = ("implicit", "phantom", "jacobian_free")


def processor_time(function: Callable[[], Any]) -> float:
    """Seconds that the processor works on a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def network(activation: str, size: dict[str, int], **options: Any) -> EquilibriumNetwork:
    """Build the DEQ that is measured."""
    deq = nsd.DeepEquilibrium(activation, SIGMA_A2)
    module = build(deq, size["features"], size["width"], size["outputs"], rng=0, **options)
    assert isinstance(module, EquilibriumNetwork)
    return module


class BareLoop:
    """The products and activations that the layer cannot do without, and nothing else."""

    def __init__(self, module: EquilibriumNetwork, X: torch.Tensor, steps: tuple[int, int]) -> None:
        self.A, self.B, self.C = (p.detach() for p in module.parameters())
        self.X, self.steps = X, steps
        self.activation = {"tanh": torch.tanh, "relu": torch.relu}[
            module.description.activation.name
        ]
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


def layer_row(activation: str, size: dict[str, int]) -> list[dict[str, Any]]:
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
    record = module.last_record
    assert record is not None
    assert record.forward is not None
    assert record.backward is not None
    bare = BareLoop(module, X, (record.forward.steps, record.backward.steps))
    rows = []
    for name, ours, theirs in (
        ("forward", forward, bare.forward),
        ("forward and gradients", training, bare.training),
    ):
        # In turns, so that a busy moment hits both.
        pairs = [(processor_time(ours), processor_time(theirs)) for _ in range(REPEATS)]
        seconds, least = map(min, zip(*pairs, strict=True))
        rows.append(
            {
                "case": f"{activation}, {name}",
                "seconds": seconds,
                "bare_loop": least,
                "ratio": seconds / least,
                "steps": list(bare.steps),
            }
        )
    return rows


def choice_rows(size: dict[str, int]) -> list[dict[str, Any]]:
    """Measure the solvers and the gradients, on the tanh network."""
    X = torch.randn(size["samples"], size["features"], generator=torch.Generator().manual_seed(0))
    X /= math.sqrt(size["features"])
    rows = []
    for option, names in (("solver", SOLVERS), ("gradient", GRADIENTS)):
        for name in names:
            module = network("tanh", size, **{option: name})

            def training(module: EquilibriumNetwork = module) -> None:
                module.zero_grad()
                module(X).sum().backward()

            training()
            seconds = min(processor_time(training) for _ in range(5))
            record = module.last_record
            assert record is not None
            assert record.forward is not None
            assert record.backward is not None
            steps = [record.forward.steps, record.backward.steps]
            rows.append({"case": f"{option} {name}", "seconds": seconds, "steps": steps})
    return rows


def peer_rows(python: str, size: dict[str, int]) -> list[dict[str, Any]]:
    """Run the same network in another library, in an interpreter that has it."""
    script = Path(__file__).parent / "peers" / "torchdeq_times.py"
    request = json.dumps({**size, "sigma_a2": SIGMA_A2, "tolerance": 1e-6, "repeats": REPEATS})
    answer = subprocess.run([python, script, request], capture_output=True, text=True, check=False)
    if answer.returncode:
        return [{"case": "torchdeq", "not_measured": answer.stderr.strip().splitlines()[-1]}]
    rows: list[dict[str, Any]] = json.loads(answer.stdout)
    return rows


def main() -> None:
    """Measure every case and store the rows."""
    size = {"width": 1024, "samples": 256, "features": 784, "outputs": 10}
    if "--quick" in sys.argv:
        size = {"width": 128, "samples": 64, "features": 100, "outputs": 10}
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = [{"case": "size", "torch": torch.__version__, **size}]
    for activation in ("tanh", "relu"):
        rows += layer_row(activation, size)
    rows += choice_rows(size)
    if "--peer" in sys.argv:
        rows += peer_rows(sys.argv[sys.argv.index("--peer") + 1], size)
    store("implicit_layer", rows)


if __name__ == "__main__":
    main()
