"""Conversations without a model: a scripted dialogue, and an environment that answers late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random

import numpy as np
from numpy.typing import NDArray

from rlhf_api.plan import GraphName
from rlhf_api.spec.conversation import EnvironmentSpec
from rlhf_runtime.calls.episodes import Act, Begin, EpisodeId, EpisodeReply, EpisodeRequest
from rlhf_runtime.conversations.conversation import Conversation
from rlhf_runtime.conversations.conversations import Conversations
from rlhf_runtime.conversations.interfaces import ConversationSettings, ConversationTools
from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.engines.response_batch import BatchGenerator, Sampling
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.results import Acted, Begun, Ended, EpisodeFailure, FailureKind
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.hooks import noop

from ..engines.scripted_engine import STOP, ScriptedEngine

VERSION = 7
CALL, BAD_CALL, ANSWER = 3, 4, 15
MAX_ANSWER_CHARACTERS = 30


class ScriptedDialogue:
    """Every token CALL of a turn is a call, every BAD_CALL a malformed one."""

    def prompt_tokens(self, text: str) -> NDArray[np.int32]:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def calls(self, turn: NDArray[np.int32]) -> Sequence[ToolCall | MalformedCall]:
        return [
            ToolCall("look", {"at": position}) if token == CALL else MalformedCall("?", "no call")
            for position, token in enumerate(turn.tolist())
            if token in (CALL, BAD_CALL)
        ]

    def answer_tokens(
        self,
        turn: NDArray[np.int32],
        calls: Sequence[ToolCall | MalformedCall],
        answers: Sequence[str],
    ) -> NDArray[np.int32]:
        assert len(calls) == len(answers)
        lengths = [len(answer) % 5 for answer in answers]
        return np.array([ANSWER, *(n for n in lengths), ANSWER], dtype=np.int32)

    def harmless(self, text: str) -> str:
        return text.replace("<end>", "< end>")


@dataclass
class LateClient:
    """Answers from what is asked alone, in an order of its own."""

    random: Random
    fails: frozenset[tuple[int, int]] = frozenset()
    """Rows and turns whose calls fail."""
    unrewarded: frozenset[int] = frozenset()
    """Rows whose reward fails."""
    observation: str = "see"
    asked: list[EpisodeRequest] = field(default_factory=list)
    num_waits: int = 0
    _pending: dict[int, EpisodeReply] = field(default_factory=dict)

    def send(self, request: EpisodeRequest) -> int:
        self.asked.append(request)
        self._pending[len(self.asked)] = self._reply(request)
        return len(self.asked)

    def _reply(self, request: EpisodeRequest) -> EpisodeReply:
        row, action = request.episode.row, request.action
        if isinstance(action, Begin):
            return Begun(self.observation if row % 4 == 0 else None)
        if isinstance(action, Act):
            if (row, action.turn) in self.fails:
                return Acted(failure=EpisodeFailure(FailureKind.TOOL_DEADLINE, "too slow"))
            answers = tuple(
                "x" * (row + call.arguments["at"]) if isinstance(call, ToolCall) else call.problem
                for call in action.calls
            )
            wrong = [
                index for index, call in enumerate(action.calls) if isinstance(call, MalformedCall)
            ]
            return Acted(answers, float(action.turn + 1), tuple(wrong))
        if row in self.unrewarded:
            return Ended(failure=EpisodeFailure(FailureKind.ENVIRONMENT_FAILED, "no reward"))
        return Ended(float(row))

    def complete(self, episode: EpisodeId) -> RecordCounts:
        return RecordCounts(num_read=len(self.asked))

    def take(
        self, tickets: Sequence[int], num_needed: int, seconds: float
    ) -> dict[int, EpisodeReply]:
        self.num_waits += seconds > 0
        # Some are late; the last ones that are waited for come at some time.
        late = {ticket for ticket in tickets if self.random.random() < 0.5}
        return {t: self._pending.pop(t) for t in tickets if t not in late}


@dataclass
class Played:
    """Conversations that have ended."""

    conversations: list[Conversation]
    engine: ScriptedEngine
    client: LateClient
    num_batches: int
    sampled: list[tuple[int, int]]
    """Row and number of every turn, in the order of their begins."""
    num_ticks: int
    """Reports of progress while environments were silent."""
    records: RecordCounts


def play(
    *,
    seed: int = 0,
    rows: int = 12,
    capacity: int = 100,
    max_tokens: int = 60,
    max_sequence_tokens: int = 200,
    fails: frozenset[tuple[int, int]] = frozenset(),
    unrewarded: frozenset[int] = frozenset(),
    observation: str = "see",
    **environment: object,
) -> Played:
    """Run conversations of a scripted engine.

    Args:
        seed: of the environment's delays.
        rows: number of conversations.
        capacity: most at the same time.
        max_tokens: limit of a response.
        max_sequence_tokens: limit of prompt and response.
        fails: rows and turns whose calls fail.
        unrewarded: rows whose reward fails.
        observation: of every fourth row.
        environment: fields of the environment.
    """
    engine = ScriptedEngine()
    engine.publish(VERSION)
    spec = EnvironmentSpec.model_validate(
        {"tools": ["a:b"], "delaySteps": 4, "limits": {"turns": 5}, **environment}
    )
    ticks = count()
    client = LateClient(Random(seed), fails, unrewarded, observation)
    tools = ConversationTools(
        _text, lambda text: text[:MAX_ANSWER_CHARACTERS], client, partial(next, ticks)
    )
    sampled = list[tuple[int, int]]()

    def sampling(rows: Sequence[int], turns: Sequence[int]) -> Sampling:
        sampled.extend(zip(rows, turns, strict=True))
        return Sampling(1.0, [1000 * row + turn for row, turn in zip(rows, turns, strict=True)])

    settings = ConversationSettings(spec, 16, max_tokens, max_sequence_tokens, capacity)
    batch = BatchGenerator(engine).new_batch(VERSION)
    record = '{"prompt": "p", "record": {}, "marked_prompt": "p\ue000observation\ue000"}'
    conversations = [
        Conversation(
            row, ScriptedDialogue(), record, np.array([row, 1], dtype=np.int32), max_tokens
        )
        for row in range(rows)
    ]
    loop = Conversations(
        settings, tools, engine, batch, sampling, partial(EpisodeId, GraphName.STEP, 1, 0, "g", 0)
    )
    loop.run(conversations, noop)
    return Played(conversations, engine, client, batch.num_rows, sampled, next(ticks), loop.records)


def _text(tokens: NDArray[np.int32]) -> str:
    return " ".join(str(token) for token in tokens if token != STOP)


def responses(played: Played) -> Column:
    return pack([one.tokens for one in played.conversations], np.int32)
