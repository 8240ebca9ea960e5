"""Exact kernels of convolutional models: numbers, brute force, identities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import brute_force
import notsodeep as nsd
from brute_force import equilibrium, waves
from notsodeep.errors import NotConverged
from notsodeep.kernels import image_states
from notsodeep.kernels.images import ImagePlan
from notsodeep.kernels.ring import ring_of

CONVENTIONS = ("preactivation", "feature")

# Two images of 4 × 4 × 2 (8 × 8 × 2 for the last), entries (0, 0) and (0, 1) of G, Θ, Φ and the
# feature NTK; computed by a program of its own and checked there against an unrolled network.
NUMBERS = {
    "circular flatten": (
        equilibrium(),
        (1.509680032616, -0.685821204712),
        (2.156685760879, -0.765836117678),
        (0.754840016308, 0.092925447978),
        (1.833182896747, -0.040432740299),
    ),
    "circular average": (
        equilibrium(pooling="average"),
        (0.367529349651, 0.360621372871),
        (0.490033144893, 0.473740028280),
        (0.359087998533, 0.354873580494),
        (0.563260990602, 0.543404672841),
    ),
    "zero flatten": (
        equilibrium(padding="zero"),
        (0.999408015524, -0.441215501591),
        (1.288347235209, -0.479542233987),
        (0.499704007762, 0.064631705531),
        (1.143877625367, -0.019564165652),
    ),
    "erf average": (
        equilibrium("erf", weight=1.0, pooling="average"),
        (0.226627182901, 0.217892510092),
        (0.383501863338, 0.345327169247),
        (0.074550632370, 0.070195285517),
        (0.231425312807, 0.197629944672),
    ),
    "strided injection": (
        equilibrium(image_shape=(8, 8, 2), stride=2),
        (1.493056995218, -0.680607681607),
        (2.132938564597, -0.760282411427),
        (0.746528497609, 0.092649944510),
        (1.812997779907, -0.040141271856),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_reference_numbers(name: str) -> None:
    model, *expected = NUMBERS[name]
    X = waves(2, *model.image_shape)
    found = []
    for convention in CONVENTIONS:
        pair = nsd.kernel(model, X, convention=convention, kind="both")
        found += [pair.ck[0], pair.ntk[0]]
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12)


PEER = json.loads(
    (Path(__file__).parents[1] / "references/neural_tangents_images.json").read_text()
)


@pytest.mark.parametrize("name", PEER["cases"])
def test_another_library_unrolled(name: str) -> None:
    """Numbers of benchmarks/peers/neural_tangents_images.py, fields of the last of 120 layers."""
    case = PEER["cases"][name]
    model = equilibrium(
        case["activation"], padding=case["padding"], pooling=case["pooling"],
        **{key: PEER[key] for key in ("weight", "inject", "bias")},
    )  # fmt: skip
    pair = nsd.kernel(model, waves(*PEER["shape"]), convention="preactivation", kind="both")
    np.testing.assert_allclose(pair.ck, case["ck"], rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(pair.ntk, case["ntk"], rtol=0.0, atol=1e-12)


GRID = [
    ("relu", {"padding": "zero", "pooling": "average"}),
    ("relu", {"padding": "zero", "pooling": 2}),
    ("relu", {"padding": "circular", "pooling": 3}),
    ("relu", {"size": 1}),
    ("relu", {"size": 5, "image_shape": (5, 6, 1)}),
    ("relu", {"size": 7, "image_shape": (3, 4, 1)}),
    ("tanh", {"weight": 0.9, "padding": "zero", "pooling": 2}),
    ("abs", {"weight": 0.3}),
    ("cos", {"weight": 0.8}),
    ("sin", {"weight": 0.5, "bias": 0.0}),
    ("hard_tanh", {"weight": 0.5}),
]


LATE = (2, 4, 7, 9)  # a case like each of these is there


@pytest.mark.parametrize(
    ("activation", "options"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (k in LATE)) for k, case in enumerate(GRID)],
)
def test_brute_force_over_all_positions(activation: str, options: dict[str, object]) -> None:
    model = equilibrium(activation, **options)
    X = waves(2, *model.image_shape)
    expected = brute_force.kernels(model, *X)
    for convention in CONVENTIONS:
        pair = nsd.kernel(model, X[:1], X[1:], convention=convention, kind="both")
        for name in ("ck", "ntk"):
            found = getattr(pair, name)[0, 0]
            assert found == pytest.approx(expected[f"{convention} {name}"], rel=1e-11, abs=1e-12)


def ring(**options: object) -> nsd.ConvolutionalEquilibrium:
    layers = [
        nsd.Convolution("erf", weight=0.7, inject=0.5, size=3),
        nsd.Convolution("relu", weight=0.9, bias=0.2, size=5),
        nsd.Convolution("tanh", weight=0.8, inject=0.4, size=1),
    ]
    return nsd.ConvolutionalEquilibrium(layers, (5, 5, 2), **options)


@pytest.mark.parametrize(
    "model",
    [
        ring(),
        ring(padding="zero"),
        nsd.ConvolutionalNetwork(["relu"], (4, 4, 2), pooling=2),
        nsd.ConvolutionalNetwork(["relu", "tanh"], (4, 4, 2), padding="zero", pooling="average"),
    ],
    ids=str,
)
def test_several_layers(model: nsd.ConvolutionalEquilibrium) -> None:
    X = waves(2, *model.image_shape)
    expected = brute_force.kernels(model, *X)
    pair = nsd.kernel(model, X[:1], X[1:], convention="feature", kind="both")
    assert pair.ck[0, 0] == pytest.approx(expected["feature ck"], rel=1e-12)
    assert pair.ntk[0, 0] == pytest.approx(expected["feature ntk"], rel=1e-12)


def test_average_is_the_mean_over_translations() -> None:
    X = waves(3, 4, 5, 2)
    options = {"image_shape": (4, 5, 2)}
    average = nsd.kernel(
        equilibrium(pooling="average", **options),
        X,
        convention="preactivation",
        kind="both",
    )
    flat = equilibrium(**options)
    total = np.zeros((2, 3, 3))
    for down in range(4):
        for right in range(5):
            moved = np.roll(X.reshape(3, 4, 5, 2), (down, right), (1, 2)).reshape(3, -1)
            pair = nsd.kernel(flat, X, moved, convention="preactivation", kind="both")
            total += np.stack([pair.ck, pair.ntk])
    expected = total / 20.0
    np.testing.assert_allclose(average.ck, expected[0], atol=1e-13)
    np.testing.assert_allclose(average.ntk, expected[1], atol=1e-13)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("pooling", ["flatten", "average", 2])
def test_constant_images_are_the_dense_cell(activation: str, pooling: object) -> None:
    pixels = np.random.default_rng(0).normal(size=(4, 3))
    model = equilibrium(
        activation, weight=0.2, inject=0.8, bias=0.0, image_shape=(4, 4, 3), pooling=pooling
    )
    images = np.tile(pixels, (1, 16))
    dense = nsd.kernel(
        nsd.DeepEquilibrium(activation, 0.2),
        pixels,
        convention="preactivation",
        kind="both",
    )
    found = nsd.kernel(model, images, convention="preactivation", kind="both")
    np.testing.assert_allclose(found.ck, dense.ck, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.ntk, dense.ntk, rtol=1e-12, atol=1e-14)


def test_channels_are_last() -> None:
    """The same permutation of channels everywhere changes nothing, planes of channels much."""
    X = np.random.default_rng(4).normal(size=(6, 48)) / 3.0**0.5
    model = equilibrium(image_shape=(4, 4, 3))
    kernel = nsd.kernel(model, X, convention="preactivation")
    permuted = X.reshape(6, 16, 3)[:, :, [2, 0, 1]].reshape(6, -1)
    np.testing.assert_allclose(
        nsd.kernel(model, permuted, convention="preactivation"), kernel, rtol=1e-12
    )
    planes = X.reshape(6, 16, 3).transpose(0, 2, 1).reshape(6, -1)
    assert np.abs(nsd.kernel(model, planes, convention="preactivation") / kernel - 1.0).max() > 5e-4


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("pooling", ["flatten", 2])
def test_contract(activation: str, pooling: object) -> None:
    X = np.random.default_rng(1).normal(size=(70, 50)) / 5.0
    model = equilibrium(activation, weight=0.2, image_shape=(5, 5, 2), pooling=pooling)
    pair = nsd.kernel(model, X, convention="preactivation", kind="both")
    cross = nsd.kernel(model, X, X[:3], convention="preactivation", kind="both")
    for name in ("ck", "ntk"):
        kernel = getattr(pair, name)
        assert (kernel == kernel.T).all()
        assert np.linalg.eigvalsh(kernel).min() > -1e-13
        np.testing.assert_allclose(getattr(cross, name), kernel[:, :3], rtol=1e-12, atol=1e-14)
    v = np.arange(70.0)
    operator = nsd.KernelOperator(model, X, kind="ntk", convention="preactivation")
    np.testing.assert_allclose(operator @ v, pair.ntk @ v, rtol=1e-12)
    np.testing.assert_allclose(operator.diagonal(), np.diag(pair.ntk), rtol=1e-13)


def careful(
    model: nsd.ConvolutionalEquilibrium, X: np.ndarray, convention: str, *pairs: tuple[int, int]
) -> np.ndarray:
    """Both kernels of single pairs without compiled loops."""
    plan = ImagePlan(ring_of(model, convention), model, X, None, (0, 1))
    rows, columns = (np.array(index) for index in zip(*pairs, strict=True))
    return plan._careful(plan.offsets[0], rows, columns)


def test_coefficients_that_do_not_fit_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(2).normal(size=(9, 36))
    model = equilibrium("tanh", weight=0.5, inject=0.5, image_shape=(6, 6))
    pair = nsd.kernel(model, X, convention="preactivation", kind="both")
    monkeypatch.setattr(image_states.checks, "available_memory", lambda: 1 << 19)
    again = nsd.kernel(model, X, convention="preactivation", kind="both")
    np.testing.assert_allclose(again.ck, pair.ck, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(again.ntk, pair.ntk, rtol=1e-13, atol=1e-15)


def near_images() -> np.ndarray:
    """Images with one background, equal in most pixels, and nearly equal ones."""
    rng = np.random.default_rng(3)
    images = np.full((4, 10, 10, 1), 0.3)
    images[:, 4:6, 4:6] = rng.normal(size=(4, 2, 2, 1))
    images[3] = images[2] + 1e-9 * rng.normal(size=(10, 10, 1))
    return images.reshape(4, -1)


@pytest.mark.parametrize("bias", [0.0, 0.15])
def test_equal_backgrounds_cost_no_digits(bias: float) -> None:
    """Moving both images by a common circular shift changes nothing but the roundings."""
    X = near_images()
    model = equilibrium(bias=bias, image_shape=(10, 10, 1))
    pair = nsd.kernel(model, X[:1], X[1:], convention="preactivation", kind="both")
    expected = careful(model, X, "preactivation", (0, 1), (0, 2), (0, 3))
    np.testing.assert_allclose(pair.ntk[0], expected[1], rtol=1e-13)
    # Of nearly equal images the NTK differs from the diagonal by O(distance), not by 1e-8.
    tangent = nsd.kernel(model, X, convention="preactivation", kind="ntk")
    assert abs(tangent[2, 3] / tangent[2, 2] - 1.0) < 1e-8
    # 50 digits: a kink's slope loses half of the digits of ρ where images are equal.
    in_digits = high_precision_tangent(model, X[0], X[1])
    assert pair.ntk[0, 0] == pytest.approx(in_digits, rel=2e-14)


def high_precision_tangent(
    model: nsd.ConvolutionalEquilibrium, x: np.ndarray, y: np.ndarray
) -> float:
    """Θ of a ReLU cell on equal positions, in G form, with NumPy's longest floats."""
    (layer,) = model.cell
    real = np.longdouble
    grid = model.grid

    def mean(values: np.ndarray) -> np.ndarray:
        moved = [np.roll(values, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        return sum(moved) / real(9)

    x, y = (image.astype(real).reshape(grid) for image in (x, y))
    w, u, b = real(layer.weight), real(layer.inject), real(layer.bias)
    q1, q2, G = (u * mean(product) + b for product in (x * x, y * y, x * y))
    start = (q1, q2, G)
    theta = G
    pi = real("3.14159265358979323846264338327950288")
    for _ in range(200):
        rho = np.clip(G / np.sqrt(q1 * q2), -1, 1)
        angle = np.arccos(rho)
        phi = np.sqrt(q1 * q2) * (np.sqrt((1 - rho) * (1 + rho)) + (pi - angle) * rho) / (2 * pi)
        slope = (pi - angle) / (2 * pi)
        q1, q2, G = (
            first + w * mean(part) for first, part in zip(start, (q1 / 2, q2 / 2, phi), strict=True)
        )
        theta = G + w * mean(slope * theta)
    return float(theta.mean())


def test_blank_images() -> None:
    X = np.vstack([np.zeros(16), waves(1, 4, 4, 1)])
    for activation in ("relu", "tanh"):
        pair = nsd.kernel(
            equilibrium(activation, bias=0.0, image_shape=(4, 4)),
            X,
            convention="preactivation",
            kind="both",
        )
        assert np.abs(pair.ck[0]).max() < 1e-15
        assert np.abs(pair.ntk[0]).max() < 1e-15
    cosine = nsd.kernel(
        equilibrium("cos", weight=0.3, bias=0.0, image_shape=(4, 4)),
        X,
        convention="feature",
        kind="both",
    )
    assert np.isfinite(cosine.ntk).all()
    assert cosine.ck[0, 0] > 0.5


def test_no_stable_equilibrium() -> None:
    X = waves(2, 4, 4, 2)
    with pytest.raises(NotConverged, match="variances"):
        nsd.kernel(equilibrium(weight=2.1), X, convention="preactivation")
    with pytest.raises(NotConverged, match="no stable equilibrium"):
        nsd.kernel(equilibrium("tanh", weight=4.0, bias=0.0), 0.1 * X, convention="preactivation")


def test_careful_route_agrees_with_the_compiled_one() -> None:
    X = np.random.default_rng(5).normal(size=(3, 32)) / 2.0
    for model in (equilibrium(), equilibrium("tanh", weight=0.9)):
        for convention in CONVENTIONS:
            expected = careful(model, X, convention, (0, 1), (1, 2))
            pair = nsd.kernel(model, X, convention=convention, kind="both")
            np.testing.assert_allclose(pair.ck[[0, 1], [1, 2]], expected[0], rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(
                pair.ntk[[0, 1], [1, 2]], expected[1], rtol=1e-12, atol=1e-14
            )
