"""What every generation engine must do: scenarios by name, for engines with published weights.

Each scenario leaves the engine idle. Some leave it without weights, so what writes them comes
before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pytest

from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.generation import (
    GenerationEngine,
    NewSequence,
    SequenceEnded,
)
from rlhf_runtime.errors import StaleWeights

TOLERANCE = 1e-4
"""Of log-probabilities: another order of rows rounds differently."""
FIRST_ID = 1_000_000
"""Far from the numbers of other users of the same engine."""
_IDS = count(FIRST_ID)


@dataclass(frozen=True)
class EngineUnderTest:
    """An engine with published weights and without sequences."""

    engine: GenerationEngine
    prompts: Column
    """Four or more."""
    max_tokens: int
    stop_token_ids: Sequence[int]
    temperature: float = 2.0
    """So high that some responses end by themselves, and some do not."""
    ids: Iterator[int] = field(default=_IDS)
    rank: int = 0
    """This rank's number in the engine."""

    def sequences(self, version: int | None = None) -> list[NewSequence]:
        """A sequence for each prompt, with the same seed whenever this is called."""
        version = self.engine.version if version is None else version
        assert version is not None
        return [
            NewSequence(next(self.ids), prompt, self.max_tokens, self.temperature, row, version)
            for row, prompt in enumerate(self.prompts.runs())
        ]

    def run(self, sequences: Sequence[NewSequence]) -> list[SequenceEnded]:
        """Add sequences and run until all have ended: in the order of `sequences`."""
        self.engine.add(sequences)
        ends = {end.id: end for end in self.run_to_end()}
        assert ends.keys() == {sequence.id for sequence in sequences}
        return [ends[sequence.id] for sequence in sequences]

    def run_to_end(self) -> list[SequenceEnded]:
        ends = []
        while self.engine.has_work:
            ends += self.engine.step()
        assert len({end.id for end in ends}) == len(ends), "each ends once"
        return ends


def assert_same(actual: Sequence[SequenceEnded], expected: Sequence[SequenceEnded]) -> None:
    """Same responses, whatever the ids are."""
    for one, other in zip(actual, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.reason is other.reason
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=TOLERANCE)


def sequences_end_at_a_stop_token_or_at_their_limit(at: EngineUnderTest) -> None:
    ends = at.run(at.sequences() + at.sequences())
    for end in ends:
        assert end.tokens.dtype == np.int32 and end.log_probs.dtype == np.float32
        assert len(end.tokens) == len(end.log_probs) and (end.log_probs <= 0).all()
        assert not set(end.tokens[:-1].tolist()) & set(at.stop_token_ids)
        if end.reason is StopReason.END_TOKEN:
            assert end.tokens[-1] in at.stop_token_ids
        else:
            assert end.reason is StopReason.TOKEN_LIMIT and len(end.tokens) == at.max_tokens
    assert {end.reason for end in ends} == {StopReason.END_TOKEN, StopReason.TOKEN_LIMIT}


def sequences_have_limits_of_their_own(at: EngineUnderTest) -> None:
    version = at.engine.version
    assert version is not None
    (prompt, *_) = at.prompts.runs()
    limits = (3, 1, 2)
    ends = at.run([NewSequence(next(at.ids), prompt, most, 0.0, 0, version) for most in limits])
    longest, *others = (end.tokens.tolist() for end in ends)
    assert [tokens == longest[: len(tokens)] for tokens in others] == [True, True]
    assert all(len(end.tokens) <= most for end, most in zip(ends, limits, strict=True))


def the_order_of_adding_changes_no_response(at: EngineUnderTest) -> None:
    expected = at.run(at.sequences())
    assert len({tuple(end.tokens.tolist()) for end in expected}) > 1
    assert_same(at.run(at.sequences()[::-1])[::-1], expected)
    first, second = np.array_split(np.arange(at.prompts.num_rows), 2)
    sequences = at.sequences()
    at.engine.add([sequences[row] for row in second])
    ends = list(at.engine.step())
    at.engine.add([sequences[row] for row in first])  # while others run
    by_id = {end.id: end for end in ends + at.run_to_end()}
    assert_same([by_id[sequence.id] for sequence in sequences], expected)


def later_turns_go_on_from_all_tokens_before_them(at: EngineUnderTest) -> None:
    def second_turns() -> list[NewSequence]:
        return [
            replace(
                sequence,
                id=next(at.ids),
                prompt=np.concatenate([sequence.prompt, end.tokens, [3, 1]], dtype=np.int32),
                seed=sequence.seed + 1,
            )
            for sequence, end in zip(first, ends, strict=True)
        ]

    def first_turns() -> list[NewSequence]:
        # Both turns of these fit the context.
        return sorted(at.sequences(), key=lambda sequence: len(sequence.prompt))[:3]

    first = first_turns()
    ends = at.run(first)
    alone = at.run(second_turns())
    first = first_turns()
    at.engine.add(first)
    ended = {end.id: end for end in at.engine.step()}
    ended |= {end.id: end for end in at.run_to_end()}
    ends = [ended[sequence.id] for sequence in first]
    later = second_turns()
    at.engine.add(later, keeps_prefixes=True)
    by_id = {end.id: end for end in at.run_to_end()}
    assert_same([by_id[sequence.id] for sequence in later], alone)


