"""Classes in regions: never certified wrongly, against enumeration, attacks and perturbations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import notsodeep as nsd
from given_networks import FloatArray, Reference, drawn_cell, exact_logits
from notsodeep.activations import Activation, from_formula, hard_tanh, leaky_relu, named
from notsodeep.errors import InvalidInput
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell, Method
from notsodeep.trained import margin_of, regions
from notsodeep.trained.regions import _Problem, certified_radius, certify

UNITS: dict[str, Activation] = {
    "relu": named("relu"),
    "leaky relu": leaky_relu(1.0, 0.1),
    "hard tanh": hard_tanh(),
    "tanh": named("tanh"),
    "sigmoid": from_formula("sigmoid(x)"),
}


def small_cell(seed: int, width: int, activation: Activation | None = None) -> AffineDEQ:
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.2, 2.0)
    phi = activation or named("relu")
    cell = drawn_cell(rng, phi, width=width, inputs=3, margin=0.5, size=size)
    cell.method = Method("peaceman_rachford", 2.0 / margin_of(cell).lipschitz)
    return cell


def true_radius(cell: AffineDEQ, x: FloatArray, upper: float = 1e3) -> float:
    """Return the distance in the largest norm to the nearest input of another class.

    On every activation pattern u* is linear in x: a linear programme for each, and each rival.
    """
    ref = Reference(cell)
    W, U = ref.W, ref.U / ref.scale
    b = ref.b - U @ ref.shift
    m, p = U.shape
    best = int(exact_logits(cell, x[None])[0].argmax())
    nearest = upper
    for pattern in product((0.0, 1.0), repeat=m):
        D = np.array(pattern)
        inverse = np.linalg.inv(np.eye(m) - W * D)
        A, a = inverse @ U, inverse @ b  # u = A x + a
        signs = np.where(D > 0, -1.0, 1.0)
        box = np.vstack([np.eye(p), -np.eye(p)])
        for rival in range(len(ref.C)):
            if rival == best:
                continue
            gap = (ref.C[rival] - ref.C[best]) * D
            ahead = gap @ a + ref.c[rival] - ref.c[best]
            rows = np.vstack([signs[:, None] * A, -gap @ A, box])
            limits = np.concatenate([-signs * a, [ahead], x, -x])
            column = np.concatenate([np.zeros(m + 1), -np.ones(2 * p)])
            found = linprog(
                np.append(np.zeros(p), 1.0),
                A_ub=np.column_stack([rows, column]),
                b_ub=limits,
                bounds=[(None, None)] * p + [(0, None)],
            )
            if found.status == 0:
                nearest = min(nearest, float(found.x[-1]))
    return nearest


def ratios_to_the_truth(seeds: range, width: int) -> list[float]:
    ratios = []
    for seed in seeds:
        cell = small_cell(seed, width)
        x = 2.0 * np.random.default_rng(seed).standard_normal(3)
        true = true_radius(cell, x)
        # There is an input of another class at the true radius, which is known to 1e-9.
        assert not certify(cell, x[None], true * (1 + 1e-6), progress=False).certified[0]
        if 1e-3 < true < 100.0:
            ratios.append(float(certified_radius(cell, x[None], steps=6)[0]) / true)
    return ratios


def test_no_radius_is_beyond_the_true_one() -> None:
    ratios = ratios_to_the_truth(range(8), 4)
    assert max(ratios) < 1.0
    assert np.median(ratios) > 0.5


@pytest.mark.slow
def test_no_radius_is_beyond_the_true_one_in_many() -> None:
    ratios = [*ratios_to_the_truth(range(100, 220), 4), *ratios_to_the_truth(range(220, 240), 7)]
    assert max(ratios) < 1.0
    assert np.median(ratios) > 0.5


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_bounds_of_units_hold_for_perturbations(name: str, norm: str) -> None:
    """Corners, and points inside, of regions of many sizes, far beyond those that are certified."""
    rng = np.random.default_rng(0)
    for seed in range(3):
        cell = small_cell(seed, 8, UNITS[name])
        problem = _Problem(cell, norm)
        ref, X = Reference(cell), rng.standard_normal((2, 3))
        for i, u in enumerate(problem.states(X)):
            for radius in (1e-6, 1e-3, 0.1, 1.0, 10.0):
                UR = ref.U * (radius / ref.scale)
                local = problem.neighbourhood(u, X[i], UR)
                if local is None:
                    continue
                delta = rng.uniform(-1, 1, (60, 3))
                delta[:40] = np.sign(delta[:40])
                if norm == "l2":
                    delta /= np.linalg.norm(delta, axis=1, keepdims=True)
                rows = X[i] + radius * delta
                with torch.no_grad():
                    solved = cell.solve(cell.drive(rows), 1e-12)
                    solved.require()
                z = solved.z.numpy()
                moved = np.abs(ref.step_argument(z, rows) - u)
                bounds = local(None)
                assert (moved <= bounds * (1 + 1e-9) + 1e-9 * np.abs(u).max()).all()
                g = rng.standard_normal((4, 8))
                change = (z - cell.activation(u)) @ g.T
                assert (change <= local(g) * (1 + 1e-9) + 1e-9).all()


def test_falsified_sectors_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With slopes that are taken for known, radii are larger than the true ones."""
    sector = regions._linear_sector

    def narrow(phi, u, r):
        low, high = sector(phi, u, r)
        middle = 0.5 * (low + high)
        return middle + 0.2 * (low - middle), middle + 0.2 * (high - middle)

    monkeypatch.setattr(regions, "_linear_sector", narrow)
    wrong = 0
    for seed in range(12):
        cell = small_cell(seed, 4)
        x = 2.0 * np.random.default_rng(seed).standard_normal(3)
        true = true_radius(cell, x)
        wrong += certify(cell, x[None], true * (1 + 1e-6), progress=False).certified[0]
    assert wrong > 0


