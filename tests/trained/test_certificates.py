"""The a-posteriori bound and certified classes: never wrong, and wrong once the margin is."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import notsodeep as nsd
from exact_states import extended_logits
from given_networks import ACTIVATIONS, FloatArray, Reference, drawn_cell
from notsodeep.activations import Activation, from_formula, named, piecewise_linear
from notsodeep.activations.slopes import slope_range
from notsodeep.activations.transformed import centred_by
from notsodeep.errors import InvalidInput
from notsodeep.networks.affine import AffineDEQ, solve_rows
from notsodeep.networks.cell import EquilibriumCell, Method
from notsodeep.trained.certificate import Certifier
from notsodeep.trained.hybrid import HybridEquilibrium
from notsodeep.trained.margin import Margin, margin_of

POINTS = 25  # pre-activations u that are tried on each network


def exact_states(cell: AffineDEQ, margin: Margin, X: FloatArray) -> torch.Tensor:
    maps = cell.splitting(Method("peaceman_rachford", 2.0 / margin.lipschitz))
    solved = solve_rows(maps, cell.drive(X), 1e-13, max_steps=20_000)
    assert float(solved.residuals.max()) <= 1e-12
    return solved.z


def scaled_cell(rng: np.random.Generator, activation: Activation) -> tuple[AffineDEQ, Margin]:
    """Return a network with a random Λ, and its margin in the norm of that Λ."""
    width = int(rng.integers(1, 9))
    beta = slope_range(activation).high
    strength, size = 10.0 ** rng.uniform(-2, 1, 2)
    A, B = (rng.standard_normal((width, width)) for _ in range(2))
    scaling = np.exp(rng.standard_normal(width))
    S = strength * np.eye(width) + size * A.T @ A
    G = (S + size * (B - B.T)) / scaling[:, None]
    cell = EquilibriumCell.from_weights(
        np.eye(width) / beta - G,
        rng.standard_normal((width, 3)),
        rng.standard_normal(width),
        activation,
        (rng.standard_normal((4, width)), rng.standard_normal(4)),
    )
    root = np.sqrt(scaling)
    balanced = root[:, None] * G / root
    value = float(np.linalg.eigvalsh(0.5 * (balanced + balanced.T))[0])
    length, norm = (float(np.linalg.norm(M, 2)) for M in (balanced, Reference(cell).W))
    return cell, Margin("scaled", value, length, norm, scaling, *slope_range(activation), "given")


def violations(networks: int, seed: int, factor: float = 1.0) -> tuple[int, int, int]:
    """Return bounds exceeded, classes wrongly certified, and classes certified.

    A `factor` other than one falsifies the margin: S⁻¹ is taken to be factor² times what it is.
    """
    rng = np.random.default_rng(seed)
    exceeded = wrong = certified = 0
    names = list(ACTIVATIONS)
    for index in range(networks):
        cell, margin = scaled_cell(rng, ACTIVATIONS[names[index % len(names)]])
        X = np.repeat(rng.standard_normal((1, 3)), POINTS, axis=0)
        exact = exact_states(cell, margin, X)
        ref, certifier = Reference(cell), Certifier(cell, margin)
        if factor != 1.0:
            certifier._root = certifier._root * factor
        near = 10.0 ** rng.uniform(-6, 1, (POINTS, 1))
        target = exact.numpy() @ ref.W.T + ref.drive(X)
        u = torch.as_tensor(target + near * rng.standard_normal(target.shape))
        rows = certifier.rows(X)
        bounds = certifier.bounds(u, *rows).numpy()
        S = margin.scaling[:, None] * (np.eye(cell.width) / margin.beta - ref.W)
        d = cell.activation(u.numpy()) - exact.numpy()
        distance = np.sqrt(np.einsum("ni,ij,nj->n", d, 0.5 * (S + S.T), d))
        # The reference itself is known to about 1e-11 only.
        exceeded += int((distance > bounds + 1e-9 * (1.0 + distance)).sum())
        z = cell.activation(u.numpy())
        v = u.numpy() - ref.step_argument(z, X)
        d = z - 0.5 * np.linalg.solve(0.5 * (S + S.T), (margin.scaling * v).T).T - exact.numpy()
        distance = np.sqrt(np.maximum(np.einsum("ni,ij,nj->n", d, 0.5 * (S + S.T), d), 0.0))
        exceeded += int((distance > 0.5 * bounds + 1e-9 * (1.0 + bounds)).sum())
        values, widths = (each.numpy() for each in certifier.outputs(u, *rows))
        off = np.abs(values - ref.logits(exact.numpy()))
        exceeded += int((off > widths + 1e-9 * (1.0 + off)).sum())
        found = certifier.classes(u, *rows)
        scores = ref.logits(exact.numpy())
        right = found.classes.numpy() == scores.argmax(axis=1)
        wrong += int((found.proved.numpy() & ~right).sum())
        certified += int(found.proved.sum())
    return exceeded, wrong, certified


def test_no_bound_is_exceeded() -> None:
    exceeded, wrong, certified = violations(24, seed=0)  # 600 draws
    assert (exceeded, wrong) == (0, 0)
    assert certified > 100


@pytest.mark.slow
def test_no_bound_is_exceeded_in_ten_thousand() -> None:
    exceeded, wrong, certified = violations(402, seed=1)  # 10,050 draws
    assert (exceeded, wrong) == (0, 0)
    assert certified > 2000


def test_a_falsified_margin_is_found_out() -> None:
    exceeded, wrong, _ = violations(24, seed=2, factor=0.02)
    assert exceeded > 10
    assert wrong > 0


def test_near_ties_are_never_certified_wrongly() -> None:
    """Read-outs whose two classes differ by rounding alone, in float32 and in float64 states."""
    rng = np.random.default_rng(6)
    cell = drawn_cell(rng, named("relu"), width=30, margin=1.0)
    X = rng.standard_normal((200, 5))
    ref, margin = Reference(cell), margin_of(cell)
    exact = exact_states(cell, margin, X).numpy()
    weights = rng.standard_normal(30)
    for gap in (0.0, 1e-16, 1e-14, 1e-12, 1e-8):
        # Two equal rows of C, and biases that make the first win by `gap` alone.
        tied = with_readout(cell, np.stack([weights, weights]), np.array([gap, 0.0]))
        certifier = Certifier(tied, margin)
        target = torch.as_tensor(exact @ ref.W.T + ref.drive(X))
        for u in (target, target.float().double(), target + 1e-3):
            found = certifier.classes(u, *certifier.rows(X))
            assert not found.proved[found.classes == 1].any()
            if gap == 0.0:
                assert not found.proved.any()
    # With a lead that the exact states have, and no more, nothing is proved beyond it.
    scores = ref.logits(exact)
    order = np.sort(scores, axis=1)
    lead = order[:, -1] - order[:, -2]
    certifier = Certifier(cell, margin)
    found = certifier.classes(torch.as_tensor(target.numpy() + 0.01), *certifier.rows(X))
    assert found.proved.any()
    assert lead[found.proved.numpy()].min() > 0.0


def test_a_contraction_with_negative_slopes_is_certified() -> None:
    rng = np.random.default_rng(7)
    W = rng.standard_normal((6, 6))
    W *= 0.5 / np.linalg.norm(W, 2)
    readout = (rng.standard_normal((3, 6)), None)
    cell = EquilibriumCell.from_weights(W, rng.standard_normal((6, 4)), 0.1, "gelu", readout)
    X = rng.standard_normal((40, 4))
    z = np.zeros((40, 6))
    ref = Reference(cell)
    for _ in range(200):
        z = ref.step(z, ref.drive(X))
    certifier = Certifier(cell)
    u = torch.as_tensor(z @ W.T + ref.drive(X) + 0.01 * rng.standard_normal(z.shape))
    distance = np.linalg.norm(cell.activation(u.numpy()) - z, axis=1)
    assert (distance <= certifier.bounds(u, *certifier.rows(X)).numpy()).all()
    found = certifier.classes(u, *certifier.rows(X))
    right = found.classes.numpy() == ref.logits(z).argmax(axis=1)
    assert found.proved.float().mean() > 0.5
    assert right[found.proved.numpy()].all()


def test_without_a_margin_there_is_no_certifier() -> None:
    cell = EquilibriumCell.from_weights([[1.5]], [[1.0]], readout=([[1.0]], None))
    with pytest.raises(InvalidInput, match="must have a margin"):
        Certifier(cell)


def with_readout(cell: AffineDEQ, C: FloatArray, c: FloatArray | None) -> AffineDEQ:
    own = cell.arrays()
    return EquilibriumCell.from_weights(
        own["W"],
        own["U"],
        own["b"],
        cell.activation,
        (C, c),
        shift=own["shift"],
        scale=own["scale"],
    )


def contracted_cell(rng: np.random.Generator, activation: Activation | str) -> AffineDEQ:
    W = rng.standard_normal((6, 6))
    W *= 0.5 / np.linalg.norm(W, 2)
    readout = (rng.standard_normal((3, 6)), None)
    return EquilibriumCell.from_weights(W, rng.standard_normal((6, 4)), None, activation, readout)


@pytest.mark.parametrize("of", ["rows", "read-out"])
def test_classes_do_not_depend_on_the_unit(of: str) -> None:
    """Squares of 1e-200 are zero; a bound of zero would prove every class."""
    rng = np.random.default_rng(8)
    cell, X = contracted_cell(rng, "relu"), rng.standard_normal((200, 4))
    choice = Method("plain")
    base = HybridEquilibrium(cell, margin_of(cell), (), choice)
    right = base(torch.tensor(X)).argmax(1)
    open_rows = base.last_record.uncertified  # states that are zero: ties
    for exponent in (-100, -150, -162, -170, -200, -300):
        unit = 10.0**exponent
        tiny = with_readout(cell, Reference(cell).C * unit, None)
        net, rows = (cell, X * unit) if of == "rows" else (tiny, X)
        hybrid = HybridEquilibrium(net, margin_of(net), (), choice)
        np.testing.assert_array_equal(hybrid(torch.tensor(rows)).argmax(1), right)
        if exponent > -250:
            assert hybrid.last_record.uncertified == open_rows
        inputs = hybrid.certifier.rows(rows)
        bounds = hybrid.certifier.bounds(inputs[0], *inputs)
        assert (bounds > 0.0).all()


def test_the_constant_of_an_activation_is_counted() -> None:
    """sigmoid(x) − ½ is right to the last place of ½ alone, whatever the size of the state."""
    phi = centred_by(from_formula("sigmoid(x)"), 1.0, 0.5)
    proved = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        cell = contracted_cell(rng, phi)
        X = rng.standard_normal((50, 4)) * 10.0 ** rng.uniform(-18, -4, (50, 1))
        certifier = Certifier(cell)
        rows = certifier.rows(X)
        ref = Reference(cell)
        # ½ tanh(u/2) is the same function, without the constant.
        z = np.zeros((50, 6))
        for _ in range(60):
            u = z @ ref.W.T + ref.drive(X)
            z = 0.5 * np.tanh(0.5 * u)
        found = certifier.classes(torch.tensor(u), *rows)
        ok = found.proved.numpy()
        proved += int(ok.sum())
        right = ref.logits(z).argmax(axis=1)
        np.testing.assert_array_equal(found.classes.numpy()[ok], right[ok])
        S = np.eye(6) / 0.25 - ref.W
        d = found.states.numpy() - z
        distance = np.sqrt(np.einsum("ni,ij,nj->n", d, 0.5 * (S + S.T), d))
        assert (distance <= certifier.bounds(torch.tensor(u), *rows).numpy()).all()
    assert proved > 100


def test_what_is_proved_is_proved_of_the_activation_itself() -> None:
    """A ramp from 1 to 2: the state of torch is that of NumPy."""
    ramp = piecewise_linear((1.0, 2.0), (0.0, 1.0, 0.0))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        cell, X = contracted_cell(rng, ramp), rng.standard_normal((100, 4))
        z, ref = np.zeros((100, 6)), Reference(cell)
        for _ in range(200):
            z = ramp(u := z @ ref.W.T + ref.drive(X))
        certifier = Certifier(cell)
        found = certifier.classes(torch.tensor(u), *certifier.rows(X))
        np.testing.assert_allclose(found.states, z, atol=1e-12)
        assert found.proved.float().mean() > 0.5
        right = ref.logits(z).argmax(axis=1)[found.proved.numpy()]
        np.testing.assert_array_equal(found.classes[found.proved], right)


def test_weights_in_single_precision_are_certified_as_they_are() -> None:
    cell = contracted_cell(np.random.default_rng(3), "tanh")
    X = np.random.default_rng(4).standard_normal((50, 4))
    single = cell.float()
    ref, z = Reference(single), np.zeros((50, 6))
    for _ in range(200):
        z = ref.step(z, ref.drive(X))
    certifier = Certifier(single)
    states = single.states(torch.tensor(X, dtype=torch.float32)).detach().double()
    u = torch.tensor(ref.drive(X)) + states @ torch.tensor(ref.W).mT
    found = certifier.classes(u, *certifier.rows(X))
    assert found.proved.all()
    np.testing.assert_array_equal(found.classes, ref.logits(z).argmax(axis=1))


def test_the_centred_bound_is_attained() -> None:
    """Where all units are active the inequality of every unit is an equality."""
    rng = np.random.default_rng(10)
    for _ in range(20):
        cell = drawn_cell(rng, named("relu"), width=6, margin=0.5)
        with torch.no_grad():
            cell.bias += 100.0 * torch.tensor(np.linalg.norm(Reference(cell).W, 2) + 1.0)
            W = cell.recurrent
            cell.bias.copy_((torch.eye(6) - W) @ torch.full((6,), 100.0, dtype=torch.float64))
        ref, margin = Reference(cell), margin_of(cell)
        X = 0.1 * rng.standard_normal((10, 5)) + 0.1
        exact = exact_states(cell, margin, X).numpy()
        u = exact + rng.standard_normal(exact.shape)
        assert (u > 0).all()
        certifier, S = Certifier(cell), np.eye(6) - ref.W
        S = margin.scaling[:, None] * S
        S = 0.5 * (S + S.T)
        v = u - ref.step_argument(u, X)
        d = u - 0.5 * np.linalg.solve(S, (margin.scaling * v).T).T - exact
        distance = np.sqrt(np.einsum("ni,ij,nj->n", d, S, d))
        bounds = certifier.bounds(torch.tensor(u), *certifier.rows(X)).numpy()
        np.testing.assert_allclose(distance, 0.5 * bounds, rtol=0.01)


def boundary_questions(
    rng: np.random.Generator, width: int, rows: int, scale: float
) -> tuple[int, int, int]:
    """Return false proofs, proofs and questions about rows at class boundaries of one network.

    Rows are as near to a boundary as their own rounding allows; states are the exact ones, in
    float64, and those with noise of many sizes.
    """
    cell = drawn_cell(
        rng,
        named("relu"),
        width=width,
        inputs=4,
        margin=10.0 ** rng.uniform(-2, 0.5),
        size=10.0 ** rng.uniform(-1, 1),
        spread=rng.uniform(0.0, 0.3),
    )
    own = cell.arrays()
    cell = EquilibriumCell.from_weights(
        own["W"], own["U"], own["b"] * scale, "relu", (own["C"], own["c"] * scale)
    )
    certifier = Certifier(cell)
    maps = cell.splitting(Method("peaceman_rachford", 2.0 / certifier.margin.lipschitz))

    def solved(X: FloatArray) -> tuple[FloatArray, FloatArray]:
        start = solve_rows(maps, cell.drive(X).detach(), 1e-9, max_steps=500)
        u, logits = extended_logits(cell, X, start.z.numpy())
        return u, logits

    low, high = (rng.standard_normal((rows, 4)) * scale for _ in range(2))
    first = solved(low)[1].argmax(axis=1)
    differ = first != solved(high)[1].argmax(axis=1)
    low, high, first = low[differ], high[differ], first[differ]
    if not len(low):
        return 0, 0, 0
    for _ in range(56):
        middle = low + 0.5 * (high - low)
        same = (solved(middle)[1].argmax(axis=1) == first)[:, None]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    wrong = proofs = questions = 0
    step = high - low
    for back in (0.0, 1.0, 8.0, 1e3, 1e6, 1e9):
        X = np.concatenate([low - back * step, high + back * step])
        u, logits = solved(X)
        right, gap = logits.argmax(axis=1), np.sort(logits, axis=1)
        certain = gap[:, -1] - gap[:, -2] > 1e-17 * np.abs(logits).max(axis=1)
        inputs = certifier.rows(X)
        for noise in (0.0, 1e-15, 1e-12, 1e-8, 1e-4):
            state = u.astype(np.float64)
            size = np.abs(state).max(axis=1, keepdims=True)
            state = state + noise * size * rng.standard_normal(state.shape)
            answer = certifier.classes(torch.tensor(state), *inputs)
            proved, classes = answer.proved.numpy(), answer.classes.numpy()
            # Where extended precision cannot tell the class nothing may be proved.
            wrong += int((proved & ((classes != right) | ~certain)).sum())
            proofs += int(proved.sum())
            questions += len(proved)
    return wrong, proofs, questions


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e150])
def test_no_false_proof_at_class_boundaries(scale: float) -> None:
    totals = np.zeros(3, dtype=int)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        totals += boundary_questions(rng, int(rng.integers(2, 11)), 40, scale)
    wrong, proofs, questions = totals
    assert wrong == 0
    assert proofs > 0.1 * questions > 50


@pytest.mark.slow
def test_no_false_proof_in_a_hundred_thousand() -> None:
    totals, seed = np.zeros(3, dtype=int), 100
    while totals[2] < 100_000:
        rng, seed = np.random.default_rng(seed), seed + 1
        scale = float(rng.choice([1.0, 1.0, 1e-200, 1e-100, 1e150]))
        totals += boundary_questions(rng, int(rng.integers(1, 11)), 100, scale)
    for seed in range(2):  # of width 100
        totals += boundary_questions(np.random.default_rng(seed), 100, 10, 1.0)
    assert totals[0] == 0
    assert totals[1] > 10_000


def test_states_from_anywhere_are_certified() -> None:
    cell, data = (
        nsd.zoo.load("monotone-digits-64"),
        nsd.data.load("digits", preprocessing="unit_range"),
    )
    X = data.X_test[:200]
    with torch.no_grad():
        solved = cell.solve(cell.drive(X), 1e-12)
        exact = cell.logits(solved.z).numpy()
        half = copy.deepcopy(cell).bfloat16().double()  # weights rounded to eight bits
        states = half.solve(half.drive(X), 1e-6).z
    result = nsd.certify_states(cell, X, z=states.numpy())
    assert result.proved.mean() > 0.8
    right = exact.argmax(axis=1)
    np.testing.assert_array_equal(result.classes[result.proved], right[result.proved])
    assert (np.abs(result.values - exact) <= result.half_widths).all()
    noise = np.random.default_rng(0).standard_normal((200, 64))
    assert nsd.certify_states(cell, X, noise).proved.mean() < 0.1
    assert type(result).from_dict(result.to_dict()).to_dict() == result.to_dict()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "u or z must be given"),
        ({"u": np.ones((2, 3)), "z": np.ones((2, 3))}, "u or z must be given"),
        ({"u": np.ones((2, 4))}, r"shape \(2, 3\), got \(2, 4\)"),
        ({"z": np.full((2, 3), np.nan)}, "finite"),
    ],
)
def test_states_that_do_not_fit(arguments: dict[str, FloatArray], words: str) -> None:
    cell = EquilibriumCell.from_weights(np.eye(3) / 2, np.eye(3), None, "relu", (np.eye(3), None))
    with pytest.raises(InvalidInput, match=words):
        nsd.certify_states(cell, np.ones((2, 3)), **arguments)
