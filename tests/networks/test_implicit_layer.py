"""The implicit layer's manners: records, failures, NaN, compilers."""

from __future__ import annotations

import shutil
import warnings

import pytest
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import InvalidInput, NotConverged, NotConvergedWarning, UnknownName
from notsodeep.networks import EquilibriumNetwork, build, implicit_layer

# At this σa² the iterates of a ReLU network grow; the tanh network's go round and round.
GROWING = nsd.DeepEquilibrium(nsd.activations.leaky_relu(2.0, 1.5), 0.9)
RESTLESS = nsd.DeepEquilibrium(nsd.activations.from_formula("tanh(4 * x)"), 0.9)


def network(deq: nsd.DeepEquilibrium, **options: object) -> EquilibriumNetwork:
    module = build(deq, 5, 64, 2, rng=0, **options)
    assert isinstance(module, EquilibriumNetwork)
    return module


def inputs() -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def test_every_call_leaves_a_record() -> None:
    module = network(nsd.DeepEquilibrium("tanh", 0.2))
    assert module.last_record is None
    loss = module(inputs()).square().sum()
    record = module.last_record
    assert record is not None
    assert record.forward is not None
    assert record.forward.converged
    assert record.forward.direction == "forward"
    assert record.forward.residuals.shape == (6,)
    assert len(record.forward.history) == record.forward.steps
    assert record.backward is None
    loss.backward()
    assert record.backward is not None
    assert record.backward.converged
    assert record.backward.direction == "backward"
    module(inputs())
    assert module.last_record is not record


def test_forward_and_backward_have_their_own_solvers() -> None:
    gradient = {"name": "implicit", "solver": {"name": "broyden", "tolerance": 1e-2}}
    solver = {"name": "anderson", "tolerance": 1e-5}
    module = network(nsd.DeepEquilibrium("tanh", 0.2), solver=solver, gradient=gradient)
    module(inputs()).sum().backward()
    record = module.last_record
    assert record is not None
    assert record.forward is not None
    assert record.backward is not None
    assert record.forward.tolerance == 1e-5
    assert record.backward.tolerance == 1e-2
    assert record.backward.steps < record.forward.steps


def test_a_diverging_network_raises_in_evaluation() -> None:
    for deq, reason in ((GROWING, "without bound"), (RESTLESS, "no convergence in 300 steps")):
        module = network(deq).eval()
        with pytest.raises(NotConverged, match=reason) as caught:
            module(inputs())
        record = caught.value.record
        assert record.converged is False
        assert len(record.history) == record.steps
        bound = 0.25 / deq.activation.lipschitz**2
        assert f"{bound:.4g}" in str(caught.value)
        assert "smaller sigma_a2" in str(caught.value)
        assert "width 64" in str(caught.value)
        assert module.failures.forward == 0


