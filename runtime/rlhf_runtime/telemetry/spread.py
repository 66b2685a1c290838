"""How far numbers are spread, in a form that parts of them can have apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spread:
    """Of some numbers.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), equation 2.1.
    """

    count: int
    mean: float
    squares: float
    """The sum of squared deviations from the mean."""

    @staticmethod
    def of(values: NDArray[np.floating]) -> Spread:
        """Of the numbers of an array; all 0 where there are none."""
        if not len(values):
            return Spread(0, 0.0, 0.0)
        exact = values.astype(np.float64)
        mean = exact.mean()
        return Spread(len(exact), float(mean), float(np.square(exact - mean).sum()))

    def joined(self, other: Spread) -> Spread:
        """Of these numbers and another's."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        return Spread(
            count,
            self.mean + apart * other.count / count,
            self.squares + other.squares + apart * apart * self.count * other.count / count,
        )

    @property
    def deviation(self) -> float:
        """The standard deviation, without Bessel's correction; of no numbers 0."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0
