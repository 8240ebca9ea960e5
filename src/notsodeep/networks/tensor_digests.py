"""SHA-256 of named tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from torch import Tensor


def sha256_of_tensors(tensors: Mapping[str, Tensor], beside: str = "") -> str:
    """Hexadecimal SHA-256 of a text and of names, dtypes, shapes and values, in order of names."""
    digest = hashlib.sha256(f"{beside};".encode())
    for name, tensor in sorted(tensors.items()):
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        digest.update(f"{name} {array.dtype} {tuple(tensor.shape)};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
