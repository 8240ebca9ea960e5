"""A classifier that is not trained: the rows of a simplex equiangular tight frame."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from notsodeep import checks


class FixedETF(nn.Module):
    """Logits scale·(E z) with the K rows of E fixed.

    Parameters
    ----------
    frame : array-like of shape (K, d)
        A simplex ETF, as `notsodeep.collapse.simplex_etf` draws them.
    scale : float
        Length of the rows of the classifier.
    dtype, device
        Of the frame; it follows ``module.to(…)`` as parameters do.

    Attributes
    ----------
    weight : buffer of shape (K, d)
        scale·E; part of the ``state_dict``, but no parameter.
    bias : None
    in_features, out_features : int
        d and K.

    Examples
    --------
    >>> from notsodeep.collapse import simplex_etf
    >>> classifier = FixedETF(simplex_etf(4, 16, rng=0), scale=2.0)
    >>> classifier(torch.ones(3, 16)).shape, len(list(classifier.parameters()))
    (torch.Size([3, 4]), 0)
    """

    weight: Tensor
    bias: None = None

    def __init__(
        self,
        frame: object,
        scale: float = 1.0,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        rows = _simplex_frame(frame, "FixedETF")
        self.scale = checks.positive_number(scale, "scale", "FixedETF")
        self.out_features, self.in_features = rows.shape
        self.register_buffer("weight", torch.from_numpy(self.scale * rows).to(device, dtype))

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits, shape (n, K)."""
        return nn.functional.linear(z, self.weight)

    def extra_repr(self) -> str:
        """Say what is inside, for `repr`."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, scale={self.scale:g}"


def _simplex_frame(frame: object, owner: str) -> checks.FloatArray:
    """Require the rows of a simplex ETF: unit vectors whose cosines are all −1/(K − 1)."""
    rows = checks.samples(frame, "frame", owner)
    K = len(rows)
    gap = np.inf
    if K > 1:
        gap = float(np.abs(rows @ rows.T - (K * np.eye(K) - 1.0) / (K - 1.0)).max())
    if not gap < 1e-6:
        remedy = "notsodeep.collapse.simplex_etf(K, d, rng) makes one."
        got = f"a Gram matrix off by {gap:.2g}" if K > 1 else "one row"
        raise checks.refusal("frame", owner, "have the rows of a simplex ETF", got, remedy)
    return rows
