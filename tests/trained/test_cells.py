"""Given networks: what they compute, and what they reject."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.compilation.black_box_cell import BlackBoxCompilation
from notsodeep.errors import InvalidInput, NotConverged, NotSerialisable
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


MIX = 0.4 * torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))[0]


def black_box(readout: object = lambda z: z[:, :3] - z[:, 3:]) -> nsd.EquilibriumCell:
    return EquilibriumCell.from_function(
        lambda z, x: torch.tanh(z @ MIX.to(z.dtype) + x),
        6,
        readout=readout,
    )


def test_black_boxes_are_compiled_without_proof(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 6))
    labels = (X[:, 0] > 0).astype(int)
    found = nsd.compile(black_box(), X, labels, layers=4)
    assert isinstance(found, BlackBoxCompilation)
    agreement = [fidelity.agreement for fidelity in found.fidelity_by_layers.values()]
    assert agreement[-1] > 0.95
    assert agreement[-1] >= found.baselines["1 step from zero"].agreement
    assert found.fidelity.certified is None
    assert found.fidelity.accuracy is not None
    assert found.network(torch.as_tensor(X[:4])).shape == (4, 3)
    with pytest.raises(InvalidInput, match="no certificate"):
        found.hybrid()
    with pytest.raises(NotSerialisable, match="Python function"):
        found.save(tmp_path / "run")
    front = found.front
    assert {point.kind for point in front.points} == {"tolerance", "truncated", "explicit"}
    assert front.point("tolerance", 1e-6).agreement == 1.0
    assert front.point("tolerance", 1e-3).steps < front.point("tolerance", 1e-6).steps
    assert front.point("explicit", 4).ratio == 1.0
    assert len(found.plot().axes) == 2
    page = found.report(tmp_path / "report.html").read_text()
    assert "from a fitted start" in page
    assert "Nothing is proved" in page


def test_black_boxes_without_a_readout_are_judged_by_their_states() -> None:
    X = np.random.default_rng(1).normal(size=(200, 6))
    found = nsd.compile(black_box(None), X, layers=6)
    shares = [fidelity.agreement for fidelity in found.fidelity_by_layers.values()]
    assert shares[0] < 0.5  # arg max of six entries would have agreed
    assert shares[-1] == 1.0
    with pytest.raises(InvalidInput, match="must have a read-out"):
        nsd.compile(black_box(None), X, np.zeros(200, int))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"out": "runs/mine"}, NotSerialisable, "Python function"),
        ({"refine": "distil"}, InvalidInput, "refine of compile"),
        ({"kinds": "solver_step"}, InvalidInput, "kinds of compile must be left out"),
        ({"width": 9}, InvalidInput, "width of compile must be left out"),
        ({"y": np.full(100, 3)}, InvalidInput, "indices of the network's 3 logits"),
    ],
)
def test_what_black_boxes_cannot_do(
    options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        nsd.compile(black_box(), np.ones((100, 6)), **options)


def test_a_black_box_without_a_fixed_point_is_an_error() -> None:
    cell = EquilibriumCell.from_function(lambda z, x: z**2 + 1.0 + 0.0 * x, 3)
    with pytest.raises(NotConverged, match=r"notsodeep\.diagnose"):
        nsd.compile(cell, np.ones((100, 3)))
