"""Given networks: what they compute, and what they reject."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import InvalidInput
from notsodeep.trained import EquilibriumCell


def test_a_step_is_the_formula() -> None:
    rng = np.random.default_rng(0)
    W, U, b = rng.normal(size=(4, 4)), rng.normal(size=(4, 3)), rng.normal(size=4)
    C, c = rng.normal(size=(2, 4)), rng.normal(size=2)
    cell = EquilibriumCell.from_weights(W, U, b, "tanh", (C, c), shift=0.1307, scale=0.3081)
    x, z = rng.normal(size=(5, 3)), rng.normal(size=(5, 4))
    expected = np.tanh(
        [W @ zi + U @ ((xi - 0.1307) / 0.3081) + b for xi, zi in zip(x, z, strict=True)]
    )
    np.testing.assert_allclose(cell.step(z, cell.drive(x)), expected, atol=1e-14)
    np.testing.assert_allclose(cell.logits(z), [C @ zi + c for zi in z], atol=1e-13)
    tensors = cell.tensor_step(torch.tensor(z), torch.tensor(cell.drive(x)))
    np.testing.assert_allclose(tensors.numpy(), expected, atol=1e-14)


def test_tensors_with_gradients_are_taken() -> None:
    linear = torch.nn.Linear(3, 3)
    cell = EquilibriumCell.from_weights(linear.weight, torch.eye(3), linear.bias, "relu")
    np.testing.assert_allclose(cell.recurrent, linear.weight.detach().double().numpy())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"W": np.ones((2, 3))}, "W of .* must be square"),
        ({"W": [[np.nan, 0.0], [0.0, 0.0]]}, "W of .* must be finite"),
        ({"U": np.ones((3, 2))}, "U of .* must have 2 rows"),
        ({"b": np.ones(3)}, r"b of .* must be one number, or have shape \(2,\)"),
        ({"readout": (np.ones((4, 3)), None)}, "C of readout .* must have 2 columns"),
        ({"readout": np.ones((4, 2))}, r"readout of .* must be a pair"),
        ({"scale": 0.0}, "scale of .* must be positive"),
        ({"activation": "rely"}, "Did you mean 'relu'"),
    ],
)
def test_weights_that_do_not_fit(arguments: dict[str, object], message: str) -> None:
    fitting = {"W": np.eye(2), "U": np.ones((2, 4)), "b": None, "activation": "relu"}
    with pytest.raises(InvalidInput, match=message):
        EquilibriumCell.from_weights(**{**fitting, **arguments})


def test_rows_that_do_not_fit() -> None:
    cell = EquilibriumCell.from_weights(np.eye(2) / 2, np.ones((2, 4)))
    with pytest.raises(InvalidInput, match=r"X of .* must have 4 features"):
        cell.drive(np.ones((3, 5)))
    with pytest.raises(InvalidInput, match=r"the cell of .* must have a read-out"):
        nsd.compile(cell, np.ones((100, 4)))


class _Counting(torch.nn.Module):
    """A module that keeps state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(z + x) / self.calls


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z, x: torch.cat([z, z]), "must return the shape of z"),
        (lambda z, x: z[:, :2], "must return the shape of z"),
        (lambda z, x: z - z.mean(dim=0), "must treat each sample by itself"),
        (lambda z, x: [z], "must return a tensor"),
        (lambda z, x: z @ x, "must take rows of X"),
        (_Counting(), "must give the same answer twice"),
    ],
)
def test_functions_that_are_no_steps(function: object, message: str) -> None:
    cell = EquilibriumCell.from_function(function, (3,))
    with pytest.raises(InvalidInput, match=message):
        cell.drive(np.arange(12.0).reshape(4, 3))


def test_a_function_works_in_its_own_precision() -> None:
    linear = torch.nn.Linear(3, 3)
    cell = EquilibriumCell.from_function(lambda z, x: torch.tanh(linear(z) + x), 3)
    drive = cell.drive(np.ones((2, 3)))
    assert drive.dtype == np.float32
    assert cell.step(np.zeros((2, 3)), drive).dtype == np.float64
    images = EquilibriumCell.from_function(lambda z, x: 0.5 * z + x.mean(), (2, 4, 4))
    assert images.width == 32
    assert images.step(np.ones((1, 32)), images.drive(np.ones((1, 5)))).shape == (1, 32)
