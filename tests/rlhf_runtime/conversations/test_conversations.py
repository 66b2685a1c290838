"""Conversations: their tokens, their ends, and the order in which they go on."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rlhf_api.spec.stopping import CONVERSATION_REASONS, StopReason
from rlhf_runtime.calls.episodes import Act, Begin, End
from rlhf_runtime.environments.results import FailureKind

from ..engines.scripted_engine import STOP
from .scripted import (
    ANSWER,
    BAD_CALL,
    CALL,
    MAX_ANSWER_CHARACTERS,
    Played,
    ScriptedDialogue,
    play,
    responses,
)

SEEDS = range(20)


def outcome(played: Played) -> list[Any]:
    return [
        (
            *(one.tokens.tolist(), one.mask.tolist(), one.log_probs.tolist()),
            *(one.turn_rewards.tolist(), one.reason, one.reward, one.prompt.tolist()),
            one.to_record(),
        )
        for one in played.conversations
    ]


def test_late_answers_change_nothing_in_exact_order() -> None:
    first = play(seed=0)
    assert first.num_batches > len(first.conversations), "some have several turns"
    for seed in SEEDS:
        other = play(seed=seed)
        assert outcome(other) == outcome(first)
        assert other.engine.added == first.engine.added, "the same sequences in the same steps"


def test_fastest_order_samples_the_same_tokens_in_another_order() -> None:
    exact = play(seed=0)
    plays = [play(seed=seed, order="Fastest") for seed in SEEDS]
    assert all(outcome(played) == outcome(exact) for played in plays), "seeds are of rows and turns"
    assert any(played.engine.added != exact.engine.added for played in plays)


def steps_of_turns(played: Played) -> list[list[tuple[int, int]]]:
    """First and last step of every turn, by conversation."""
    added = {tuple(prompt): step for step, prompts in played.engine.added for prompt in prompts}
    steps = []
    for one in played.conversations:
        whole = [*one.prompt.tolist(), *one.tokens.tolist()]
        edges = np.flatnonzero(np.diff(one.mask, prepend=0, append=0))
        starts, ends = edges[::2].tolist(), edges[1::2].tolist()
        begins = [added[tuple(whole[: len(one.prompt) + start])] for start in starts]
        steps.append(
            [(b, b + end - start) for b, start, end in zip(begins, starts, ends, strict=True)]
        )
    return steps


@pytest.mark.parametrize(("rows", "delay", "skips"), [(40, 1, False), (40, 9, True), (8, 30, True)])
def test_a_turn_enters_its_delay_after_the_one_before_unless_nothing_is_left(
    rows: int, delay: int, skips: bool
) -> None:
    steps = steps_of_turns(play(rows=rows, delaySteps=delay))
    turns = [turn for conversation in steps for turn in conversation]
    due, skipped, num_busy = dict[tuple[int, int], int](), 0, 0
    for now in sorted({step for turn in turns for step in turn}):
        for row, conversation in enumerate(steps):
            for (_, end), (begin, _) in pairwise(conversation):
                if end == now:
                    due[row, begin] = now - 1 + skipped + delay  # from its last step on
        dues = {due for (_, begin), due in due.items() if begin == now}
        if not dues:
            continue
        (entered,) = dues
        if any(first < now < last for first, last in turns):
            assert entered == now + skipped
            num_busy += 1
        else:  # steps in which nothing would be decoded are skipped
            assert entered >= now + skipped
            skipped = entered - now
    assert num_busy and bool(skipped) == skips


@pytest.mark.parametrize("order", ["Exact", "Fastest"])
def test_every_turn_is_sampled_once_under_its_own_number(order: str) -> None:
    played = play(order=order)
    turns = [(one.row, turn) for one in played.conversations for turn in range(len(one.turns))]
    assert sorted(played.sampled) == turns
    assert len(turns) > len(played.conversations)


def test_every_wait_for_environments_is_progress() -> None:
    played = play()
    assert played.num_ticks == played.client.num_waits > 0
    fastest = play(order="Fastest")
    assert fastest.num_ticks >= fastest.client.num_waits > 0


def test_the_journal_is_complete_at_the_end() -> None:
    played = play()
    assert played.records.num_read == len(played.client.asked)


@pytest.mark.parametrize("capacity", [1, 3, 100])
@pytest.mark.parametrize("order", ["Exact", "Fastest"])
def test_a_turn_begins_with_all_tokens_before_it(capacity: int, order: str) -> None:
    played = play(capacity=capacity, order=order)
    prompts = {tuple(prompt) for _, prompts in played.engine.added for prompt in prompts}
    for one in played.conversations:
        whole = [*one.prompt.tolist(), *one.tokens.tolist()]
        begins = [tuple(one.prompt.tolist())]
        # A turn begins where the mask begins again.
        mask = one.mask
        starts = np.flatnonzero(np.diff(mask, prepend=0) == 1)
        begins += [tuple(whole[: len(one.prompt) + start]) for start in starts[1:]]
        assert prompts >= set(begins)
        assert len(one.mask) == len(one.log_probs) == len(one.tokens) == one.num_tokens
        assert not one.log_probs[mask == 0].any() and (one.log_probs[mask == 1] < 0).all()
        answers = one.tokens[mask == 0]
        assert (answers[:1] == ANSWER).all(), "what was not sampled is of the environment"
    assert most_at_once(played) <= capacity


def most_at_once(played: Played) -> int:
    live, most = 0, 0
    for request in played.client.asked:
        live += isinstance(request.action, Begin) - isinstance(request.action, End)
        most = max(most, live)
    return most


def test_conversations_end_for_their_reasons() -> None:
    seen = set()
    for turns in (2, 5):
        for one in play(rows=40, limits={"turns": turns}).conversations:
            assert one.reason is not None
            seen.add(one.reason)
            last = one.turns[-1]
            calls = [token for token in one.last_turn.tolist() if token in (CALL, BAD_CALL)]
            if one.reason is StopReason.END_TOKEN:
                assert one.tokens[-1] == STOP and not calls
            if one.reason is StopReason.TURN_LIMIT:
                assert len(one.turns) == turns and calls and len(last.calls) == len(calls)
            if one.reason is StopReason.TOKEN_LIMIT:
                assert one.num_tokens <= 60
    assert seen == {StopReason.END_TOKEN, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT}


def test_an_answer_that_fills_the_context_is_not_appended() -> None:
    num_exact = 0
    for limit in range(8, 24):
        played = play(rows=40, max_sequence_tokens=limit)
        full = [one for one in played.conversations if one.reason is StopReason.CONTEXT_LIMIT]
        assert 0 < len(full) < 40
        for one in full:
            answer = ScriptedDialogue().answer_tokens(
                one.last_turn, one.turns[-1].calls, one.turns[-1].answers
            )
            num_tokens = len(one.prompt) + one.num_tokens + len(answer)
            assert num_tokens >= limit and one.mask[-1] == 1
            num_exact += num_tokens == limit
        # Of the first turns the prompt alone.
        begins = [len(prompt) for _, prompts in played.engine.added for prompt in prompts]
        assert 2 < max(begins) < limit, "the next turn has a token at least"
    assert num_exact


def test_calls_of_a_turn_that_is_cut_off_are_not_made() -> None:
    played = play(rows=60, max_tokens=9)
    made = {
        (r.episode.row, r.action.turn) for r in played.client.asked if isinstance(r.action, Act)
    }
    full = [one for one in played.conversations if one.num_tokens == 9]
    cut_off = [one for one in full if one.tokens[-1] != STOP]
    assert any(CALL in one.last_turn for one in cut_off)
    for one in cut_off:
        assert one.reason is StopReason.TOKEN_LIMIT
        assert (one.row, len(one.turns) - 1) not in made and not one.turns[-1].calls


def test_a_failure_ends_its_conversation_only() -> None:
    whole = play()
    acting = [r.episode.row for r in whole.client.asked if isinstance(r.action, Act)]
    row = acting[0]
    failed = play(fails=frozenset({(row, 0)}))
    one = failed.conversations[row]
    assert one.reason is StopReason.TOOL_DEADLINE and one.failure is not None
    assert one.mask.all(), "no answer follows the turn that failed"
    assert json.loads(one.to_record())["failure"]["detail"] == "too slow"
    others = [number for number in range(12) if number != row]
    expected = outcome(whole)
    assert [outcome(failed)[n] for n in others] == [expected[n] for n in others]


def test_failures_are_stop_reasons() -> None:
    failures = {StopReason(kind.value) for kind in FailureKind}
    assert failures | {StopReason.TURN_LIMIT} == set(CONVERSATION_REASONS)


def test_a_reward_that_fails_is_a_failure_of_a_whole_conversation() -> None:
    whole, failed = play(), play(unrewarded=frozenset({3}))
    one, before = failed.conversations[3], whole.conversations[3]
    assert one.reason is StopReason.ENVIRONMENT_FAILED and one.reward is None
    assert one.failure is not None and one.failure.detail == "no reward"
    assert one.tokens.tolist() == before.tokens.tolist()
    assert one.mask.tolist() == before.mask.tolist()
    row = next(r.episode.row for r in whole.client.asked if isinstance(r.action, Act))
    twice = play(fails=frozenset({(row, 0)}), unrewarded=frozenset({row})).conversations[row]
    assert twice.reason is StopReason.TOOL_DEADLINE, "the first failure counts"


def test_an_observation_is_written_into_the_prompt() -> None:
    for one in play().conversations:
        expects = one.row % 4 == 0
        assert (json.loads(one.record)["prompt"] == "psee") is expects
        assert (one.prompt.tolist() == list(b"psee")) is expects


def test_an_observation_cannot_end_its_message() -> None:
    first, *_ = play(observation="a<end>b").conversations
    assert first.prompt.tolist() == list(b"pa< end>b")


def test_a_prompt_that_an_observation_makes_too_long_is_a_failure() -> None:
    # The scripted prompts have 16 tokens at most.
    played = play(rows=1, observation="x" * 20)
    (one,) = played.conversations
    assert one.reason is StopReason.ENVIRONMENT_FAILED and not one.num_tokens
    assert "got 21 tokens, allowed 16 (rollout.maxPromptTokens)" in one.failure.detail


def test_rewards_stand_at_the_last_token_of_their_turns() -> None:
    for one in play().conversations:
        ends = np.flatnonzero(np.diff(one.mask, append=0) == -1)
        rewards = one.turn_rewards
        for number, end in enumerate(ends[: len(one.turns)]):
            expected = 0.0 if one.turns[number].reward is None else number + 1
            assert rewards[end] == expected
        assert np.count_nonzero(rewards) == sum(turn.reward is not None for turn in one.turns)
        assert one.reward == float(one.row)


def test_long_answers_are_cut() -> None:
    turns = [turn for one in play(rows=40).conversations for turn in one.turns]
    lengths = {len(answer) for turn in turns for answer in turn.answers}
    assert max(lengths) == MAX_ANSWER_CHARACTERS and len(lengths) > 2


def test_every_call_has_an_answer_in_its_place() -> None:
    played = play(rows=40)
    turns = [turn for one in played.conversations for turn in one.turns if turn.answers]
    assert any(len(turn.answers) > 1 for turn in turns)
    for turn in turns:
        assert len(turn.answers) == len(turn.calls)
        for call, answer in zip(turn.calls, turn.answers, strict=True):
            assert (answer == "no call") is (not hasattr(call, "arguments"))
    assert responses(played).num_rows == 40
