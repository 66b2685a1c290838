"""Verifier: penalizes long and truncated responses."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.rewards.sample import Sample


def penalty(samples: Sequence[Sample], *, free: int = 1000, limit: int = 2000) -> list[float]:
    """Score 0 up to `free` characters, falling linearly to -1 at `limit` and beyond.

    A truncated response counts as one of `limit` characters. The form is DAPO's overlong penalty,
    with characters in place of tokens.

    Raises:
        ValueError: limit is not above free.

    Source: DAPO (arXiv 2503.14476), section 3.4.
    """
    if limit <= free:
        raise ValueError(
            f"limit is not above free: got free {free} and limit {limit}; raise limit or lower free"
        )
    # Truncation must not be the way to a short response.
    lengths = [len(sample.response) if sample.finished else limit for sample in samples]
    return [-min(max(length - free, 0) / (limit - free), 1.0) for length in lengths]
