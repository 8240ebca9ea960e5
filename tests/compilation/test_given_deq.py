"""`nsd.compile` of networks with given weights, and of functions."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from given_networks import drawn_cell, exact_logits
from notsodeep.activations import from_formula, named
from notsodeep.compilation.evidence import fidelity_of
from notsodeep.compilation.record import Step
from notsodeep.compilation.trained_record import Fidelities, TrainedCompilation
from notsodeep.data import load
from notsodeep.errors import DataCorrupted, InvalidInput, NotConverged
from notsodeep.networks.affine import AffineDEQ
from notsodeep.networks.cell import EquilibriumCell

CHECKPOINT = "NOTSODEEP_MONOTONE_CHECKPOINT"


def rows(count: int, seed: int, inputs: int = 12) -> np.ndarray:
    """Return rows with the few strong directions that data have."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).standard_normal((4, inputs))
    return rng.standard_normal((count, 4)) @ mixing + 0.1 * rng.standard_normal((count, inputs))


@pytest.fixture(scope="module")
def cell() -> AffineDEQ:
    rng = np.random.default_rng(8)
    return drawn_cell(rng, named("relu"), width=16, inputs=12, classes=4, margin=1.0, size=2.0)


@pytest.fixture(scope="module")
def compiled(cell: AffineDEQ) -> TrainedCompilation:
    X, X_test = rows(1200, 1), rows(600, 2)
    y, y_test = (exact_logits(cell, part).argmax(axis=1) for part in (X, X_test))
    return nsd.compile(cell, X, y, X_test, y_test, layers=3)


def test_layers_follow_the_network(cell: AffineDEQ, compiled: TrainedCompilation) -> None:
    by_layers = compiled.fidelity_by_layers
    assert list(by_layers) == [1, 2, 3]
    errors = [fidelity.logit_error for fidelity in by_layers.values()]
    assert errors[2] < errors[1] < errors[0]
    assert compiled.fidelity.agreement > 0.97
    dropped = compiled.baselines["recurrence dropped, read-out refitted"]
    assert compiled.fidelity.agreement > dropped.agreement
    # The module itself, against the DEQ solved by another route.
    X = rows(600, 2)
    classes = exact_logits(cell, X).argmax(axis=1)
    scores = compiled.network(torch.as_tensor(X, dtype=torch.float32))
    assert np.mean(scores.argmax(dim=1).numpy() == classes) == compiled.fidelity.agreement


def test_the_state_of_a_hybrid_is_all_that_it_computes_with(compiled: TrainedCompilation) -> None:
    X = torch.as_tensor(rows(200, 5))
    hybrid, other = compiled.hybrid(), copy.deepcopy(compiled.hybrid())
    expected = hybrid(X)
    numbers = [value for value in other.state_dict().values() if value.is_floating_point()]
    assert len(numbers) >= 5
    with torch.no_grad():
        for value in numbers:
            value.mul_(1.01)
    other.load_state_dict(hybrid.state_dict())
    torch.testing.assert_close(hybrid(X), expected, rtol=0.0, atol=0.0)
    torch.testing.assert_close(other(X), expected, rtol=0.0, atol=0.0)
    assert hybrid.last_record is not None
    assert other.last_record is not None
    np.testing.assert_array_equal(other.last_record.steps, hybrid.last_record.steps)


def test_the_hybrid_gives_the_networks_own_classes(
    cell: AffineDEQ, compiled: TrainedCompilation
) -> None:
    X = rows(2000, 3)
    classes = exact_logits(cell, X).argmax(axis=1)
    hybrid = compiled.hybrid()
    scores = hybrid(torch.as_tensor(X))
    np.testing.assert_array_equal(scores.argmax(dim=1).numpy(), classes)
    record = hybrid.last_record
    assert record is not None
    assert list(record.certified_after) == sorted(record.certified_after)
    assert record.certified_after[-1] > 0.3
    # Rows that layers have proved take no steps, and only these.
    assert np.mean(record.steps == 0) == pytest.approx(record.certified_after[-1])
    # One row at a time gives the same, and so do rows of single precision.
    single = hybrid(torch.as_tensor(X[:3], dtype=torch.float32))
    np.testing.assert_array_equal(single.argmax(dim=1).numpy(), classes[:3])


