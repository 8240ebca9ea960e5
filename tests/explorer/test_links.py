"""States as links: nothing is lost, and nothing in a link is trusted."""

from __future__ import annotations

from dataclasses import fields
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notsodeep.errors import InvalidInput
from notsodeep.explorer.page_state import (
    Choice,
    Listed,
    Real,
    Switch,
    Text,
    Whole,
    from_query,
    rules,
    to_query,
)
from notsodeep.explorer.state import ExplorerState


def values_of(rule: object) -> st.SearchStrategy[object]:
    match rule:
        case Choice(options) | Listed(options):
            return st.sampled_from(options)
        case Whole(least, most):
            return st.integers(least, most)
        case Real(least, most):
            return st.floats(least, most)
        case Text(longest):
            return st.text(max_size=min(longest, 40))
        case _:
            assert isinstance(rule, Switch)
            return st.booleans()


def states_of(kind: type) -> st.SearchStrategy[object]:
    return st.builds(kind, **{name: values_of(rule) for name, rule in rules(kind).items()})


@given(state=states_of(ExplorerState))
def test_a_link_holds_the_whole_state(state: ExplorerState) -> None:
    text = urlencode(to_query(state))
    again, problems = from_query(ExplorerState, dict(parse_qsl(text, keep_blank_values=True)))
    assert again == state
    assert not problems


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"sigma_a2": "1.7"}, "sigma_a2 of the link must be a number from 0 to 0.99. Got '1.7'"),
        ({"sigma_a2": "nan"}, "must be a number"),
        ({"sigma_a2": "0.1; import os"}, "must be a number"),
        ({"samples": "1e3"}, "must be an integer from 50 to 1000"),
        ({"samples": "-400"}, "must be an integer"),
        ({"samples": "9" * 400}, "must be an integer"),
        ({"samples": "٤٠٠"}, "must be an integer"),
        ({"activation": "tahn"}, "Did you mean 'tanh'"),
        ({"width": "100"}, "width of the link must be one of 32, 64"),
        ({"refine": "yes"}, "Unknown refine 'yes'"),
        ({"formula": "x" * 401}, "at most 400 characters"),
        ({"nonsense": "1"}, "Unknown setting in the link 'nonsense'"),
    ],
)
def test_what_cannot_be_used_is_told_and_left_at_its_default(
    query: dict[str, str], told: str
) -> None:
    state, problems = from_query(ExplorerState, {**query, "seed": "7"})
    assert state == ExplorerState(seed=7)
    (problem,) = problems
    assert told in problem


def test_only_what_is_in_use_is_in_the_link() -> None:
    state = ExplorerState(data="digits", dimension=700, formula="x**3", classes="6,8")
    assert to_query(state, state.fields_in_use) == {"data": "digits", "classes": "6,8"}
    formula = ExplorerState(activation="formula", formula="tanh(x)", kinks="")
    assert set(to_query(formula, formula.fields_in_use)) == {"activation", "formula", "kinks"}


def test_keys_know_what_they_depend_on() -> None:
    state = ExplorerState()
    other = ExplorerState(width=64, formula="x**3")
    assert state.view_key == other.view_key
    for name in ("sigma_a2", "samples", "seed", "family", "means"):
        field = next(f for f in fields(ExplorerState) if f.name == name)
        changed = ExplorerState(**{name: "dual" if name == "family" else field.default + 1})
        assert changed.view_key != state.view_key, name


def test_kinks_and_classes_are_lists() -> None:
    assert ExplorerState(kinks=" 1, -2.5 ,").kink_points == (-2.5, 1.0)
    assert ExplorerState(classes="6, 8").class_names == ("6", "8")
    with pytest.raises(InvalidInput, match="must be numbers between commas"):
        _ = ExplorerState(kinks="0; 1").kink_points
