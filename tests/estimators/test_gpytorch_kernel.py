"""The GPyTorch adapter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from notsodeep.errors import InvalidInput
from notsodeep.estimators import EquilibriumKernel
from notsodeep.estimators.gpytorch_kernel import GPyTorchEquilibriumKernel

X = torch.as_tensor(np.random.default_rng(0).standard_normal((12, 4)))


def test_values_and_gradient_are_those_of_the_other_door() -> None:
    ours = GPyTorchEquilibriumKernel("relu", 0.3, convention="preactivation")
    theirs = EquilibriumKernel("relu", 0.3, convention="preactivation")
    matrix, gradient = theirs(X.numpy(), eval_gradient=True)
    np.testing.assert_allclose(ours(X).to_dense().detach().numpy(), matrix, rtol=1e-10)
    np.testing.assert_allclose(
        ours(X, X[:5]).to_dense().detach().numpy(), matrix[:, :5], rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(ours(X, diag=True).detach().numpy(), np.diag(matrix), rtol=1e-10)
    weights = torch.as_tensor(np.random.default_rng(1).standard_normal((12, 12)))
    (slope,) = torch.autograd.grad((ours(X).to_dense() * weights).sum(), ours.raw_sigma_a2)
    (inner,) = torch.autograd.grad(ours.sigma_a2, ours.raw_sigma_a2)
    expected = float(inner) / 0.3 * (gradient[:, :, 0] * weights.numpy()).sum()
    assert float(slope) == pytest.approx(expected, rel=1e-8)


def test_training_moves_sigma_uphill() -> None:
    import gpytorch  # its first import warns, and is made by the adapter

    class Process(gpytorch.models.ExactGP):
        def __init__(self, rows: torch.Tensor, values: torch.Tensor, likelihood: Any) -> None:
            super().__init__(rows, values, likelihood)
            self.covar_module = GPyTorchEquilibriumKernel(
                "relu", 0.05, "ck", convention="preactivation"
            )

        def forward(self, rows: torch.Tensor) -> Any:
            mean = torch.zeros(len(rows), dtype=rows.dtype)
            return gpytorch.distributions.MultivariateNormal(mean, self.covar_module(rows))

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 4))
    covariance = EquilibriumKernel("relu", 0.6, "ck", convention="preactivation")(
        rows
    ) + 0.01 * np.eye(40)
    values = torch.as_tensor(rng.multivariate_normal(np.zeros(40), covariance))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.01
    model = Process(torch.as_tensor(rows), values, likelihood).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam([model.covar_module.raw_sigma_a2], lr=0.3)
    model.train()
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = -objective(model(torch.as_tensor(rows)), values)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01
    assert model.covar_module.sigma_a2.item() > 0.1
    model.eval()
    prediction = model(torch.as_tensor(rows[:3])).mean
    assert prediction.shape == (3,)


def test_refusals() -> None:
    kernel = GPyTorchEquilibriumKernel(convention="preactivation")
    with pytest.raises(InvalidInput, match=r"x1 .* must not require gradients"):
        kernel(X.clone().requires_grad_(), convention="preactivation").to_dense()
    with pytest.raises(InvalidInput, match=r"without batches"):
        kernel(X.reshape(2, 6, 4), convention="preactivation").to_dense()
    with pytest.raises(InvalidInput, match=r"sigma_a2 .* must lie between its bounds"):
        GPyTorchEquilibriumKernel(sigma_a2=0.95, convention="preactivation")
    with pytest.raises(InvalidInput, match=r"sigma_a2_bounds .* must satisfy"):
        GPyTorchEquilibriumKernel(sigma_a2_bounds=(0.0, 0.5), convention="preactivation")
