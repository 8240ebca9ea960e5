"""What the records of answers have in common: a JSON form, a short repr and a notebook view.

A record is a frozen dataclass that derives from `Record`, or from `Plotted` if there is something
to see.  Its JSON form is read off its fields, and read back by their annotations.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import itertools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np

from notsodeep.errors import InvalidInput, NotSerialisable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 4_000_000
"""Most entries of an array in a JSON form: some 80 megabytes of text."""

NOT_STORED: Mapping[str, Any] = types.MappingProxyType({"stored": False})
"""Metadata of a field that is no part of the JSON form; reading gives it its default."""

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_LONGEST = 320  # characters of the fields that a repr shows
_OWN_NUMBERS = ("bool", "int64", "float64")  # of a JSON list; other arrays have to name their type


class Record:
    """A frozen dataclass with a JSON form.

    Derive from it with ``@dataclass(frozen=True, repr=False)``.  Fields may be numbers, strings,
    tuples, lists, dictionaries with strings as keys, arrays, other records and classes with
    `to_dict` and `from_dict`, and unions of these, of which the first that fits is read.

    The JSON form has one key for each field, and those named in `_derived`.  JSON has no NaN and no
    infinity: they are null, so that a number that may be None must not be NaN, and the strings
    "Infinity" and "-Infinity".  An array is a nested list if
    that says it all (float64, int64 or bool, and not empty in a way of its own), and otherwise
    ``{"dtype": …, "shape": …, "values": …}``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, repr=False)
    ... class Fit(Record):
    ...     slope: float
    ...     error: float | None = None
    >>> fit = Fit(1 / 3)
    >>> fit, fit.to_dict()
    (Fit(slope=0.333333, error=None), {'slope': 0.3333333333333333, 'error': None})
    >>> Fit.from_dict(fit.to_dict()) == fit
    True
    >>> Fit.from_dict({"slop": 1.0})
    Traceback (most recent call last):
      ...
    notsodeep.errors.InvalidInput: content of Fit.from_dict must have the keys of a Fit. Got slop...
    """

    _derived: ClassVar[tuple[str, ...]] = ()
    """Properties that the JSON form has for its readers; `from_dict` passes over them."""

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the JSON form.

        Parameters
        ----------
        arrays : bool, default True
            False leaves out arrays and private fields, of records inside this one too: short, for
            readers, but `from_dict` cannot read it.

        Raises
        ------
        NotSerialisable
            A field has no faithful JSON form, or an array has more than 4,000,000 entries.
        """
        content = {}
        for name in [*(f.name for f in _stored(type(self))), *self._derived]:
            value = getattr(self, name)
            if arrays or not (isinstance(value, np.ndarray) or name.startswith("_")):
                content[name] = _encoded(value, f"{type(self).__name__}.{name}", arrays)
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a JSON form.

        Raises
        ------
        InvalidInput
            A key is missing or unknown, or a value is of the wrong kind.
        """
        owner = f"{cls.__name__}.from_dict"
        if not isinstance(content, Mapping):
            raise _wrong("content", owner, "be a mapping", type(content).__name__)
        stored = _stored(cls)
        known = [field.name for field in stored]
        requirement = f"have the keys of a {cls.__name__}"
        unknown = [str(key) for key in content if key not in {*known, *cls._derived}]
        if unknown:
            got = f"{', '.join(unknown)}, which it does not have"
            raise _wrong("content", owner, requirement, got, f"Known: {', '.join(known)}.")
        missing = [field.name for field in stored if _required(field) and field.name not in content]
        if missing:
            got = f"none called {', '.join(missing)}"
            remedy = "A form that was made with arrays=False cannot be read."
            raise _wrong("content", owner, requirement, got, remedy)
        kinds = typing.get_type_hints(cls)
        values = {
            name: _decoded(content[name], kinds[name], f"{name} of {owner}")
            for name in known
            if name in content
        }
        return cls(**values)

    def __repr__(self) -> str:
        shown = [f.name for f in dataclasses.fields(cast(Any, self)) if f.repr]
        parts = [f"{name}={_short(getattr(self, name))}" for name in shown]
        ends = itertools.accumulate(len(part) + 2 for part in parts)
        kept = sum(end <= _LONGEST for end in ends)
        more = [f"… {len(parts) - kept} more"] * (kept < len(parts))
        return f"{type(self).__name__}({', '.join(parts[:kept] + more)})"

    def _repr_html_(self) -> str:
        """Return a table of the fields, with records inside this one folded, for notebooks."""
        names = [f.name for f in dataclasses.fields(cast(Any, self)) if not f.name.startswith("_")]
        rows = (
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{_cell(getattr(self, name))}</td></tr>"
            for name in [*names, *self._derived]
        )
        title = html.escape(type(self).__name__)
        return f"<table><caption>{title}</caption><tbody>{''.join(rows)}</tbody></table>"


class Plotted(Record):
    """A record that can be drawn."""

    _drawing: ClassVar[str]
    """Name of the function of `notsodeep.plotting` that draws it."""

    def plot(self, ax: Axes | None = None, **options: Any) -> Axes:
        """Draw it, on new axes unless some are given, and return the axes.

        Further options are those of the function of `notsodeep.plotting` for this record.

        Raises
        ------
        MissingPackage
            Matplotlib is not installed.
        """
        # Plotting knows the records, and not the other way round: it is found when it is needed.
        plotting = importlib.import_module("notsodeep.plotting")
        return cast("Axes", getattr(plotting, self._drawing)(self, ax=ax, **options))


def _stored(record: type[Record]) -> list[dataclasses.Field[Any]]:
    fields = dataclasses.fields(cast(Any, record))
    return [field for field in fields if field.metadata.get("stored", True)]


def _required(field: dataclasses.Field[Any]) -> bool:
    absent = dataclasses.MISSING
    return field.default is absent and field.default_factory is absent


def _wrong(
    parameter: str, owner: str, requirement: str, got: object, remedy: str = ""
) -> InvalidInput:
    return InvalidInput(f"{parameter} of {owner} must {requirement}. Got {got}. {remedy}".rstrip())


# Writing -----------------------------------------------------------------------------------------


def _encoded(value: Any, place: str, arrays: bool) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if isinstance(value, np.ndarray):
        return _encoded_array(value, place)
    if isinstance(value, Record):
        return value.to_dict(arrays=arrays)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        kept = ((k, v) for k, v in value.items() if arrays or not isinstance(v, np.ndarray))
        return {key: _encoded(item, f"{place}[{key!r}]", arrays) for key, item in kept}
    if isinstance(value, list | tuple):
        items = [item for item in value if arrays or not isinstance(item, np.ndarray)]
        return [_encoded(item, f"{place}[{k}]", arrays) for k, item in enumerate(items)]
    raise NotSerialisable(f"{place} has no JSON form: it is a {type(value).__name__}.")


def _not_finite(value: float) -> str | None:
    return None if math.isnan(value) else "Infinity" if value > 0.0 else "-Infinity"


def _encoded_array(value: np.ndarray[Any, Any], place: str) -> Any:
    if value.dtype.kind not in "biuf":
        raise NotSerialisable(f"{place} has no JSON form: it is an array of {value.dtype}.")
    if value.size > LARGEST:
        raise NotSerialisable(
            f"{place} is too large for JSON: {value.size} entries, and the most is {LARGEST}. "
            "Store the array with numpy.save, and the rest with to_dict(arrays=False)."
        )
    values = value.tolist()
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        values = _encoded(values, place, arrays=True)
    if value.dtype.name in _OWN_NUMBERS and np.shape(values) == value.shape:
        return values
    return {"dtype": value.dtype.name, "shape": list(value.shape), "values": values}


# Reading -----------------------------------------------------------------------------------------


def _decoded(value: Any, kind: Any, place: str) -> Any:
    """Return `value` as the annotation `kind` has it; `place` names it in messages."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits(value, arguments, place)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise _unfit(value, f"be one of {', '.join(map(repr, arguments))}", place)
    if origin is np.ndarray or kind is np.ndarray:
        return _decoded_array(value, arguments, place)
    if origin in (tuple, list):
        return _decoded_sequence(value, origin, arguments, place)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _unfit(value, "be a mapping", place)
        return {
            key: _decoded(item, arguments[1], f"{key!r} in {place}") for key, item in value.items()
        }
    return _decoded_atom(value, kind, place)


