"""Records go through JSON and come back the same, and say what is wrong with what is not theirs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Literal

import numpy as np
import pytest

from notsodeep.arrays import FloatArray, IntArray
from notsodeep.checks import strict_json
from notsodeep.errors import InvalidInput, NotSerialisable
from notsodeep.records import LARGEST, NOT_STORED, Record


@dataclass(frozen=True, repr=False)
class Inner(Record):
    """A record inside another."""

    value: float
    _derived = ("double",)

    @property
    def double(self) -> float:
        """Twice the value."""
        return 2.0 * self.value


@dataclass(frozen=True, repr=False)
class Other(Record):
    """Another one, to choose between."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Everything(Record):
    """A record with a field of every kind."""

    number: float = 1.5
    count: int = 3
    flag: bool | None = None
    kind: Literal["a", "b"] = "a"
    inner: Inner | Other = field(default_factory=lambda: Other("x"))
    several: tuple[Inner, ...] = (Inner(1.0), Inner(math.nan))
    pair: tuple[float, int] = (math.inf, 2)
    words: list[str] = field(default_factory=lambda: ["one"])
    table: dict[str, float] = field(default_factory=lambda: {"low": -math.inf})
    array: FloatArray = field(default_factory=lambda: np.array([[1.0, math.nan], [math.inf, 0.1]]))
    counts: IntArray | None = field(default_factory=lambda: np.arange(3))
    narrow: FloatArray = field(default_factory=lambda: np.float32([[0.1], [0.2]]))
    empty: FloatArray = field(default_factory=lambda: np.empty((0, 4)))
    function: Any = field(default=None, metadata=NOT_STORED)


@dataclass(frozen=True, eq=False, repr=False)
class Held(Record):
    """A record that is nothing without its array."""

    values: FloatArray


def there_and_back(record: Record) -> Any:
    return type(record).from_dict(strict_json(json.dumps(record.to_dict(), allow_nan=False)))


def test_round_trip_of_every_kind() -> None:
    record = Everything(inner=Inner(0.1), function=abs)
    back = there_and_back(record)
    for name, value in vars(record).items():
        if isinstance(value, np.ndarray):
            got = getattr(back, name)
            assert got.dtype == value.dtype
            assert got.shape == value.shape
            np.testing.assert_array_equal(got, value)
    assert (back.number, back.count, back.flag, back.kind) == (1.5, 3, None, "a")
    assert back.inner == Inner(0.1)
    assert there_and_back(Everything(inner=Other("y"))).inner == Other("y")
    assert back.several[0] == Inner(1.0)
    assert math.isnan(back.several[1].value)
    assert back.pair == (math.inf, 2)
    assert (back.words, back.table) == (["one"], {"low": -math.inf})
    assert back.function is None


def test_derived_numbers_are_written_and_passed_over() -> None:
    assert Inner(2.0).to_dict() == {"value": 2.0, "double": 4.0}
    assert Inner.from_dict({"value": 2.0, "double": 5.0}) == Inner(2.0)


def test_null_is_nan_where_a_number_must_be() -> None:
    assert Inner(math.nan).to_dict() == {"value": None, "double": None}
    for form in (None, "NaN"):
        assert math.isnan(Inner.from_dict({"value": form}).value)


def test_arrays_can_be_left_out_and_then_it_says_so() -> None:
    form = Everything().to_dict(arrays=False)
    assert not {"array", "counts", "narrow", "empty"} & set(form)
    with pytest.raises(InvalidInput, match=r"none called values.*arrays=False cannot be read"):
        Held.from_dict(Held(np.ones(2)).to_dict(arrays=False))


def test_arrays_inside_other_fields_are_left_out_too() -> None:
    @dataclass(frozen=True, repr=False)
    class Curves(Record):
        by_role: dict[str, Any]
        parts: tuple[Any, ...]

    curves = Curves({"deq": np.ones(3), "n": 2}, (np.ones(2), "x", {"y": np.ones(1)}))
    assert curves.to_dict(arrays=False) == {"by_role": {"n": 2}, "parts": ["x", {}]}
    assert curves.to_dict()["by_role"]["deq"] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"valu": 1.0}, "content of Inner.from_dict must have the keys of a Inner. Got valu"),
        ({}, "none called value"),
        ([1.0], "content of Inner.from_dict must be a mapping. Got list"),
        ({"value": "much"}, "value of Inner.from_dict must be a number. Got 'much'"),
        ({"value": True}, "must be a number. Got True"),
    ],
)
def test_wrong_content_is_named(content: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Inner.from_dict(content)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", 1.0, "count of Everything.from_dict must be of type int. Got 1"),
        ("kind", "c", "kind of Everything.from_dict must be one of 'a', 'b'. Got 'c'"),
        ("pair", [1.0], "pair of Everything.from_dict must have 2 entries"),
        ("pair", 1.0, "must be a list"),
        ("several", [{"value": "x"}], "value of Inner.from_dict must be a number"),
        ("words", [1], "entry 0 of words of Everything.from_dict must be of type str. Got 1"),
        ("table", {"low": "x"}, "'low' in table of Everything.from_dict must be a number"),
        ("table", [], "table of Everything.from_dict must be a mapping"),
        ("array", [[1.0], [1.0, 2.0]], "array of Everything.from_dict must be an array of numbers"),
        ("array", ["x"], "must be an array of numbers"),
        ("array", {"dtype": "object", "shape": [1], "values": [1]}, "must be an array of numbers"),
        ("array", {"shape": [3], "values": [1.0]}, "must be an array of numbers"),
        ("counts", [1.5], "must be an array of numbers"),
        ("counts", [None], "must be an array of numbers"),
    ],
)
def test_wrong_kinds_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Everything.from_dict({name: value})


def test_what_has_no_json_form_is_named() -> None:
    with pytest.raises(
        NotSerialisable, match=r"Everything.words.0. has no JSON form: it is a type"
    ):
        Everything(words=[int]).to_dict()
    with pytest.raises(NotSerialisable, match="array of complex128"):
        Everything(array=np.ones(2, dtype=complex)).to_dict()
    with pytest.raises(NotSerialisable, match=r"too large for JSON.*numpy.save"):
        Everything(array=np.zeros(LARGEST + 1)).to_dict()


def test_a_record_of_many_fields_says_how_many_it_does_not_show() -> None:
    fields = [(f"number{k}", float, field(default=1.0)) for k in range(100)]
    Wide = make_dataclass("Wide", fields, bases=(Record,), frozen=True, repr=False)
    text = repr(Wide())
    assert text.startswith("Wide(number0=1, number1=1, ")
    assert text.endswith(f"=1, … {100 - text.count('=')} more)")
    assert len(text) < 400


def test_repr_is_short_and_html_is_escaped() -> None:
    record = Everything(array=np.zeros((1000, 1000)), words=["<b>" * 50])
    text = repr(record)
    assert "array=float64 (1000, 1000)" in text
    assert len(text) < 400
    page = record._repr_html_()
    assert "<caption>Everything</caption>" in page
    assert "<b>" not in page
    assert page.count("<table>") == 4  # itself, inner, and two in `several`
