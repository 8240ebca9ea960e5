"""How the solvers of a DEQ converge: little recurrence, much of it, one unstable direction.

Run ``python examples/fixed_point.py [--out fixed_point.png]``; a few seconds.

The layer is any function of the state and of the tensors to differentiate in.  Every solve leaves a
record: its residual after every step, whether it converged, and why it ended.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from notsodeep.networks import implicit_layer
from notsodeep.plotting import DEEP, MUTED, SHALLOW, house_style, new_figure, save_figure

COLOURS = {"plain": MUTED, "anderson": DEEP, "broyden": SHALLOW}
WIDTH, BATCH = 200, 16


def layer(z: Tensor, A: Tensor, drive: Tensor) -> Tensor:
    """One step of a tanh DEQ; samples are rows."""
    return torch.tanh(z @ A.T + drive)


def main(out: str | Path = "fixed_point.png") -> Path:
    """Solve three DEQs with every solver, print the steps both ways, and draw residuals."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)
    unit = rng.standard_normal(WIDTH)
    unit /= np.linalg.norm(unit)
    cases = {
        "σa² = 0.2": np.sqrt(0.2) * noise,
        "σa² = 0.9": np.sqrt(0.9) * noise,
        "σa² = 0.2, one eigenvalue −1.2": np.sqrt(0.2) * noise - 1.2 * np.outer(unit, unit),
    }
    drive = torch.tensor(0.5 * rng.standard_normal((BATCH, WIDTH)))
    with house_style():
        figure, panels = new_figure(3, width=3.4, height=3.2)
        for axes, (title, matrix) in zip(panels, cases.items(), strict=True):
            for solver, colour in COLOURS.items():
                A = torch.tensor(matrix, requires_grad=True)
                z, record = implicit_layer(
                    layer,
                    [A, drive],
                    drive,
                    solver=solver,
                    on_failure="ignore",  # the third plain iteration goes round in circles
                )
                steps = f"{title}: {solver} {record.reason}"
                if record.converged:
                    z.square().mean().backward()
                    steps += f", {record.derivatives[0].steps} for the gradient"
                print(steps)
                history = record.history
                axes.semilogy(range(1, len(history) + 1), history, color=colour, label=solver)
            axes.set_title(title)
            axes.set_xlabel("evaluations of the layer")
        panels[0].set_ylabel("largest relative residual")
        panels[0].legend(frameon=False)
    return save_figure(figure, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="fixed_point.png", help="where the figure goes")
    print(f"wrote {main(parser.parse_args().out)}")
