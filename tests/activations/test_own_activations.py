"""A user's own activation: what is accepted, and what is refused with which words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from notsodeep import activations
from notsodeep.activations import as_activation, from_formula, from_function, named
from notsodeep.errors import (
    InvalidInput,
    NotIntegrable,
    NotSerialisable,
    NotSoDeepError,
    QuadratureError,
    UndeclaredKink,
    UnknownName,
)


def test_function_without_derivative_matches_the_named_one() -> None:
    mine = from_function(
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), name="mine", kinks=(0,)
    )
    elu = activations.named("elu")
    x = np.linspace(-6, 6, 1001)
    np.testing.assert_allclose(mine.derivative(x), elu.derivative(x), atol=2e-12)
    mine_moments, moments = mine.moments([0.3, 2.0]), elu.moments([0.3, 2.0])
    for name in ("mean", "slope", "curvature", "square", "slope_square", "square_curvature"):
        np.testing.assert_allclose(getattr(mine_moments, name), getattr(moments, name), rtol=1e-11)
    assert mine.parity is None
    assert mine.lipschitz == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize(
    ("function", "kinks", "parity", "homogeneous"),
    [
        (np.sin, (), "odd", False),
        (np.cos, (), "even", False),
        (lambda x: np.maximum(x, 0), (0.0,), None, True),
        (lambda x: x + 1e-9, (), None, False),
        (lambda x: np.clip(x, -1e4, 1e5), (), None, False),  # odd and homogeneous up to 10⁴ only
    ],
)
def test_symmetries_are_looked_for_far_out(function, kinks, parity, homogeneous) -> None:
    mine = from_function(function, name="mine", kinks=kinks)
    assert mine.parity == parity
    assert mine.homogeneous is homogeneous


@pytest.mark.parametrize(
    ("formula", "kinks", "parity", "lipschitz", "homogeneous"),
    [
        ("max(x, 0.1 * x)", (0.0,), None, 1.0, True),
        ("abs(x)", (0.0,), "even", 1.0, True),
        ("tanh(3 * x)", (), "odd", 3.0, False),
        ("x**3", (), "odd", math.inf, False),
        ("log(1 + exp(-abs(x))) + max(x, 0)", (0.0,), None, 1.0, False),
        ("x * sigmoid(x)", (), None, 1.0998393194149106, False),
        ("sqrt(1 + x**2)", (), "even", 1.0, False),
        ("exp(x)", (), None, np.inf, False),  # its slope overflows before 10⁶
        ("log(1 + exp(x))", (), None, 1.0, False),  # and so would this one's value
    ],
)
def test_facts_are_detected(
    formula: str, kinks: tuple[float, ...], parity: str | None, lipschitz: float, homogeneous: bool
) -> None:
    activation = from_formula(formula, kinks=kinks)
    assert activation.parity == parity
    assert activation.lipschitz == pytest.approx(lipschitz, rel=1e-6)
    assert activation.homogeneous is homogeneous


def test_formula_equals_the_named_activation() -> None:
    swish = from_formula("x / (1 + exp(-x))")
    named = activations.named("swish")
    a, b = swish.moments([0.1, 1.0, 2.0]), named.moments([0.1, 1.0, 2.0])
    for name in ("mean", "slope", "curvature", "square", "slope_square", "square_curvature"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-12)


@pytest.mark.parametrize(
    ("function", "kinks", "error", "words"),
    [
        (math.tanh, (), InvalidInput, "must accept NumPy arrays"),
        (lambda x: 1.0 if x > 0 else 0.0, (), InvalidInput, "np.where"),
        (lambda x: x.sum(), (), InvalidInput, "shape"),
        (lambda x: x[..., :1], (), InvalidInput, "shape"),
        (lambda x: x - x.mean(), (), InvalidInput, "elementwise and deterministic"),
        (lambda x: x.astype(np.float32), (), InvalidInput, "float64"),
        (lambda x: x + 0j, (), InvalidInput, "float64"),
        (
            lambda x: np.tanh(x.astype(np.float32)).astype(float),
            (),
            UndeclaredKink,
            "single precision",
        ),
        (np.log, (), InvalidInput, "must be finite"),
        (lambda x: np.where(x > 3, np.nan, x), (), InvalidInput, "nan at x = 3.01"),
        (np.sign, (), InvalidInput, "not continuous"),
        (np.sign, (0.0,), InvalidInput, "not continuous"),
        (lambda x: np.sqrt(np.abs(x)), (0.0,), InvalidInput, "infinitely steep"),
        (lambda x: np.exp(x**2), (), NotIntegrable, "second moment"),
        (lambda x: np.exp(8 * np.abs(x)), (0.0,), NotIntegrable, "second moment"),
        (lambda x: np.abs(x - 0.3), (), UndeclaredKink, r"kinks=\(0.3,\)"),
        (lambda x: np.maximum(x, 0), (), UndeclaredKink, r"kinks=\(0,\)"),
        (lambda x: np.clip(x, -1, 2), (-1.0,), UndeclaredKink, r"kinks=\(-1, 2\)"),
        (lambda x: x / (1 + np.abs(x)), (), UndeclaredKink, r"kinks=\(0,\)"),
        (lambda x: x + 1e-5 * np.abs(x - 1.0001), (), UndeclaredKink, "1.0001"),
    ],
)
def test_unusable_functions_are_refused(function, kinks, error, words) -> None:
    with pytest.raises(error, match=words):
        from_function(function, name="f", kinks=kinks)


def test_random_function_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInput, match="deterministic"):
        from_function(lambda x: x + rng.normal(size=x.shape), name="noise")


def test_second_moment_is_refused_at_the_scale_where_it_ends() -> None:
    formula = from_formula("exp(x**2 / 10)")
    # E exp(τ²ξ²/5) is finite for τ² < 2.5 only; far enough below, it is (1 − 2τ²/5)^(-1/2).
    assert formula.moments(0.5).square == pytest.approx((1 - 0.1) ** -0.5, rel=1e-12)
    for tau in (1.5, 1.6, 5.0, 50.0):
        with pytest.raises(NotIntegrable, match="second moment at scale"):
            formula.moments(tau)


def test_undeclared_kink_far_away_is_noticed_where_it_matters() -> None:
    def tent(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) > 20, 40 - np.abs(x), np.abs(x))

    kinked = from_function(tent, name="far", kinks=(0.0,))
    declared = from_function(tent, name="far", kinks=(-20.0, 0.0, 20.0))
    assert kinked.moments(1.0).mean == pytest.approx(np.sqrt(2 / np.pi), rel=1e-12)
    assert declared.moments(30.0).mean > 0.0
    with pytest.raises(QuadratureError, match=r"declare it, as in kinks=\((19|20)"):
        kinked.moments(30.0)


@pytest.mark.parametrize(("formula", "place"), [("x + relu(x-8.5)", 8.5), ("min(x, 200)", 200.0)])
def test_far_kinks_of_formulas_are_noticed_where_they_matter(formula: str, place: float) -> None:
    undeclared, declared = from_formula(formula), from_formula(formula, kinks=(place,))
    assert undeclared.moments(0.5).square == pytest.approx(declared.moments(0.5).square, rel=1e-12)
    with pytest.raises(QuadratureError, match="declare it"):
        undeclared.moments(1.3 * place)


@pytest.mark.parametrize("steepness", [200.0, 3e3])
@pytest.mark.parametrize("place", [0.3333, 1.2345, -6.789])
def test_spikes_between_nodes_are_refused(steepness: float, place: float) -> None:
    with pytest.raises(QuadratureError, match="varies"):
        from_formula(f"x + exp(-((x - ({place})) * {steepness:g})**2)")
    with pytest.raises(QuadratureError, match="varies"):
        from_function(lambda x: x + np.exp(-(((x - place) * steepness) ** 2)), name="spike")
    hat = f"x + {steepness:g} * relu({1 / steepness:g} - abs(x - ({place / 6:.4f})))"
    with pytest.raises(NotSoDeepError):
        from_formula(hat)


@pytest.mark.parametrize("place", [0.0, 1.2345, -6.789])
def test_bumps_that_quadrature_can_resolve_are_right(place: float) -> None:
    for phi in (
        from_formula(f"x + exp(-((x - ({place})) * 20)**2)"),
        from_function(lambda x: x + np.exp(-(((x - place) * 20) ** 2)), name="bump"),
    ):
        # E exp(−s²(τξ − p)²) = exp(−s²p²/(1 + 2s²τ²))/√(1 + 2s²τ²), and twice s² for the square.
        tau, s2 = 1.5, 400.0
        once, twice = (1.0 + 2.0 * k * s2 * tau**2 for k in (1, 2))
        bump = math.exp(-s2 * place**2 / once) / math.sqrt(once)
        square = math.exp(-2.0 * s2 * place**2 / twice) / math.sqrt(twice)
        # E x·bump: the Gaussian pulled to the bump has the mean 2s²τ²p/(1 + 2s²τ²).
        mixed = bump * 2.0 * s2 * tau**2 * place / once
        expected = tau**2 + 2.0 * mixed + square
        assert phi.moments(tau).square == pytest.approx(expected, rel=1e-12)


def test_function_cannot_be_saved() -> None:
    with pytest.raises(NotSerialisable, match="from_formula"):
        from_function(np.tanh, name="mine").to_dict()


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_function_needs_a_name(name: object) -> None:
    with pytest.raises(InvalidInput, match="name of from_function"):
        from_function(np.tanh, name=name)


@pytest.mark.parametrize("kinks", ["0", 0.0, (float("nan"),), ("a",)])
def test_kinks_are_checked(kinks: object) -> None:
    with pytest.raises(InvalidInput, match="kinks of from_formula"):
        from_formula("abs(x)", kinks=kinks)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("relUu", "'relu'"),
        ("tahn", "'tanh'"),
        ("hardtahn", "'hard_tanh'"),
        ("zzzzzz", "Known: abs"),
    ],
)
def test_unknown_names_get_suggestions(name: str, hint: str) -> None:
    with pytest.raises(UnknownName, match=hint):
        activations.named(name)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("elu", {"beta": 1.0}, "beta"),
        ("polynomial", {}, "coefficients"),
        ("polynomial", {"coefficients": []}, "non-empty"),
        ("polynomial", {"coefficients": [1.0, float("nan")]}, "finite"),
        ("hard_tanh", {"clip": 0.0}, "positive"),
        ("leaky_relu", {"positive_slope": "1"}, "real number"),
        ("piecewise_linear", {"knots": (1.0, 0.0), "slopes": (0, 1, 2)}, "increasing"),
        ("piecewise_linear", {"knots": (0.0,), "slopes": (1.0,)}, "one entry more"),
        ("hermite", {"coefficients": [1.0], "scale": -1.0}, "positive"),
    ],
)
def test_bad_parameters_are_refused(name: str, parameters: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        activations.named(name, **parameters)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), "1", None, [1.0, -2.0]])
def test_scales_are_checked(scale: object) -> None:
    with pytest.raises(InvalidInput, match="scale of the moments of tanh"):
        activations.named("tanh").moments(scale)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1.0, 1.0, 1.1), r"cov of pair_expectations must satisfy \|cov\|"),
        ((-1.0, 1.0, 0.0), "var1 of pair_expectations must be at least 0"),
        ((1.0, float("nan"), 0.0), "var2 of pair_expectations must be finite"),
        (([1.0, 2.0], [1.0, 2.0, 3.0], 0.0), "broadcast"),
        ((1.0, 1.0, 1j), "real"),
    ],
)
def test_pairs_are_checked(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        activations.pair_expectations(activations.named("relu"), *arguments)


@pytest.mark.parametrize("stored", [None, {}, {"name": "relu", "extra": 1}, {"parameters": {}}])
def test_bad_stored_forms_are_refused(stored: object) -> None:
    with pytest.raises(InvalidInput, match="stored as"):
        activations.from_dict(stored)


def test_names_that_others_use_are_known() -> None:
    """PyTorch's names in any case, its functions and modules, and those of NumPy."""
    torch = pytest.importorskip("torch")
    nn, F = torch.nn, torch.nn.functional
    same = {
        "swish": ["silu", "SiLU", nn.SiLU(), F.silu],
        "relu": ["ReLU", nn.ReLU(), torch.relu, F.relu],
        "tanh": ["Tanh", nn.Tanh(), torch.tanh, np.tanh],
        "gelu": ["GELU", nn.GELU(), F.gelu],
        "identity": [nn.Identity()],
        "abs": [torch.abs, np.abs],
        "leaky_relu": ["LeakyReLU", nn.LeakyReLU(0.01)],
        "hard_tanh": [nn.Hardtanh()],
        "elu": [nn.ELU()],
        "softplus": [nn.Softplus(), F.softplus],
    }
    for name, others in same.items():
        for other in others:
            assert as_activation(other) == named(name), other
    x = np.linspace(-4.0, 4.0, 9)
    for mine, theirs in (("mish", F.mish), ("sigmoid", torch.sigmoid), (nn.Mish(), F.mish)):
        for phi in (as_activation(mine), as_activation(theirs)):
            np.testing.assert_allclose(phi(x), theirs(torch.from_numpy(x)).numpy(), rtol=1e-12)
    assert as_activation(nn.LeakyReLU(0.3)) == named("leaky_relu", negative_slope=0.3)
    assert as_activation(nn.Hardtanh(-2.0, 2.0)) == named("hard_tanh", clip=2.0)


