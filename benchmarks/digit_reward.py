"""The reward of bench-peers' second scenario, in our runtime's form."""

from __future__ import annotations

from collections.abc import Sequence

from task import digit_share

from rlhf_runtime.rewards.sample import Sample


def score(samples: Sequence[Sample]) -> list[float]:
    """Shares of digits in responses."""
    return [digit_share(sample.response, "") for sample in samples]