def all_ranks_get_what_the_first_one_shares(at: EngineUnderTest) -> None:
    for number in range(3):
        assert at.engine.share({"from": at.rank, "number": number}) == {"from": 0, "number": number}


def no_sequence_is_no_work(at: EngineUnderTest) -> None:
    at.engine.add([])
    assert not at.engine.has_work and at.run([]) == [] and at.engine.abort([]) == []


def aborted_sequences_keep_their_tokens_so_far(at: EngineUnderTest) -> None:
    expected = at.run(at.sequences())
    sequences = at.sequences()
    at.engine.add(sequences)
    ends = {end.id: end for _ in range(2) for end in at.engine.step()}
    running = [row for row, sequence in enumerate(sequences) if sequence.id not in ends]
    aborted = running[1::-1]
    assert len(aborted) == 2 < len(running)
    for row, end in zip(
        aborted, at.engine.abort([sequences[row].id for row in aborted]), strict=True
    ):
        assert end.id == sequences[row].id and end.reason is None
        assert end.tokens.tolist() == expected[row].tokens[: len(end.tokens)].tolist()
        assert 0 < len(end.tokens) == len(end.log_probs) < len(expected[row].tokens)
    ends |= {end.id: end for end in at.run_to_end()}
    rest = [row for row in range(len(sequences)) if row not in aborted]
    assert ends.keys() == {sequences[row].id for row in rest}, "others run on"
    assert_same([ends[sequences[row].id] for row in rest], [expected[row] for row in rest])


def an_engine_whose_sequences_were_aborted_is_as_before(at: EngineUnderTest) -> None:
    expected = at.run(at.sequences())
    sequences = at.sequences()
    at.engine.add(sequences)
    ended = {end.id for end in at.engine.step()}
    at.engine.abort([sequence.id for sequence in sequences if sequence.id not in ended])
    assert not at.engine.has_work
    assert_same(at.run(at.sequences()), expected)


def only_sequences_of_the_published_version_are_added(at: EngineUnderTest) -> None:
    version = at.engine.version
    assert version is not None
    current, stale = at.sequences(), at.sequences(version + 1)
    with pytest.raises(StaleWeights, match=f"got version {version}, allowed version {version + 1}"):
        at.engine.add([*current[:1], *stale[:1]])
    assert not at.engine.has_work, "none was added"
    at.run(current[1:])
    at.engine.publish(version + 1)
    at.run(stale)
    with pytest.raises(StaleWeights, match=f"got version {version + 1}, allowed version {version}"):
        at.engine.add(current)
    at.engine.release()


def released_weights_are_nothing_until_they_are_published(at: EngineUnderTest) -> None:
    version = at.engine.version
    assert version is not None
    expected = at.run(at.sequences())
    views = [view for parts in at.engine.views().values() for view in parts]
    weights = [view.tensor.clone() for view in views]
    for again in range(2):
        at.engine.release()
        at.engine.release()
        assert at.engine.version is None
        with pytest.raises(StaleWeights, match="got none, allowed version"):
            at.engine.add(at.sequences(version))
        at.engine.restore()
        assert at.engine.version is None
        with pytest.raises(StaleWeights, match="got none, allowed version"):
            at.engine.add(at.sequences(version))
        for view, tensor in zip(views, weights, strict=True):
            view.tensor.copy_(tensor)
        at.engine.publish(version + again)
        assert at.engine.version == version + again
        assert_same(at.run(at.sequences()), expected)
    at.engine.restore()
    assert at.engine.version is None, "what restores them writes them"
    at.engine.release()


CONTRACT: dict[str, Callable[[EngineUnderTest], None]] = {
    "sequences end at a stop token or at their limit": (
        sequences_end_at_a_stop_token_or_at_their_limit
    ),
    "sequences have limits of their own": sequences_have_limits_of_their_own,
    "the order of adding changes no response": the_order_of_adding_changes_no_response,
    "later turns go on from all tokens before them": later_turns_go_on_from_all_tokens_before_them,
    "all ranks get what the first one shares": all_ranks_get_what_the_first_one_shares,
    "no sequence is no work": no_sequence_is_no_work,
    "aborted sequences keep their tokens so far": aborted_sequences_keep_their_tokens_so_far,
    "an engine whose sequences were aborted is as before": (
        an_engine_whose_sequences_were_aborted_is_as_before
    ),
    "only sequences of the published version are added": (
        only_sequences_of_the_published_version_are_added
    ),
    "released weights are nothing until they are published": (
        released_weights_are_nothing_until_they_are_published
    ),
}
