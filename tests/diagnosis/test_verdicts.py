"""Cells whose behaviour is known: every verdict, and never a wrong one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.data import load
from notsodeep.errors import InvalidInput
from notsodeep.trained import diagnosis
from notsodeep.trained.diagnosis import Diagnosis

rng = np.random.default_rng(0)
ROWS = rng.standard_normal((200, 2))


def of_function(f, shape=(2,), rows=ROWS, **options) -> Diagnosis:
    cell = nsd.EquilibriumCell.from_function(f, shape)
    return nsd.diagnose(cell, rows, progress=False, **options)


def test_a_strong_contraction_is_shallow_and_its_numbers_are_those_of_its_matrix() -> None:
    found = of_function(lambda z, x: 0.1 * z + x)
    assert found.verdict == "shallow"
    assert found.limits == 1
    assert found.rate == pytest.approx(0.1, rel=0.02)
    assert found.local_radius == pytest.approx(0.1, rel=1e-9)
    # z_k − z* = 0.1^k z*: within one per cent after two steps.
    assert found.effective_depth == 2
    # Residual (z_k − z_{k−1})/z_k = 0.9·0.1^(k−1)/(1 − 0.1^k).
    assert found.steps == {"1e-2": 3, "1e-3": 4, "1e-6": 7}


def test_a_weak_contraction_settles() -> None:
    found = of_function(lambda z, x: 0.9 * z + x)
    assert found.verdict == "settles"
    assert found.rate == pytest.approx(0.9, rel=1e-3)
    assert found.effective_depth == 44  # the first k with 0.9^k ≤ 0.01


def test_rotating_eigenvalues_have_their_modulus_as_radius() -> None:
    angle = 1.1
    turn = 0.8 * torch.tensor(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], dtype=torch.float64
    )
    found = of_function(lambda z, x: z @ turn.to(z) + x)
    assert found.local_radius == pytest.approx(0.8, rel=1e-6)


def test_a_stiff_monotone_network_is_solved_by_a_splitting() -> None:
    m, p = 30, 5
    A, B = rng.standard_normal((m, m)), rng.standard_normal((m, m))
    U, C = rng.standard_normal((m, p)), rng.standard_normal((3, m))
    cell = nsd.EquilibriumCell.from_monotone(A, B, 20.0, U, activation="relu", readout=(C, None))
    assert np.linalg.norm(cell.arrays()["W"], 2) > 50
    found = nsd.diagnose(cell, rng.standard_normal((150, p)), progress=False)
    assert found.lost > 0.9  # its own iteration diverges
    assert found.method.startswith("Peaceman–Rachford")
    assert found.verdict in ("shallow", "settles")
    assert found.limits == 1
    assert found.margin.value >= 20.0 - 1e-9
    assert found.steps["1e-6"] is not None
    assert any("its own iteration" in note.lower() for note in found.notes)


def test_a_monotone_network_of_the_zoo() -> None:
    found = nsd.diagnose(
        nsd.zoo.load("monotone-digits-64"),
        load("digits", preprocessing="unit_range").X_test,
        progress=False,
    )
    assert found.settled < 0.1
    assert found.verdict == "settles"
    assert found.margin.value == pytest.approx(0.5, abs=1e-4)


def test_a_contraction_of_the_zoo() -> None:
    found = nsd.diagnose(
        nsd.zoo.load("tanh-digits-64"),
        load("digits", preprocessing="unit_range").X_test,
        progress=False,
    )
    assert found.verdict == "shallow"
    assert found.settled == 1.0
    assert found.margin.norm == pytest.approx(0.9, abs=1e-5)


@pytest.mark.parametrize("form", ["function", "weights"])
def test_two_attractors_are_several_limits(form: str) -> None:
    if form == "function":
        found = of_function(lambda z, x: torch.tanh(3.0 * z + 0.1 * x))
    else:
        cell = nsd.EquilibriumCell.from_weights(3.0 * np.eye(2), 0.1 * np.eye(2), activation="tanh")
        found = nsd.diagnose(cell, ROWS, progress=False)
        assert found.margin.kind == "none"
    assert found.verdict == "several limits"
    assert found.limits == 4  # two signs in each of two units
    assert found.several > 0.5


def test_starts_that_differ_in_whether_they_settle_have_several_limits() -> None:
    assert of_function(lambda z, x: -z + 0.0 * x).verdict == "several limits"


def turning(angle: float, size: int = 8) -> torch.Tensor:
    """Return a rotation by an angle in every pair of units."""
    block = torch.tensor(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]], dtype=torch.float64
    )
    return torch.block_diag(*[block] * (size // 2))


def going_round(angle: float):
    """Unit vectors that turn by an angle in every step, for ever."""

    def f(z, x):
        gate = torch.relu(0.5 - z.norm(dim=-1, keepdim=True))  # takes the first state from x
        moved = z @ turning(angle).T.to(z) + gate * x
        return moved / moved.norm(dim=-1, keepdim=True)

    return f


def three_cycle(z, x):
    """A unit vector that is handed around three places."""
    first = torch.nn.functional.one_hot(x.abs().argmax(dim=-1) % 3, x.shape[-1]).to(z)
    turned = torch.cat([torch.roll(z[:, :3], 1, dims=-1), z[:, 3:]], dim=-1)
    return torch.where(z.abs().sum(dim=-1, keepdim=True) == 0.0, first, turned)


def contraction(rate: float):
    def f(z, x):
        generator = torch.Generator().manual_seed(int(1e6 * rate))
        A = torch.randn(8, 8, generator=generator, dtype=torch.float64)
        A = rate * A / torch.linalg.matrix_norm(A, 2)
        return torch.tanh(z @ A.T.to(z) + x)

    return f


PLANTED = {
    "identity": (lambda z, x: z + 0.0 * x, {"idle"}),
    "one step": (lambda z, x: torch.tanh(x), {"idle"}),
    "strong contraction": (lambda z, x: 0.1 * z + x, {"shallow"}),
    "contraction": (contraction(0.9), {"settles"}),
    "slow contraction": (lambda z, x: 0.999 * z + x, {"undecided"}),
    "slow turn": (going_round(9e-4), {"orbits", "drifts"}),
    "turn": (going_round(0.1), {"orbits"}),
    "quarter turn": (going_round(np.pi / 2), {"orbits"}),
    "limit cycle": (
        lambda z, x: 0.9 * z + 0.1 * torch.tanh(3.0 * z @ turning(1.0).T.to(z) + 0.1 * x),
        {"orbits"},
    ),
    "period two": (lambda z, x: x - z, {"orbits"}),
    "period three": (three_cycle, {"orbits"}),
    "drift": (lambda z, x: z + x, {"drifts"}),
    "chaos": (lambda z, x: 1.0 - 1.9 * z**2 + 0.01 * torch.tanh(x), {"drifts"}),
    "two basins": (lambda z, x: torch.tanh(3.0 * z + 0.1 * x), {"several limits"}),
    "slow growth": (lambda z, x: 1.1 * z + x, {"grows"}),
    "growth": (lambda z, x: 2.0 * z + x, {"grows"}),
    "NaN": (lambda z, x: torch.where(z > 40.0, torch.nan, z + 1.0), {"grows"}),
}
PERIODS = {"turn": 63, "quarter turn": 4, "period two": 2, "period three": 3}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_behaviour(name: str, dtype: torch.dtype, seed: int) -> None:
    f, verdicts = PLANTED[name]
    rows = np.random.default_rng(seed).standard_normal((60, 8))
    found = of_function(f, (8,), torch.as_tensor(rows, dtype=dtype), rng=seed)
    assert found.verdict in verdicts, str(found)
    assert found.period == PERIODS.get(name, found.period)
    # Motion that does not fall is never called settled.
    if found.verdict in ("orbits", "drifts", "grows"):
        assert found.settled < 0.05
        assert found.effective_depth is None
        assert max(found.motions, key=found.motions.get) == found.verdict
    if name == "NaN":
        assert any("at step 42" in note for note in found.notes)


def test_a_slow_contraction_settles_within_a_larger_budget() -> None:
    found = of_function(lambda z, x: 0.999 * z + x, rows=ROWS[:20], max_steps=30_000)
    assert found.verdict == "settles"
    assert found.rate == pytest.approx(0.999, rel=1e-4)


def test_a_proof_of_a_fixed_point_outweighs_a_cycle() -> None:
    # z = tanh(x − 3z) cycles when it is iterated, and has one fixed point: S = 1 + 3.
    cell = nsd.EquilibriumCell.from_weights(-3.0 * np.eye(2), np.eye(2), activation="tanh")
    found = nsd.diagnose(cell, ROWS, progress=False)
    assert found.lost > 0.5
    assert found.verdict in ("shallow", "settles")


@pytest.mark.parametrize(
    "f",
    [
        lambda z, x: z + 1e-4 * (x - z),
        lambda z, x: z - 1e-3 * z**3 + 1e-4 * x,
        lambda z, x: torch.tanh(z) + 0.0 * x,  # at rest only if it starts there
    ],
    ids=["rate 0.9999", "cubic", "sublinear"],
)
def test_a_slow_limit_is_left_undecided(f) -> None:
    found = of_function(f)
    assert found.verdict == "undecided"
    assert found.effective_depth is None


def test_a_larger_budget_decides() -> None:
    slow = of_function(lambda z, x: 0.95 * z + 0.05 * x, max_steps=60)
    assert slow.verdict == "undecided"
    assert of_function(lambda z, x: 0.95 * z + 0.05 * x, max_steps=600).verdict == "settles"


def test_a_network_trained_by_unrolling_is_never_shallow() -> None:
    """A loop of twelve steps, without any bound on W: not an equilibrium."""
    data = load("digits", preprocessing="unit_range")
    X, y = torch.tensor((data.X - 0.3) / 0.38, dtype=torch.float32), torch.tensor(data.y)
    generator = torch.Generator().manual_seed(0)
    m = 64
    W = (2.0 * torch.randn(m, m, generator=generator) / m**0.5).requires_grad_()
    U = (torch.randn(m, 64, generator=generator) / 8).requires_grad_()
    C = (torch.randn(10, m, generator=generator) / 8).requires_grad_()
    optimiser = torch.optim.Adam([W, U, C], lr=3e-3)
    for _ in range(150):
        batch = torch.randint(len(X), (128,), generator=generator)
        z = torch.zeros(128, m)
        for _ in range(12):
            z = torch.tanh(z @ W.T + X[batch] @ U.T)
        loss = torch.nn.functional.cross_entropy(z @ C.T, y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(torch.linalg.matrix_norm(W.detach(), 2)) > 2.9
    cell = nsd.EquilibriumCell.from_weights(
        W, U, activation="tanh", readout=(C, None), shift=0.3, scale=0.38
    )
    found = nsd.diagnose(cell, data.X_test, progress=False)
    assert found.verdict in ("orbits", "drifts", "grows", "undecided")


def test_built_networks_are_diagnosed() -> None:
    rows = nsd.data.load("digits", samples=60).X
    network = nsd.build(nsd.DeepEquilibrium("tanh", sigma_a2=0.2), 64, 128, 10, rng=0)
    built = nsd.diagnose(network, rows, progress=False)
    assert built.verdict in ("shallow", "settles")
    assert built.agreement_kind == "class"


def test_rows_and_evaluations_are_bounded() -> None:
    seen: list[int] = []

    def f(z, x):
        seen.append(len(z))
        return torch.tanh(x - 3.0 * z)

    cell = nsd.EquilibriumCell.from_function(f, (2,))
    many = np.tile(ROWS, (50, 1))
    first = nsd.diagnose(cell, many, rows=40, max_steps=20, progress=False, rng=3)
    assert first.rows == 40
    assert max(seen) == 40
    assert len(seen) <= 6 * 20 + 10
    again = nsd.diagnose(cell, many, rows=40, max_steps=20, progress=False, rng=3)
    assert first.to_dict() == again.to_dict()


def test_memory_is_bounded_by_taking_fewer_rows(monkeypatch) -> None:
    monkeypatch.setattr(diagnosis, "_STATE_BYTES", 8 * 2 * 40)
    assert of_function(lambda z, x: 0.1 * z + x).rows == 40
    monkeypatch.setattr(diagnosis, "_STATE_BYTES", 1)
    assert of_function(lambda z, x: 0.1 * z + x).rows == 16


def test_the_record_prints_its_rule_and_comes_back_from_json() -> None:
    found = of_function(lambda z, x: torch.tanh(0.3 * z + x))
    text = str(found)
    assert found.rule in text
    assert "effective depth" in text
    assert Diagnosis.from_dict(found.to_dict()).to_dict() == found.to_dict()
    assert "verdict" in found._repr_html_()
    assert len(nsd.plotting.diagnosis_figure(found).axes) == 3


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda z, x: z[:1], "return the shape of z"),
        (lambda z, x: z + torch.randn_like(z), "same answer twice"),
        (lambda z, x: z - z.mean(dim=0), "each sample by itself"),
        (lambda z, x: z @ torch.ones(3, 3), "take z of shape"),
    ],
    ids=["batch size", "random", "mixes rows", "wrong shape"],
)
def test_functions_that_are_no_cells(f, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        of_function(f)


def test_a_module_that_keeps_state() -> None:
    class Memory(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, z, x):
            self.count += 1
            return 0.5 * z + self.count * x

    with pytest.raises(InvalidInput, match="same answer twice"):
        of_function(Memory())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_steps": 3}, "max_steps"),
        ({"tolerance": 0.5}, "tolerance"),
        ({"rows": 0}, "rows"),
    ],
)
def test_bad_options(options, words: str) -> None:
    cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0, 1.0]])
    with pytest.raises(InvalidInput, match=words):
        nsd.diagnose(cell, ROWS, **options)


def test_bad_rows() -> None:
    cell = nsd.EquilibriumCell.from_weights([[0.5]], [[1.0, 1.0]])
    with pytest.raises(InvalidInput, match="2 features"):
        nsd.diagnose(cell, np.ones((4, 3)))
    with pytest.raises(InvalidInput, match="finite"):
        nsd.diagnose(cell, [[np.nan, 1.0]])
    with pytest.raises(InvalidInput, match="torch module"):
        nsd.diagnose("relu", ROWS)


class Convolutional(torch.nn.Module):
    """Weights in float32 that want gradients, and a state with three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.input = torch.nn.Conv2d(1, 4, 3, padding=1)
        # A circular pattern of one tap in the middle: z ↦ 0.6 z.
        with torch.no_grad():
            self.state.weight.zero_()
            self.state.weight[range(4), range(4), 1, 1] = 0.6

    def forward(self, z, x):
        return self.state(z) + self.input(x)


