"""The engine against the slow, obvious reference, to 1e-10, on awkward inputs."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from cases import REFERENCE, identifier
from notsodeep.activations import Activation
from notsodeep.errors import NotConverged, UnknownName
from notsodeep.kernels import plan
from notsodeep.kernels.ring import ring_of
from notsodeep.kernels.table import TABLE_BOUND
from reference import equilibrium_kernels, explicit_kernels

CONVENTIONS = ("preactivation", "feature")


def awkward_inputs(spread: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows with duplicates, antipodes, close and orthogonal ones; with `spread`, a zero row too."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(3, 6))
    X[2] = X[1] + 1e-2 * rng.normal(size=6)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    if spread:
        X *= np.array([0.03, 1.0, 3.0])[:, None]
    Y = np.vstack([X[1], -X[1], 0.0 * X[0] if spread else X[0]])
    return X, Y


def check_against_reference(deq: nsd.DeepEquilibrium, X: np.ndarray, Y: np.ndarray) -> None:
    expected = equilibrium_kernels(deq, X, Y, layers=500)
    for convention in CONVENTIONS:
        pair = nsd.kernel(deq, X, Y, convention=convention, kind="both")
        for name in ("ck", "ntk"):
            reference = expected[f"{convention} {name}"]
            # Antipodes keep the reference itself from being better than this: it has ρ only to
            # 1e-16, and a kinked activation turns that into 1e-8 in its derivative kernel.
            np.testing.assert_allclose(
                getattr(pair, name), reference, rtol=1e-10, atol=1e-10 * np.abs(reference).max()
            )


# One of each route: closed form, series, a kink without closed form, hinges, polynomials.
USUAL = {
    next(each for each in REFERENCE if each.name == name)
    for name in ("relu", "tanh", "elu", "hard_tanh", "hermite", "cos")
}


def fast_case(activation: Activation, sigma_a2: float) -> bool:
    """The reference is slow at large σa²; the whole grid is run by `make test-all`."""
    hard = {("relu", 0.5), ("tanh", 0.5)}
    return (sigma_a2 == 0.1 and activation in USUAL) or (activation.name, sigma_a2) in hard


def grid() -> list[object]:
    cases = []
    for activation in REFERENCE:
        for sigma_a2 in (0.0, 0.1, 0.5, 0.9):
            marks = () if fast_case(activation, sigma_a2) else (pytest.mark.slow,)
            label = f"{identifier(activation)}-{sigma_a2}"
            cases.append(pytest.param(activation, sigma_a2, id=label, marks=marks))
    return cases


@pytest.mark.parametrize("spread", [False, True], ids=["unit", "spread"])
@pytest.mark.parametrize(("activation", "sigma_a2"), grid())
def test_equilibrium_kernels(activation: Activation, sigma_a2: float, spread: bool) -> None:
    X, Y = awkward_inputs(spread)
    deq = nsd.DeepEquilibrium(activation, sigma_a2)
    if has_kernels(deq, np.vstack([X, Y])):
        check_against_reference(deq, X, Y)
    else:
        with pytest.raises(NotConverged, match=r"[Ss]maller weights"):
            nsd.kernel(deq, X, Y, convention="preactivation", kind="both")


def has_kernels(deq: nsd.DeepEquilibrium, X: np.ndarray) -> bool:
    """Whether plain iteration of the variances settles, with a finite tangent kernel there."""
    norms = np.einsum("ij,ij->i", X, X)
    q = deq.sigma_b2 * norms
    for _ in range(5000):
        square = deq.activation.moments(np.sqrt(np.maximum(q, 1e-60))).square
        before, q = q, deq.sigma_a2 * square + deq.sigma_b2 * norms
        if q.max() > 1e12:
            return False
        if np.abs(q - before).max() <= 1e-13 * q.max():
            break
    slopes = deq.activation.moments(np.sqrt(np.maximum(q, 1e-60))).slope_square
    return bool(deq.sigma_a2 * slopes.max() < 1.0)


@pytest.mark.parametrize(
    "activation",
    [
        pytest.param(each, id=identifier(each), marks=[pytest.mark.slow] * (each not in USUAL))
        for each in REFERENCE
    ],
)
def test_centred_equilibrium_kernels(activation: Activation) -> None:
    X, Y = awkward_inputs(spread=True)
    deq = nsd.DeepEquilibrium(activation, 0.1)
    if np.isfinite(activation.lipschitz):
        check_against_reference(deq.centred(1.0), X, Y)
    else:
        X, Y = 0.1 * X, 0.1 * Y
        check_against_reference(deq.centred(0.1), X, Y)


@pytest.mark.parametrize("spread", [False, True], ids=["unit", "spread"])
@pytest.mark.parametrize(
    "layers",
    [
        ["relu"],
        ["tanh"],
        ["elu"],
        ["hard_tanh", "swish"],
        ["relu", "tanh", "cos"],
        [nsd.activations.polynomial([0.1, 1.0, 0.3]), "relu"],
    ],
    ids=str,
)
def test_explicit_kernels(layers: list[str], spread: bool) -> None:
    X, Y = awkward_inputs(spread)
    for network in (nsd.ExplicitNetwork(layers), nsd.ExplicitNetwork(layers).centred(1.0)):
        conjugate, tangent = explicit_kernels(network, X, Y)
        pair = nsd.kernel(network, X, Y, convention="preactivation", kind="both")
        atol = 1e-10 * np.abs(tangent).max()
        np.testing.assert_allclose(pair.ck, conjugate, rtol=1e-10, atol=atol)
        np.testing.assert_allclose(pair.ntk, tangent, rtol=1e-10, atol=atol)


def test_one_relu_layer_is_the_arc_cosine_kernel() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5))
    norms = np.linalg.norm(X, axis=1)
    cosine = np.clip(X @ X.T / np.outer(norms, norms), -1, 1)
    angle = np.arccos(cosine)
    size = np.outer(norms, norms)
    first = size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    zeroth = (np.pi - angle) / (2 * np.pi)
    pair = nsd.kernel(nsd.ExplicitNetwork(["relu"]), X, convention="preactivation", kind="both")
    off = ~np.eye(40, dtype=bool)
    np.testing.assert_allclose(pair.ck[off], first[off], rtol=1e-12)
    np.testing.assert_allclose(
        pair.ntk[off], (first + X @ X.T * zeroth)[off], rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(np.diag(pair.ck), norms**2 / 2, rtol=1e-14)
    np.testing.assert_allclose(np.diag(pair.ntk), norms**2, rtol=1e-14)


def test_sphere_reference_values() -> None:
    # Normalised ReLU, σa² = .2, orthogonal unit inputs: g(0) and k(0) of the sphere theory.
    pair = nsd.kernel(
        nsd.DeepEquilibrium("normalized_relu", 0.2),
        np.eye(2),
        convention="preactivation",
        kind="both",
    )
    assert pair.ck[0, 1] == pytest.approx(0.07091, abs=5e-6)
    assert pair.ntk[0, 1] == pytest.approx(0.07919, abs=5e-6)
    assert pair.ck[0, 0] == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("name", ["relu", "tanh", "swish"])
def test_untied_recursion_converges_to_the_equilibrium_kernel(name: str) -> None:
    # 200 layers of G ← σa² E[φφ] + σb² S through the general pair expectations.
    rng = np.random.default_rng(1)
    X = rng.normal(size=(5, 20)) / np.sqrt(20)
    deq = nsd.DeepEquilibrium(name, 0.6)
    S = X @ X.T
    G = np.zeros_like(S)
    for _ in range(200):
        q = np.maximum(np.diag(G), 1e-60)
        limit = np.sqrt(np.outer(q, q))
        cov = np.clip(G, -limit, limit)
        pairs = nsd.activations.pair_expectations(deq.activation, q[:, None], q[None, :], cov)
        G = 0.6 * pairs.value + 0.4 * S
    np.testing.assert_allclose(
        nsd.kernel(deq, X, convention="preactivation"), G, rtol=1e-9, atol=1e-11
    )


def test_zero_recurrence_is_one_explicit_layer() -> None:
    X = np.random.default_rng(2).normal(size=(9, 4))
    deq = nsd.kernel(nsd.DeepEquilibrium("swish", 0.0), X, convention="feature", kind="both")
    net = nsd.kernel(nsd.ExplicitNetwork(["swish"]), X, convention="preactivation", kind="both")
    np.testing.assert_allclose(deq.ck, net.ck, rtol=1e-13)
    np.testing.assert_allclose(deq.ntk, net.ntk, rtol=1e-13)


@pytest.mark.parametrize("name", ["relu", "hard_tanh", "elu", "tanh"])
@pytest.mark.parametrize("sigma_a2", [0.0, 0.2])
@pytest.mark.parametrize(
    "distance",
    [1e-3, 1e-9, 1e-15, *(pytest.param(d, marks=pytest.mark.slow) for d in (1e-5, 1e-7, 1e-12))],
)
def test_nearly_equal_rows(name: str, sigma_a2: float, distance: float) -> None:
    # To first order E(u − v)² = σb²‖x − y‖²/(1 − σa² E φ′²), and 1 − E[φ′φ′]/E φ′² goes with its
    # square root for a kinked φ.  Halving the distance twice must scale both accordingly.
    rng = np.random.default_rng(3)
    x, direction = rng.normal(size=(2, 8))
    direction -= x * (direction @ x) / (x @ x)
    deq = nsd.DeepEquilibrium(name, sigma_a2)
    gaps = []
    for factor in (1.0, 0.25):
        y = x + factor * distance * direction
        pair = nsd.kernel(deq, x[None], np.stack([y, x]), convention="feature", kind="both")
        gaps.append(pair.ntk[0, 1] - pair.ntk[0, 0])
    scale = abs(pair.ntk[0, 1])
    assert np.isfinite(gaps).all()
    if name == "tanh" or name == "elu":
        assert abs(gaps[0]) <= 40 * distance * scale + 1e-13 * scale
    elif distance >= 1e-12:
        # Proportional to the distance, down to distances whose square is below rounding.
        assert gaps[0] / gaps[1] == pytest.approx(4.0, rel=0.02)


def test_unit_relu_close_pair_against_the_exact_angle() -> None:
    # On the circle, normalised ReLU and σa² = 0: E[φ′φ′] = 1 − θ/π with θ the angle itself.
    for angle in (1e-1, 1e-3, 1e-5, 1e-7, 1e-9, 1e-11):
        x, y = np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])
        network = nsd.ExplicitNetwork(["normalized_relu"])
        pair = nsd.kernel(network, x[None], y[None], convention="preactivation", kind="both")
        slope = (pair.ntk[0, 0] - pair.ck[0, 0]) / np.cos(angle)
        assert 1.0 - slope == pytest.approx(angle / np.pi, rel=1e-6, abs=1e-15)


def test_bit_equal_rows_get_the_diagonal_value() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(6, 3))
    X[5] = X[1]
    for name in ("relu", "hard_tanh", "elu", "tanh"):
        pair = nsd.kernel(
            nsd.DeepEquilibrium(name, 0.2), X, convention="preactivation", kind="both"
        )
        for kernel in (pair.ck, pair.ntk):
            assert kernel[1, 5] == kernel[1, 1] == kernel[5, 5]


@pytest.mark.parametrize("name", ["tanh", "relu", "arctan", "softplus"])
def test_high_recurrence_and_norms_over_three_decades(name: str) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 30)) / np.sqrt(30)
    X *= np.logspace(-1.5, 1.5, 60)[:, None]
    deq = nsd.DeepEquilibrium(name, 0.99)
    pair = nsd.kernel(deq, X, convention="preactivation", kind="both")
    q = np.diag(pair.ck)
    value = nsd.activations.pair_expectations(
        deq.activation,
        q[:, None],
        q[None, :],
        np.clip(pair.ck, -np.sqrt(np.outer(q, q)), np.sqrt(np.outer(q, q))),
    ).value
    residual = 0.99 * value + 0.01 * X @ X.T - pair.ck
    assert np.abs(residual / np.sqrt(np.outer(q, q))).max() <= 1e-12


def test_no_fixed_point_is_an_error_with_a_remedy() -> None:
    cubic = nsd.DeepEquilibrium(nsd.activations.polynomial([0, 1, 0, 1]), 0.5)
    with pytest.raises(NotConverged, match=r"[Ss]maller weights"):
        nsd.kernel(cubic, np.eye(3), convention="preactivation")
    steep = nsd.DeepEquilibrium(nsd.activations.leaky_relu(2.0, 2.0), 0.5)
    with pytest.raises(NotConverged, match="must be below 1"):
        nsd.kernel(steep, np.eye(3), convention="preactivation")


@pytest.mark.parametrize("kind", ["ck", "ntk"])
def test_unstable_equilibrium_has_no_kernel(kind: str) -> None:
    # A steep φ at σa² = .9 has σa² E φ′² above 1.  The equation for the CK has a solution, but no
    # wide network settles at it.
    deq = nsd.DeepEquilibrium(nsd.activations.from_formula("tanh(3 * x)"), 0.9)
    with pytest.raises(NotConverged, match=r"no stable equilibrium .* must stay below 1"):
        nsd.kernel(deq, 0.1 * np.eye(3), kind=kind)
    with pytest.raises(NotConverged, match="no stable equilibrium"):  # of the columns alone
        nsd.kernel(deq, 20.0 * np.eye(3), 0.1 * np.eye(3), kind=kind)


@pytest.mark.parametrize("activation", ["relu", "abs", "identity"])
def test_a_zero_row_is_finite_wherever_it_stands(activation: str) -> None:
    model = nsd.DeepEquilibrium(activation, sigma_a2=0.2)
    for n in range(2, 20):
        for place in range(n):
            X = np.ones((n, 1))
            X[place] = 0.0
            kernel = nsd.kernel(model, X, convention="preactivation")
            assert np.isfinite(kernel).all()
            assert np.abs(kernel[place]).max() < 1e-12


TABLED = [
    nsd.DeepEquilibrium("tanh", 0.3),
    nsd.DeepEquilibrium("hard_tanh", 0.2),
    nsd.DeepEquilibrium("relu", 0.2).centred(1.0),
    nsd.DeepEquilibrium("gelu", 0.9),
    nsd.ExplicitNetwork(["gelu", "relu"]),
]


def correlated_rows(n: int) -> np.ndarray:
    """Rows with cosines up to nearly one, some of them equal, opposite, tiny, large or zero."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 4)) @ rng.normal(size=(4, 20)) + 2.0 * rng.normal(size=(n, 20))
    X /= np.sqrt(np.mean(np.sum(X**2, axis=1)))
    X[5], X[6], X[7] = X[4], -X[4], X[4] + 1e-9
    return np.asarray(X)


