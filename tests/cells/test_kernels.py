"""Exact kernels of general cells: reference numbers, identities, and an independent iteration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.activations import named, pair_expectations, with_skip
from notsodeep.errors import InvalidInput, NotConverged, NotVanilla
from notsodeep.estimators import EquilibriumKernelRidge
from notsodeep.kernels import store_kernel
from notsodeep.kernels.plan import Plan
from notsodeep.kernels.ring import ring_of
from notsodeep.models import DeepEquilibrium, Dense, MonotoneEquilibrium

X = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [-0.3, 0.5, 0.9]])
# Written by benchmarks/peers/neural_tangents_cells.py.
PEER = json.loads((Path(__file__).parents[1] / "references/neural_tangents_cells.json").read_text())
FOUR = [
    ("preactivation", "ck"),
    ("preactivation", "ntk"),
    ("feature", "ck"),
    ("feature", "ntk"),
]


def ring(*layers: tuple[object, ...]) -> DeepEquilibrium:
    return DeepEquilibrium(cell=[Dense(*layer) for layer in layers])


# Entries (0, 0), (0, 1), (1, 2) of the four kernels, from a slow implementation of its own.
REFERENCE = {
    "relu with bias": (
        ring(("relu", 0.6, 0.9, 0.15)),
        (1.500000000000, 1.021103456716, 0.601339652418),
        (2.142857142857, 1.311632603658, 0.739610730330),
        (0.750000000000, 0.551839094526, 0.422232754029),
        (1.821428571429, 1.036054339431, 0.652684550550),
    ),
    "tanh, weight above one": (
        ring(("tanh", 1.3, 0.9, 0.15)),
        (1.686337536733, 1.063537600066, 0.520004291582),
        (3.298534459261, 1.712261007347, 0.782960679234),
        (0.489490412872, 0.287336615435, 0.132310993525),
        (1.729641891739, 0.786354621036, 0.334585137872),
    ),
    "ring of two": (
        ring(("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3, 0.05)),
        (0.643777734026, 0.418916116439, 0.214290176855),
        (1.089287362980, 0.659625145072, 0.329656844831),
        (0.321888867013, 0.229768706435, 0.166299101277),
        (0.866532548503, 0.469057925080, 0.265691247710),
    ),
    "ring of three": (
        ring(("erf", 0.7, 0.5), ("relu", 0.9, 0.0, 0.2), ("tanh", 0.8, 0.4)),
        (0.624439047703, 0.414165759990, 0.226642346983),
        (1.116350311775, 0.642499097260, 0.338317132292),
        (0.310763543582, 0.200521008876, 0.105423628154),
        (0.925666668786, 0.524036588905, 0.264444447612),
    ),
    "skip": (
        ring((with_skip("tanh", 0.5), 0.3, 0.9, 0.1)),
        (1.175394397180, 0.737950714089, 0.339356144686),
        (1.552724366086, 0.865300272757, 0.387369878201),
        (0.584647990599, 0.326502380297, 0.137853815619),
        (1.842414553621, 0.751000909189, 0.297899594002),
    ),
    "normalised pre-activation": (
        ring(("relu", 0.6, 0.9, 0.1, "preactivation")),
        (1.000000000000, 0.658307959715, 0.327902095624),
        (1.300000000000, 0.791395226416, 0.378281911870),
        (0.500000000000, 0.359667246049, 0.249765881522),
        (1.150000000000, 0.648022990569, 0.364449914103),
    ),
    "normalised feature": (
        ring(("relu", 0.3, 0.9, 0.1, "feature")),
        (1.300000000000, 0.803803369492, 0.361099411269),
        (1.965305181638, 1.059157386629, 0.445002803010),
        (1.000000000000, 0.546011231641, 0.210331370898),
        (3.217683938794, 1.397191288764, 0.490009343366),
    ),
    "monotone relu": (
        MonotoneEquilibrium("relu", 0.5, 0.5, 0.3, 1.0),
        (1.392355479118, 0.873453746948, 0.418129738479),
        None,
        (0.509784738341, 0.355296546769, 0.257428587757),
        (1.263674859532, 0.661862679415, 0.377162830535),
    ),
}


@pytest.mark.parametrize("case", REFERENCE)
def test_reference_numbers(case: str) -> None:
    model, *expected = REFERENCE[case]
    for (convention, kind), numbers in zip(FOUR, expected, strict=True):
        if numbers is None:
            continue
        options = {"kind": kind, "convention": convention}
        K = nsd.kernel(model, X, **options)
        assert [K[0, 0], K[0, 1], K[1, 2]] == pytest.approx(numbers, abs=1e-11)
        np.testing.assert_array_equal(K, K.T)
        np.testing.assert_allclose(nsd.kernel(model, X, X[:2], **options), K[:, :2], rtol=1e-14)


def pairs_match(one: object, two: object, rows: np.ndarray, rtol: float, *kinds: str) -> None:
    for convention, kind in FOUR:
        if not kinds or convention in kinds:
            options = {"kind": kind, "convention": convention}
            K = nsd.kernel(two, rows, **options)
            np.testing.assert_allclose(
                nsd.kernel(one, rows, **options), K, rtol=rtol, atol=rtol * np.abs(K).max()
            )


def rows_of(n: int, p: int, *, unit: bool = False) -> np.ndarray:
    rows = np.random.default_rng(5).normal(size=(n, p)) / p**0.5
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if unit else rows


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_equal_layers_are_one_layer(activation: str, unit: bool) -> None:
    rows = rows_of(60, 20, unit=unit)
    vanilla = DeepEquilibrium(activation, 0.4)
    layer = (activation, 0.4, 0.6)
    pairs_match(ring(layer, layer, layer), vanilla, rows, 1e-13)


def test_biases_and_free_variances_are_a_vanilla_model_of_longer_rows() -> None:
    rows = rows_of(50, 20)
    weight, inject, bias = 0.3, 0.9, 0.2
    longer = np.column_stack(
        [rows * np.sqrt(inject / (1 - weight)), np.full(50, np.sqrt(bias / (1 - weight)))]
    )
    for activation in ("relu", "tanh", "hard_tanh"):
        K = nsd.kernel(
            ring((activation, weight, inject, bias)),
            rows,
            convention="preactivation",
            kind="both",
        )
        L = nsd.kernel(
            DeepEquilibrium(activation, weight), longer, convention="preactivation", kind="both"
        )
        np.testing.assert_allclose(K.ck, L.ck, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(K.ntk, L.ntk, rtol=1e-13, atol=1e-13)


def test_monotone_relu_has_the_kernel_of_a_vanilla_model() -> None:
    rows = rows_of(40, 20)
    model = MonotoneEquilibrium("relu", monotonicity=1.0)
    response = model.response
    weight = (2 * model.skew + response.coupling**2) / (1 - response.feedback) ** 2
    assert weight == pytest.approx(0.3277, abs=5e-5)
    G = nsd.kernel(model, rows, convention="preactivation")
    same = nsd.kernel(ring(("relu", weight, 1.0)), rows, convention="preactivation")
    np.testing.assert_allclose(G, same, rtol=1e-13, atol=1e-14)
    features = nsd.kernel(model, rows, convention="feature")
    plain = nsd.kernel(ring(("relu", weight, 1.0)), rows, convention="feature")
    np.testing.assert_allclose(features * (1 - response.feedback) ** 2, plain, rtol=1e-13)


def slow_kernels(cell: tuple[Dense, ...], rows: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
    """Iterate the recursion of an untied network, pair by pair."""
    S = rows @ rows.T
    V = theta = np.zeros_like(S)
    slope = np.zeros_like(S)
    for _ in range(60):
        before = theta
        for layer in cell:
            C = layer.weight * V + layer.inject * S + layer.bias
            T = C + layer.weight * slope * theta
            if layer.normalise == "preactivation":
                scale = np.sqrt(np.outer(np.diag(C), np.diag(C)))
                C, T = C / scale, T / scale
            q = np.diag(C)
            one, two = np.meshgrid(q, q, indexing="ij")
            pairs = pair_expectations(layer.activation, one, two, np.minimum(C, np.sqrt(one * two)))
            V, slope, G, theta = pairs.value, pairs.derivative, C, T
            if layer.normalise == "feature":
                moments = layer.activation.moments(np.sqrt(q))
                spread = np.sqrt(np.outer(moments.variance, moments.variance))
                V = (V - np.outer(moments.mean, moments.mean)) / spread
                slope = slope / spread
        if np.abs(theta - before).max() < 1e-14:
            break
    return {
        ("preactivation", "ck"): G,
        ("preactivation", "ntk"): theta,
        ("feature", "ck"): V,
        ("feature", "ntk"): V + slope * theta,
    }


@pytest.mark.parametrize(
    "model",
    [
        ring(("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3, 0.05)),
        ring(("relu", 0.5, 0.6, 0.1, "feature"), ("tanh", 0.8, 0.3, 0.05, "preactivation")),
        ring(("leaky_relu", 0.3, 0.6), ("relu", 0.8, 0.3, 0.0, "feature")),
        ring(("swish", 0.5, 1.0, 0.5), ("cos", 0.5)),
        DeepEquilibrium(cell=[Dense("erf", 0.5, 0.6), Dense("relu", 0.8, 0.3)]).centred(1.0),
    ],
    ids=str,
)
def test_against_the_untied_recursion(model: DeepEquilibrium) -> None:
    rows = rows_of(5, 5)
    expected = slow_kernels(model.cell, rows)
    off = ~np.eye(5, dtype=bool)
    for (convention, kind), K in expected.items():
        got = nsd.kernel(model, rows, kind=kind, convention=convention)
        np.testing.assert_allclose(got[off], K[off], rtol=1e-11, atol=1e-12)
        # On the diagonal the slow route loses half of the digits of a kink at ρ = 1.
        np.testing.assert_allclose(got, K, rtol=1e-6, atol=1e-6)


def test_nearly_equal_and_opposite_inputs_keep_their_digits() -> None:
    """A pair at distance ε has 1 − NTK/diagonal ∝ ε for a kink: rounding in ρ would hide it."""
    x = rows_of(1, 6)[0]
    y = rows_of(2, 6)[1]
    model = ring(("relu", 0.5, 0.6, 0.1), ("leaky_relu", 0.8, 0.3))
    losses = []
    for epsilon in (1e-5, 1e-6, 1e-7):
        K = nsd.kernel(
            model, np.stack([x, x + epsilon * y]), convention="preactivation", kind="ntk"
        )
        losses.append(1.0 - K[0, 1] / np.sqrt(K[0, 0] * K[1, 1]))
    assert losses[0] / losses[1] == pytest.approx(10.0, rel=1e-3)
    assert losses[1] / losses[2] == pytest.approx(10.0, rel=1e-3)


def test_routes_agree_on_many_norms() -> None:
    """A table over the norms, the series and the univariate route against single pairs."""
    rows = rows_of(120, 8) * np.linspace(0.5, 2.0, 120)[:, None]
    rows[7] = 0.0
    model = ring(("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3, 0.05))
    everything = nsd.kernel(model, rows, convention="preactivation", kind="both")
    few = nsd.kernel(model, rows[5:9], convention="preactivation", kind="both")
    np.testing.assert_allclose(everything.ck[5:9, 5:9], few.ck, rtol=2e-13)
    np.testing.assert_allclose(everything.ntk[5:9, 5:9], few.ntk, rtol=2e-13)
    unit = rows_of(60, 8, unit=True)
    ring_model = ring_of(model, "preactivation")
    assert Plan(ring_model, unit, None, (0, 1)).route == "univariate"
    scaled = np.concatenate([unit, unit[:1] * 1.5])
    direct = nsd.kernel(model, scaled, convention="preactivation", kind="both")
    assert Plan(ring_model, scaled, None, (0, 1)).route == "series"
    np.testing.assert_allclose(
        direct.ntk[:60, :60],
        nsd.kernel(model, unit, convention="preactivation", kind="ntk"),
        rtol=1e-12,
        atol=1e-13,
    )


def test_beyond_the_threshold_there_is_no_kernel() -> None:
    steep = nsd.activations.from_formula("tanh(3*x)")
    with pytest.raises(NotConverged, match=r"1\.634"):
        nsd.kernel(DeepEquilibrium(steep, 0.9), X, convention="preactivation")
    with pytest.raises(NotConverged, match="below 1"):
        nsd.kernel(ring(("tanh", 6.0, 0.1), ("tanh", 2.0)), 0.5 * X, convention="preactivation")
    with pytest.raises(NotConverged, match=r"[Ss]maller weights"):
        nsd.kernel(ring(("relu", 2.5, 0.9, 0.15)), X, convention="preactivation")


def test_consumers_of_the_vanilla_model_say_no() -> None:
    model = ring(("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3))
    for name in ("activation", "sigma_a2", "sigma_b2"):
        with pytest.raises(NotVanilla, match=name):
            getattr(model, name)


def test_operators_and_tiles_follow() -> None:
    rows = rows_of(90, 10)
    model = ring(("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3))
    operator = nsd.KernelOperator(model, rows, convention="preactivation")
    K = nsd.kernel(model, rows, convention="preactivation")
    vector = np.arange(90.0)
    np.testing.assert_allclose(operator @ vector, K @ vector, rtol=1e-13)
    np.testing.assert_array_equal(operator.diagonal(), np.diag(K))


def test_stores_and_estimators_follow(tmp_path: Path) -> None:
    rows = rows_of(90, 10)
    for model in (ring(("tanh", 0.5, 0.6, 0.1), ("relu", 0.8, 0.3)), MonotoneEquilibrium("relu")):
        K = nsd.kernel(model, rows, convention="feature", kind="ntk")
        directory = tmp_path / type(model).__name__
        stored = store_kernel(directory, model, rows, kind="ntk", block=64, convention="feature")
        np.testing.assert_allclose(stored.operator() @ K[:, :2], K @ K[:, :2], rtol=1e-12)
        ridge = EquilibriumKernelRidge(model=model, kind="ntk", ridge=0.1, preprocessing="none")
        left = rows[:, 0] - ridge.fit(rows, rows[:, 0]).predict(rows)
        np.testing.assert_allclose(left, 0.1 * ridge.dual_coef_, atol=1e-10)
        np.testing.assert_allclose(K @ ridge.dual_coef_ + ridge.intercept_, rows[:, 0] - left)


@pytest.mark.parametrize("name", PEER["cells"])
def test_kernels_of_another_library_unrolled(name: str) -> None:
    """Its tangent kernel loses digits on the diagonal, where it computes what is known as one."""
    case = PEER["cells"][name]
    model = DeepEquilibrium(cell=[Dense(**layer) for layer in case["cell"]])
    pair = nsd.kernel(model, PEER["rows"], convention="preactivation", kind="both")
    np.testing.assert_allclose(pair.ck, case["ck"], atol=2e-15)
    error = np.abs(pair.ntk - case["ntk"])
    assert np.diag(error).max() < 1e-9
    np.fill_diagonal(error, 0.0)
    assert error.max() < 1e-14


def test_skip_is_its_own_fixed_point() -> None:
    for name, alpha in (("tanh", 0.7), ("tanh", -3.0), ("hard_tanh", 0.5), ("swish", 0.4)):
        psi = with_skip(name, alpha)
        x = np.linspace(-4.0, 4.0, 101)
        y = psi(x)
        np.testing.assert_allclose(y, named(name)(alpha * y + x), atol=3e-15)
        step = 1e-6
        middle = (psi(x + step) - psi(x - step)) / (2 * step)
        smooth = np.min(np.abs(x[:, None] - np.array([*psi.kinks, 99.0])), axis=1) > 1e-3
        np.testing.assert_allclose(psi.derivative(x)[smooth], middle[smooth], atol=1e-8)
        assert nsd.activations.from_dict(psi.to_dict()) == psi
    with pytest.raises(InvalidInput, match=r"alpha.*1\.5"):
        with_skip("tanh", 1.5)
