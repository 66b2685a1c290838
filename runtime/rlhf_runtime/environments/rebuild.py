"""Rebuilds of a conversation's process: the state after all that has happened so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_runtime.environments import frames
from rlhf_runtime.environments.limits import ActionFailed, TimedRequests
from rlhf_runtime.environments.process_handle import CallAnswer, ProcessHandle
from rlhf_runtime.environments.results import FailureKind


@dataclass(frozen=True)
class PastTurn:
    """A turn that a rebuilt process needs.

    number: the caller's number of the turn.
    repeatable: calls that may be made again: index, name and arguments.
    """

    number: int
    repeatable: Sequence[tuple[int, str, Mapping[str, Any]]]
    answers: tuple[str, ...]
    reward: float | None


@dataclass(frozen=True)
class Past:
    """All that has happened in a conversation.

    opening: the request that makes the object.
    observation: text that `reset` returned; None without one.
    turns: in their order.
    snapshot: the last one of the object; None without one.
    """

    opening: frames.Message
    observation: str | None
    turns: Sequence[PastTurn]
    snapshot: Any


@dataclass(frozen=True)
class Rebuild:
    """Gives new processes the state of a conversation.

    requests: of the rebuild, whose time is not that of the conversation.
    observation_of: reads the observation from the reply to the opening.
    has_turn_reward: True if the class rewards turns.
    count_mismatch: counts a conversation that cannot be rebuilt.
    """

    requests: TimedRequests
    observation_of: Callable[[frames.Message], str | None]
    has_turn_reward: bool
    count_mismatch: Callable[[], None]

    async def run(self, process: ProcessHandle, past: Past) -> None:
        """Restore the last snapshot, or make all repeatable calls again.

        Raises:
            ActionFailed: a call gave another answer than before.
        """
        if past.snapshot is not None:
            restoring = {"do": "restore", "snapshot": past.snapshot}
            await self.requests.send(process, {**past.opening, **restoring})
            return
        reply = await self.requests.send(process, past.opening)
        self._compare("reset", past.observation, self.observation_of(reply))
        for turn in past.turns:
            if not turn.repeatable and not self.has_turn_reward:
                continue
            answers: dict[int, CallAnswer] = {}
            reply = await self.requests.act(
                process, turn.number, turn.repeatable, answers.__setitem__
            )
            for index, name, _ in turn.repeatable:
                what = f"call {index + 1} of turn {turn.number} ({name})"
                self._compare(what, turn.answers[index], answers[index].text)
            self._compare(f"turn_reward of turn {turn.number}", turn.reward, reply.get("reward"))

    def _compare(self, action: str, before: object, now: object) -> None:
        if before == now:
            return
        self.count_mismatch()
        raise ActionFailed(
            FailureKind.ENVIRONMENT_FAILED,
            f"JournalMismatch: the conversation was rebuilt, and {action} gave another answer: got "
            f"{_shown(now)}, allowed {_shown(before)}; the environment depends on time, on random "
            "numbers without a fixed seed, or on others; mark such methods with @side_effects of "
            "rlhf_runtime.environments, or add snapshot and restore",
            is_final=None,
        )


def _shown(value: object) -> str:
    return repr(value)[:200]
