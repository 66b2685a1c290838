"""Conversations as users see them: turns, calls of tools with their answers, and rewards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_runtime.telemetry.shortened_text import shorten_further

MAX_TURNS = 40
"""Turns of a conversation that are kept: half of them the first ones, half the last ones."""
MAX_CALLS = 16
"""Calls of a turn that are kept."""
# A text is not cut to less.
MIN_CHARACTERS = 20


@dataclass(frozen=True)
class ToolUse:
    """A call of a tool.

    call: name and arguments, or what the model wrote if it is malformed.
    answer: None if the call was not made.
    is_error: True if the answer is an error text.
    """

    call: str
    answer: str | None
    is_error: bool = False


@dataclass(frozen=True)
class ConversationTurn:
    """A turn of the model.

    number: from 0.
    reward: of the turn; None if the environment gives none.
    """

    number: int
    text: str
    calls: tuple[ToolUse, ...] = ()
    reward: float | None = None


@dataclass(frozen=True)
class ConversationView:
    """A conversation.

    reward: of the environment at the end: a number, or numbers by part; None without one.
    failure: reason and detail, with the user's traceback; empty if it has not failed.
    num_turns: of the conversation; some may be left out of `turns`.
    """

    turns: tuple[ConversationTurn, ...]
    reward: float | Mapping[str, float] | None = None
    failure: str = ""
    num_turns: int = 0

    def shortened(self, limit: int) -> ConversationView:
        """Return it with texts of about `limit` characters in all, and not more than MAX_TURNS
        turns of MAX_CALLS calls."""
        turns = self.turns
        if len(turns) > MAX_TURNS:
            turns = turns[: MAX_TURNS // 2] + turns[-MAX_TURNS // 2 :]
        turns = tuple(replace(turn, calls=turn.calls[:MAX_CALLS]) for turn in turns)
        lengths = [len(text) for turn in turns for text in _texts(turn)]
        longest = _longest(sorted([*lengths, len(self.failure)]), limit)

        def cut(text: str) -> str:
            return shorten_further(text, longest)

        return replace(
            self,
            turns=tuple(_with_texts(turn, cut) for turn in turns),
            failure=cut(self.failure),
        )


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call as Python would."""
    written = [f"{key}={json.dumps(arguments[key], ensure_ascii=False)}" for key in arguments]
    return f"{name}({', '.join(written)})"


def view_of_record(record: str) -> ConversationView | None:
    """Return the conversation of a row.

    Args:
        record: the column `episode`; empty: the row has no conversation.
    """
    if not record:
        return None
    value = json.loads(record)
    failure = value["failure"]
    return ConversationView(
        tuple(_turn_of_record(number, turn) for number, turn in enumerate(value["turns"])),
        value["reward"],
        "" if failure is None else f"{failure['reason']}: {failure['detail']}",
        len(value["turns"]),
    )


def _turn_of_record(number: int, turn: Mapping[str, Any]) -> ConversationTurn:
    # Calls of the last turn may have no answers.
    answers = [*turn["answers"], *[None] * len(turn["calls"])]
    uses = [
        ToolUse(
            call["malformed"]
            if "malformed" in call
            else call_text(call["name"], call["arguments"]),
            answer,
            # A malformed call of a last turn has no answer that would be wrong.
            is_error="malformed" in call or index in turn.get("wrong", ()),
        )
        for index, (call, answer) in enumerate(zip(turn["calls"], answers, strict=False))
    ]
    return ConversationTurn(number, turn["text"], tuple(uses), turn["reward"])


def view_from_json(value: Any) -> ConversationView:
    """Read a conversation that was written as JSON.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    reward = value["reward"]
    if isinstance(reward, Mapping):
        reward = {str(name): _number(part) for name, part in reward.items()}
    elif reward is not None:
        reward = _number(reward)
    turns = tuple(_turn_from_json(turn) for turn in value["turns"])
    return ConversationView(turns, reward, _text(value["failure"]), int(value["num_turns"]))


def _turn_from_json(turn: Any) -> ConversationTurn:
    uses = tuple(
        ToolUse(
            _text(use["call"]),
            None if use["answer"] is None else _text(use["answer"]),
            bool(use["is_error"]),
        )
        for use in turn["calls"]
    )
    reward = None if turn["reward"] is None else _number(turn["reward"])
    return ConversationTurn(int(turn["number"]), _text(turn["text"]), uses, reward)


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a reward: got {value}, allowed finite numbers")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text of a conversation: got {value!r}, allowed str")
    return value


def _texts(turn: ConversationTurn) -> Iterator[str]:
    yield turn.text
    for use in turn.calls:
        yield use.call
        yield use.answer or ""


def _with_texts(turn: ConversationTurn, cut: Callable[[str], str]) -> ConversationTurn:
    uses = tuple(
        replace(use, call=cut(use.call), answer=None if use.answer is None else cut(use.answer))
        for use in turn.calls
    )
    return replace(turn, text=cut(turn.text), calls=uses)


def _longest(lengths: Sequence[int], limit: int) -> int:
    """Return the length to which texts are cut so that all together keep to a limit.

    Args:
        lengths: of the texts, in ascending order.
        limit: of the sum.
    """
    left = limit
    for index, length in enumerate(lengths):
        share = left // (len(lengths) - index)
        if length > share:
            return max(share, MIN_CHARACTERS)
        left -= length
    return max(lengths[-1], MIN_CHARACTERS)
