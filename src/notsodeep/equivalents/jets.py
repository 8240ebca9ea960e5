"""Polynomials of degree two, which expansions of kernels are made of.

For two inputs, χ = ‖x‖² − τ0², ω = ‖y‖² − τ0² and s = x·y; terms of degree three are dropped.
Coefficients are numbers, or arrays for many polynomials at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Jet(NamedTuple):
    """A symmetric polynomial of degree two: coefficients of 1, s, χ+ω, χ²+ω², χω, s², s(χ+ω)."""

    one: Any
    s: Any
    q: Any
    qq: Any
    qr: Any
    ss: Any
    sq: Any

    def plus(self, other: Jet, factor: Any = 1.0) -> Jet:
        """Return self + factor·other."""
        return Jet(*(a + factor * b for a, b in zip(self, other, strict=True)))

    def times(self, other: Jet) -> Jet:
        """Return the product, without what has degree three."""
        a, b = self, other
        return Jet(
            a.one * b.one,
            a.one * b.s + a.s * b.one,
            a.one * b.q + a.q * b.one,
            a.one * b.qq + a.qq * b.one + a.q * b.q,
            a.one * b.qr + a.qr * b.one + 2.0 * a.q * b.q,
            a.one * b.ss + a.ss * b.one + a.s * b.s,
            a.one * b.sq + a.sq * b.one + a.s * b.q + a.q * b.s,
        )

    def inverse(self) -> Jet:
        """1/self: Newton's iteration ends after two steps, what is left has degree three."""
        guess = constant_jet(1.0 / self.one)
        for _ in range(2):
            guess = guess.times(constant_jet(2.0).plus(self.times(guess), -1.0))
        return guess


def constant_jet(value: Any) -> Jet:
    """Return a polynomial of degree zero."""
    return Jet(value, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


INNER = Jet(0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
ONE = constant_jet(1.0)


class Quadratic(NamedTuple):
    """A quadratic in χ: q = value + first·χ + second·χ²."""

    value: Any
    first: Any
    second: Any

    def product(self) -> Jet:
        """Of two samples: q(χ)q(ω)."""
        value, first, second = self
        return Jet(value**2, 0.0, value * first, value * second, first**2, 0.0, 0.0)

    def whitening(self) -> Jet:
        """1/√(q(χ)q(ω)), which makes a variance q one."""
        a, b = self.first / self.value, self.second / self.value
        root = Quadratic(1.0, -0.5 * a, 0.375 * a**2 - 0.5 * b)
        return root.product().times(constant_jet(1.0 / self.value))


UNIT = Quadratic(1.0, 0.0, 0.0)
