"""The former name of `notsodeep.kernel_solvers`; still importable in this version."""

import warnings

from notsodeep.kernel_solvers import *  # noqa: F403

warnings.warn(
    "notsodeep.solvers is called notsodeep.kernel_solvers now.", DeprecationWarning, stacklevel=2
)
