"""Kernels of images in float32: how far from float64, and what is left to float64."""

from __future__ import annotations

import numba
import numpy as np
import pytest

import notsodeep as nsd
from brute_force import equilibrium
from notsodeep.kernels import convolution_compiled as compiled
from notsodeep.kernels.convolution import ConvolutionPlan
from notsodeep.kernels.convolution_pairs import PairBlock

BOUND = 4e-6
"""Of √(K_ii K_jj), as docs/convolutions.md states it."""

_SHAPE = (7, 9, 1)
_PIXELS = 63


def images(kind: str) -> np.ndarray:
    """Eleven images, which is a strip and a part of one."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(11, _PIXELS))
    if kind == "noise":
        return noise
    if kind == "equal backgrounds":
        near = np.full((11, *_SHAPE), 0.3)
        near[:, 2:4, 3:6] = rng.normal(size=(11, 2, 3, 1))
        near[3] = near[2] + 1e-9 * rng.normal(size=_SHAPE)
        near[4] = near[2] + 1e-4 * rng.normal(size=_SHAPE)
        return near.reshape(11, -1)
    if kind == "dark and bright":
        return noise * np.logspace(-3.0, 0.0, 11)[:, None]
    # Multiples of one another, where the angle of two pixels is zero and their distance is not.
    return np.concatenate([np.outer(np.linspace(0.5, 2.0, 6), np.ones(_PIXELS)), noise[:5]])


def layer(activation: str, weight: float, **options: object) -> nsd.Convolution:
    return nsd.Convolution(activation, weight=weight, **{"inject": 0.6, **options})


CELLS = {
    "relu": [layer("relu", 0.2)],
    "slow contraction": [layer("relu", 1.75, inject=0.2)],
    "nearly critical": [layer("relu", 1.95, inject=0.05)],
    "zeros outside": [layer("leaky_relu", 0.6, bias=0.1)],
    "tanh": [layer("tanh", 0.8)],
    "wide windows": [layer("swish", 0.5, size=5)],
    "ring": [layer("relu", 0.5), layer("tanh", 0.8, bias=0.1)],
}


@pytest.mark.parametrize("kind", ["noise", "equal backgrounds", "dark and bright", "multiples"])
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("pooling", ["flatten", pytest.param(2, marks=pytest.mark.slow)])
def test_near_float64(name: str, kind: str, pooling: str | int) -> None:
    X, model = (
        images(kind),
        nsd.ConvolutionalEquilibrium(
            CELLS[name], _SHAPE, pooling, padding="zero" if name == "zeros outside" else "circular"
        ),
    )
    for convention in ("feature", "preactivation"):
        exact = nsd.kernel_pair(model, X, convention=convention)
        single = nsd.kernel_pair(model, X, convention=convention, dtype=np.float32)
        for one, other in (
            (exact.ck, single.ck),
            (exact.ntk, single.ntk),
        ):
            root = np.sqrt(np.diag(one))
            assert (np.abs(one - other) / np.outer(root, root)).max() < BOUND
            assert other.dtype == np.float32


def blocks(
    model: nsd.ConvolutionalEquilibrium, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray, PairBlock]:
    """Both kernels in float32 without help, which rows were marked, and the block."""
    plan = ConvolutionPlan(model, X, None, "feature", np.float32)
    block = PairBlock(plan.states, slice(0, len(X)), slice(0, len(X)), plan._first_attempt)
    first = np.arange(1, len(X) + 1)
    values, marked = block.attempt(plan.offsets[0], first)
    return values, marked, block


def test_ordinary_images_need_no_help() -> None:
    for name in ("relu", "tanh", "wide windows"):
        values, marked, block = blocks(
            nsd.ConvolutionalEquilibrium(CELLS[name], _SHAPE), images("noise")
        )
        assert block.states.dtype is np.float32
        assert not marked.any()
        assert np.isfinite(values).all()


HARD = ("multiples", "dark and bright")


def hard_model() -> nsd.ConvolutionalEquilibrium:
    return nsd.ConvolutionalEquilibrium([layer("relu", 1.75, inject=0.1)], _SHAPE)


@pytest.mark.parametrize("kind", HARD)
def test_what_float32_cannot_do_is_marked(kind: str) -> None:
    _, marked, _ = blocks(hard_model(), images(kind))
    assert marked.any()


@pytest.mark.slow
def test_marks_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them errors are far above the bound."""
    for name in ("SINGLE_SLOPES", "SINGLE_UNEVEN"):
        monkeypatch.setattr(compiled, name, np.inf)
    # Constants are compiled in.
    blind = numba.njit(nogil=True, error_model="numpy")(compiled.solve_pairs.py_func)
    monkeypatch.setattr(compiled, "solve_pairs", blind)
    for kind in HARD:
        model, X = hard_model(), images(kind)
        values, marked, _ = blocks(model, X)
        assert not marked.any()
        exact = nsd.tangent_kernel(model, X, convention="feature")
        root = np.sqrt(np.diag(exact))
        errors = np.abs(values[1] - exact) / np.outer(root, root)
        assert errors[np.triu_indices(len(X), 1)].max() > 2.0 * BOUND


def test_nearly_critical_models_are_done_in_float64() -> None:
    for name, dtype in (("slow contraction", np.float32), ("nearly critical", np.float64)):
        model = nsd.ConvolutionalEquilibrium(CELLS[name], _SHAPE)
        plan = ConvolutionPlan(model, images("noise"), None, "feature", np.float32)
        assert plan.states.dtype is dtype


def test_pixels_beyond_float32_are_done_in_float64() -> None:
    model = equilibrium("relu", image_shape=(4, 4), bias=0.0)
    X = np.random.default_rng(0).normal(size=(4, 16))
    for factor in (1e-20, 1e20):
        plan = ConvolutionPlan(model, factor * X, None, "feature", np.float32)
        assert plan.states.dtype is np.float64
    X[1] = 0.0  # a blank image is no reason
    plan = ConvolutionPlan(model, X, None, "feature", np.float32)
    assert plan.states.dtype is np.float32
    single = nsd.kernel_pair(model, X, dtype=np.float32, convention="preactivation")
    np.testing.assert_allclose(
        single.ntk, nsd.tangent_kernel(model, X, convention="preactivation"), rtol=2e-6, atol=1e-7
    )
