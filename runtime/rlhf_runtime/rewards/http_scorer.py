"""A service of the user's own that scores batches of samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.messages import BatchScores, check_scores
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.service_scorer import ServiceScorer, Sleep


class HTTPScorer(ServiceScorer):
    """Sends batches of samples, and reads a list of scores."""

    def __init__(self, spec: RewardSpec, sleep: Sleep = asyncio.sleep) -> None:
        assert spec.http is not None
        super().__init__(spec, spec.http.url, spec.http.batch_size, sleep)
        self._parameters = spec.http.parameters
        self._parts = spec.http.parts

    def body(self, batch: Sequence[Sample]) -> Any:
        """Return the samples and the parameters."""
        samples = list(map(_described, batch))
        return {"samples": samples, "parameters": self._parameters}

    def read(self, content: bytes, num_samples: int) -> BatchScores:
        """Read the list of scores."""
        try:
            body: Any = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        values = body.get("scores") if isinstance(body, dict) else None
        if not isinstance(values, list):
            return self.unreadable(content, '{"scores": [...]}')
        scores = check_scores(values, num_samples, self._parts)
        if scores.batch_fault is not None:
            return replace(scores, detail=f"{self.url}: {scores.detail}")
        faults = {
            index: (fault, f"{self.url}: {detail}")
            for index, (fault, detail) in scores.faults.items()
        }
        return replace(scores, faults=faults)


def _described(sample: Sample) -> dict[str, Any]:
    described = asdict(sample)
    # Data of a single source has no names of sources.
    if sample.source is None:
        del described["source"]
    if not sample.has_conversation:
        del described["turns"], described["environment_reward"]
    return described