def test_a_tie_is_solved_and_counted(cell: AffineDEQ, compiled: TrainedCompilation) -> None:
    weights = np.stack([cell.arrays()["C"][0]] * 2)
    tied = EquilibriumCell.from_weights(
        cell.recurrent, cell.injection, cell.bias, "relu", (weights, None), shift=0.1, scale=0.7
    )
    hybrid = nsd.compile(tied, rows(200, 4), layers=1).hybrid()
    hybrid(torch.as_tensor(rows(20, 5)))
    assert hybrid.last_record is not None
    assert hybrid.last_record.uncertified == 20


def test_proved_is_what_the_network_that_is_handed_over_says() -> None:
    """In float32 it answers near-ties otherwise than its layers in float64."""
    rng = np.random.default_rng(0)
    readout = (rng.normal(size=(3, 6)), None)
    W, U = 1e-9 * rng.normal(size=(6, 6)), rng.normal(size=(6, 4))
    near = EquilibriumCell.from_weights(W, U, None, "relu", readout)

    def classes(x: np.ndarray) -> np.ndarray:
        return exact_logits(near, x).argmax(axis=1)

    ends = rng.normal(size=(2, 60, 4))
    ties = []
    for low, high in zip(*ends, strict=True):
        first, last = classes(np.stack([low, high]))
        if first == last:
            continue
        apart = low - high
        for _ in range(45):
            middle = (low + high) / 2
            low, high = (middle, high) if classes(middle[None])[0] == first else (low, middle)
        ties += [low + 3e-9 * apart, high - 3e-9 * apart]
    X = np.array(ties)
    found = nsd.compile(near, rng.normal(size=(100, 4)), X_test=X, layers=2)
    with torch.no_grad():
        own = found.network(torch.as_tensor(X)).argmax(dim=1).numpy()
    right = np.mean(own == classes(X))
    assert right < 1.0
    assert found.fidelity.agreement == right
    assert found.fidelity.certified is not None
    assert found.fidelity.certified <= right


def test_the_front(compiled: TrainedCompilation) -> None:
    front = compiled.front
    assert {point.kind for point in front.points} == {
        "tolerance", "truncated", "explicit", "hybrid",
    }  # fmt: skip
    assert front.point("explicit", 3).ratio == front.point("explicit", 3).products == 1.0
    assert front.point("tolerance", 1e-6).agreement == 1.0
    steps = [point.steps for point in front.of_kind("tolerance")]
    assert steps == sorted(steps)
    m, p, classes = 16, 12, 4
    layers = m * p + m * classes + m * m * (1 + 2 + 3)
    cut = front.point("truncated", 5)
    assert cut.products == pytest.approx((m * p + m * classes + 5 * m * m) / layers)
    (cost,) = (r for r in compiled.verdict.reasons if "multiplications" in r)
    assert "at 0.01" in cost
    assert front.plot().get_xscale() == "log"


@pytest.mark.parametrize(
    ("same", "word"), [(700, "replaceable"), (693, "not shown"), (650, "not replaceable")]
)
def test_agreement_is_judged_by_both_bounds(
    compiled: TrainedCompilation, same: int, word: str
) -> None:
    exact = np.eye(2)[np.zeros(700, dtype=int)]
    fidelity = fidelity_of(np.eye(2)[(np.arange(700) >= same).astype(int)], exact)
    changed = dataclasses.replace(compiled, fidelities=Fidelities((fidelity,), {}))
    assert changed.verdict.word == word


def test_with_labels_accuracy_speaks_too(compiled: TrainedCompilation) -> None:
    """A network that decides otherwise and is more accurate is not called one that fails."""
    labels = np.zeros(900, dtype=int)
    exact, better, worse = (
        np.eye(2)[(np.arange(900) >= right).astype(int)] for right in (850, 890, 600)
    )
    for scores, word, words in (
        (better, "replaceable", "are as accurate as this DEQ, but decide otherwise on 4.4%"),
        (worse, "not replaceable", "do not follow this DEQ closely enough"),
    ):
        fidelity = fidelity_of(scores, exact, labels=labels)
        changed = dataclasses.replace(compiled, fidelities=Fidelities((fidelity,) * 3, {}))
        assert changed.verdict.word == word
        assert words in changed.verdict.headline


def test_layers_are_chosen_by_the_verdicts_rule() -> None:
    """One layer agreed on all validation rows, and too seldom on the others."""
    cell, data = nsd.zoo.load("tanh-digits-64"), load("digits", preprocessing="unit_range")
    found = nsd.compile(cell, data.X, X_test=data.X_test)
    assert found.verdict.word == "replaceable"
    assert found.fidelity.agreement_bound >= 0.99


