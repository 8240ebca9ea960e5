"""One state behind the widgets of a page and the link in the address bar; parts that pages share.

A record is a frozen dataclass whose fields carry the rule of their values.  What a link says is
never trusted: a value that breaks its rule is reported, and the default is used in its place.

Streamlit forgets the value of a widget that is not on the page, so that the state is kept apart
from the widgets; and it runs the page again both when a widget moves and when the link changes, so
that the two have to be told from one another.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import streamlit as st

from notsodeep import checks
from notsodeep.errors import InvalidInput
from notsodeep.plotting.canvas import themed_svg


class Rule(Protocol):
    """What the values of a field may be, and how they are written in a link."""

    def read(self, text: str, name: str) -> Any:
        """Turn text into a value, or raise `InvalidInput`."""

    def write(self, value: Any) -> str:
        """Turn a value into text."""


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    options: tuple[str, ...]

    def read(self, text: str, name: str) -> str:
        """Accept one of the options."""
        return checks.known_name(text, self.options, name)

    def write(self, value: str) -> str:
        """Return the word itself."""
        return value


@dataclass(frozen=True)
class Whole:
    """An integer between two limits."""

    least: int
    most: int

    def read(self, text: str, name: str) -> int:
        """Accept decimal digits within the limits."""
        digits = text.isascii() and text.isdigit() and len(text) <= 12
        if not digits or not self.least <= int(text) <= self.most:
            requirement = f"be an integer from {self.least} to {self.most}"
            raise checks.invalid(name, "the link", requirement, repr(text))
        return int(text)

    def write(self, value: int) -> str:
        """Return decimal digits."""
        return str(value)


@dataclass(frozen=True)
class Listed:
    """One of a few integers."""

    options: tuple[int, ...]

    def read(self, text: str, name: str) -> int:
        """Accept one of the options."""
        known = {str(option): option for option in self.options}
        if text not in known:
            requirement = f"be one of {', '.join(known)}"
            raise checks.invalid(name, "the link", requirement, repr(text))
        return known[text]

    def write(self, value: int) -> str:
        """Return decimal digits."""
        return str(value)


@dataclass(frozen=True)
class Real:
    """A real number between two limits."""

    least: float
    most: float

    def read(self, text: str, name: str) -> float:
        """Accept a number within the limits; NaN is within none."""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not self.least <= number <= self.most:
            requirement = f"be a number from {self.least:g} to {self.most:g}"
            raise checks.invalid(name, "the link", requirement, repr(text))
        return number

    def write(self, value: float) -> str:
        """Return the shortest text that reads back as the same number."""
        return repr(float(value))


@dataclass(frozen=True)
class Text:
    """Free text of limited length; whoever uses it checks what it says."""

    longest: int

    def read(self, text: str, name: str) -> str:
        """Accept short text."""
        if len(text) > self.longest:
            requirement = f"have at most {self.longest} characters"
            raise checks.invalid(name, "the link", requirement, f"{len(text)} characters")
        return text

    def write(self, value: str) -> str:
        """Return the text itself."""
        return value


@dataclass(frozen=True)
class Switch:
    """On or off."""

    def read(self, text: str, name: str) -> bool:
        """Accept the two words."""
        return checks.known_name(text, ("on", "off"), name) == "on"

    def write(self, value: bool) -> str:
        """Return the word."""
        return "on" if value else "off"


State = TypeVar("State")


def chosen(default: Any, rule: Rule) -> Any:
    """Declare a field of a record with its default and its rule."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def rules(record: Any) -> dict[str, Rule]:
    """Return the rule of every field of a record or of its class."""
    return {field.name: field.metadata["rule"] for field in dataclasses.fields(record)}


def to_query(state: Any, kept: Sequence[str] | None = None) -> dict[str, str]:
    """Return what differs from the defaults, as text.

    Parameters
    ----------
    state : dataclass
    kept : sequence of str, optional
        Fields that matter; the others are left out.
    """
    default = type(state)()
    names = rules(state) if kept is None else {name: rules(state)[name] for name in kept}
    return {
        name: rule.write(getattr(state, name))
        for name, rule in names.items()
        if getattr(state, name) != getattr(default, name)
    }


