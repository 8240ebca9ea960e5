"""What the page shows is what the library computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import FormulaError, InvalidInput, UndeclaredKink
from notsodeep.explorer.explorer_data import mixture_of, prepared
from notsodeep.explorer.shown import (
    KnownData,
    candidate_rows,
    coefficient_rows,
    condition_rows,
    deq_of,
    headline,
    inference_cost,
    view_of,
)
from notsodeep.explorer.state import (
    ACTIVATIONS,
    CELL,
    CELLS,
    FAMILIES,
    FORMULA,
    OWN,
    ExplorerState,
)
from notsodeep.explorer.take_away import code_of
from notsodeep.matching import FAMILIES as KNOWN_FAMILIES

SMALL = {"samples": 120, "dimension": 150}


def view_for(**changes: object):
    state = ExplorerState(**{**SMALL, **changes})
    return view_of(state, KnownData.of(prepared(state)))


def test_lists_are_those_of_the_library() -> None:
    assert FAMILIES == KNOWN_FAMILIES
    assert set(ACTIVATIONS) - {FORMULA, CELL} <= set(nsd.activations.names())
    for name in set(ACTIVATIONS) - {FORMULA}:
        deq_of(ExplorerState(activation=name))
    for name in CELLS:
        assert not deq_of(ExplorerState(activation=CELL, cell=name)).is_vanilla


def test_a_cell_has_a_view_of_its_own() -> None:
    layers = "tanh weight=.5 inject=.6 bias=.1\n relu weight=.4 inject=.3 bias=.05;\n"
    state = ExplorerState(**SMALL, activation=CELL, cell=OWN, layers=layers)
    ring = deq_of(state)
    assert [str(layer) for layer in ring.cell] == ["tanh(0.5, 0.6, 0.1)", "relu(0.4, 0.3, 0.05)"]
    view = view_of(state, KnownData.of(prepared(state)))
    assert view.match.model == ring
    assert view.certificate is not None
    assert view.law is not None
    assert view.certificate.matched.relative_gap < 0.1
    cost = inference_cost(
        ring, nsd.ExplicitNetwork(["relu"]), tau0=1.0, in_features=9, width=10, out_features=2
    )
    assert cost.deq == 2 * 90 + 20 + cost.steps * 2 * 100
    assert set(state.fields_in_use) >= {"cell", "layers"}
    assert "layers" not in ExplorerState(activation=CELL).fields_in_use
    assert "sigma_a2" not in state.fields_in_use


def test_the_mixture_is_the_papers_by_default() -> None:
    assert mixture_of(ExplorerState()) == nsd.data.paper_mixture(500)
    spread = mixture_of(ExplorerState(spread=0.5, num_classes=3))
    assert spread.covariances.shape == (3, 500)
    np.testing.assert_allclose(spread.covariances[0, :2], [1.5, 0.5])


def test_the_view_is_a_match_and_its_certificate() -> None:
    view = view_for(activation="tanh", sigma_a2=0.1)
    rng = np.random.default_rng(0)
    mixture = nsd.data.paper_mixture(150)
    X, _ = mixture.sample(120, rng)
    X_test, y_test = mixture.sample(120, rng)
    found = nsd.match(nsd.DeepEquilibrium("tanh", 0.1), X, refine=False)
    certificate = found.certify(X_test, y_test)
    assert view.match.parameters == found.parameters
    assert view.certificate.matched.relative_gap == certificate.matched.relative_gap
    said, news = headline(view)
    assert f"within {certificate.matched.readout_gap:.2%}" in said
    assert ("A plain layer does as well" in said) == certificate.plain_suffices
    assert news == "good"


@pytest.mark.parametrize(
    ("changes", "population"),
    [
        ({}, None),
        ({"kind": "ntk", "convention": "preactivation"}, None),
        ({"activation": "cos"}, None),
        ({"data": "digits", "classes": "6,8"}, "deconvolved"),
    ],
)
def test_the_law_is_that_of_the_library(changes: dict[str, str], population: str | None) -> None:
    state = ExplorerState(**{**SMALL, **changes})
    data = KnownData.of(prepared(state))
    law = data.limiting_spectrum(deq_of(state), state.kind, state.convention)
    eq = nsd.equivalent(
        deq_of(state),
        data.rows.X_test,
        data.rows.y_test,
        data.rows.population,
        kind=state.kind,
        convention=state.convention,
    )
    expected = nsd.limiting_spectrum(eq, population=population)
    assert law.to_dict() == expected.to_dict()
    x = np.linspace(0.0, 3.0, 50)
    np.testing.assert_array_equal(law.density(x), expected.density(x))


def test_the_sphere_has_an_exact_network_and_its_own_law() -> None:
    view = view_for(data="sphere")
    assert view.match.family == "dual"
    assert view.certificate.matched.relative_gap < 1e-9
    assert view.law_note == "points uniform on the sphere"
    assert view.law.spikes[0].value == pytest.approx(
        view.certificate.matched.eigenvalues[-1], rel=0.02
    )


def test_an_infeasible_family_is_explained() -> None:
    view = view_for(activation="tanh", family="quadratic")
    assert view.certificate is None
    said, news = headline(view)
    assert news == "bad"
    assert "no network for this DEQ: covariance_overlap is 0 for an odd φ" in said
    assert condition_rows(view)
    with pytest.raises(InvalidInput, match="for rows of norm one"):
        view_for(family="dual")


def test_a_poor_family_is_called_poor() -> None:
    said, news = headline(view_for(family="hard_tanh"))
    assert news == "bad"
    assert said.endswith("That is not close.")


def test_tables_hold_the_numbers_of_the_records() -> None:
    view = view_for()
    rows = coefficient_rows(view.match)
    for row in rows[:2]:  # constant and linear, of a model that is not centred
        wanted = getattr(view.match.target, row["coefficient"])
        assert float(row["target"]) == pytest.approx(wanted, abs=1e-6)
    assert [row["coefficient"] for row in rows[:2]] == ["constant", "linear"]
    verdicts = {row["condition"]: row["verdict"] for row in condition_rows(view)}
    assert verdicts["contraction"].endswith("holds")
    assert len(verdicts) == len(view.certificate.conditions.verdicts)
    assert len(candidate_rows(view.match)) == len(view.match.candidates) > 1
    high = view_for(sigma_a2=0.4, family="leaky_relu")
    verdicts = {row["condition"]: row["verdict"] for row in condition_rows(high)}
    assert verdicts["contraction"].endswith("fails")


HOSTILE = [
    "__import__('os').system('touch /tmp/owned')",
    "().__class__.__bases__[0].__subclasses__()",
    "open('/etc/passwd').read()",
    "exec('x')",
    "eval('x')",
    "lambda x: x",
    "x.__class__",
    "x if x > 0 else 0",
    "[x for x in (1,)]",
    "x := 3",
    "x; import os",
    "import os",
    "f'{x}'",
    "9**9**9**9",
    "x**(10**9)",
    "x" * 401,
    "(" * 100 + "x" + ")" * 100,
    "-" * 300 + "x",
    "x\nimport os",
    "x\x00",
    "х + 1",  # a Cyrillic letter
    "tanh(x, x)",
    "max(*x)",
    "tanh(x=1)",
    "1e400 * x",
    "1/0 + x",
    "True + x",
    "print",
    "2",
    "",
    "   ",
]


@pytest.mark.parametrize("formula", HOSTILE)
def test_hostile_formulas_are_refused_and_never_run(formula: str) -> None:
    state = ExplorerState(activation=FORMULA, formula=formula, kinks="")
    with pytest.raises(FormulaError):
        deq_of(state)


def test_formulas_that_cannot_be_integrated_or_lack_a_kink_are_explained() -> None:
    for formula in ("exp(x**2)", "1/x", "log(x)", "sqrt(x)"):
        with pytest.raises(InvalidInput):
            deq_of(ExplorerState(activation=FORMULA, formula=formula, kinks=""))
    with pytest.raises(UndeclaredKink, match="near x = 0"):
        deq_of(ExplorerState(activation=FORMULA, kinks=""))


def test_a_good_formula_gives_a_view() -> None:
    view = view_for(activation=FORMULA, formula="x*sigmoid(x)", kinks="", family="leaky_relu")
    named = view_for(activation="swish", family="leaky_relu")
    assert view.certificate.matched.gap == pytest.approx(named.certificate.matched.gap, rel=1e-6)


@pytest.mark.parametrize(("name", "sigma_a2"), [("relu", 0.3), ("tanh", 0.1), ("swish", 0.6)])
def test_the_counted_steps_are_those_of_the_solver(name: str, sigma_a2: float) -> None:
    deq = nsd.DeepEquilibrium(name, sigma_a2).centred(1.0)
    rows = np.random.default_rng(0).standard_normal((40, 200))
    rows /= np.sqrt((rows**2).sum() / len(rows))
    module = nsd.build(deq, 200, 800, 2, rng=0, solver={"name": "plain", "tolerance": 1e-5})
    module.eval()(torch.as_tensor(rows, dtype=torch.float32))
    cost = inference_cost(
        deq, nsd.ExplicitNetwork(["relu"]), tau0=1.0, in_features=200, width=800, out_features=2
    )
    assert cost.steps is not None
    assert abs(cost.steps - module.record.steps) <= 1
    assert cost.network == 800 * 202
    assert cost.deq == 800 * 202 + cost.steps * 800**2


def test_a_deq_that_does_not_contract_has_no_count() -> None:
    steep = nsd.DeepEquilibrium(nsd.activations.hard_tanh(scale=3.0, clip=1.0), 0.9).centred(1.0)
    network = nsd.ExplicitNetwork(["relu", "relu"])
    cost = inference_cost(steep, network, tau0=1.0, in_features=10, width=100, out_features=1)
    assert cost.rate > 1.0
    assert cost.ratio is None
    assert cost.network == 100 * 11 + 100**2


@pytest.mark.parametrize(
    "changes",
    [
        {"family": "leaky_relu"},
        {"spread": 0.4, "num_classes": 3, "kind": "ntk", "family": "leaky_relu"},
        pytest.param({"num_classes": 1}, marks=pytest.mark.slow),
        {"data": "sphere", "family": "leaky_relu"},
        pytest.param({"data": "sphere"}, marks=pytest.mark.slow),
        {"data": "digits", "classes": "3,8", "family": "leaky_relu"},
        pytest.param({"data": "digits", "classes": "3,8"}, marks=pytest.mark.slow),
        {"activation": FORMULA, "family": "hard_tanh"},
        {"activation": CELL},
    ],
)
def test_the_code_computes_what_the_page_shows(
    changes: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    state = ExplorerState(**{**SMALL, **changes})
    names: dict[str, object] = {}
    exec(compile(code_of(state), "match.py", "exec"), names)
    view = view_of(state, KnownData.of(prepared(state)))
    assert names["certificate"].matched.gap == view.certificate.matched.gap
    assert str(view.match) in capsys.readouterr().out


def test_the_code_for_an_uploaded_file(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    y = np.arange(140) % 2
    path = tmp_path / "it's mine.npz"
    np.savez(path, X=rng.standard_normal((140, 30)) + y[:, None], y=y)
    state = ExplorerState(data="upload", samples=60, seed=3)
    names: dict[str, object] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(code_of(state, path.name), "match.py", "exec"), names)
    view = view_of(state, KnownData.of(prepared(state, (path.name, path.read_bytes()))))
    assert names["certificate"].matched.gap == view.certificate.matched.gap