def test_in_training_the_first_failure_is_warned_about_and_all_are_counted() -> None:
    module = network(RESTLESS)
    with pytest.warns(NotConvergedWarning, match="counted in `module.failures`"):
        outputs = module(inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs.sum().backward()
        module(inputs())
    assert module.failures.forward == 2
    assert module.failures.backward == 1
    module.eval()
    with pytest.raises(NotConverged):
        module(inputs())


def test_choices_on_failure() -> None:
    ignoring = network(RESTLESS, on_failure="ignore").eval()
    ignoring(inputs()).sum().backward()
    assert ignoring.last_record is not None
    assert ignoring.last_record.forward is not None
    assert ignoring.last_record.forward.converged is False
    warning = network(RESTLESS, on_failure="warn").eval()
    for _ in range(2):
        with pytest.warns(NotConvergedWarning, match="smaller sigma_a2"):
            warning(inputs())
    with pytest.raises(NotConverged):
        network(RESTLESS, on_failure="raise").train()(inputs())
    with pytest.raises(UnknownName, match="'raise'"):
        network(RESTLESS, on_failure="rise")


def test_a_backward_solve_that_fails_raises() -> None:
    gradient = {"name": "implicit", "solver": {"name": "fixed_point", "max_steps": 2}}
    module = network(nsd.DeepEquilibrium("tanh", 0.2), gradient=gradient).eval()
    with pytest.raises(NotConverged, match="gradient of the fixed point") as caught:
        module(inputs()).sum().backward()
    assert caught.value.record.direction == "backward"


@pytest.mark.parametrize("training", [True, False])
def test_nan_is_found_and_named(training: bool) -> None:
    module = network(nsd.DeepEquilibrium("tanh", 0.2), on_failure="ignore").train(training)
    X = inputs()
    X[3, 1] = torch.nan
    with pytest.raises(InvalidInput, match=r"the input term √σb² B x .* 64 NaN .* of 384"):
        module(X)
    with torch.no_grad():
        module.recurrent[0, :3] = torch.nan
    with pytest.raises(InvalidInput, match=r"recurrent of .* 3 NaN or infinite entries of 4096"):
        module(inputs())
    with torch.no_grad():
        module.recurrent.fill_(1.0)
        module.injection[5, 2] = torch.inf
    with pytest.raises(InvalidInput, match=r"the input term .* last good ones"):
        module(inputs())


def test_own_problems() -> None:
    theta = torch.tensor([0.3, 0.9], dtype=torch.float64)
    seen = []
    z, record = implicit_layer(
        lambda z, t: 3 * t * z + 1,
        [theta],
        torch.ones(2, dtype=torch.float64),
        on_failure=seen.append,
    )
    assert [each.converged for each in seen] == [False]
    assert record.forward is seen[0]
    with pytest.raises(NotConverged, match=r"The root was not found.*solver='anderson'"):
        implicit_layer(
            lambda z, t: t * z + 1, [10 * theta], torch.ones(2).double(), subject="the root"
        )
    z, _ = implicit_layer(
        lambda z, t: 3 * t * z + 1, [theta], torch.ones(2).double(), solver="broyden"
    )
    torch.testing.assert_close(z, 1 / (1 - 3 * theta))
    with pytest.raises(InvalidInput, match="parameter 0 of the fixed point must be finite"):
        implicit_layer(lambda z, t: t * z, [theta * torch.nan], torch.ones(2).double())


def test_memory_does_not_grow_with_the_steps() -> None:
    """What autograd keeps is the solution and the parameters, whatever the tolerance."""
    kept = {}
    for tolerance in (1e-2, 1e-12):
        module = network(
            nsd.DeepEquilibrium("tanh", 0.2),
            dtype=torch.float64,
            solver={"name": "fixed_point", "tolerance": tolerance},
        )
        count = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module(inputs().double())
        kept[tolerance] = count
    assert kept[1e-2] == kept[1e-12]


# The compiler looks at .grad of everything that crosses a break in the graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
            ],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # torch's own
def test_compiled_networks_give_the_same_results(backend: str) -> None:
    module = network(nsd.DeepEquilibrium("tanh", 0.2), dtype=torch.float64)
    compiled = torch.compile(module, backend=backend)
    for X in (inputs().double(), 2 * inputs().double()):
        results = []
        for each in (module, compiled):
            module.zero_grad()
            outputs = each(X)
            outputs.square().sum().backward()
            results.append([outputs.detach(), *(p.grad.clone() for p in module.parameters())])
        for plain, other in zip(*results, strict=True):
            torch.testing.assert_close(plain, other, rtol=1e-12, atol=1e-13)
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), module(X), rtol=1e-12, atol=1e-13)


def test_half_precision_is_refused() -> None:
    module = network(nsd.DeepEquilibrium("tanh", 0.2))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InvalidInput, match="autocast"):
        module(inputs())


def test_the_remedy_is_another_solver() -> None:
    with pytest.raises(NotConverged, match=r"Try solver='broyden', more steps"):
        implicit_layer(
            lambda z: z + 1.0,
            [],
            torch.zeros(2),
            solver={"name": "anderson", "max_steps": 5},
            subject="the root",
        )
