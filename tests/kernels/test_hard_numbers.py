"""Kernels in hard places: right, or refused by name.

Expected values are closed forms, or integrals by a rule of our own that shares nothing with the
package: Gauss–Legendre on many narrow panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import from_formula, from_function, hard_tanh, hermite, polynomial
from notsodeep.errors import (
    NotConverged,
    NotSoDeepError,
    QuadratureError,
)

Function = Callable[[np.ndarray], np.ndarray]


def expectation(function: Function, scale: float, breaks: tuple[float, ...] = ()) -> float:
    """E f(τξ) on panels of width 1/100, cut at the given points x."""
    inside = [b / scale for b in breaks if abs(b) < 12 * scale]
    ends = np.unique([*np.linspace(-12, 12, 2401), *inside])
    nodes, weights = np.polynomial.legendre.leggauss(12)
    half, middle = 0.5 * np.diff(ends)[:, None], 0.5 * (ends[1:] + ends[:-1])[:, None]
    x = middle + half * nodes
    density = np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    return float((half * weights * density * function(scale * x)).sum())


def pair_of(norm1: float, norm2: float, rest: float) -> np.ndarray:
    """Two rows with the given norms and 1 − cosine."""
    sine = math.sqrt(rest * (2 - rest))
    return np.array([[norm1, 0.0], [norm2 * (1 - rest), norm2 * sine]])


@pytest.mark.parametrize("frequency", [4.0, 9.0])
@pytest.mark.parametrize(("norm1", "norm2"), [(1.0, 1.0), (3.0, 3.3), (2.0, 2.0)])
@pytest.mark.parametrize("rest", [1e-2, 1e-4])
def test_fast_oscillation(frequency: float, norm1: float, norm2: float, rest: float) -> None:
    X = pair_of(norm1, norm2, rest)
    network = nsd.ExplicitNetwork([from_formula(f"sin({frequency:g}*x)")])
    pair = nsd.kernel(network, X, convention="preactivation", kind="both")
    w2, inner = frequency**2, float(X[0] @ X[1])
    # E sin(wu) sin(wv) = exp(−w²(q₁ + q₂)/2) sinh(w² c), and likewise with cosines.
    shift = -0.5 * w2 * (norm1**2 + norm2**2)
    plus, minus = math.exp(shift + w2 * inner), math.exp(shift - w2 * inner)
    conjugate, slope = 0.5 * (plus - minus), 0.5 * w2 * (plus + minus)
    assert abs(pair.ck[0, 1] - conjugate) <= 1e-12 * 0.5
    size = math.sqrt(pair.ntk[0, 0] * pair.ntk[1, 1])
    assert abs(pair.ntk[0, 1] - conjugate - inner * slope) <= 1e-11 * size


def test_too_fast_is_refused_and_nothing_unchecked_is_claimed() -> None:
    with pytest.raises(QuadratureError, match="varies very fast"):
        from_formula("sin(400*x)")
    fast = nsd.ExplicitNetwork([from_formula("sin(40*x)")])
    with pytest.raises(QuadratureError, match=r"evaluations|varies|estimated error"):
        nsd.kernel(fast, pair_of(300.0, 300.0, 1e-4), convention="preactivation", kind="both")


@pytest.mark.parametrize("formula", ["x**3", "relu(x)**2", "x*tanh(x)", "1-cos(x)", "x**5+x"])
def test_many_scales_keep_relative_accuracy_at_each(formula: str) -> None:
    activation = from_formula(formula, kinks=(0.0,) if "relu" in formula else ())
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 12))
    X *= (np.geomspace(1e-2, 1e2, 64) / np.linalg.norm(X, axis=1))[:, None]
    network = nsd.ExplicitNetwork([activation])
    many = nsd.kernel(network, X, convention="preactivation", kind="both")
    for start in range(0, 64, 8):  # few rows: nothing is interpolated
        rows = slice(start, start + 8)
        few = nsd.kernel(network, X[rows], convention="preactivation", kind="both")
        for kernel in ("ck", "ntk"):
            expected, got = getattr(few, kernel), getattr(many, kernel)[rows, rows]
            sizes = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
            assert (np.abs(got - expected) / sizes).max() <= 1e-12


@pytest.mark.parametrize(
    ("formula", "kinks", "function"),
    [
        ("min(x,10)", (10.0,), lambda x: np.minimum(x, 10)),
        ("x+relu(x-9)", (9.0,), lambda x: x + np.maximum(x - 9, 0)),
        ("min(max(x,-20),10)", (-20.0, 10.0), lambda x: np.clip(x, -20, 10)),
        ("min(relu(x),200)", (0.0, 200.0), lambda x: np.clip(x, 0, 200)),
        ("abs(x)+relu(x-150)", (0.0, 150.0), lambda x: np.abs(x) + np.maximum(x - 150, 0)),
    ],
)
@pytest.mark.parametrize("norm", [3.0, 20.0, 1000.0])
def test_what_looks_symmetric_near_zero(
    formula: str, kinks: tuple[float, ...], function: Function, norm: float
) -> None:
    activations = [from_formula(formula, kinks=kinks)]
    activations.append(from_function(function, name="own", kinks=kinks))
    for activation in activations:
        network = nsd.ExplicitNetwork([activation])
        kernel = nsd.kernel(network, np.diag([norm, 0.7 * norm]), convention="preactivation")
        means = [expectation(function, s, kinks) for s in (norm, 0.7 * norm)]
        square = expectation(lambda x: function(x) ** 2, norm, kinks)
        assert kernel[0, 0] == pytest.approx(square, rel=1e-11)
        # Of orthogonal rows, the product of the means.
        assert kernel[0, 1] == pytest.approx(means[0] * means[1], rel=1e-10, abs=1e-11 * square)


@pytest.mark.parametrize("clip", [1.0, 1.3, 50.0, 1e6])
@pytest.mark.parametrize("scale", [1e-2, 1e-5, 1e-9])
def test_hard_tanh_is_the_identity_near_zero(clip: float, scale: float) -> None:
    activation = hard_tanh(1.0, clip)
    x = np.array([1e-3, 1e-8, -1e-12, 1e-17])
    assert (activation(x) == x).all()
    X = scale * np.random.default_rng(0).normal(size=(5, 4))
    for model in (nsd.ExplicitNetwork([activation]), nsd.DeepEquilibrium(activation, 0.3)):
        np.testing.assert_allclose(
            nsd.kernel(model, X, convention="preactivation"),
            X @ X.T,
            rtol=1e-12,
            atol=1e-14 * scale**2,
        )


def test_twins_in_torch_keep_their_digits_near_zero() -> None:
    torch = pytest.importorskip("torch")
    from notsodeep.activations.torch_twins import torch_twin

    bent = nsd.activations.piecewise_linear((-40.0, -2.0, 30.0), (0.1, 0.5, 1.0, -0.3))
    x = np.array([-50.0, -20.0, -1e-7, 1e-9, 3.0, 35.0], dtype=np.float32)
    got = torch_twin(bent)(torch.tensor(x)).numpy()
    np.testing.assert_allclose(got, bent(x), rtol=3e-7)


@pytest.mark.parametrize(
    "activation",
    [
        polynomial([0.0] * 10 + [1.0]),
        polynomial([0.0, 1.0, 0.0, 1.0]),
        hermite([0.0] * 400 + [1.0]),
        hermite([0.0] * 60 + [1.0]),
        from_formula("x**3"),
        from_formula("relu(x)**8", kinks=(0.0,)),
        from_formula("exp(x)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e20, 1e55])
def test_overflow_is_refused(activation: nsd.activations.Activation, scale: float) -> None:
    X = scale * np.array([[1.0, 0.0, 0.2], [0.5, 0.8, 0.1], [0.9, 0.05, -0.3]])
    for layers in ([activation], [activation, "relu"], [activation, activation]):
        try:
            pair = nsd.kernel(
                nsd.ExplicitNetwork(layers), X, convention="preactivation", kind="both"
            )
        except NotSoDeepError:
            continue
        assert np.isfinite(pair.ck).all()
        assert np.isfinite(pair.ntk).all()


def test_hermite_polynomials_of_high_degree() -> None:
    X = pair_of(1.0, 1.0, 0.1)
    for degree in (100, 200, 350):
        pair = nsd.kernel(
            nsd.ExplicitNetwork([hermite([0.0] * degree + [1.0])]),
            X,
            convention="preactivation",
            kind="both",
        )
        assert pair.ck[0, 1] == pytest.approx(0.9**degree, rel=1e-12)
        assert pair.ntk[0, 1] == pytest.approx(0.9**degree * (1 + degree), rel=1e-12)
    with pytest.raises(QuadratureError, match="at most 350"):
        nsd.kernel(
            nsd.ExplicitNetwork([hermite([0.0] * 371 + [1.0])]),
            X,
            convention="preactivation",
            kind="both",
        )


def hinge_kernels(X: np.ndarray, right: float, left: float, layers: int) -> tuple[float, float]:
    """CK and NTK of one pair, for layers of max(right·x, 0) − max(−left·x, 0), to fifty digits."""
    with mp.workdps(50):
        x, y = ([mp.mpf(float(v)) for v in row] for row in X)
        square1, square2, value = mp.fdot(x, x), mp.fdot(y, y), mp.fdot(x, y)
        both, cross, tangent = mp.mpf(right**2 + left**2), mp.mpf(2 * right * left), value

        def arc(rho: mp.mpf) -> mp.mpf:
            return (mp.sqrt(1 - rho**2) + rho * (mp.pi - mp.acos(rho))) / (2 * mp.pi)

        for _ in range(layers):
            size = mp.sqrt(square1 * square2)
            rho = value / size
            toward, away = (mp.pi - mp.acos(rho)) / (2 * mp.pi), mp.acos(rho) / (2 * mp.pi)
            value = size * (both * arc(rho) - cross * arc(-rho))
            tangent = value + tangent * (both * toward + cross * away)
            square1, square2 = square1 * both / 2, square2 * both / 2
        norm = mp.sqrt(square1 * square2)
        return float(value / norm), float(tangent / norm)


@pytest.mark.parametrize(("right", "left"), [(1.0, -1.0), (1.0, 0.0), (1.0, 0.5), (1.0, -0.25)])
@pytest.mark.parametrize("layers", [1, 3, 5])
def test_nearly_parallel_rows_through_kinks(right: float, left: float, layers: int) -> None:
    rng = np.random.default_rng(layers)
    activation = nsd.activations.leaky_relu(right, left)
    network = nsd.ExplicitNetwork([activation] * layers)
    for distance in (1e-3, 1e-5, 1e-6, 1e-8, 1e-11):
        for factor in (1.0, -1.0, 2.5, -2.5):
            x = rng.normal(size=4)
            X = np.stack([x, factor * x + distance * rng.normal(size=4)])
            pair = nsd.kernel(network, X, convention="preactivation", kind="both")
            conjugate, tangent = hinge_kernels(X, right, left, layers)
            size = math.sqrt(pair.ck[0, 0] * pair.ck[1, 1])
            assert abs(pair.ck[0, 1] / size - conjugate) <= 1e-14
            assert abs(pair.ntk[0, 1] / size - tangent) <= 2e-12


@pytest.mark.parametrize("activation", [hard_tanh(1.0, 1.3), nsd.activations.elu(0.5)], ids=str)
@pytest.mark.parametrize("deq", [True, False])
def test_derivative_kernel_falls_linearly_with_the_angle(
    activation: nsd.activations.Activation, deq: bool
) -> None:
    # At a kink E[φ′φ′] falls like the angle; √(rounding) would drown the fall below 1e-8.
    if deq:
        model: nsd.models.Model = nsd.DeepEquilibrium(activation, 0.3)
    else:
        model = nsd.ExplicitNetwork([activation, "relu"])
    x, side = np.array([[0.5, 0.7, -0.2]]), np.array([[0.7, -0.5, 0.0]])
    most = nsd.kernel(model, x, convention="preactivation", kind="ntk")[0, 0]
    rates = [
        (
            most
            - nsd.kernel(model, x, x + angle * side, convention="preactivation", kind="ntk")[0, 0]
        )
        / angle
        for angle in (1e-5, 1e-6, 1e-7)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=1e-3)
    assert rates[2] == pytest.approx(rates[1], rel=1e-4)


def test_unstable_equilibria_are_refused_by_every_door() -> None:
    deq = nsd.DeepEquilibrium(from_formula("tanh(3*x)"), 0.9)
    X = np.random.default_rng(0).normal(size=(12, 5)) / 3
    for call in (
        lambda: nsd.kernel(deq, X, convention="preactivation"),
        lambda: nsd.kernel(deq, X, convention="feature"),
        lambda: nsd.KernelOperator(deq, X, kind="ck", convention="preactivation"),
        lambda: nsd.kernel(deq, X, convention="preactivation", kind="both"),
    ):
        with pytest.raises(NotConverged, match="no stable equilibrium"):
            call()


@pytest.mark.parametrize("count", [40])
def test_many_kinks_take_bounded_work(count: int) -> None:
    places = np.unique([*np.round(np.linspace(-2, 2, count), 3), 0.0])
    activation = from_formula("relu(x)*tanh(x)", kinks=tuple(places))  # one of them is real
    X = np.array([[1.0, 0.0], [1.0, 1e-9], [0.0, 1.0]])
    plain = from_formula("relu(x)*tanh(x)", kinks=(0.0,))
    got = nsd.kernel(
        nsd.DeepEquilibrium(activation, 0.2), X, convention="preactivation", kind="ntk"
    )
    np.testing.assert_allclose(
        got,
        nsd.kernel(nsd.DeepEquilibrium(plain, 0.2), X, convention="preactivation", kind="ntk"),
        rtol=1e-12,
        atol=1e-13,
    )


def test_arrays_at_odd_addresses_give_the_same_bits() -> None:
    # As they arrive on a worker; matrix products round differently there.
    X = np.random.default_rng(0).normal(size=(190, 30)) / 5
    room = bytearray(X.nbytes + 64)
    odd = np.frombuffer(room, count=X.size, offset=3).reshape(X.shape)
    odd[:] = X
    assert not odd.flags.aligned
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    assert (
        nsd.kernel(deq, odd, convention="preactivation", kind="ntk")
        == nsd.kernel(deq, X, convention="preactivation", kind="ntk")
    ).all()
    assert (
        nsd.kernel(deq, X, odd, convention="preactivation", kind="ntk")
        == nsd.kernel(deq, X, X.copy(), convention="preactivation", kind="ntk")
    ).all()
