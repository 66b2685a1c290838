"""A verifier and an environment that need a package of code.requirements."""

from __future__ import annotations

from collections.abc import Sequence

import tiny_words

from rlhf_runtime.rewards.sample import Sample


def digits(samples: Sequence[Sample]) -> list[float]:
    """The package's score of a response."""
    return [tiny_words.digits(sample.response) for sample in samples]


class Speaker:
    """Talks by the package."""

    def reset(self, prompt: str, **row: object) -> str | None:
        """Add the package's word to the prompt."""
        return tiny_words.WORD

    def version(self) -> str:
        """Name the package's version."""
        return tiny_words.VERSION

    def reward(self) -> float:
        """Reward every conversation alike."""
        return float(len(tiny_words.WORD))
