"""Results of a conversation's actions in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rlhf_runtime.journal.answers import CallScope


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Identifies a conversation.

    call: the call that generates it.
    row: its global row in that call.
    """

    call: CallScope
    row: int


class FailureKind(StrEnum):
    """The reason for a conversation without a result: one of the stop reasons of a response."""

    TOOL_DEADLINE = "ToolDeadline"
    """A call, or the calls of a turn, took too long."""
    EPISODE_DEADLINE = "EpisodeDeadline"
    """The conversation's environment took too long in all."""
    ENVIRONMENT_FAILED = "EnvironmentFailed"
    """Its process died twice, `reset` or `reward` raised, or it was rebuilt with other answers."""


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """A failure of one conversation.

    detail: description, with the user's traceback if its code raised.
    """

    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A conversation's beginning.

    observation: text that `reset` returned; None without one.
    """

    observation: str | None = None
    failure: EpisodeFailure | None = None


@dataclass(frozen=True, slots=True)
class Acted:
    """Answers to the calls of one turn.

    answers: texts, in the order of the calls; empty after a failure.
    reward: of the turn; None if the class has no `turn_reward`.
    wrong: indexes of the answers that are error texts.
    """

    answers: tuple[str, ...] = ()
    reward: float | None = None
    wrong: tuple[int, ...] = ()
    failure: EpisodeFailure | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A conversation's end.

    reward: a number, or numbers by part; None if the class gives none.
    """

    reward: float | Mapping[str, float] | None = None
    failure: EpisodeFailure | None = None
