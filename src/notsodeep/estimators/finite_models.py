"""Finite networks inside estimators: found from data, and kept in files that joblib writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from notsodeep.architectures import DeepEquilibrium, KernelName
from notsodeep.checks import FloatArray
from notsodeep.estimators.kernel_matrices import root_mean_square_norm
from notsodeep.matching import Match, match

MATCHED_ROWS = 1000
"""Rows on which families are compared by their exact kernels."""

_FEWEST = 8  # rows from which an exact kernel says something about a family


def match_on_data(
    deq: DeepEquilibrium,
    X: FloatArray,
    *,
    family: str,
    refine: bool,
    kernel: KernelName,
    rng: np.random.Generator,
) -> Match:
    """Find the shallow network for a DEQ on training rows (n, p), by at most 1000 of them.

    With fewer than eight rows only their scale is used.
    """
    options: dict[str, Any] = {"family": family, "kernel": kernel}
    if len(X) < _FEWEST:
        return match(deq, root_mean_square_norm(X), **options)
    rows = X[np.sort(rng.permutation(len(X))[:MATCHED_ROWS])]
    return match(deq, data=rows, refine=refine, **options)


def generator_from(random_state: Any) -> np.random.Generator:
    """Turn scikit-learn's random_state (None, a seed or a RandomState) into a Generator."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))


class NetworkInState:
    """For estimators with a `module_`: pickles its description and weights instead of its code.

    A torch module holds functions that belong to this process; what made it does not.
    """

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        if "module_" in state:
            state = {**state, "module_": _taken_apart(state["module_"])}
        return dict(state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "module_" in state:
            state = {**state, "module_": _put_together(**state["module_"])}
        super().__setstate__(state)  # type: ignore[misc]


def _taken_apart(module: Any) -> dict[str, Any]:
    return {
        "description": module.description,
        "sizes": (module.in_features, module.width, module.out_features),
        "options": {
            "trainable": module.trainable,
            "bias": module.readout_bias is not None,
            "dtype": module.readout.dtype,
        },
        "weights": {name: tensor.numpy(force=True) for name, tensor in module.state_dict().items()},
    }


def _put_together(
    description: Any,
    sizes: tuple[int, int, int],
    options: dict[str, Any],
    weights: dict[str, FloatArray],
) -> Any:
    import torch

    from notsodeep.networks.build import build

    module = build(description, *sizes, rng=0, **options)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return module.eval()
