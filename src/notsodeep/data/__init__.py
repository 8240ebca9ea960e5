"""Everything an experiment needs to begin: mixtures, the sphere, image sets, own files.

`load` turns a name into preprocessed arrays; `GaussianMixture` and `sphere` draw the papers' data;
`MixtureStatistics` is what the random-matrix equivalents know about a sample.
"""

from __future__ import annotations

from notsodeep.data.acquire import Acquired, get
from notsodeep.data.covariance_spectrum import CovarianceSpectrum
from notsodeep.data.dataset import Dataset, Provenance
from notsodeep.data.directories import data_directory
from notsodeep.data.gaussian_mixture import GaussianMixture
from notsodeep.data.imbalance import (
    BalancedBatches,
    ExponentialImbalance,
    StepImbalance,
    class_weights,
)
from notsodeep.data.loading import load, names
from notsodeep.data.mixture_statistics import MixtureStatistics
from notsodeep.data.preprocessing import Preprocessing
from notsodeep.data.presets import paper_mixture
from notsodeep.data.row_draws import draw_rows
from notsodeep.data.unit_sphere import sphere
from notsodeep.data.vgg19 import VGG19Features

__all__ = [
    "Acquired",
    "BalancedBatches",
    "CovarianceSpectrum",
    "Dataset",
    "ExponentialImbalance",
    "GaussianMixture",
    "MixtureStatistics",
    "Preprocessing",
    "Provenance",
    "StepImbalance",
    "VGG19Features",
    "class_weights",
    "data_directory",
    "draw_rows",
    "get",
    "load",
    "names",
    "paper_mixture",
    "sphere",
]
