"""The former name of `notsodeep.cluster` and `notsodeep.files`; importable in this version."""

import warnings

from notsodeep.cluster import *  # noqa: F403
from notsodeep.files import *  # noqa: F403

warnings.warn(
    "notsodeep.execution is notsodeep.cluster (where work runs) and notsodeep.files (what lasts) "
    "now.",
    DeprecationWarning,
    stacklevel=2,
)
