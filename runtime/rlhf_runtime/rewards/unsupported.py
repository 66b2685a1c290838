"""Share of a response that its prompt does not support: a cost, for tasks that only rearrange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlhf_runtime.rewards.sample import Sample


def score(samples: Sequence[Sample]) -> list[float]:
    """0 where every character of the response is in the prompt at least as often, 1 where none is;
    0 for an empty response."""
    return [_unsupported(sample) for sample in samples]


def _unsupported(sample: Sample) -> float:
    beyond = Counter(sample.response) - Counter(sample.prompt)
    return beyond.total() / max(1, len(sample.response))
