"""Interfaces between conversations and the rest of a worker: texts, environments, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.conversation import EnvironmentSpec
from rlhf_runtime.calls.episodes import EpisodeId, EpisodeReply, EpisodeRequest
from rlhf_runtime.environments.records import RecordCounts
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall
from rlhf_runtime.hooks import Hook


class Dialogue(Protocol):
    """The text of conversations, as a model's chat template writes it."""

    def prompt_tokens(self, text: str) -> NDArray[np.int32]:
        """Return the tokens of a first prompt."""

    def calls(self, turn: NDArray[np.int32]) -> Sequence[ToolCall | MalformedCall]:
        """Return the calls of a turn, in their order."""

    def answer_tokens(
        self,
        turn: NDArray[np.int32],
        calls: Sequence[ToolCall | MalformedCall],
        answers: Sequence[str],
    ) -> NDArray[np.int32]:
        """Return the tokens between a turn and the next one: the answers to its calls."""

    def harmless(self, text: str) -> str:
        """Return a text of an environment without texts of special tokens."""


class EpisodeClient(Protocol):
    """The environment host of the node."""

    def send(self, request: EpisodeRequest) -> int:
        """Send a request; returns its ticket."""

    def take(
        self, tickets: Sequence[int], num_needed: int, seconds: float
    ) -> dict[int, EpisodeReply]:
        """Return the replies that are there, by ticket.

        Args:
            tickets: of requests whose reply was not taken so far.
            num_needed: number of replies to wait for.
            seconds: longest time to wait.
        """

    def complete(self, episode: EpisodeId) -> RecordCounts:
        """Wait until the journal has all results of the call of a conversation; count them."""


@dataclass(frozen=True)
class EnvironmentAccess:
    """A rank's access to the environments of its node."""

    description: EnvironmentDescription
    """The environments and their tools."""
    connect: Callable[[], EpisodeClient]
    """Makes the client of a call."""


@dataclass(frozen=True)
class ConversationSettings:
    """Settings of the conversations of one engine."""

    environment: EnvironmentSpec
    max_prompt_tokens: int
    max_tokens: int
    """Limit of all tokens behind a prompt."""
    max_sequence_tokens: int
    """Limit of prompt and response together."""
    capacity: int
    """Most conversations of the engine at the same time."""


@dataclass(frozen=True)
class ConversationTools:
    """Functions that conversations call."""

    decode: Callable[[NDArray[np.int32]], str]
    """Text of a turn, without its end token."""
    cut_answer: Callable[[str], str]
    """Shortens a long answer."""
    client: EpisodeClient | None
    """None on ranks that are not the first one of their engine."""
    tick: Hook
    """Reports progress."""
