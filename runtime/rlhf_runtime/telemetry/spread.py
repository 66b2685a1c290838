"""Mean and variance of numbers, in a form that parts can compute and then join."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spread:
    """Count, mean and squared deviations of some numbers.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), equation 2.1.
    """

    count: int
    mean: float
    squares: float
    """Sum of squared deviations from the mean."""

    @staticmethod
    def of(values: NDArray[np.floating]) -> Spread:
        """The spread of an array; all 0 for an empty one."""
        if not len(values):
            return Spread(0, 0.0, 0.0)
        # Sums in float32 would lose digits.
        exact = values.astype(np.float64)
        mean = exact.mean()
        return Spread(len(exact), float(mean), float(np.square(exact - mean).sum()))

    def joined(self, other: Spread) -> Spread:
        """The spread of both sets of numbers together."""
        count = self.count + other.count
        if not count:
            return self
        difference = other.mean - self.mean
        return Spread(
            count,
            self.mean + difference * other.count / count,
            self.squares
            + other.squares
            + difference * difference * self.count * other.count / count,
        )

    @property
    def deviation(self) -> float:
        """The standard deviation, without Bessel's correction; 0 without numbers."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0
