"""The former home of the figure of a spectrum; still importable in this version."""

import warnings

from notsodeep.plotting.spectra import *  # noqa: F403

warnings.warn(
    "notsodeep.report.spectrum_figure is part of notsodeep.plotting now.",
    DeprecationWarning,
    stacklevel=2,
)
