"""The kernel of a DEQ on the unit sphere, as a power series."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from notsodeep.arrays import FloatArray
from notsodeep.equivalents.expansion import power_series
from notsodeep.models import Convention, DeepEquilibrium, KernelName
from notsodeep.records import Plotted


@dataclass(frozen=True, eq=False, repr=False)
class KernelSeries(Plotted):
    """A kernel on the unit sphere as a power series Σ_k g_k tᵏ in t = x·y, g_k ≥ 0.

    Attributes
    ----------
    coefficients : ndarray of shape (degree + 1,)
        g_0 … g_degree.
    total : float
        g(1), the kernel's diagonal.
    """

    _derived = ("remainder",)
    _drawing = "kernel_series"

    coefficients: FloatArray
    total: float

    @property
    def remainder(self) -> float:
        """Σ_{k > degree} g_k: the share of the diagonal in higher powers."""
        return max(0.0, self.total - float(self.coefficients.sum()))

    @property
    def scale2(self) -> float:
        """The unit in which residuals are judged: the kernel's diagonal."""
        return self.total

    def cut(self, degree: int) -> KernelSeries:
        """Keep powers up to `degree`."""
        return KernelSeries(self.coefficients[: degree + 1], self.total)

    def error_bound(self, cosine: float) -> float:
        """Bound the error of an entry with |t| ≤ cosine, the rest being carried by the last term.

        |Σ_{k>K} g_k (t^K − t^k)| ≤ 2·remainder·|t|^K, and ≤ remainder·t^K for t ≥ 0.
        """
        return 2.0 * self.remainder * abs(cosine) ** (len(self.coefficients) - 1)

    def to_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the JSON form; the coefficients are "taylor"."""
        form = super().to_dict(arrays=arrays)
        return {"taylor" if name == "coefficients" else name: g for name, g in form.items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a JSON form; see `Record.from_dict`."""
        if isinstance(content, Mapping):
            content = {
                "coefficients" if name == "taylor" else name: g for name, g in content.items()
            }
        return super().from_dict(content)

    def __str__(self) -> str:
        return (
            f"power series of degree {len(self.coefficients) - 1}, diagonal {self.total:.6g}, "
            f"remainder {self.remainder:.3g}"
        )


def kernel_series(
    deq: DeepEquilibrium, *, kind: KernelName, convention: Convention, degree: int
) -> KernelSeries:
    """Compute the power series of a DEQ's kernel on the unit sphere."""
    return KernelSeries(*power_series(deq, degree, kind, convention))
