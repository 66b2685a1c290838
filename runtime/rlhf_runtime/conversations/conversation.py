"""One conversation: its tokens, turn by turn, and which of them were sampled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.conversations.interfaces import Dialogue
from rlhf_runtime.engines.generation import SequenceEnded
from rlhf_runtime.engines.kept_tokens import join_rows, single_sets
from rlhf_runtime.environments.results import EpisodeFailure
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

Tokens = NDArray[np.int32]
NO_TOKENS: Tokens = np.zeros(0, dtype=np.int32)


@dataclass
class Turn:
    """A turn of the model, and what followed."""

    text: str
    end: int
    """Tokens of the response up to its end."""
    calls: Sequence[ToolCall | MalformedCall] = ()
    answers: Sequence[str] = ()
    reward: float | None = None
    """The environment's reward of the turn. None: it gives none."""
    wrong: Sequence[int] = ()
    """Indexes of the answers that are error texts."""


@dataclass
class Conversation:
    """The response to one prompt, as it grows.

    The tokens of every turn stay as they were sampled: the prompt of the next turn begins with all
    tokens so far.
    """

    row: int
    """Row in the batch."""
    dialogue: Dialogue
    record: str
    """The column `record` of the row."""
    prompt: Tokens
    max_tokens: int
    """Limit of all tokens behind the prompt."""
    prompt_id: int = 0
    """Equal for all conversations of a prompt."""
    sample: int = 0
    """Number of the conversation among those of its prompt."""
    records_kept_tokens: bool = False
    """True if the tokens that truncation kept are recorded."""
    turns: list[Turn] = field(default_factory=list)
    reason: StopReason | None = None
    """The reason for its end. None: it goes on."""
    failure: EpisodeFailure | None = None
    reward: float | Mapping[str, float] | None = None
    """The environment's reward at the end."""
    has_final_reply: bool = False
    """True if the environment has answered to its end."""
    _tokens: list[Tokens] = field(default_factory=list)
    _log_probs: list[NDArray[np.float32]] = field(default_factory=list)
    _masks: list[NDArray[np.int8]] = field(default_factory=list)
    _kept: list[tuple[Tokens, int]] = field(default_factory=list)
    num_tokens: int = 0
    """Tokens behind the prompt so far."""

    @property
    def tokens(self) -> Tokens:
        """All tokens behind the prompt."""
        return np.concatenate([NO_TOKENS, *self._tokens])

    @property
    def log_probs(self) -> NDArray[np.float32]:
        """Log-probability of each sampled token; 0 for the others."""
        return np.concatenate([np.zeros(0, dtype=np.float32), *self._log_probs])

    @property
    def mask(self) -> NDArray[np.int8]:
        """1 for sampled tokens, 0 for those of answers."""
        return np.concatenate([np.zeros(0, dtype=np.int8), *self._masks])

    @property
    def kept_tokens(self) -> Tokens:
        """Encoded sets of the tokens that truncation kept; an answer's token is alone in its
        set."""
        return join_rows(self._kept)

    @property
    def turn_rewards(self) -> NDArray[np.float32]:
        """The reward of each turn on its last token, 0 on all others."""
        rewards = np.zeros(self.num_tokens, dtype=np.float32)
        for turn in self.turns:
            # Such a turn has calls, so it has tokens, of which the last one was sampled.
            if turn.reward is not None:
                rewards[turn.end - 1] = turn.reward
        return rewards

    @property
    def remaining(self) -> int:
        """Tokens that may still follow."""
        return self.max_tokens - self.num_tokens

    @property
    def last_turn(self) -> Tokens:
        """Tokens of the last turn, if no answer has followed it."""
        return self._tokens[-1]

    def next_prompt(self) -> Tokens:
        """Return the prompt of the next turn."""
        return np.concatenate([self.prompt, *self._tokens])

    def add_turn(self, turn: SequenceEnded, text: str) -> None:
        """Append a sampled turn.

        Args:
            turn: as the engine ended it.
            text: of its tokens, special ones included, without the end token.
        """
        self._append(turn.tokens, turn.log_probs, is_sampled=True)
        if self.records_kept_tokens:
            assert turn.kept_tokens is not None, "sampled turns record the kept tokens"
            self._kept.append((turn.kept_tokens, len(turn.tokens)))
        self.turns.append(Turn(text, self.num_tokens))

    def add_answer(self, tokens: Tokens) -> None:
        """Append tokens that were not sampled: answers of tools, up to where the next turn
        begins."""
        self._append(tokens, np.zeros(len(tokens), dtype=np.float32), is_sampled=False)
        if self.records_kept_tokens:
            self._kept.append((single_sets(tokens), len(tokens)))

    def _append(self, tokens: Tokens, log_probs: NDArray[np.float32], *, is_sampled: bool) -> None:
        self._tokens.append(np.asarray(tokens, dtype=np.int32))
        self._log_probs.append(log_probs)
        self._masks.append(np.full(len(tokens), is_sampled, dtype=np.int8))
        self.num_tokens += len(tokens)

    def to_record(self) -> str:
        """Return the column `episode`: JSON."""
        return json.dumps(
            {
                "turns": [_turn_record(turn) for turn in self.turns],
                "reward": self.reward,
                "failure": self.failure
                and {"reason": self.failure.kind.value, "detail": self.failure.detail},
            }
        )


def _turn_record(turn: Turn) -> dict[str, Any]:
    calls = [
        {"malformed": call.text}
        if isinstance(call, MalformedCall)
        else {"name": call.name, "arguments": call.arguments}
        for call in turn.calls
    ]
    return {
        "text": turn.text,
        "calls": calls,
        "answers": list(turn.answers),
        "wrong": list(turn.wrong),
        "reward": turn.reward,
    }
