"""Random-matrix equivalents of kernels, their and limiting spectra."""

from notsodeep.equivalents.comparison import Comparison, compare
from notsodeep.equivalents.equivalent import Equivalent, equivalent, sphere_equivalent
from notsodeep.equivalents.expansion import Expansion, expansion
from notsodeep.equivalents.spectrum import LimitingSpectrum, limiting_spectrum

__all__ = [
    "Comparison",
    "Equivalent",
    "Expansion",
    "LimitingSpectrum",
    "compare",
    "equivalent",
    "expansion",
    "limiting_spectrum",
    "sphere_equivalent",
]