def test_a_convolutional_cell_in_float32() -> None:
    torch.manual_seed(0)
    rows = rng.standard_normal((40, 1, 5, 5))
    cell = nsd.EquilibriumCell.from_function(Convolutional(), (4, 5, 5))
    found = nsd.diagnose(cell, rows, progress=False)
    assert found.verdict == "settles"
    assert found.width == 100
    assert found.local_radius == pytest.approx(0.6, rel=1e-4)
    assert found.rate == pytest.approx(0.6, rel=0.02)
    assert found.effective_depth == 10  # the first k with 0.6^k ≤ 0.01


@pytest.mark.parametrize("readout", [None, (np.eye(3, 8), None)])
@pytest.mark.parametrize("max_steps", [300, 900])
def test_what_goes_round_slowly_does_not_settle(readout, max_steps: int) -> None:
    """A state that moves by less than a thousandth a step, for ever."""
    unit = np.random.default_rng(0).standard_normal((64, 8))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for angle, weak in ((9e-4, 1e-4), (5e-4, 1e-4), (9e-4, 0.0)):
        R = turning(angle)

        def f(z, x, R=R, weak=weak):
            gate = torch.relu(0.5 - z.norm(dim=-1, keepdim=True)) + weak
            g = z @ R.T.to(z) + gate * x
            return g / g.norm(dim=-1, keepdim=True)

        cell = nsd.EquilibriumCell.from_function(f, (8,), readout)
        result = nsd.diagnose(cell, unit, progress=False, max_steps=max_steps)
        assert result.verdict in ("undecided", "orbits", "drifts")
        assert result.settled < 0.95
        assert "one limit" not in str(result).splitlines()[0]


