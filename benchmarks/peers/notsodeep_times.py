"""Kernels of this package at growing n, for `bench_peers`, in a process of its own."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
from growing_sizes import answer, read_request

import notsodeep as nsd


def main() -> None:
    """Measure, and write the answer."""
    request = read_request()
    model: nsd.DeepEquilibrium | nsd.ExplicitNetwork
    if request["layers"] == 1:
        model = nsd.ExplicitNetwork([request["activation"]])
    else:
        model = nsd.DeepEquilibrium(request["activation"], request["sigma_a2"])

    def kernels(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """CK and NTK."""
        pair = nsd.kernel(model, X, convention="preactivation", kind="both")
        return pair.ck, pair.ntk

    answer(request, kernels, {name: version(name) for name in ("notsodeep", "numpy")})


if __name__ == "__main__":
    main()
