"""A conversation with an environment whose turns are scripted: every tool is called once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.conversations.answer_cutter import AnswerCutter
from rlhf_runtime.conversations.first_prompt import length_failure, with_observation
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.results import Begun, Ended, EpisodeFailure, EpisodeKey
from rlhf_runtime.environments.settings import ClassFacts
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.journal.answers import CallScope
from rlhf_runtime.journal.folder import Position
from rlhf_runtime.preflight.simple_arguments import simple_arguments
from rlhf_runtime.preflight.trial_rows import TrialRow
from rlhf_runtime.telemetry.conversations import call_text

Tokens = NDArray[np.int32]
Result = TypeVar("Result")
# Both plays have the same one, and so the same seeds.
KEY = EpisodeKey(CallScope(Position(0), 0, "validate", 0), 0)


@dataclass(frozen=True)
class PlayedCall:
    """A call of a tool.

    tool: its name.
    text: of the call.
    answer: of the tool, cut as in training.
    reward: of the turn; None if the environment gives none.
    seconds: from the call to its answer.
    """

    tool: str
    text: str
    answer: str
    reward: float | None
    seconds: float


@dataclass
class Play:
    """One conversation.

    row: of the data.
    prompt: its tokens.
    parts: tokens behind the prompt, and True for those that a model would sample.
    calls: in their order.
    observation: text that `reset` returned; None without one.
    begin_seconds: time of its process and of `reset`.
    end: the reward at the end; None if it failed before.
    end_seconds: time of `reward`.
    failure: None if it has not failed.
    """

    row: TrialRow
    prompt: Tokens
    parts: list[tuple[Tokens, bool]] = field(default_factory=list)
    calls: list[PlayedCall] = field(default_factory=list)
    observation: str | None = None
    begin_seconds: float = 0.0
    end: Ended | None = None
    end_seconds: float = 0.0
    failure: EpisodeFailure | None = None


class Player:
    """Plays conversations in one environment."""

    def __init__(
        self,
        spec: RLHFJobSpec,
        episodes: Episodes,
        facts: ClassFacts,
        dialogue: ToolDialogue,
        tokenizer: TextTokenizer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            spec: of the job.
            episodes: of the job; started.
            facts: about the environment.
            dialogue: of the model with its tools.
            tokenizer: of the policy.
            clock: returns seconds.
        """
        assert spec.rollout.environment is not None, "the job has no environment"
        self._episodes, self._facts, self._dialogue = episodes, facts, dialogue
        self._tokenizer = tokenizer
        self._cutter = AnswerCutter(tokenizer, spec.rollout.environment.limits)
        self._max_prompt_tokens = spec.rollout.max_prompt_tokens
        self._clock = clock

    async def play(self, row: TrialRow) -> Play:
        """Play a conversation.

        Args:
            row: with the prompt.

        Raises:
            ChatTemplateUnusable: the model's format cannot write a call.
        """
        before = self._clock()
        begun = await self._episodes.begin(KEY, row.record)
        try:
            play = self._begin(row, begun, self._clock() - before)
            for number, name in enumerate(self._facts.tools):
                if play.failure is None:
                    await self._call(play, number, name)
        finally:
            before = self._clock()
            ended = await self._episodes.end(KEY, StopReason.END_TOKEN.value)
        play.end_seconds = self._clock() - before
        play.failure = play.failure or ended.failure
        if play.failure is None:
            play.end = ended
            play.parts.append((np.array([self._tokenizer.end_token_ids[0]], np.int32), True))
        return play

    def _begin(self, row: TrialRow, begun: Begun, seconds: float) -> Play:
        text = row.prompt
        if begun.observation:
            text = with_observation(row.marked_prompt, begun.observation, self._dialogue)
        play = Play(row, self._dialogue.prompt_tokens(text))
        play.observation, play.begin_seconds = begun.observation, seconds
        play.failure = begun.failure or length_failure(len(play.prompt), self._max_prompt_tokens)
        return play

    async def _call(self, play: Play, number: int, name: str) -> None:
        """Write a turn with a call of a tool, and its answer."""
        call = ToolCall(name, simple_arguments(self._facts.tools[name].schema))
        turn = self._dialogue.turn_with(call)
        calls = self._dialogue.calls(turn)
        play.parts.append((turn, True))
        before = self._clock()
        acted = await self._episodes.act(KEY, number, calls)
        seconds = self._clock() - before
        play.failure = acted.failure
        if acted.failure is not None or not calls:
            return
        answers = [self._cutter.cut(answer) for answer in acted.answers]
        play.parts.append((self._dialogue.answer_tokens(turn, calls, answers), False))
        play.calls += [
            PlayedCall(name, _text_of(one), answer, acted.reward, seconds)
            for one, answer in zip(calls, answers, strict=True)
        ]


def _text_of(call: ToolCall | MalformedCall) -> str:
    return call.text if isinstance(call, MalformedCall) else call_text(call.name, call.arguments)
