"""Records as the query part of a link, and back.

A record is a frozen dataclass whose fields carry the rule of their values.  What a link says is
never trusted: a value that breaks its rule is told, and the default is used in its place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from notsodeep import checks
from notsodeep.errors import InvalidInput


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
            raise checks.refusal(name, "the link", requirement, repr(text))
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
            raise checks.refusal(name, "the link", requirement, repr(text))
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
            raise checks.refusal(name, "the link", requirement, repr(text))
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
            raise checks.refusal(name, "the link", requirement, f"{len(text)} characters")
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
    """Read a record from a link; what cannot be used is told and left at its default."""
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