def several_limits() -> AffineDEQ:
    """Return a network of which three units remember where they came from."""
    rng = np.random.default_rng(0)
    remembers = np.arange(12) < 3
    W = np.diag(np.where(remembers, 1.15, 0.0))
    U = rng.standard_normal((12, 5)) * np.where(remembers, 0.1, 1.0)[:, None]
    readout = (rng.standard_normal((3, 12)), None)
    return EquilibriumCell.from_weights(W, U, None, "tanh", readout)


def test_a_multi_stable_network_is_named_in_the_verdict() -> None:
    found = nsd.compile(several_limits(), np.random.default_rng(1).standard_normal((400, 5)))
    stability = found.solved.stability
    assert stability.several > 0.05
    assert stability.other_class > 0.0
    assert "This DEQ has several fixed points" in found.verdict.headline
    assert "of another class" in str(found.verdict)
    with pytest.raises(InvalidInput, match="margin"):
        found.hybrid()


def test_one_fixed_point_is_not_called_several(compiled: TrainedCompilation) -> None:
    assert compiled.solved.stability.unique
    assert "several" not in str(compiled.verdict)
    readout = (np.eye(2), None)
    W = np.array([[0.0, 3.0], [-0.2, 0.0]])  # large, and yet one fixed point
    swirl = EquilibriumCell.from_weights(W, np.eye(2), 0.0, from_formula("x*sigmoid(x)"), readout)
    found = nsd.compile(swirl, rows(120, 12, inputs=2), layers=1)
    assert found.solved.stability.several == 0.0


