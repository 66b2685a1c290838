"""A verifier that sleeps for as long as a file says, as one that waits for others would."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rlhf_runtime.rewards.sample import Sample


def score(samples: Sequence[Sample], file: str) -> list[float]:
    """Return whether responses have ended by themselves, after a while for each."""
    time.sleep(float(Path(file).read_text()) * len(samples))
    return [float(sample.finished) for sample in samples]
