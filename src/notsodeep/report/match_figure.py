"""The former home of figures of a match; still importable in this version."""

import warnings

from notsodeep.plotting.matches import *  # noqa: F403

warnings.warn(
    "notsodeep.report.match_figure is part of notsodeep.plotting now.",
    DeprecationWarning,
    stacklevel=2,
)