def stalling(share: float) -> EquilibriumCell:
    """Return a function that halves its state, but grows for ever on some rows."""

    def f(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        grows = x[:, :1] > share
        return torch.where(grows, z + 1.0, 0.5 * z + x[:, :1] * torch.ones_like(z))

    return EquilibriumCell.from_function(f, 3)


def test_rows_without_a_fixed_point_are_set_aside_and_counted() -> None:
    X = np.linspace(0.0, 1.0, 1000)[:, None] * np.ones((1, 2))
    found = nsd.compile(stalling(0.995), X)
    assert found.solved.counts.unsettled == 5
    assert "5 without a fixed point were set aside" in str(found.verdict)
    assert (
        sum((found.solved.counts.train, found.solved.counts.validation))
        + (found.solved.counts.test)
        == 995
    )


def test_too_many_of_them_end_it_early() -> None:
    X = np.linspace(0.0, 1.0, 1000)[:, None] * np.ones((1, 2))
    with pytest.raises(NotConverged, match=r"notsodeep\.diagnose"):
        nsd.compile(stalling(0.7), X)
    found = nsd.compile(stalling(0.7), X, unsettled_limit=0.5)
    assert found.solved.counts.unsettled == 300


def test_saved_and_read_again(compiled: TrainedCompilation, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    place = compiled.save(tmp_path / "run")
    again = nsd.load(place)
    assert isinstance(again, TrainedCompilation)
    assert again.to_dict() == compiled.to_dict()
    assert str(again) == str(compiled)
    X = rows(7, 6).astype(np.float32)
    expected = compiled.network(torch.as_tensor(X))
    assert torch.equal(again.network(torch.as_tensor(X)), expected)
    assert torch.equal(again.hybrid()(torch.as_tensor(X)), compiled.hybrid()(torch.as_tensor(X)))
    alone = nsd.load(place / "network.safetensors")
    assert torch.equal(alone(torch.as_tensor(X)), expected)
    session = onnxruntime.InferenceSession(str(place / "network.onnx"))
    (scores,) = session.run(None, {"x": X})
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)
    with pytest.raises(InvalidInput, match="directory of a compile run"):
        nsd.Compilation.load(place)


def test_a_stopped_compilation_resumes(
    cell: AffineDEQ, compiled: TrainedCompilation, tmp_path: Path
) -> None:
    """Stopped before every record in turn; each is computed once, whoever asks for it."""
    phases = ["fixed points", "explicit layers", "fidelity", "timing"]
    heard: list[str] = []
    y_test = exact_logits(cell, rows(600, 2)).argmax(axis=1)

    def work(last: str = "", seed: int = 1, **options: Any) -> TrainedCompilation:
        def log(step: Step) -> None:
            if step.message == last:
                raise KeyboardInterrupt
            heard.append(step.message)

        options = {"layers": 3, "out": tmp_path / "run", "progress": log, **options}
        return nsd.compile(cell, rows(1200, seed), None, rows(600, 2), y_test, **options)

    for phase in phases[1:]:
        with pytest.raises(KeyboardInterrupt):
            work(phase)
        with pytest.raises(DataCorrupted, match="not finished"):
            nsd.load(tmp_path / "run")
    found = work()
    assert heard == phases
    assert without_clock(found) == without_clock(compiled)
    heard.clear()
    assert work().to_dict() == found.to_dict()
    assert heard == []  # all of it was there
    assert compiled.save(tmp_path / "run") == tmp_path / "run"  # the same rows and weights
    with pytest.raises(InvalidInput, match=r"got others: other data .X is"):
        work(seed=5)
    with pytest.raises(InvalidInput, match="layers is 3 there and 2 here"):
        work(layers=2)
    assert len(work(layers=2, force=True).layers) == 2
    assert work(layers=2, agreement_limit=0.5).verdict.word == "replaceable"


def without_clock(compiled: TrainedCompilation) -> dict[str, Any]:
    form = compiled.to_dict()
    del form["front"], form["verdict"]
    return form


def test_what_is_shown(compiled: TrainedCompilation) -> None:
    assert "Rule: replaceable if" in str(compiled)
    assert "recurrence dropped" in str(compiled)
    assert compiled.verdict.headline in compiled._repr_html_()
    assert len(compiled.plot().axes) == 2
    json.dumps(compiled.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["tanh", "gelu", "normalized_relu"])
def test_other_activations(name: str) -> None:
    rng = np.random.default_rng(9)
    W = rng.standard_normal((10, 10))
    W *= 0.4 / np.linalg.norm(W, 2)
    readout = (rng.standard_normal((3, 10)), None)
    cell = EquilibriumCell.from_weights(W, rng.standard_normal((10, 12)) / 4, 0.0, name, readout)
    found = nsd.compile(cell, rows(300, 10), layers=2)
    assert found.fidelity.certified is not None
    X = torch.as_tensor(rows(100, 11))
    classes = exact_logits(cell, X).argmax(axis=1)
    answers = found.hybrid()(X).argmax(dim=1).numpy()
    np.testing.assert_array_equal(answers, classes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.ones((10, 12))}, "X must have at least 60 rows"),
        ({"X": np.ones((100, 5))}, "X must have 12 features"),
        ({"layers": 0}, "layers"),
        ({"y": np.ones(3)}, "y must be a vector of 100"),
        ({"y": np.full(100, 4)}, "y must be the indices of the network's 4 logits"),
        ({"y_test": np.ones(100, int)}, "y_test must come with X_test"),
        ({"y": np.ones(100, int), "X_test": rows(30, 14)}, "y_test must come with y and X_test"),
        ({"X_test": rows(5, 14)}, "X_test must have at least 20 rows"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"tolerance": 5.0}, "tolerance must be at most 0.01"),
        ({"agreement_limit": "x"}, "agreement_limit"),
        ({"random_state": -1}, "random_state"),
        ({"family": "leaky_relu"}, "family is no option for a given DEQ; its options are layers"),
    ],
)
def test_what_is_rejected(cell: AffineDEQ, change: dict[str, Any], message: str) -> None:
    arguments = {"X": rows(100, 13), **change}
    with pytest.raises(InvalidInput, match=message):
        nsd.compile(cell, **arguments)


def test_data_in_other_units_or_with_other_labels_are_rejected() -> None:
    """A network is 63 % accurate on rows in the theory's scale, and 92 % on its own."""
    cell = nsd.zoo.load("tanh-digits-64")
    with pytest.raises(InvalidInput, match=r"units of the network's own.*'theory'.*unit_range"):
        nsd.compile(cell, nsd.data.load("digits"))
    # Of two classes loaded alone the labels are 0 and 1, whatever the network calls them.
    with pytest.raises(InvalidInput, match=r"have all classes of the set.*only 3, 5.*classes="):
        nsd.compile(cell, load("digits", preprocessing="unit_range", classes=(3, 5)))


