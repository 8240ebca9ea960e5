"""Everything an experiment needs to begin: mixtures, the sphere, image sets, own files.

`load` turns a name into preprocessed arrays; `GaussianMixture` and `sphere` draw the papers' data;
`MixtureStatistics` is what the random-matrix equivalents know about a sample.
"""

from __future__ import annotations

from notsodeep.data.dataset import Dataset, Provenance, is_image_set, load, names
from notsodeep.data.gaussian_mixture import GaussianMixture
from notsodeep.data.images import data_directory, fetch
from notsodeep.data.mixture_statistics import CovarianceSpectrum, MixtureStatistics
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.data.selection import draw_rows
from notsodeep.data.synthetic import paper_mixture, sphere

__all__ = [
    "CovarianceSpectrum",
    "Dataset",
    "GaussianMixture",
    "MixtureStatistics",
    "Preprocessing",
    "Provenance",
    "data_directory",
    "draw_rows",
    "fetch",
    "is_image_set",
    "load",
    "names",
    "paper_mixture",
    "sphere",
]
