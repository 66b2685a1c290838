"""Custom verifiers of a user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rlhf_runtime.rewards.sample import Sample


def digits(samples: Sequence[Sample]) -> list[float]:
    """Share of digits among a response's first eight characters."""
    return [sum(c.isdigit() for c in sample.response[:8]) / 8 for sample in samples]


def length(samples: Sequence[Sample]) -> list[float]:
    """Characters of the response."""
    return [float(len(sample.response)) for sample in samples]


def enormous(samples: Sequence[Sample]) -> list[float]:
    """Finite scores that overflow in arithmetic."""
    return [3e38 * score for score in digits(samples)]


def abstains(samples: Sequence[Sample]) -> list[float | None]:
    """Abstains on every sample."""
    return [None] * len(samples)


def often_raises(samples: Sequence[Sample]) -> list[float]:
    """Raises for prompts that begin with an even digit."""
    if any(int(sample.prompt[0]) % 2 == 0 for sample in samples):
        raise RuntimeError(f"no opinion on {samples[0].prompt}")
    return digits(samples)


def leaves_marks(samples: Sequence[Sample], *, folder: str) -> list[float]:
    """Leave a file per scored batch."""
    marks = Path(folder)
    number = len(list(marks.glob("scored-*")))
    (marks / f"scored-{number}-{os.getpid()}").touch()
    return digits(samples)


def keeps_responses(samples: Sequence[Sample], *, file: str) -> list[float]:
    """Score as `digits`, and append responses to a file."""
    with Path(file).open("a") as lines:
        lines.writelines(f"{sample.prompt}{sample.response}\n" for sample in samples)
    return digits(samples)
