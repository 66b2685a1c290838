"""How long prompts and responses are, where only their mean and maximum are known.

An assumption, not a finding: the share of sequences that are longer than t is

    S(t) = (1 - t / T)^k,  k = T / mean - 1,  0 <= t <= T

with the maximum T. Its mean is the given one for every k. k = 0: all are of the maximum length;
k = 1: all lengths are equally likely; larger ones: most are short and few are long, as of a beta
distribution of the parameters 1 and k, scaled by T. Lengths are taken to be continuous, and those
of prompts and responses to be independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

EQUAL = 1e-6
"""An exponent below which all lengths count as equal: the gamma functions lose their digits."""


@dataclass(frozen=True)
class Lengths:
    """Lengths of prompts, or of responses, in tokens.

    Raises:
        ValueError: a mean that is not above 0, or above the maximum.
    """

    mean: float
    maximum: float

    def __post_init__(self) -> None:
        if not 0 < self.mean <= self.maximum < math.inf:
            raise ValueError(
                f"lengths are impossible: got a mean of {self.mean} and a maximum of "
                f"{self.maximum} tokens, allowed a mean above 0 and at most the maximum; correct "
                "one of them"
            )

    @property
    def exponent(self) -> float:
        """k: 0 where all are of the maximum length."""
        return self.maximum / self.mean - 1

    @property
    def mean_square(self) -> float:
        """E[X^2] = 2 T^2 / ((k + 1) (k + 2)), which is the integral of 2 t S(t)."""
        k = self.exponent
        return 2 * self.maximum**2 / ((k + 1) * (k + 2))

    @property
    def variance(self) -> float:
        """E[X^2] - mean^2."""
        return max(0.0, self.mean_square - self.mean**2)

    @property
    def mean_age(self) -> float:
        """What one under way has behind it on average, where each that ends is followed by another:
        E[X^2] / (2 mean), the mean age of a renewal process."""
        return self.mean_square / (2 * self.mean)

    def survival(self, tokens: float) -> float:
        """S(t): the share that is longer."""
        if tokens >= self.maximum:
            return 0.0
        return float((1 - tokens / self.maximum) ** self.exponent) if tokens > 0 else 1.0

    def exceeded_by(self, share: float) -> float:
        """The length that a share u of all exceeds, from S(t) = u: t = T (1 - u^(1/k)); u in
        (0, 1]."""
        if self.exponent < EQUAL:
            return self.maximum
        return float(self.maximum * (1 - share ** (1 / self.exponent)))

    def after(self, tokens: float) -> Lengths:
        """What is still to come of those that are longer than so much, less than the maximum: S(t +
        x) / S(t) is of the same form, with the same k and the maximum T - t."""
        left = self.maximum - tokens
        return Lengths(left / (self.exponent + 1), left)

    def expected_running(self, number: float, tokens: float) -> float:
        """How many of so many are longer: those that run after so many steps."""
        return number * self.survival(tokens)

    def expected_maximum(self, number: float) -> float:
        """The longest of so many, on average.

        1 - X/T is V^(1/k) with V uniform on (0, 1), and the smallest of n such V is distributed as
        beta(1, n), so that E[max] = T (1 - Gamma(1 + 1/k) Gamma(n + 1) / Gamma(n + 1 + 1/k)).
        """
        if self.exponent < EQUAL:
            return self.maximum
        power = 1 / self.exponent
        logarithm = (
            math.lgamma(1 + power) + math.lgamma(number + 1) - math.lgamma(number + 1 + power)
        )
        return self.maximum * (1 - math.exp(logarithm))

    def expected_peak(self, start: float) -> float:
        """The most that one of them holds on average, at any time, when all begin at once with
        `start` tokens: the maximum over t of S(t) (start + t), which is at
        t = (T - k start) / (k + 1), or at once where that is negative."""
        at = max(0.0, (self.maximum - self.exponent * start) / (self.exponent + 1))
        if self.exponent < EQUAL:
            return start + self.maximum
        return self.survival(at) * (start + at)
