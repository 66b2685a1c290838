"""Scores with the journal: those of earlier attempts are read, others are asked for and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import OnRewardError
from rlhf_runtime.journal.answers import CallAnswers
from rlhf_runtime.rewards.applicable_samples import RewardScorer
from rlhf_runtime.rewards.futures import map_future
from rlhf_runtime.rewards.joined_scores import join_scores
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import SampleScore, Scores, Tally

# Bytes of a question's digest.
DIGEST_BYTES = 8
# Characters of a response in messages.
SHOWN_CHARACTERS = 60
# Characters of a failure's description that are kept.
DETAIL_CHARACTERS = 1000
# Settings that say how a reward is asked, not what.
MANNER = {
    *("batch_size", "compress", "headers", "max_concurrency", "max_retries", "on_error"),
    *("processes", "repeatable", "timeout_seconds", "use_proxy"),
}


@dataclass
class JournaledRequest:
    """One reward, some samples, and what the journal has about them."""

    reward: RewardSpec
    samples: Sequence[Sample]
    answers: CallAnswers

    @cached_property
    def known(self) -> Mapping[int, SampleScore]:
        """Scores of earlier attempts by sample.

        Raises:
            JournalMismatch: an earlier attempt has asked about another sample.
        """
        known = {}
        for number, sample in enumerate(self.samples):
            description = f"the response {sample.response[:SHOWN_CHARACTERS]!r}"
            question = partial(self.question, number)
            found = self.answers.find(self.reward.name, number, question, description)
            if found is not None:
                known[number] = from_json(found)
        return known

    def question(self, number: int) -> str:
        """Return a digest of the settings that shape an answer, and of all that is seen of a
        sample."""
        sample = self.samples[number]
        seen = [sample.prompt, sample.response, sample.record, sample.finished, sample.source]
        if sample.has_conversation:
            seen += [sample.turns, sample.environment_reward]
        content = self._settings + json.dumps(seen).encode()
        return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()

    @cached_property
    def _settings(self) -> bytes:
        scorer = self.reward.scorer
        assert scorer is not None, "a model is not asked"
        settings = scorer.model_dump(mode="json", exclude=MANNER)
        # A corrected function takes effect at once.
        code = self.answers.attempt.code if self.reward.function is not None else ""
        return json.dumps([settings, code]).encode()

    def submit(self, scorer: RewardScorer) -> Future[Scores]:
        """Score the samples without waiting; those with a known score are not asked about."""
        asked = [number for number in range(len(self.samples)) if number not in self.known]
        scores = self.ask(scorer, asked)
        if not self.known:
            return scores
        return map_future(
            scores, lambda done: with_known(done, asked, self.known, len(self.samples))
        )

    def ask(self, scorer: RewardScorer, numbers: Sequence[int]) -> Future[Scores]:
        """Ask about some of the samples, without waiting.

        Args:
            scorer: of the reward.
            numbers: of the samples, rising.
        """

        def keep(index: int, score: SampleScore) -> None:
            self._keep(numbers[index], score)

        return scorer.submit([self.samples[number] for number in numbers], keep)

    def _keep(self, number: int, score: SampleScore) -> None:
        has_failed = score.fault is not None
        # A function that answers the same again may only be slower on a busy machine.
        if not self.reward.may_change and score.fault is not RewardFault.TIMED_OUT:
            return
        # With onError: Fail it ends the job, and the next attempt must ask again. A process may
        # have died because the machine was shut down.
        if score.fault is RewardFault.DIED or (
            has_failed and self.reward.on_error is OnRewardError.FAIL
        ):
            return
        # A failure that no step has used is none: this node may have lost its network.
        answer, question = to_json(score), self.question(number)
        self.answers.add(self.reward.name, number, question, answer, is_final=not has_failed)


def with_known(
    scores: Scores, asked: Sequence[int], known: Mapping[int, SampleScore], num_samples: int
) -> Scores:
    """Join the scores of some samples with known ones of all others.

    Args:
        scores: of the samples that were asked about.
        asked: their numbers among all samples, rising.
        known: scores by number.
        num_samples: of all samples.
    """
    numbers = sorted(known)
    tally = Tally(len(numbers))
    for index, number in enumerate(numbers):
        tally.add_known(index, known[number])
    return join_scores([(asked, scores), (numbers, tally.scores())], num_samples)


def to_json(score: SampleScore) -> list[Any]:
    """Return a score as a JSON value."""
    fault = None if score.fault is None else score.fault.value
    detail = score.detail[:DETAIL_CHARACTERS]
    return [score.value, fault, detail, dict(score.parts), score.is_rescored]


def from_json(value: Sequence[Any]) -> SampleScore:
    """Read a score; the inverse of `to_json`."""
    score, fault, detail, parts, is_rescored = value
    return SampleScore(
        score, None if fault is None else RewardFault(fault), detail, parts, is_rescored
    )