@pytest.mark.parametrize("name", ["tanh-digits-64", "monotone-digits-64"])
@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.02), ("l2", 0.15)])
def test_no_certified_row_is_broken(name: str, norm: str, radius: float) -> None:
    cell, data = nsd.zoo.load(name), nsd.data.load("digits", preprocessing="unit_range")
    X, y = data.X_test[:12], data.y_test[:12]
    result = certify(cell, X, radius, norm, clip=(0.0, 1.0), y=y, progress=False)
    assert result.certified_accuracy <= result.attacked_accuracy <= result.accuracy
    assert not (result.certified & (result.classes == y) & result.broken).any()
    assert result.certified.mean() > 0.2
    rng = np.random.default_rng(0)
    for _ in range(40):
        delta = rng.standard_normal(X.shape)
        delta = np.sign(delta) if norm == "linf" else delta / np.linalg.norm(delta, axis=1)[:, None]
        moved = exact_logits(cell, np.clip(X + radius * delta, 0.0, 1.0)).argmax(axis=1)
        assert (moved == result.classes)[result.certified].all()
    text = str(result)
    assert "after 40 projected gradient steps" in text
    assert type(result).from_dict(result.to_dict()).to_dict() == result.to_dict()


@pytest.mark.slow
def test_no_certified_row_is_broken_in_many() -> None:
    data, certified = nsd.data.load("digits", preprocessing="unit_range"), 0
    for name in ("tanh-digits-64", "monotone-digits-64"):
        for norm, radius in (("linf", 0.01), ("linf", 0.03), ("l2", 0.1)):
            result = certify(
                nsd.zoo.load(name), data.X_test, radius, norm, y=data.y_test, progress=False
            )
            right = result.certified & (result.classes == data.y_test)
            assert not (right & result.broken).any()
            certified += int(right.sum())
    assert certified > 500


def test_regions_of_no_size_and_of_units_that_square_to_nothing() -> None:
    cell = small_cell(3, 5)
    X = np.random.default_rng(1).standard_normal((20, 3))
    result = certify(cell, X, 0.0, progress=False)
    assert result.certified.mean() > 0.9
    np.testing.assert_array_equal(result.classes, exact_logits(cell, X).argmax(axis=1))
    own = cell.arrays()
    for unit in (1e-200, 1e150):
        scaled = EquilibriumCell.from_weights(
            own["W"], own["U"], own["b"] * unit, "relu", (own["C"], own["c"] * unit)
        )
        assert not certify(scaled, X * unit, 0.1 * unit, progress=False).certified.any()


def test_a_box_that_is_cut_off_has_a_centre_of_its_own() -> None:
    cell = EquilibriumCell.from_weights([[-9.0]], [[1.0]], readout=([[1.0], [0.0]], [0, 0.2]))
    # Classes part at x = 2: [1.2, 2.2] is cut off at 1.9.
    assert not certify(cell, [[1.7]], 0.5, progress=False).certified[0]
    assert certify(cell, [[1.7]], 0.5, clip=(0.0, 1.9), progress=False).certified[0]


CELL = EquilibriumCell.from_weights(np.eye(2) / 2, np.eye(2), None, "relu", (np.eye(2), None))


@pytest.mark.parametrize(
    ("cell", "options", "words"),
    [
        (CELL, {"radius": -0.1}, "radius must not be negative"),
        (CELL, {"radius": np.nan}, "radius .*must be finite"),
        (CELL, {"radius": [0.1, 0.2], "norm": "l2"}, "radius must"),
        (CELL, {"norm": "l1"}, "norm must be linf or l2"),
        (CELL, {"clip": (0.0, 0.5)}, "clip must be"),
        (CELL, {"y": [0, 1, 1]}, "y must be a vector of 2"),
        (CELL, {"y": [0, 5]}, "indices of the 2 logits"),
        (
            EquilibriumCell.from_weights([[1.5]], [[1.0]], readout=([[1.0], [0.0]], None)),
            {},
            "must have a margin",
        ),
        (
            EquilibriumCell.from_weights([[0.1]], [[1.0]], None, "gelu", ([[1.0], [0.0]], None)),
            {},
            "increasing units",
        ),
        (
            EquilibriumCell.from_weights(
                [[0.1]], [[1.0]], None, "softplus", ([[1.0], [0.0]], None)
            ),
            {},
            "secants are not known",
        ),
    ],
)
def test_what_is_rejected(cell: AffineDEQ, options: dict[str, object], words: str) -> None:
    X = np.ones((2, cell.inputs))
    with pytest.raises(InvalidInput, match=words):
        certify(cell, X, **{"radius": 0.1, "progress": False, **options})
