"""A small, closed language for formulas in x, parsed without ever running them.

The text is read into Python's syntax tree, and the tree is translated node by node into our own;
whatever is not in the grammar is rejected by name.  The grammar: numbers, x, pi, + − * / **, unary
signs, parentheses, and calls of the functions in `FUNCTIONS`.  An exponent is a plain number.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.special import erf, expit

from notsodeep.arrays import FloatArray
from notsodeep.errors import FormulaError

MAX_LENGTH = 400
MAX_NODES = 360
MAX_DEPTH = 30
MAX_EXPONENT = 16.0
MAX_NUMBER = 1e12


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Variable:
    """The variable x."""


@dataclass(frozen=True)
class Apply:
    """An operation applied to sub-expressions."""

    operation: str
    arguments: tuple[Expression, ...]


Expression = Number | Variable | Apply


@dataclass(frozen=True)
class _Rule:
    """An operation in NumPy: its value, and its partial derivatives given arguments and value."""

    value: Callable[..., Any]
    partials: Callable[..., tuple[Any, ...]]


def _step(x: Any) -> Any:
    return np.where(x > 0.0, 1.0, 0.0)


_ARITHMETIC: dict[str, _Rule] = {
    "add": _Rule(np.add, lambda a, b, f: (1.0, 1.0)),
    "subtract": _Rule(np.subtract, lambda a, b, f: (1.0, -1.0)),
    "multiply": _Rule(np.multiply, lambda a, b, f: (b, a)),
    "divide": _Rule(np.divide, lambda a, b, f: (1.0 / b, -f / b)),
    "power": _Rule(np.power, lambda a, b, f: (b * np.power(a, b - 1.0), 0.0)),
    "negative": _Rule(np.negative, lambda a, f: (-1.0,)),
}

FUNCTIONS: dict[str, _Rule] = {
    "abs": _Rule(np.abs, lambda a, f: (np.sign(a),)),
    "arctan": _Rule(np.arctan, lambda a, f: (1.0 / (1.0 + a**2),)),
    "cos": _Rule(np.cos, lambda a, f: (-np.sin(a),)),
    "erf": _Rule(erf, lambda a, f: (2.0 / math.sqrt(math.pi) * np.exp(-(a**2)),)),
    "exp": _Rule(np.exp, lambda a, f: (f,)),
    "log": _Rule(np.log, lambda a, f: (1.0 / a,)),
    "max": _Rule(np.maximum, lambda a, b, f: (_step(a - b), 1.0 - _step(a - b))),
    "min": _Rule(np.minimum, lambda a, b, f: (1.0 - _step(a - b), _step(a - b))),
    "relu": _Rule(lambda a: np.maximum(a, 0.0), lambda a, f: (_step(a),)),
    "sigmoid": _Rule(expit, lambda a, f: (f * expit(-a),)),
    "sin": _Rule(np.sin, lambda a, f: (np.cos(a),)),
    "softplus": _Rule(lambda a: np.logaddexp(0.0, a), lambda a, f: (expit(a),)),
    "sqrt": _Rule(np.sqrt, lambda a, f: (0.5 / f,)),
    "tanh": _Rule(np.tanh, lambda a, f: (1.0 - f**2,)),
}

_RULES = _ARITHMETIC | FUNCTIONS
_KNOWN = ", ".join(sorted(FUNCTIONS))
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
}


@dataclass(frozen=True)
class Formula:
    """A parsed formula: a function of arrays, with its derivative.

    Examples
    --------
    >>> Formula.parse("2 * x").expression
    Apply(operation='multiply', arguments=(Number(value=2.0), Variable()))
    >>> Formula.parse("x**2").derivative(np.array([3.0]))
    array([6.])
    """

    text: str
    expression: Expression

    @classmethod
    def parse(cls, formula: str) -> Formula:
        """Translate a formula in x; raise `FormulaError` on anything outside the grammar."""
        if not isinstance(formula, str) or not formula.strip():
            raise FormulaError(
                f"formula must be a string in x, like 'x / (1 + abs(x))', got {formula!r}."
            )
        if len(formula) > MAX_LENGTH:
            raise FormulaError(f"formula must have at most {MAX_LENGTH} characters.")
        if not formula.isascii() or not formula.isprintable():
            odd = next(c for c in formula if not c.isascii() or not c.isprintable())
            raise FormulaError(
                f"formula must be plain ASCII (- for minus, * for times, ** for powers), got "
                f"{odd!r} (U+{ord(odd):04X})."
            )
        depths = accumulate({"(": 1, ")": -1}.get(character, 0) for character in formula)
        if max(depths) > MAX_DEPTH:
            raise _too_deep()
        try:
            tree = ast.parse(formula.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
            raise FormulaError(f"The formula {formula!r} cannot be read: {reason}.") from None
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise FormulaError("The formula is too long. Use from_function instead.")
        expression = _translate(tree.body, 0)
        if isinstance(expression, Number):
            raise FormulaError(f"The formula {formula!r} does not depend on x.")
        return cls(formula.strip(), expression)

    def __call__(self, x: FloatArray) -> FloatArray:
        """Evaluate f(x); overflow and invalid operations give inf and nan without warnings."""
        operations = {name: rule.value for name, rule in _RULES.items()}
        with np.errstate(all="ignore"):
            return np.asarray(evaluate(self.expression, x, operations) + np.zeros_like(x))

    def derivative(self, x: FloatArray) -> FloatArray:
        """Evaluate f′(x), by the chain rule carried forward."""
        with np.errstate(all="ignore"):
            return np.asarray(_forward(self.expression, x)[1] + np.zeros_like(x))


def _too_deep() -> FormulaError:
    return FormulaError(f"The formula is nested more than {MAX_DEPTH} deep. Use from_function.")


def _translate(node: ast.expr, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise _too_deep()
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            if not abs(number) <= MAX_NUMBER:  # also rejects what overflows to infinity
                raise FormulaError(f"Numbers in a formula must be at most {MAX_NUMBER:g} in size.")
            return Number(float(number))
        case ast.Name(id="x"):
            return Variable()
        case ast.Name(id="pi"):
            return Number(math.pi)
        case ast.Name(id=name):
            raise FormulaError(f"Unknown name {name!r} in the formula. Known: x, pi, {_KNOWN}.")
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _translate(operand, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _apply("negative", _translate(operand, depth + 1))
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return _apply("power", _translate(base, depth + 1), Number(_exponent(exponent)))
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _BINARY:
            arguments = (_translate(left, depth + 1), _translate(right, depth + 1))
            return _apply(_BINARY[type(operator)], *arguments)
        case ast.Call(func=ast.Name(id=name), args=arguments_, keywords=[]):
            return _call(name, arguments_, depth)
    raise FormulaError(
        f"{type(node).__name__} is not allowed in a formula. Allowed: numbers, x, pi, + - * / **, "
        f"parentheses, and {_KNOWN}."
    )


def _apply(operation: str, *arguments: Expression) -> Expression:
    """Apply an operation, or work it out at once if every argument is a number."""
    constants = [a.value for a in arguments if isinstance(a, Number)]
    if len(constants) < len(arguments):
        return Apply(operation, arguments)
    with np.errstate(all="ignore"):
        result = float(_RULES[operation].value(*map(np.float64, constants)))
    if not math.isfinite(result):
        raise FormulaError(
            f"A constant part of the formula is not finite: {operation} {constants}."
        )
    return Number(result)


def _call(name: str, arguments: list[ast.expr], depth: int) -> Expression:
    if name not in FUNCTIONS:
        raise FormulaError(f"Unknown function {name!r} in the formula. Known: {_KNOWN}.")
    expected = 2 if name in ("max", "min") else 1
    if len(arguments) != expected:
        raise FormulaError(f"{name} takes {expected} argument(s) in a formula.")
    return _apply(name, *(_translate(a, depth + 1) for a in arguments))


def _exponent(node: ast.expr) -> float:
    sign = 1.0
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        sign, node = (-sign if isinstance(node.op, ast.USub) else sign), node.operand
    number = node.value if isinstance(node, ast.Constant) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise FormulaError("An exponent must be a plain number, as in x**2 or abs(x)**1.5.")
    if not abs(number) <= MAX_EXPONENT:
        raise FormulaError(f"An exponent must be at most {MAX_EXPONENT:g} in size.")
    return sign * float(number)


def evaluate(expression: Expression, x: Any, operations: Mapping[str, Callable[..., Any]]) -> Any:
    """Evaluate with the given operations, so that any array library can be used."""
    match expression:
        case Number(value=value):
            return value
        case Apply(operation=operation, arguments=arguments):
            return operations[operation](*(evaluate(a, x, operations) for a in arguments))
        case _:
            return x


def _forward(expression: Expression, x: FloatArray) -> tuple[Any, Any]:
    match expression:
        case Number(value=value):
            return value, 0.0
        case Apply(operation=operation, arguments=arguments):
            rule = _RULES[operation]
            inputs, slopes = zip(*(_forward(a, x) for a in arguments), strict=True)
            result = rule.value(*inputs)
            partials = rule.partials(*inputs, result)
            # A constant argument is left out: its partial may be infinite, and 0·∞ is not 0.
            chain: Any = 0.0
            for partial, slope in zip(partials, slopes, strict=True):
                if not (isinstance(slope, float) and slope == 0.0):
                    chain = chain + partial * slope
            return result, chain
        case _:
            return x, 1.0
