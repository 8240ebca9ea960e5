"""What the process of the explorer does once, so that every move of a slider is quick."""

from __future__ import annotations

import gc

from threadpoolctl import threadpool_limits


def settle() -> None:
    """Suit the process to many small computations, after everything was imported.

    Matrices of a page are small, and on them a second thread of a linear algebra library gains
    little, and loses much where the other cores are busy: it gets one.  What is loaded by now stays
    for good, and the garbage collector is told not to look through it again and again.
    """
    threadpool_limits(limits=1, user_api="blas")
    gc.collect()
    gc.freeze()
