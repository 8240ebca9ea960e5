"""Named failures.

Every error raised on purpose derives from `NotSoDeepError`, and also from the built-in
exception a caller would expect, so ``except ValueError`` keeps working.
"""

from __future__ import annotations

from typing import Any


class NotSoDeepError(Exception):
    """Base class of everything this package raises on purpose."""


class InvalidInput(NotSoDeepError, ValueError):
    """An argument cannot be used; the message says what was required and what to do."""


class UnknownName(InvalidInput):
    """A name that is not in the table it was looked up in."""


class FormulaError(InvalidInput):
    """A formula outside the small grammar that `from_formula` accepts."""


class UndeclaredKink(InvalidInput):
    """A function is not smooth at a point that was not declared in `kinks`."""


class ConstantActivation(InvalidInput):
    """An activation that is constant, or as good as, at the scale it is used at."""


class NotVanilla(InvalidInput):
    """A model with a general cell, given to something that covers the vanilla DEQ alone."""


class NotIntegrable(InvalidInput):
    """A function has no Gaussian second moment at the scale asked for."""


class QuadratureError(NotSoDeepError, ArithmeticError):
    """An integral could not be computed to the accuracy promised."""


class NotConverged(NotSoDeepError, RuntimeError):
    """An iteration ended without meeting its tolerance.

    Attributes
    ----------
    record : object
        The record of the failed solve (value, residual, steps, reason), if there is one.
    """

    def __init__(self, message: str, record: Any = None) -> None:
        super().__init__(message)
        self.record = record


class NotSerialisable(NotSoDeepError, TypeError):
    """An object that has no faithful JSON form."""


class NoTorchTwin(NotSoDeepError, TypeError):
    """An activation that cannot be evaluated on torch tensors."""


class DataNotFound(NotSoDeepError, FileNotFoundError):
    """A data set is not on this machine; the message says how to get it."""


class DataCorrupted(NotSoDeepError, OSError):
    """A file does not hold what its format, its manifest or its SHA-256 promises."""


class NotEnoughMemory(NotSoDeepError, MemoryError):
    """A result that does not fit into memory; rejected before anything is allocated."""


class NotConvergedWarning(UserWarning):
    """An iteration ended without meeting its tolerance, where that is not an error."""


class TrainingDiverged(NotSoDeepError, ArithmeticError):
    """The loss of a training run is no longer a finite number."""


class NoOnnxForm(NotSoDeepError, TypeError):
    """A network or activation that cannot be written with the operators of ONNX."""


class MissingPackage(NotSoDeepError, ImportError):
    """An optional package that is not installed; the message says how to get it."""


class TheoryDoubtful(UserWarning):
    """Something fails an assumption of the theory; its answers are about something else."""


class RunInUse(NotSoDeepError, RuntimeError):
    """A directory of results that another process works in."""
