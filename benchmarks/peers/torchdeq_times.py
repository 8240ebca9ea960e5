"""Times of the same tanh DEQ in torchdeq, for bench_implicit_layer.py.

Runs in an environment of its own that has torch and torchdeq, not notsodeep.  The request is JSON
in the first argument; the rows go to the standard output as JSON.  Each time stands beside that of
a bare loop with the same number of products, measured in the same process.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torchdeq import get_deq


def processor_time(function: Callable[[], Any]) -> float:
    """Seconds that the processor works on a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    """Measure evaluation and training."""
    torch.set_num_threads(1)
    request = json.loads(sys.argv[1])
    width, samples, features = request["width"], request["samples"], request["features"]
    share, tolerance, repeats = request["sigma_a2"], request["tolerance"], request["repeats"]
    generator = torch.Generator().manual_seed(0)

    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    A, B, C = weights(width, width), weights(width, features), weights(request["outputs"], width)
    X = torch.randn(samples, features, generator=generator) / math.sqrt(features)
    deq = get_deq(
        f_solver="fixed_point_iter",
        b_solver="fixed_point_iter",
        f_max_iter=100,
        b_max_iter=100,
        f_tol=tolerance,
        b_tol=tolerance,
        f_stop_mode="rel",
        b_stop_mode="rel",
        ift=True,
    )
    counts = {"forward": 0}

    def outputs() -> torch.Tensor:
        drive = math.sqrt(1 - share) * (X @ B.mT)

        def layer(z: torch.Tensor) -> torch.Tensor:
            counts["forward"] += 1
            return torch.tanh(math.sqrt(share) * (z @ A.mT) + drive) / math.sqrt(width)

        states, _ = deq(layer, torch.zeros(samples, width))
        return states[-1] @ C.mT

    def training() -> None:
        for weight in (A, B, C):
            weight.grad = None
        outputs().sum().backward()

    @torch.no_grad()
    def forward() -> None:
        outputs()

    deq.eval()
    counts["forward"] = 0
    forward()
    steps = counts["forward"]

    @torch.no_grad()
    def bare() -> torch.Tensor:
        drive = math.sqrt(1 - share) * (X @ B.mT)
        h = drive
        for _ in range(steps):
            h = torch.addmm(drive, torch.tanh(h), A.mT, alpha=math.sqrt(share / width))
        return torch.tanh(h) @ C.mT

    # In turns, so that a busy moment hits both.
    pairs = [(processor_time(forward), processor_time(bare)) for _ in range(repeats)]
    seconds, least = map(min, zip(*pairs, strict=True))
    evaluation = {
        "case": "torchdeq, tanh, forward",
        "seconds": seconds,
        "bare_loop": least,
        "ratio": seconds / least,
        "steps": steps,
    }
    deq.train()
    training()
    seconds = min(processor_time(training) for _ in range(repeats))
    learning = {"case": "torchdeq, tanh, forward and gradients", "seconds": seconds}
    print(json.dumps([evaluation, learning]))


if __name__ == "__main__":
    main()
