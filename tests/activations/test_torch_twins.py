"""Torch twins equal the NumPy activations, in value and derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cases import CONTRACT, identifier
from notsodeep.activations import (
    Activation,
    from_formula,
    from_function,
    piecewise_linear,
    with_skip,
)
from notsodeep.activations.torch_twins import torch_twin
from notsodeep.errors import NoTorchTwin

EVERY = [*CONTRACT, with_skip("tanh", -2.0)]
every = pytest.mark.parametrize("activation", EVERY, ids=identifier)


@every
def test_value_and_derivative_agree(activation: Activation) -> None:
    x = np.linspace(-4.0, 4.0, 201) + 0.00321
    tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = torch_twin(activation)(tensor)
    np.testing.assert_allclose(value.detach().numpy(), activation(x), rtol=1e-12, atol=1e-13)
    (gradient,) = torch.autograd.grad(value.sum(), tensor)
    np.testing.assert_allclose(gradient.numpy(), activation.derivative(x), rtol=1e-11, atol=1e-12)


@every
def test_dtype_is_kept(activation: Activation) -> None:
    assert torch_twin(activation)(torch.zeros(3, dtype=torch.float32)).dtype == torch.float32


def test_constants_beside_x_become_tensors() -> None:
    twin = torch_twin(from_formula("min(max(x, -0.5), 2) + 1", kinks=(-0.5, 2.0)))
    assert twin(torch.tensor([-3.0, 0.0, 9.0])).tolist() == [0.5, 1.0, 3.0]


@pytest.mark.parametrize("level", [0.0, 0.7])
@pytest.mark.parametrize("knots", [(1.0, 2.0), (-3.0, -0.5), (-1.0, 2.0), (0.0, 6.0)])
def test_ramps_need_not_pass_through_zero(knots: tuple[float, float], level: float) -> None:
    ramp = piecewise_linear(knots, (0.0, 1.5, 0.0), level)
    x = np.linspace(-5.0, 7.0, 49)
    np.testing.assert_allclose(torch_twin(ramp)(torch.tensor(x)).numpy(), ramp(x), atol=1e-15)


def test_function_needs_its_torch_argument() -> None:
    with pytest.raises(NoTorchTwin, match="torch="):
        torch_twin(from_function(np.tanh, name="mine"))
    twin = torch_twin(from_function(np.tanh, name="mine", torch=torch.tanh))
    assert twin(torch.zeros(1)).item() == 0.0