def from_query(kind: type[State], query: Mapping[str, str]) -> tuple[State, list[str]]:
    """Read a record from a link; what cannot be used is reported and left at its default."""
    known = rules(kind)
    values: dict[str, Any] = {}
    problems = []
    for name, text in query.items():
        try:
            checks.known_name(name, known, "setting in the link")
            values[name] = known[name].read(text, name)
        except InvalidInput as error:
            problems.append(str(error))
    return kind(**values), problems


class PageState(Generic[State]):
    """The state of a page in the session of one visitor.

    Parameters
    ----------
    kind : type
        A record of `notsodeep.explorer.state`.
    page : str
        Name of the page, before the name of every widget.
    """

    def __init__(self, kind: type[State], page: str) -> None:
        self._page = page
        self._names = tuple(rules(kind))
        memory = st.session_state
        query = st.query_params.to_dict()
        came_back = memory.get("page") != page and not query
        memory["page"] = page
        self.problems: list[str] = []
        if self._stored is None or (self._link_changed(query) and not came_back):
            state, self.problems = from_query(kind, query)
            memory[f"{page}.state"] = state
            for name in self._names:
                memory.pop(self._key(name), None)

    @property
    def _stored(self) -> Any:
        return st.session_state.get(f"{self._page}.state")

    def _link_changed(self, query: dict[str, str]) -> bool:
        """Whether the visitor went to another link of this page, rather than move a widget."""
        if query == st.session_state.get(f"{self._page}.query"):
            return False
        moved = any(
            st.session_state[self._key(name)] != getattr(self._stored, name)
            for name in self._names
            if self._key(name) in st.session_state
        )
        return not moved

    def _key(self, name: str) -> str:
        return f"{self._page}.{name}"

    def widget(self, name: str) -> str:
        """Return the key of the widget for a field, and see that it shows the state."""
        key = self._key(name)
        if key not in st.session_state:
            st.session_state[key] = getattr(self._stored, name)
        return key

    def rule(self, name: str) -> Any:
        """Return the rule of a field, which has the limits of its widget."""
        return rules(self._stored)[name]

    def set(self, **values: Any) -> None:
        """Change fields that have no widget."""
        st.session_state[f"{self._page}.state"] = dataclasses.replace(self._stored, **values)

    def read(self, kept: Callable[[State], Sequence[str]] | None = None) -> State:
        """Read the widgets, put the state into the address bar, and return it.

        Parameters
        ----------
        kept : callable, optional
            State ↦ names of the fields that belong into a link; all by default.
        """
        memory = st.session_state
        values = {
            name: memory[self._key(name)] for name in self._names if self._key(name) in memory
        }
        state: State = dataclasses.replace(self._stored, **values)
        query = to_query(state, None if kept is None else kept(state))
        memory[f"{self._page}.state"] = state
        memory[f"{self._page}.query"] = query
        st.query_params.from_dict(query)
        return state


def plain(text: object) -> str:
    """Return text that Markdown shows as it is.

    Streamlit reads nearly all text as Markdown, and messages quote what people typed.
    """
    words = " ".join(str(text).split("\n"))
    return "".join(f"\\{c}" if c in string.punctuation else c for c in words)


def show_error(error: Exception) -> None:
    """Tell why something cannot be shown, where it would be."""
    st.error(plain(error), icon=":material/error:")


def show_figure(svg: str, alt: str) -> None:
    """Show a figure as wide as its place, in the colours of the page."""
    picture = base64.b64encode(themed_svg(svg).encode()).decode()
    words = html.escape(alt, quote=True)
    st.html(
        f'<img alt="{words}" src="data:image/svg+xml;base64,{picture}" '
        'style="width:100%;height:auto;display:block">'
    )


def show_table(rows: list[dict[str, str]]) -> None:
    """Show records as a table; nothing for none.

    As Markdown, which unlike Streamlit's own table needs neither pandas nor Arrow.
    """
    if not rows:
        return
    lines = [[*rows[0]], ["---"] * len(rows[0])]
    lines += [[plain(cell) for cell in row.values()] for row in rows]
    st.markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))


def show_problems(problems: list[str]) -> None:
    """Tell what of a link could not be used."""
    for problem in problems:
        st.warning(f"{plain(problem)} The default is used.", icon=":material/link_off:")
