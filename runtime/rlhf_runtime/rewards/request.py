"""One request to score samples: its pending batches and the scores collected so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf, isqrt
from time import monotonic

from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import OnScore, Scores, Tally

# Samples alone, started one after the other, that may all lose their process. Each may cost
# timeoutSeconds.
MAX_LOST_IN_A_ROW = 4


class Request:
    """Samples cut into batches.

    pending: batches that no process has started.
    result: the scores, when all batches are done.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        batch_size: int,
        limit_seconds: float = inf,
        clock: Callable[[], float] = monotonic,
        on_score: OnScore | None = None,
    ) -> None:
        """Cut samples into batches of at most batch_size.

        limit_seconds: how long samples of a failed batch are scored alone without success; then
            the batch's remaining samples are given up. Samples that lose their process are counted
            instead: MAX_LOST_IN_A_ROW.
        clock: in seconds.
        on_score: called once for each sample. Default: nothing is called.
        """
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._tally = Tally(len(samples), on_score)
        self._num_in_flight = 0
        self._is_given_up = False
        # Of batches that were cut with one sample; those of a failed batch have their own.
        self._starts = SampleStarts()
        starts = range(0, len(samples), batch_size)
        self.pending = deque(
            SampleBatch(self, starts[number], samples[starts[number] : starts[number] + batch_size])
            for number in (far_apart(len(starts)) if batch_size == 1 else range(len(starts)))
        )
        self.result: Future[Scores] = Future()

    @property
    def has_errors(self) -> bool:
        """True if a sample could not be scored."""
        return self._tally.has_errors

    @property
    def is_done(self) -> bool:
        """True if no batch is pending or in flight."""
        return not self.pending and self._num_in_flight == 0

    def next_batch(self) -> SampleBatch:
        """Take the first pending batch; in flight until it is recorded, fails or is put back."""
        self._num_in_flight += 1
        batch = self.pending.popleft()
        if batch.is_alone:
            self._starts_of(batch).start(batch.start)
        if batch.origin is not None:
            batch.origin.begin(self._clock())
        return batch

    def put_back(self, batch: SampleBatch) -> None:
        """Make a batch pending again that no process has started."""
        self._end(batch, None)
        # At the front, so that batches stay in order.
        self.pending.appendleft(batch)

    def record(self, batch: SampleBatch, scores: BatchScores) -> None:
        """Record the scores of a batch.

        If one sample may have caused the batch's fault, each sample becomes pending again, alone.
        """
        has_failed = scores.batch_fault is not None or bool(scores.faults)
        self._end(batch, Ending.FAILED if has_failed else Ending.SCORED)
        if scores.batch_fault is not None and scores.retry_alone and not batch.is_alone:
            self._split(batch, scores.batch_fault, scores.detail)
            return
        self._tally.add(batch.start, len(batch.samples), scores)
        self._give_up_after_limit(batch.origin)

    def _split(self, batch: SampleBatch, fault: RewardFault, detail: str) -> None:
        # Shared by the batch's samples, to give up together.
        origin = FailedBatch(fault, detail)
        self._tally.split(batch.start, len(batch.samples), fault, detail)
        alone = [
            SampleBatch(self, batch.start + number, [batch.samples[number]], origin)
            for number in far_apart(len(batch.samples))
        ]
        # At the front and in order; `extendleft` reverses.
        self.pending.extendleft(reversed(alone))

    def _give_up_after_limit(self, origin: FailedBatch | None) -> None:
        """Give up the remaining samples of a failed batch if none got a score for too long.

        If the verifier loses every process and has answered for no sample of the request, give up
        the whole request.
        """
        if origin is None:
            return
        loses_all = origin.starts.max_lost_in_a_row >= MAX_LOST_IN_A_ROW
        if not loses_all and origin.seconds_without_score < self._limit_seconds:
            return
        self._is_given_up |= loses_all and not self._tally.has_answers
        detail = f"given up with its batch, which failed: {origin.detail}"
        self._give_up(None if self._is_given_up else origin, origin.fault, detail)

    def _give_up(self, origin: FailedBatch | None, fault: RewardFault, detail: str) -> None:
        """Fail pending batches: those of a failed batch, or all."""
        for batch in list(self.pending):
            if origin is None or batch.origin is origin:
                self.pending.remove(batch)
                self._tally.fail(batch.start, len(batch.samples), fault, detail)

    def lose(self, batch: SampleBatch, fault: RewardFault, detail: str) -> None:
        """Record that a batch's process hung or ended.

        One sample may have caused it, so each sample becomes pending again, alone.
        """
        self._end(batch, Ending.LOST)
        if not batch.is_alone and not self._is_given_up:
            self._split(batch, fault, detail)
            return
        self._tally.fail(batch.start, len(batch.samples), fault, detail)
        self._give_up_after_limit(batch.origin)
        # Once a sample has an answer, those that are lost cost no others.
        if self._starts.max_lost_in_a_row >= MAX_LOST_IN_A_ROW and not self._tally.has_answers:
            self._is_given_up = True
            why = f"given up after {MAX_LOST_IN_A_ROW} samples in a row failed: {detail}"
            self._give_up(None, fault, why)

    def _starts_of(self, batch: SampleBatch) -> SampleStarts:
        return self._starts if batch.origin is None else batch.origin.starts

    def _end(self, batch: SampleBatch, ending: Ending | None) -> None:
        """End the flight of a batch; None: no process has started it."""
        self._num_in_flight -= 1
        if batch.is_alone and ending is not None:
            self._starts_of(batch).end(batch.start, ending)
        if batch.origin is not None:
            batch.origin.end(self._clock(), ending)

    def scores(self) -> Scores:
        """Return the scores collected so far."""
        return self._tally.scores()


