"""Results depend on their arguments alone, and global state is left as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.estimators import EquilibriumKernelClassifier
from public_calls import BASE, DEQ, FEATURES

Y = np.arange(len(BASE)) % 2


CELL = nsd.DeepEquilibrium(
    cell=[nsd.Dense("erf", 0.5, inject=0.6, bias=0.1), nsd.Dense("relu", 0.8, inject=0.3)]
)


def network() -> Any:
    return nsd.build(DEQ, FEATURES, 6, 2, rng=0)


CALLS: dict[str, Callable[[], Any]] = {
    "kernels": lambda: nsd.kernel(DEQ.centred(1.0), BASE, convention="preactivation", kind="ntk"),
    "operator": lambda: (
        nsd.KernelOperator(DEQ, BASE, convention="preactivation") @ np.ones(len(BASE))
    ),
    "match": lambda: list(nsd.match(DEQ, tau0=1.0, family="leaky_relu").parameters.values()),
    "refined": lambda: list(
        nsd.match(DEQ, BASE, family="piecewise_linear", refine=True).parameters.values()
    ),
    "certified": lambda: nsd.match(DEQ, BASE, family="leaky_relu").certify(BASE).difference,
    "statistics": lambda: nsd.data.MixtureStatistics.estimate(BASE, Y).T,
    "equivalent": lambda: nsd.equivalent(CELL, BASE, Y, convention="preactivation").to_dense(),
    "sample": lambda: nsd.data.sphere(4, 3, rng=0),
    "build": lambda: network().readout.detach().numpy(),
    "forward": lambda: network()(torch.tensor(BASE, dtype=torch.float32)).detach().numpy(),
    "empirical": lambda: nsd.empirical_kernels(network(), BASE).ntk,
    "classifier": lambda: (
        EquilibriumKernelClassifier(ridge=0.1, convention="preactivation")
        .fit(BASE, Y)
        .decision_function(BASE)
    ),
    "load": lambda: nsd.data.load("digits", samples=10, rng=0).X,
}


@pytest.fixture
def other_globals() -> Iterator[None]:
    """Seeds, precisions and error states of someone else's program."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    torch_state = torch.get_rng_state()
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    np.random.seed(123)  # noqa: NPY002
    torch.manual_seed(456)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    with np.errstate(all="raise"), np.printoptions(precision=2):
        yield
    np.random.set_state(numpy_state)  # noqa: NPY002
    torch.set_rng_state(torch_state)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)


@pytest.mark.parametrize("name", CALLS)
def test_global_state_has_no_influence(name: str, request: pytest.FixtureRequest) -> None:
    before = np.asarray(CALLS[name]())
    request.getfixturevalue("other_globals")
    after = np.asarray(CALLS[name]())
    assert after.dtype == before.dtype
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("name", CALLS)
def test_global_state_is_left_alone(name: str) -> None:
    def state() -> tuple[Any, ...]:
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        return (
            kind,
            np.asarray(keys).tobytes(),
            rest,
            torch.get_rng_state().numpy().tobytes(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            np.geterr(),
            np.get_printoptions(),
            list(warnings.filters),
        )

    CALLS[name]()  # what is imported on first use may have ways of its own
    before = state()
    CALLS[name]()
    assert state() == before


def test_arguments_are_left_alone() -> None:
    X = BASE.copy()
    for call in (
        lambda: nsd.kernel(DEQ, X, convention="preactivation", kind="both"),
        lambda: nsd.match(DEQ, X, family="leaky_relu"),
        lambda: nsd.data.MixtureStatistics.estimate(X, Y),
        lambda: (
            EquilibriumKernelClassifier(ridge=0.1, convention="preactivation").fit(X, Y).predict(X)
        ),
        lambda: nsd.empirical_kernels(network(), X),
    ):
        call()
    np.testing.assert_array_equal(X, BASE)


@pytest.mark.parametrize("name", ["forward", "empirical"])
def test_the_number_of_threads_of_torch(name: str) -> None:
    count = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(np.asarray(CALLS[name]()))
    finally:
        torch.set_num_threads(count)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