def _decoded_atom(value: Any, kind: Any, place: str) -> Any:
    if kind is float:
        if value is None:
            return math.nan
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        raise _unfit(value, "be a number", place)
    if kind in (bool, int, str, types.NoneType):
        if type(value) is kind:
            return value
        raise _unfit(value, f"be of type {kind.__name__}", place)
    if isinstance(kind, type) and hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    raise NotSerialisable(f"{place} has no JSON form: it is a {kind}.")


def _first_that_fits(value: Any, kinds: Sequence[Any], place: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not types.NoneType]
    for kind in others:
        try:
            return _decoded(value, kind, place)
        except InvalidInput:
            continue
    return _decoded(value, last, place)


def _decoded_sequence(value: Any, origin: Any, kinds: Sequence[Any], place: str) -> Any:
    if not isinstance(value, list | tuple):
        raise _unfit(value, "be a list", place)
    if origin is list or kinds[-1] is Ellipsis:
        kinds = [kinds[0]] * len(value)
    if len(value) != len(kinds):
        raise _unfit(f"{len(value)} entries", f"have {len(kinds)} entries", place)
    return origin(
        _decoded(item, kind, f"entry {k} of {place}")
        for k, (item, kind) in enumerate(zip(value, kinds, strict=True))
    )


def _decoded_array(value: Any, arguments: Sequence[Any], place: str) -> np.ndarray[Any, Any]:
    (own,) = typing.get_args(arguments[1]) if arguments else (np.float64,)
    own = own if isinstance(own, type) else np.float64  # of "any floating type"
    form = value if isinstance(value, Mapping) else {"values": value}
    try:
        dtype = np.dtype(form.get("dtype", own))
        array = np.array(form["values"])
        # Floats hold any number, null and the names of infinity; integers do not.
        if dtype.kind not in "biuf" or (
            dtype.kind != "f" and array.size and array.dtype.kind == "f"
        ):
            raise ValueError(f"{array.dtype} for {dtype}")
        return array.astype(dtype).reshape(form.get("shape", array.shape))
    except (KeyError, TypeError, ValueError) as error:
        raise _unfit(error, "be an array of numbers as to_dict writes it", place) from error


def _unfit(value: Any, requirement: str, place: str) -> InvalidInput:
    name, owner = place.rsplit(" of ", 1)
    got = value if isinstance(value, Exception) else _short(value)
    return _wrong(name, owner, requirement, got)


# Showing -----------------------------------------------------------------------------------------


def _short(value: Any) -> str:
    """One line of bounded length for a value of any kind."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, Record):
        return f"{type(value).__name__}(…)"
    if isinstance(value, list | tuple) and len(value) > 3:
        return f"<{len(value)} entries>"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_short, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, Mapping):
        return f"<{', '.join(map(str, value))}>" if len(value) <= 4 else f"<{len(value)} entries>"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _cell(value: Any) -> str:
    """Return the HTML of a value: a table in a fold for a record, one line for the rest."""
    if isinstance(value, Record):
        title = html.escape(_short(value))
        return f"<details><summary>{title}</summary>{value._repr_html_()}</details>"
    if isinstance(value, list | tuple) and value and all(isinstance(v, Record) for v in value):
        return "".join(map(_cell, value))
    return html.escape(value if isinstance(value, str) else _short(value))