def far_apart(count: int) -> list[int]:
    """Order the numbers below `count` so that neighbours are far apart."""
    # Responses to one prompt are neighbours, and may all make a verifier hang: one after the other
    # they would look like a verifier that always does.
    stride = isqrt(max(count - 1, 0)) + 1
    return [number for first in range(stride) for number in range(first, count, stride)]


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """Samples that are scored in one call."""

    request: Request
    start: int
    """Number of the first sample in the request."""
    samples: Sequence[Sample]
    """Samples in the order of the request."""
    origin: FailedBatch | None = None
    """The failed batch that its only sample comes from."""

    @property
    def is_alone(self) -> bool:
        """True if there is one sample, which alone causes its faults."""
        return len(self.samples) == 1


class Ending(Enum):
    """How the call for a sample ended."""

    SCORED = auto()
    FAILED = auto()
    """Without a score; the process stays."""
    LOST = auto()
    """The process hung or ended."""


class SampleStarts:
    """Samples alone, in the order in which they were started."""

    # Not in the order in which they end: of several in flight, the lost ones end last and together,
    # however many others have got a score before.

    def __init__(self) -> None:
        self._endings: dict[int, Ending | None] = {}

    def start(self, number: int) -> None:
        """Record the start of a sample; of one that was put back, its place stays."""
        self._endings[number] = None

    def end(self, number: int, ending: Ending) -> None:
        """Record the end of a sample."""
        self._endings[number] = ending

    @property
    def max_lost_in_a_row(self) -> int:
        """Most samples that were lost with no scored one and none in flight among them."""
        longest = count = 0
        for ending in self._endings.values():
            if ending is Ending.LOST:
                count += 1
            elif ending is not Ending.FAILED:
                count = 0
            longest = max(longest, count)
        return longest


@dataclass(slots=True, eq=False)
class FailedBatch:
    """A batch that failed, and whose samples are scored one by one."""

    fault: RewardFault
    detail: str
    seconds_without_score: float = 0.0
    """Time spent on its samples since one last got a score or lost its process."""
    starts: SampleStarts = field(default_factory=SampleStarts)
    # Only time with a sample in flight counts: waiting for a free process is no failure.
    _num_in_flight: int = 0
    _counted_until: float = 0.0

    def begin(self, now: float) -> None:
        """Start the clock: a sample is in flight."""
        self._count(now)
        self._num_in_flight += 1

    def end(self, now: float, ending: Ending | None) -> None:
        """Stop the clock for a sample, and reset it if the sample got a score or was lost."""
        self._count(now)
        self._num_in_flight -= 1
        # A sample that hangs takes all the time there is; that must not cost the others theirs.
        if ending in (Ending.SCORED, Ending.LOST):
            self.seconds_without_score = 0.0

    def _count(self, now: float) -> None:
        if self._num_in_flight:
            self.seconds_without_score += now - self._counted_until
        self._counted_until = now
