"""The former name of `notsodeep.models`; still importable in this version."""

import warnings

from notsodeep.models import *  # noqa: F403

warnings.warn(
    "notsodeep.architectures is called notsodeep.models now.", DeprecationWarning, stacklevel=2
)
