"""One state behind the widgets of a page and the link in the address bar.

Streamlit forgets the value of a widget that is not on the page, so that the state is kept apart
from the widgets; and it runs the page again both when a widget moves and when the link changes, so
that the two have to be told from one another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import streamlit as st

from notsodeep.explorer.query_text import from_query, rules, to_query

State = TypeVar("State")


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
