"""Rewards that apply to the responses to some rows only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards.futures import map_future
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import OnScore, SampleScore, Scores
from rlhf_runtime.row_values import value_or_none


class RewardScorer(Protocol):
    """What scores the samples of one reward."""

    @property
    def title(self) -> str:
        """Its name in messages."""

    def wait_until_ready(self) -> str | None:
        """Wait until it can score; returns the metric that it declares."""

    def submit(self, samples: Sequence[Sample], on_score: OnScore | None = None) -> Future[Scores]:
        """Score samples without waiting.

        on_score: called in another thread with each final score.
        """

    def close(self) -> None:
        """Release its processes or connections."""


class PartialScorer:
    """Scores the samples to which a reward applies, and abstains on all others."""

    def __init__(self, reward: RewardSpec, scorer: RewardScorer) -> None:
        self._reward = reward
        self._scorer = scorer

    @property
    def title(self) -> str:
        """Name of the reward in messages."""
        return self._scorer.title

    def wait_until_ready(self) -> str | None:
        """Wait until it can score; returns the metric that it declares."""
        return self._scorer.wait_until_ready()

    def submit(self, samples: Sequence[Sample], on_score: OnScore | None = None) -> Future[Scores]:
        """Score samples without waiting; abstentions on other samples are not reported."""
        chosen = [
            number
            for number, sample in enumerate(samples)
            if applies(self._reward, sample.record, sample.source)
        ]

        def renumber(index: int, score: SampleScore) -> None:
            assert on_score is not None
            on_score(chosen[index], score)

        scored = self._scorer.submit(
            [samples[number] for number in chosen], None if on_score is None else renumber
        )
        return map_future(scored, lambda scores: spread_scores(scores, chosen, len(samples)))

    def close(self) -> None:
        """Release its processes or connections."""
        self._scorer.close()


def applies(reward: RewardSpec, record: Mapping[str, Any], source: str | None) -> bool:
    """True if a reward applies to the responses to a row.

    Args:
        reward: with the rows that it names.
        record: the row.
        source: name of its source; None if the data has a single one.
    """
    if reward.sources and source not in reward.sources:
        return False
    where = reward.where
    return where is None or _as_text(value_or_none(record, where.field)) in where.values


def spread_scores(scores: Scores, chosen: Sequence[int], num_samples: int) -> Scores:
    """Return the scores of some samples as those of all, with an abstention on each other one.

    Args:
        scores: of the chosen samples.
        chosen: their numbers among all samples, rising.
        num_samples: of all samples.
    """
    values = np.zeros(num_samples, dtype=np.float32)
    valid = np.zeros(num_samples, dtype=np.bool_)
    abstained = np.ones(num_samples, dtype=np.bool_)
    values[chosen], valid[chosen], abstained[chosen] = scores.values, scores.valid, scores.abstained
    failures = tuple(replace(failure, start=chosen[failure.start]) for failure in scores.failures)
    parts = {name: np.full(num_samples, np.nan, dtype=np.float32) for name in scores.parts}
    for name, column in scores.parts.items():
        parts[name][chosen] = column
    return replace(
        scores, values=values, valid=valid, abstained=abstained, failures=failures, parts=parts
    )


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        # Columnar files turn whole numbers into floats where a value is missing.
        value = int(value)
    return json.dumps(value) if isinstance(value, bool | int | float) else None
