"""The equation for the limiting spectrum, solved by routes that know nothing of each other."""

from __future__ import annotations

import numpy as np
import pytest

from notsodeep.equivalents.silverstein import SilversteinEquation


def equation(eigenvalues: object, weights: object, ratios: object) -> SilversteinEquation:
    table = np.asarray(eigenvalues, dtype=float)
    table = table[:, None] if table.ndim == 1 else table
    return SilversteinEquation(table, np.asarray(weights, float), np.atleast_1d(ratios) + 0.0)


def as_two_classes(one: SilversteinEquation) -> SilversteinEquation:
    """The same rows counted as two classes of one covariance: Newton's method, not polynomials."""
    table = np.repeat(one.eigenvalues, 2, axis=1)
    return SilversteinEquation(table, one.weights, one.ratios[0] * np.array([0.3, 0.7]))


def residual(eq: SilversteinEquation, z: np.ndarray, delta: np.ndarray) -> float:
    """|δ_a − Σ_k w_k λ_ka/(Σ_b c_b λ_kb/(1 + δ_b) − z)|, written out in loops."""
    worst = 0.0
    for point, row in zip(z, delta, strict=True):
        D = [sum(eq.ratios * lam / (1.0 + row)) for lam in eq.eigenvalues]
        for a, value in enumerate(row):
            image = sum(
                w * lam[a] / (d - point)
                for w, lam, d in zip(eq.weights, eq.eigenvalues, D, strict=True)
            )
            worst = max(worst, abs(image - value) / (1.0 + abs(value)))
    return worst


CASES = [
    pytest.param([1.0], [1.0], 0.6, id="one-atom"),
    pytest.param([0.5, 3.0], [0.4, 0.6], 0.6, id="two-atoms"),
    pytest.param([0.5, 3.0], [0.4, 0.6], 5.0, id="two-atoms-apart"),
    pytest.param([0.0, 1.0, 4.0], [0.3, 0.3, 0.4], 1.3, id="with-zero"),
    pytest.param(np.linspace(0.2, 1.8, 40), np.full(40, 1 / 40), 1.0, id="many"),
    pytest.param([[1.0, 2.0]], [1.0], [0.3, 0.5], id="two-scalars"),
    pytest.param([[1.0, 40.0]], [1.0], [0.3, 0.1], id="scalars-far-apart"),
    pytest.param([[0.2, 3.0], [2.0, 0.5]], [0.5, 0.5], [0.9, 0.9], id="two-shapes"),
    pytest.param([[1.0, 0.0], [0.0, 2.0]], [0.5, 0.5], [0.8, 0.2], id="disjoint"),
    pytest.param([[1, 2, 3], [2, 1, 0.5], [0.1, 1, 1]], [0.2, 0.5, 0.3], [1, 0.5, 0.2], id="three"),
]
every_case = pytest.mark.parametrize(("eigenvalues", "weights", "ratios"), CASES)


@every_case
def test_solves_the_equation_and_is_the_limit_from_above(eigenvalues, weights, ratios) -> None:
    eq = equation(eigenvalues, weights, ratios)
    x = np.linspace(0.013, 1.1 * eq.reach, 41)
    delta = eq.solve(x)
    assert delta.shape == (41, len(eq.ratios))
    assert residual(eq, x + 0j, delta) < 1e-11
    assert (delta.imag >= -1e-7 * (1.0 + np.abs(delta))).all()
    height = 1e-7 * eq.reach
    above = eq.solve(x + 1j * height)
    assert residual(eq, x + 1j * height, above) < 1e-11
    assert (above.imag >= 0.0).all()
    # Between edges δ is smooth in z; a wrong branch would be off by much more than the height.
    moved = np.abs(above - delta).max(axis=1) / (1.0 + np.abs(delta).max(axis=1))
    assert np.median(moved) < 1e-5
    assert moved.max() < 1e-2


@every_case
def test_stieltjes_transform_has_its_properties(eigenvalues, weights, ratios) -> None:
    eq = equation(eigenvalues, weights, ratios)
    z = np.array([0.3, 1.0, 2.5, 7.0]) + 1j * np.array([0.05, 0.3, 1.0, 0.01])
    m = eq.stieltjes(z)
    assert (m.imag > 0.0).all()
    assert ((z * m).imag >= 0.0).all()  # no negative eigenvalues
    far = np.array([1e7j * eq.reach])
    assert eq.stieltjes(far)[0] * far[0] == pytest.approx(-1.0, rel=1e-6)
    # z(zm + 1) → −(first moment), which is Σ_a (n_a/n) tr C_a/p.
    shares = eq.ratios / eq.ratios.sum()
    mean = shares @ (eq.weights @ eq.eigenvalues)
    far = np.array([1e4j * eq.reach])
    assert (far * (far * eq.stieltjes(far) + 1.0))[0].real == pytest.approx(-mean, rel=1e-3)