def test_functions_that_are_something_else_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    unknown = (nn.GELU(approximate="tanh"), nn.Softplus(2.0), nn.Hardtanh(0.0, 6.0), nn.PReLU())
    for other in (*unknown, torch.exp, np.exp, lambda x: x):
        with pytest.raises(InvalidInput, match="from_function"):
            as_activation(other)


def test_modules_with_designed_and_centred_activations_travel() -> None:
    """They are pickled, and saved whole by torch."""
    import io
    import pickle

    import torch

    import notsodeep as nsd

    for phi in ("relu", "mish"):
        deq = nsd.DeepEquilibrium(phi, 0.1)
        for model in (deq.centred(1.0), nsd.match(deq, tau0=1.0).network):
            module, X = nsd.build(model, 4, 8, 2, rng=0), torch.ones(2, 4)
            stream = io.BytesIO()
            torch.save(module, stream)
            stream.seek(0)
            copies = (
                pickle.loads(pickle.dumps(module)),
                torch.load(stream, weights_only=False),
            )
            for copy in copies:
                assert torch.equal(copy(X), module(X))


@pytest.mark.parametrize("name", ["ck", "NNGP", "ntk"])
def test_kernels_go_by_their_other_names(name: str) -> None:
    import notsodeep as nsd
    from notsodeep.estimators import EquilibriumKernelRidge

    deq, X = nsd.DeepEquilibrium("tanh", 0.2), nsd.data.sphere(12, 5, rng=0)
    usual = "ntk" if name == "ntk" else "ck"
    np.testing.assert_array_equal(
        nsd.kernel(deq, X, kind=name, convention="preactivation"),
        nsd.kernel(deq, X, kind=usual, convention="preactivation"),
    )
    assert nsd.match(deq, tau0=1.0, kind=name).kind == usual
    assert nsd.KernelOperator(deq, X, kind=name, convention="preactivation").kind == usual
    fits = (
        EquilibriumKernelRidge(kind=k, ridge=0.1, convention="preactivation").fit(X, X[:, 0])
        for k in (name, usual)
    )
    np.testing.assert_array_equal(*(fit.predict(X) for fit in fits))


def test_tensors_with_gradients_are_rejected_by_name() -> None:
    import torch

    import notsodeep as nsd

    X = torch.ones(30, 4, requires_grad=True)
    with pytest.raises(InvalidInput, match=r"requires a gradient\. Pass X\.detach\(\)"):
        nsd.match(nsd.DeepEquilibrium("tanh", 0.2), X)


def test_a_users_function_is_freed_with_its_activation() -> None:
    import gc
    import weakref

    import notsodeep as nsd

    def own(x: np.ndarray) -> np.ndarray:
        return np.tanh(x) + 0.1 * x

    function = weakref.ref(own)
    X = np.random.default_rng(0).normal(size=(80, 6)) / 6**0.5
    for unit in (X, X / np.linalg.norm(X, axis=1, keepdims=True)):
        model = nsd.DeepEquilibrium(from_function(own, name="own"), 0.2)
        nsd.kernel(model.centred(1.0), unit, kind="both")
        nsd.conditions(nsd.DeepEquilibrium(cell=[nsd.Dense(model.activation, 0.2, 0.5)]), unit)
    del own, model
    gc.collect()
    assert function() is None
