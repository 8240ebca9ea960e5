"""What heads of one gain amplify: class means, and the scatter within classes beside them.

``python -m experiments.collapse.head_gains`` trains four heads on 2000 images of CIFAR-100,
features of VGG-19, and prints the table of docs/collapse-experiments.md; some minutes of one core.
"""

from __future__ import annotations

import numpy as np
import torch

from experiments.collapse.heads import LABELS
from experiments.collapse.settings import feature_file
from experiments.collapse.train import collapse_data, collapse_network, fit, head_cell
from notsodeep.arrays import FloatArray, IntArray

HEADS = ("explicit_matched", "explicit_started", "explicit_inverse", "deq")
COLUMNS = (
    "squared gain along class means", "beside them", "tr S_W/tr S_B along class means",
    "beside them", "largest over smallest eigenvalue of S_B",
)  # fmt: skip


def trained(head: str) -> tuple[FloatArray, FloatArray, FloatArray, IntArray]:
    """Return features h before and z after a trained head, the head's matrix G, and labels."""
    cell = head_cell(
        head, data=str(feature_file("cifar100_vgg19.npz")), samples=2000, test_samples=1000,
        width=192, first_width=512, feature_scale="fixed", batch_size=500, epochs=400,
        learning_rate=0.2, weight_decay=5e-2, scale_free_decay=5e-4,
    )  # fmt: skip
    data = collapse_data(cell)
    network = collapse_network(cell, data)
    fit(network, data, cell)
    network.eval()
    with torch.no_grad():
        h = network.backbone(torch.as_tensor(data.X))
        tensors = (h, network.head(h), network.head(torch.eye(h.shape[1])).T)
    h, z, G = (tensor.double().numpy() for tensor in tensors)
    return h, z, G, data.y


def split(features: FloatArray, y: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return centred class means (K, d), an orthonormal basis of their span, and the residuals."""
    means = np.stack([features[y == k].mean(axis=0) for k in range(int(y.max()) + 1)])
    residuals = features - means[y]
    means -= means.mean(axis=0)
    basis = np.linalg.svd(means, full_matrices=False)[2][: len(means) - 1]
    return means, basis, residuals


def row(head: str) -> list[float]:
    """Compute the numbers of a head, in the order of the columns."""
    h, z, G, y = trained(head)
    entering = split(h, y)[1]
    along = float(np.square(G @ entering.T).sum())
    beside = float(np.square(G).sum()) - along
    means, basis, residuals = split(z, y)
    between = np.square(means).sum() / len(means)
    within = np.square(residuals).sum() / len(z)
    inside = np.square(residuals @ basis.T).sum() / len(z)
    spectrum = np.square(np.linalg.svd(means @ basis.T, compute_uv=False))
    return [
        along / len(entering),
        beside / (len(G) - len(entering)),
        inside / between,
        (within - inside) / between,
        spectrum[0] / spectrum[-1],
    ]


if __name__ == "__main__":
    lines = ["| head | " + " | ".join(COLUMNS) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for head in HEADS:
        numbers = " | ".join(f"{number:.3g}" for number in row(head))
        lines.append(f"| {LABELS[head]} | {numbers} |")
    print("\n".join(lines))
