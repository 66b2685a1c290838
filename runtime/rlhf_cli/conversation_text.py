"""The text of a conversation for a terminal: turns, calls of tools, answers, rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import indent

from rich.text import Text

from rlhf_runtime.telemetry.conversations import ConversationTurn, ConversationView
from rlhf_runtime.telemetry.visible_text import visible_text


def conversation_lines(view: ConversationView) -> Iterator[Text]:
    """Yield the texts of a conversation in their order."""
    before = -1
    for turn in view.turns:
        if turn.number > before + 1:
            yield Text(f"{turn.number - before - 1} turns are left out", "dim")
        before = turn.number
        yield from _turn(turn)
    if view.reward is not None:
        yield Text(f"reward of the environment: {reward_text(view.reward)}", "dim")
    if view.failure:
        yield Text("failed", "red")
        yield Text(indented(view.failure))


def _turn(turn: ConversationTurn) -> Iterator[Text]:
    reward = "" if turn.reward is None else f"  reward={turn.reward:.5g}"
    yield Text(f"turn {turn.number + 1}{reward}", "dim")
    yield Text(indented(turn.text))
    for use in turn.calls:
        yield Text(f"call {visible_text(use.call)}", "cyan")
        if use.answer is None:
            yield Text("  (not made)", "dim")
        else:
            yield Text(indented(use.answer), "red" if use.is_error else "")


def reward_text(reward: float | Mapping[str, float]) -> str:
    """Write a reward, or its parts."""
    if isinstance(reward, Mapping):
        return " ".join(f"{visible_text(name)}={part:.5g}" for name, part in reward.items())
    return f"{reward:.5g}"


def indented(text: str) -> str:
    """Indent a text of the model's, so that it cannot control the terminal."""
    return indent(visible_text(text), "  ", lambda line: True)
