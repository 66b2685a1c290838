"""The environment of example 19: a secret number that is guessed."""

from __future__ import annotations

from math import log


class GuessNumber:
    """One game. Halving what is left always finds one of 15 numbers in four guesses."""

    def __init__(self, *, largest: int = 15, guesses: int = 4) -> None:
        self._largest, self._guesses = largest, guesses
        self._is_found = False
        self._gain = 0.0

    def reset(self, secret: int) -> None:
        """Begin a game; the prompt does not have the column `secret`."""
        self._secret = secret
        self._low, self._high = 1, self._largest

    def guess(self, number: int) -> str:
        """Guess the secret number.

        Args:
            number: the guess.
        """
        if self._is_found or not self._guesses:
            return "over"
        self._guesses -= 1
        num_before = self._high - self._low + 1
        if number == self._secret:
            self._low = self._high = number
            self._is_found = True
        elif number < self._secret:
            self._low = max(self._low, number + 1)
        else:
            self._high = min(self._high, number - 1)
        self._gain += log(num_before / (self._high - self._low + 1), self._largest)
        return "found" if self._is_found else "low" if number < self._secret else "high"

    def turn_reward(self) -> float:
        """Information that the turn's guess gave, as a share of all that there is."""
        gain, self._gain = self._gain, 0.0
        return gain

    def reward(self) -> float:
        """Return 1 if the number was found."""
        return float(self._is_found)
