"""What one row of preference pairs says: a prompt, a chosen and a rejected response."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rlhf_api.spec.data import PreferenceFields
from rlhf_runtime.data.chat import Message
from rlhf_runtime.data.row_text import RowProblem, checked_text, messages_of, prompt_of
from rlhf_runtime.data.rows import Row


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with two different responses."""

    prompt: Any
    """A text or a list of messages, as it stands in the row."""
    chosen: str
    rejected: str


def pair_of(row: Row, prompt_field: str, fields: PreferenceFields) -> Pair:
    """The pair of a row.

    Texts answer the prompt of `prompt_field`. Of lists of messages each ends with one message of
    the assistant that the other does not have; what they share before it is the prompt. Without a
    user's message among that it goes on with `prompt_field`.

    Raises:
        RowProblem: a response that is missing, empty or of another form, or two equal ones.
    """
    names = (fields.chosen_field, fields.rejected_field)
    chosen, rejected = (row.get(name) for name in names)
    if isinstance(chosen, list) and isinstance(rejected, list):
        pair = _from_messages(row, prompt_field, names, (chosen, rejected))
    else:
        texts = [checked_text(row.get(name), name) for name in names]
        pair = Pair(prompt_of(row, prompt_field), *texts)
    if pair.chosen == pair.rejected:
        raise RowProblem(f"{names[0]} and {names[1]} are equal")
    return pair


def _from_messages(
    row: Row, prompt_field: str, names: tuple[str, str], lists: tuple[list[Any], list[Any]]
) -> Pair:
    chosen, rejected = (messages_of(each, name) for each, name in zip(lists, names, strict=True))
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    answers = [
        _last_message(each[len(shared) :], name)
        for each, name in zip((chosen, rejected), names, strict=True)
    ]
    if any(message["role"] == "user" for message in shared):
        return Pair(shared, *answers)
    given = prompt_of(row, prompt_field)
    if not isinstance(given, list):
        given = [{"role": "user", "content": checked_text(given, prompt_field)}]
    systems = list(takewhile(lambda message: message["role"] == "system", shared))
    return Pair([*systems, *given, *shared[len(systems) :]], *answers)


def _last_message(rest: list[Message], field: str) -> str:
    if len(rest) != 1 or rest[0]["role"] != "assistant":
        roles = ", ".join(message["role"] for message in rest)
        raise RowProblem(
            f"{field} ends with messages of {roles} after what both share; allowed one of the "
            "assistant"
        )
    return checked_text(rest[0]["content"], field)