def test_the_order_of_the_rows_does_not_matter() -> None:
    cell = drawn_cell(np.random.default_rng(20), named("tanh"))
    X = rows(300, 21, inputs=5)
    one, other = (nsd.compile(cell, part, layers=2) for part in (X, X[::-1]))
    assert one.fidelity.agreement == other.fidelity.agreement
    assert one.fidelity.logit_error == pytest.approx(other.fidelity.logit_error, rel=1e-9)


def black_box(readout: Any = "linear") -> EquilibriumCell:
    rng = np.random.default_rng(3)
    W, U = torch.as_tensor(0.25 * rng.normal(size=(6, 6))), torch.as_tensor(rng.normal(size=(6, 6)))

    def f(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z @ W.mT.to(z.dtype) + x @ U.mT.to(x.dtype))

    C = (rng.normal(size=(3, 6)), None) if readout == "linear" else readout
    return EquilibriumCell.from_function(f, 6, C)


def test_functions_are_compiled_without_proof_and_read_again(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 6))
    labels = (X[:, 0] > 0).astype(int)
    found = nsd.compile(black_box(), X, labels, layers=4, out=tmp_path / "run")
    agreement = [fidelity.agreement for fidelity in found.fidelity_by_layers.values()]
    assert agreement[-1] > 0.95
    assert agreement[-1] >= found.baselines["1 step from zero"].agreement
    assert found.fidelity.certified is None
    assert found.fidelity.accuracy is not None
    assert found.network(torch.as_tensor(X[:4])).shape == (4, 3)
    assert "No row can be proved" in str(found)
    with pytest.raises(InvalidInput, match="no certificate"):
        found.hybrid()
    front = found.front
    assert {point.kind for point in front.points} == {"tolerance", "truncated", "explicit"}
    assert front.point("tolerance", 1e-6).agreement == 1.0
    assert front.point("explicit", 4).products == 1.0
    with pytest.raises(InvalidInput, match="no data"):
        nsd.load(tmp_path / "run")
    again = nsd.load(tmp_path / "run", cell=black_box())
    assert again.to_dict() == found.to_dict()
    x = torch.as_tensor(X[:9])
    assert torch.equal(again.network(x), found.network(x))


def test_functions_without_a_readout_are_judged_by_their_states() -> None:
    X = np.random.default_rng(1).normal(size=(200, 6))
    found = nsd.compile(black_box(None), X, layers=6)
    shares = [fidelity.agreement for fidelity in found.fidelity_by_layers.values()]
    assert shares[0] < 0.5  # arg max of six entries would have agreed
    assert shares[-1] == 1.0
    with pytest.raises(InvalidInput, match="without a read-out"):
        nsd.compile(black_box(None), X, np.zeros(200, int))
    with pytest.raises(InvalidInput, match="width is no option"):
        nsd.compile(black_box(), X, width=9)


def test_a_function_without_a_fixed_point_is_an_error() -> None:
    cell = EquilibriumCell.from_function(lambda z, x: z**2 + 1.0 + 0.0 * x, 3)
    with pytest.raises(NotConverged, match=r"notsodeep\.diagnose"):
        nsd.compile(cell, np.ones((100, 3)))


@pytest.mark.slow
def test_a_public_network() -> None:
    """A trained monotone network for MNIST, where the user has it and says where."""
    path = os.environ.get(CHECKPOINT)
    if not path:
        pytest.skip(f"needs {CHECKPOINT}, the path of a safetensors file, and MNIST")
    from safetensors.numpy import load_file

    w = load_file(path)
    readout = (w["C"], w["c"])
    cell = EquilibriumCell.from_weights(
        w["W"], w["U"], w["b"], "relu", readout, shift=0.1307, scale=0.3081
    )
    data = load("mnist", preprocessing="unit_range")
    X, y = data.X_test, data.y_test
    order = np.random.default_rng(0).permutation(10_000)
    exact = exact_logits(cell, X).argmax(axis=1)
    assert 0.982 <= np.mean(exact == y) <= 0.983
    held = X[order[5000:]]
    found = nsd.compile(cell, X[order[:5000]], X_test=held, layers=3)
    reached = [fidelity.agreement for fidelity in found.fidelity_by_layers.values()]
    assert np.all(np.array(reached) >= [0.96, 0.987, 0.993])
    answers = found.hybrid()(torch.as_tensor(held)).argmax(dim=1).numpy()
    np.testing.assert_array_equal(answers, exact[order[5000:]])