def route(model, X: np.ndarray, convention: str) -> str:
    return plan.Plan(ring_of(model, convention), X, None, (0, 1)).route


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("model", TABLED, ids=str)
def test_a_table_agrees_with_pairs_one_by_one(
    model: nsd.DeepEquilibrium, convention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = correlated_rows(510)
    fast = nsd.kernel(model, X, convention=convention, kind="both")
    assert route(model, X, convention) == "table"
    assert TABLE_BOUND == 1e-14
    monkeypatch.setattr(plan, "_WORTH_A_TABLE", 10**9)
    slow = nsd.kernel(model, X, convention=convention, kind="both")
    assert route(model, X, convention) in ("series", "hinge")
    for name in ("ck", "ntk"):
        one, two = getattr(fast, name), getattr(slow, name)
        size = np.sqrt(np.outer(np.diag(two), np.diag(two)))
        assert (np.abs(one - two) / size).max() <= 2e-14


def test_a_table_leaves_samples_of_unusual_norm_to_the_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = correlated_rows(520)
    X[11], X[12] = 0.0, 1e4 * X[12]  # two samples of 520
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    fast = nsd.kernel(deq, X, convention="preactivation", kind="both")
    assert route(deq, X, "preactivation") == "table"
    monkeypatch.setattr(plan, "_WORTH_A_TABLE", 10**9)
    slow = nsd.kernel(deq, X, convention="preactivation", kind="both")
    for name in ("ck", "ntk"):
        one, two = getattr(fast, name), getattr(slow, name)
        size = np.sqrt(np.outer(np.diag(two), np.diag(two)))
        assert (np.abs(one - two) / size).max() <= 2e-14
        # What concerns an unusual sample is done by the loops either way.
        assert np.array_equal(one[[11, 12]], two[[11, 12]])


@pytest.mark.parametrize("model", [nsd.DeepEquilibrium("tanh", 0.3), nsd.ExplicitNetwork(["gelu"])])
def test_long_series_for_the_pairs_that_want_them(
    model: nsd.DeepEquilibrium,
) -> None:
    X = correlated_rows(100)
    whole = nsd.kernel(model, X, convention="preactivation", kind="both")
    few = nsd.kernel(model, X[:20], X, convention="preactivation", kind="both")
    np.testing.assert_allclose(few.ck, whole.ck[:20], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(few.ntk, whole.ntk[:20], rtol=1e-12, atol=1e-14)


def test_kernel_by_name_is_the_same_and_follows_its_input() -> None:
    torch = pytest.importorskip("torch")
    deq = nsd.DeepEquilibrium("tanh", 0.2)
    X = np.random.default_rng(1).normal(size=(7, 3))
    for kind, alias in (("ck", "nngp"), ("ntk", "tangent")):
        expected = nsd.kernel(deq, X, X[:2], kind=alias)
        given = {"kind": kind, "convention": "feature"}
        assert (nsd.kernel(deq, X, X[:2], **given) == expected).all()
        tensor = nsd.kernel(deq, torch.tensor(X), torch.tensor(X[:2]), **given)
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.numpy() == expected).all()
    with pytest.raises(UnknownName, match="kind"):
        nsd.kernel(deq, X, kind="gram", convention="preactivation")
