"""Verifier: share of a response that its prompt does not contain; a cost for copying tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlhf_runtime.rewards.sample import Sample


def score(samples: Sequence[Sample]) -> list[float]:
    """Score 0 if every character of the response occurs in the prompt at least as often, 1 if none
    does; 0 for an empty response."""
    return [_unsupported(sample) for sample in samples]


def _unsupported(sample: Sample) -> float:
    beyond = Counter(sample.response) - Counter(sample.prompt)
    return beyond.total() / max(1, len(sample.response))
