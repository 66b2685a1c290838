"""One reward's part of a call some of whose batches were scored while responses were generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from rlhf_api.spec.rewards import RewardSpec
from rlhf_api.spec.services import OnRewardError
from rlhf_runtime.journal.answers import CallAnswers
from rlhf_runtime.rewards.joined_scores import Part, join_scores
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.request import MAX_LOST_IN_A_ROW, far_apart
from rlhf_runtime.rewards.scores import Scores

# Samples whose process hung or ended: a request is given up after some of them.
LOST = (RewardFault.TIMED_OUT, RewardFault.DIED)
# Faults that the same question may not have later.
MOMENTARY = frozenset({*LOST, RewardFault.UNREACHABLE, RewardFault.REFUSED})

Ask = Callable[[Sequence[int]], Future[Scores]]
"""Asks about samples of the call, by their numbers, rising."""


@dataclass(frozen=True)
class EarlyBatch:
    """A batch that was asked for early."""

    numbers: tuple[int, ...]
    """Numbers of its samples in the call, rising."""
    scores: Future[Scores]
    answers: CallAnswers | None = None
    """What the journal keeps of it."""


EarlyBatches = Mapping[str, Sequence[EarlyBatch]]
"""The batches of a call that were asked for early, by the reward's name."""


class EarlyRequest:
    """Asks for all batches that were not asked for early, and joins the scores."""

    # A request may be given up after some samples that hang, and a service that is down may be up
    # now. So only answers that the call itself would get as well are taken from early batches.

    def __init__(
        self,
        reward: RewardSpec,
        batches: Sequence[EarlyBatch],
        num_samples: int,
        ask: Ask,
        answers: CallAnswers | None = None,
    ) -> None:
        """Ask for the rest without waiting.

        Args:
            reward: of the batches.
            batches: that were asked for early; each has the samples of a batch of the call.
            num_samples: of the call.
            ask: asks the reward.
            answers: the journal's answers about the call. None: no journal.
        """
        self._reward = reward
        self._batches = batches
        self._num_samples = num_samples
        self._ask = ask
        self._answers = answers
        early = {number for batch in batches for number in batch.numbers}
        self._rest = [number for number in range(num_samples) if number not in early]
        self._rest_scores = ask(self._rest)

    def complete(self) -> Future[Scores]:
        """Wait for all scores; returns a future that is done."""
        wait([self._rest_scores, *(batch.scores for batch in self._batches)])
        usable = [batch for batch in self._batches if is_usable(self._reward, batch.scores)]
        others = [batch for batch in self._batches if batch not in usable]
        asked = [(self._rest, self._rest_scores), *self._ask_again(others)]
        wait([scores for _, scores in asked])
        for _, scores in asked:
            if scores.exception() is not None:
                return scores
        parts: list[Part] = [(numbers, scores.result()) for numbers, scores in asked]
        parts += [(batch.numbers, batch.scores.result()) for batch in usable]
        whole = join_scores(parts, self._num_samples)
        if self._may_be_given_up(whole) or self._may_be_given_up(self._rest_scores.result()):
            everything = self._ask(range(self._num_samples))
            wait([everything])
            return everything
        for batch in usable:
            if self._answers is not None and batch.answers is not None:
                self._answers.include(batch.answers)
        joined: Future[Scores] = Future()
        joined.set_result(whole)
        return joined

    def _ask_again(
        self, batches: Sequence[EarlyBatch]
    ) -> list[tuple[Sequence[int], Future[Scores]]]:
        """Ask about batches again, in requests of so few samples that none of them is given up for
        the others."""
        numbers = sorted(number for batch in batches for number in batch.numbers)
        size = batch_size(self._reward)
        step = size * max(1, MAX_LOST_IN_A_ROW // size)
        parts = [numbers[start : start + step] for start in range(0, len(numbers), step)]
        return [(part, self._ask(part)) for part in parts]

    def _may_be_given_up(self, scores: Scores) -> bool:
        """True if one request about these samples may have been given up before it asked about
        all.

        That is so if a function loses its process for some samples, and answers for none before.
        """
        lost = sum(scores.errors.get(fault.value, 0) for fault in LOST)
        if self._reward.function is None or lost < MAX_LOST_IN_A_ROW:
            return False
        answered = scores.valid | scores.abstained
        is_alone = batch_size(self._reward) == 1
        starts = far_apart(len(answered)) if is_alone else range(len(answered))
        num_before = next((n for n, start in enumerate(starts) if answered[start]), len(answered))
        return num_before >= MAX_LOST_IN_A_ROW


def is_usable(reward: RewardSpec, batch: Future[Scores]) -> bool:
    """True if a batch that is done has the answers that the call itself would get.

    Args:
        reward: of the batch.
        batch: scores of a batch.
    """
    if batch.cancelled() or batch.exception() is not None:
        return False
    scores = batch.result()
    # Samples that were scored alone may hide why their batch failed.
    if scores.rescored or not MOMENTARY.isdisjoint(scores.errors):
        return False
    return not scores.errors or reward.on_error is not OnRewardError.FAIL


def batch_size(reward: RewardSpec) -> int:
    """Return the number of samples that a function or service scores together."""
    if reward.function is not None:
        return reward.function.batch_size
    # A judge is asked about one response at a time.
    return 1 if reward.http is None else reward.http.batch_size