def test_a_slow_cycle_does_not_settle() -> None:
    W = 3.0 * turning(1.0, 2)
    rows = np.random.default_rng(1).standard_normal((64, 2))
    a = 5e-4

    def f(z, x):
        return (1.0 - a) * z + a * torch.tanh(z @ W.T.to(z) + 0.1 * x)

    result = of_function(f, rows=rows, max_steps=8000)
    assert result.verdict in ("undecided", "orbits", "drifts")
    assert result.settled == 0.0


def test_a_readout_of_another_precision_or_shape() -> None:
    """f in float64; logits in float32, of images, or of one number."""
    linear = torch.nn.Linear(2, 3)
    for readout, kind in (
        (linear, "class"),
        (lambda z: linear(z.float()), "class"),
        (lambda z: z[:, :, None] * torch.ones(4), "class"),
        (lambda z: z.sum(dim=1), "state"),
        (lambda z: z[:, :1], "state"),
    ):
        cell = nsd.EquilibriumCell.from_function(lambda z, x: 0.1 * z + x, 2, readout)
        result = nsd.diagnose(cell, ROWS, progress=False)
        # One step has the direction of the limit, and often its class.
        assert result.verdict in ({"idle", "shallow"} if kind == "class" else {"shallow"})
        assert result.agreement_kind == kind


def test_numbers_name_what_they_are() -> None:
    text = str(of_function(lambda z, x: torch.tanh(0.3 * z + x)))
    assert "steps to 1e-2 on 95% of the rows" in text
