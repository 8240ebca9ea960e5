"""What depends on the data alone, computed once for each data set and used for many models.

The bulk of the noise and the population behind it are most of the work of
`notsodeep.limiting_spectrum`, and the statistics of held-out rows are part of every certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from notsodeep.data import Dataset, MixtureStatistics
from notsodeep.equivalents import (
    LimitingSpectrum,
    equivalent,
    limiting_spectrum,
    sphere_equivalent,
)
from notsodeep.equivalents.equivalent_matrix import Equivalent
from notsodeep.equivalents.limiting_law import NoiseLaw
from notsodeep.equivalents.population import PopulationSource
from notsodeep.errors import InvalidInput, NotConverged
from notsodeep.models import Convention, DeepEquilibrium, KernelName

_ANY_MODEL = DeepEquilibrium("identity", 0.0)


@dataclass(frozen=True, eq=False)
class KnownData:
    """A data set, and what is known of the law of its held-out rows.

    Attributes
    ----------
    rows : Dataset
    statistics : MixtureStatistics or None
        Of the law: exact for a mixture.  None on the sphere, and if a class has too few rows.
    noise : NoiseLaw or None
    reason : str
        Why there is no law.
    """

    rows: Dataset
    statistics: MixtureStatistics | None
    noise: NoiseLaw | None
    reason: str

    @property
    def on_sphere(self) -> bool:
        """Whether the rows are uniform on the unit sphere."""
        return self.rows.provenance.name == "sphere"

    @cached_property
    def estimated(self) -> MixtureStatistics | None:
        """Statistics for a certificate, which knows the rows alone; None if a class has too few."""
        if self.rows.population is None:
            return self.statistics
        if np.unique(self.rows.y_test, return_counts=True)[1].min() < 4:
            return None
        return MixtureStatistics.estimate(self.rows.X_test, self.rows.y_test)

    @classmethod
    def of(cls, rows: Dataset, before: KnownData | None = None) -> KnownData:
        """Gather the statistics and the law of the noise; a failure is a reason, not an error.

        What was known of other data is taken over where it is the same.
        """
        bare = cls(rows, None, None, "a class has fewer than four held-out rows")
        statistics: MixtureStatistics | None = None
        try:
            if rows.population is not None:
                statistics = rows.population.statistics(rows.X_test, rows.y_test)
            elif not bare.on_sphere:
                if np.unique(rows.y_test, return_counts=True)[1].min() < 4:
                    return bare
                statistics = MixtureStatistics.estimate(rows.X_test, rows.y_test)
            known = cls(rows, statistics, None, "")
            # The population is read off the rows and their statistics; the model plays no part.
            eq = known._equivalent(_ANY_MODEL, "conjugate", "feature")
            noise = NoiseLaw.of(eq, known._source, like=None if before is None else before.noise)
            return cls(rows, statistics, noise, "")
        except (InvalidInput, NotConverged) as error:
            return cls(rows, statistics, None, str(error))

    def limiting_spectrum(
        self, deq: DeepEquilibrium, kernel: KernelName, convention: Convention
    ) -> LimitingSpectrum:
        """Return the law of a DEQ's kernel on the held-out rows.

        Parameters
        ----------
        deq : DeepEquilibrium
            On the sphere it is taken as it is, otherwise it is centred here.
        kernel, convention : str

        Raises
        ------
        InvalidInput
            There is none, for the reason that `reason` gives.
        """
        if self.noise is None:
            raise InvalidInput(self.reason)
        eq = self._equivalent(deq, kernel, convention)
        return limiting_spectrum(eq, noise=self.noise)

    @property
    def _source(self) -> PopulationSource | None:
        known = self.on_sphere or self.rows.population is not None
        return None if known else "deconvolved"

    def _equivalent(
        self, deq: DeepEquilibrium, kernel: KernelName, convention: Convention
    ) -> Equivalent:
        X = self.rows.X_test
        if self.statistics is None:
            return sphere_equivalent(deq, X, kernel=kernel, convention=convention)
        model = deq.centred(self.statistics.tau0)
        return equivalent(model, X, self.statistics, kernel=kernel, convention=convention)