@pytest.mark.parametrize("ratio", [0.1, 0.8, 1.0, 3.0])
@pytest.mark.parametrize(
    ("eigenvalues", "weights"),
    [([1.0], [1.0]), ([0.5, 3.0], [0.4, 0.6]), ([0.0, 1.0, 2.0, 9.0], [0.1, 0.2, 0.3, 0.4])],
)
def test_newton_and_polynomials_agree(
    eigenvalues: list[float], weights: list[float], ratio: float
) -> None:
    one = equation(eigenvalues, weights, ratio)
    two = as_two_classes(one)
    x = np.linspace(0.021, 1.1 * one.reach, 83)
    for z in (x + 0j, x + 0.01j):
        first, second = one.solve(z), two.solve(z)
        scale = 1.0 + np.abs(first)
        near_edge = np.abs(one.solve(z + 1e-6j) - first) > 1e-4 * scale
        assert near_edge.mean() < 0.1
        clear = ~near_edge[:, 0]
        np.testing.assert_allclose(second[clear], (first * [1, 1])[clear], rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(two.stieltjes(z)[clear], one.stieltjes(z)[clear], rtol=1e-9)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.5])
def test_two_atoms_against_the_cubic(ratio: float) -> None:
    # (zm + 1)(1 + c t₁ m)(1 + c t₂ m) = m [w₁ t₁ (1 + c t₂ m) + w₂ t₂ (1 + c t₁ m)].
    (t1, t2), (w1, w2) = (0.7, 2.9), (0.35, 0.65)
    eq = equation([t1, t2], [w1, w2], ratio)
    for z in np.linspace(0.05, eq.reach, 60) + 1e-3j:
        left = np.polymul(np.polymul([z, 1.0], [ratio * t1, 1.0]), [ratio * t2, 1.0])
        right = np.polyadd(
            w1 * t1 * np.array([ratio * t2, 1.0]), w2 * t2 * np.array([ratio * t1, 1.0])
        )
        roots = np.roots(np.polysub(left, np.append(right, 0.0)))
        expected = roots[roots.imag.argmax()]
        assert eq.stieltjes(np.array([z]))[0] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("scalars", "ratios"), [((1.0, 2.5), (0.4, 0.3)), ((0.3, 4.0), (1.5, 0.9))]
)
def test_scalars_per_class_against_the_transposed_problem(
    scalars: tuple[float, float], ratios: tuple[float, float]
) -> None:
    """(1/p) A^{1/2}ZZᵀA^{1/2} has the spectrum of (1/p) ZᵀAZ: rows and features change places."""
    rows = np.array(ratios)
    n_over_p = rows.sum()
    eq = equation([list(scalars)], [1.0], rows)
    swapped = equation(np.array(scalars) * n_over_p, rows / n_over_p, 1.0 / n_over_p)
    z = np.linspace(0.05, 1.2 * eq.reach, 50) + 0.003j
    # n m(z) + n/z is the same on both sides, apart from zeros: n m = p m' + (p − n)/z.
    expected = (swapped.stieltjes(z) + (1.0 - n_over_p) / z) / n_over_p
    np.testing.assert_allclose(eq.stieltjes(z), expected, rtol=1e-10)


def test_order_of_classes_and_units_do_not_matter() -> None:
    table = np.random.default_rng(0).uniform(0.2, 3.0, (6, 3))
    weights, ratios = np.full(6, 1 / 6), np.array([0.2, 0.5, 0.4])
    eq = equation(table, weights, ratios)
    z = np.linspace(0.1, 6.0, 20) + 0.05j
    m = eq.stieltjes(z)
    order = [2, 0, 1]
    np.testing.assert_allclose(equation(table[:, order], weights, ratios[order]).stieltjes(z), m)
    np.testing.assert_allclose(equation(1e6 * table, weights, ratios).stieltjes(1e6 * z) * 1e6, m)


@pytest.mark.parametrize(
    ("eigenvalues", "weights", "ratios", "rank"),
    [
        ([[1.0, 2.0], [0.0, 0.0]], [0.6, 0.4], [0.5, 0.5], 0.6),
        ([[1.0, 2.0], [3.0, 1.0]], [0.6, 0.4], [0.2, 0.5], 0.7),
        ([[1.0, 0.0], [0.0, 2.0]], [0.5, 0.5], [0.8, 0.2], 0.7),
        ([[1.0, 0.0], [1.0, 2.0]], [0.5, 0.5], [0.8, 0.2], 1.0),
        ([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [0.3, 0.7], [0.4, 0.1, 0.2], 0.5),
    ],
)
def test_rank(eigenvalues, weights, ratios, rank: float) -> None:
    assert equation(eigenvalues, weights, ratios).rank() == pytest.approx(rank, abs=1e-9)
    table, p = np.asarray(eigenvalues), 200
    root = np.repeat(np.sqrt(table), np.rint(np.array(weights) * p).astype(int), axis=0)
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(round(c * p), p)) * root[:, a] for a, c in enumerate(ratios)]
    assert np.linalg.matrix_rank(np.concatenate(rows)) == round(rank * p)


def test_no_points() -> None:
    for eq in (equation([1.0], [1.0], 0.5), equation([[1.0, 2.0]], [1.0], [0.5, 0.5])):
        assert eq.solve(np.empty(0)).shape == (0, len(eq.ratios))
        assert eq.stieltjes(np.empty(0)).shape == (0,)
