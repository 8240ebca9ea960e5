"""What a process does once, so that every move of a slider is quick."""

from __future__ import annotations

import gc


def warm_up() -> None:
    """Import everything and compute a small view: compiled kernels, fonts and tables.

    Matrices of a page are small, and on them a second thread of a linear algebra library gains
    little, and loses much where the other cores are busy: it gets one.  What is loaded by now stays
    for good, and the garbage collector is told not to look through it again and again.
    """
    from threadpoolctl import threadpool_limits

    from notsodeep.app.computing import view_of
    from notsodeep.app.drawings import figures_of
    from notsodeep.app.explorer_data import prepared
    from notsodeep.app.limiting_laws import KnownData
    from notsodeep.app.state import ExplorerState

    threadpool_limits(limits=1, user_api="blas")
    state = ExplorerState(samples=60, dimension=80)
    figures_of(view_of(state, KnownData.of(prepared(state))))
    gc.collect()
    gc.freeze()
