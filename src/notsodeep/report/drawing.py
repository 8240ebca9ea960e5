"""The former home of what all figures share; still importable in this version."""

import warnings

from notsodeep.plotting.canvas import *  # noqa: F403

warnings.warn(
    "notsodeep.report.drawing is part of notsodeep.plotting now.", DeprecationWarning, stacklevel=2
)
