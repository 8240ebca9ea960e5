"""A classifier that is not trained: the rows of a simplex equiangular tight frame."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from notsodeep import checks
from notsodeep.checks import heads as head_checks


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
        rows = head_checks.simplex_frame(frame, "FixedETF")
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
