"""Random-matrix equivalents of kernels, their limiting spectra, and when they apply."""

from notsodeep.equivalents.comparison import Comparison, SpikePair, compare
from notsodeep.equivalents.equivalent_matrix import Equivalent, SphereCoefficients
from notsodeep.equivalents.expansion import Expansion, expansion
from notsodeep.equivalents.limiting_law import LimitingSpectrum, limiting_spectrum
from notsodeep.equivalents.mixture_coefficients import Coefficients, coefficients
from notsodeep.equivalents.mixture_equivalent import equivalent
from notsodeep.equivalents.spikes import Spike
from notsodeep.equivalents.unit_sphere import sphere_coefficients, sphere_equivalent

__all__ = [
    "Coefficients",
    "Comparison",
    "Equivalent",
    "Expansion",
    "LimitingSpectrum",
    "SphereCoefficients",
    "Spike",
    "SpikePair",
    "coefficients",
    "compare",
    "equivalent",
    "expansion",
    "limiting_spectrum",
    "sphere_coefficients",
    "sphere_equivalent",
]
