"""Equilibrium networks with given weights: solved, certified, and compiled into explicit layers."""

from notsodeep.trained.cell import AffineCell, EquilibriumCell, FunctionCell

__all__ = ["AffineCell", "EquilibriumCell", "FunctionCell"]
