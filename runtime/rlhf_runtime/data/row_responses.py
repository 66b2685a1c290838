"""Reads the prompt of a row and the responses to it: reference answers, preference pairs.

A response is a list of messages: one of the assistant or, where all answers of a conversation are
trained on, everything from the first answer to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from rlhf_api.spec.data import PreferenceFields
from rlhf_api.spec.row_sources import DataSource, TrainOn
from rlhf_runtime.data.chat import Message
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.row_calls import CALLS
from rlhf_runtime.data.row_checks import RowProblem, checked_prompt, checked_text, describe
from rlhf_runtime.data.row_messages import (
    ASSISTANT,
    Response,
    answer_message,
    answer_of,
    is_trained_on,
    last_answer,
    parse_messages,
)
from rlhf_runtime.data.rows import preference_fields, trained_answers
from rlhf_runtime.row_values import answer_texts, field_value, value_or_none

DEFAULT_ANSWER_FIELD = "answer"


def prompt_value(row: Row, field: str) -> Any:
    """Return the value of the prompt's column.

    Raises:
        RowProblem: the row has no such column.
    """
    try:
        return field_value(row, field)
    except KeyError:
        raise RowProblem(f"no field {field}") from None


def prompt_and_responses(
    row: Row, source: DataSource, is_trained: bool
) -> tuple[Any, tuple[Response, ...]]:
    """Return a row's prompt, a text or a list of messages, and the responses to it: the reference
    answer, if there is one; of a pair both, the chosen one first.

    Args:
        row: of the source.
        source: of the rows.
        is_trained: whether a graph trains on the responses.

    Raises:
        RowProblem: there is no prompt, or no usable response.
    """
    train_on, preferences = trained_answers(source), preference_fields(source)
    responses: tuple[Response, ...] = ()
    if preferences is not None:
        pair = parse_pair(row, source.prompt_field, preferences, train_on)
        prompt, responses = pair.prompt, (pair.chosen, pair.rejected)
    else:
        prompt, response = _prompt_and_response(row, source)
        if response is not None:
            if is_trained and train_on is TrainOn.LAST_ANSWER:
                _require_weight(response[-1], source.prompt_field)
            prompt, response = _divided(prompt, response, source.prompt_field, train_on)
            responses = (response,)
    return prompt, responses


def _require_weight(answer: Message, field: str) -> None:
    """Refuse the only answer that is trained on if it has weight 0."""
    if not is_trained_on(answer, field):
        raise RowProblem(
            f"{field} ends with an answer of weight 0, so nothing of the row is trained on; remove "
            "the row, or set trainOn: AllAnswers"
        )


def _divided(
    prompt: Any, response: Response, field: str, train_on: TrainOn
) -> tuple[Any, Response]:
    """Divide a conversation into the prompt and the response that is trained on.

    Args:
        prompt: the messages before the reference answer, or a text.
        response: the reference answer.
        field: the prompt's column, for messages.
        train_on: the answers that are trained on.

    Raises:
        RowProblem: an answer is unusable, or the conversation begins with one.
    """
    if train_on is TrainOn.LAST_ANSWER or not isinstance(prompt, list):
        return prompt, response
    messages = [*parse_messages(prompt, field), *response]
    begin = next(n for n, message in enumerate(messages) if message["role"] == ASSISTANT)
    if begin == 0:
        raise RowProblem(
            f"{field} begins with a message of the assistant, which answers nothing; remove the "
            "message, or set trainOn: LastAnswer"
        )
    return messages[:begin], _checked_response(messages[begin:], field)


def _checked_response(messages: Sequence[Message], field: str) -> Response:
    """Check the messages of a response.

    Raises:
        RowProblem: an answer is empty or has parts that are not trained on, or all answers have
            weight 0.
    """
    answers = [message for message in messages if message["role"] == ASSISTANT]
    for message in answers:
        answer_of(message, field, f"an answer of {field}")
    # A list: the weight of every answer is checked.
    if not any([is_trained_on(message, field) for message in answers]):
        raise RowProblem(f"all answers of {field} have weight 0; remove the row")
    return tuple(messages)


def reference_answer(
    row: Row, field: str | None, train_on: TrainOn = TrainOn.LAST_ANSWER
) -> Response | None:
    """Return the reference answer as messages; None if the row has none.

    The answer is a text, a number, the first item of a list of these, or a list with one message of
    the assistant; where all answers are trained on, with messages that begin and end with one.

    Args:
        row: of a source.
        field: data.*.answerField; every row must then have an answer. None: the field `answer`, if
            it holds an answer.
        train_on: the answers that are trained on.

    Raises:
        RowProblem: the named field has no usable answer.
    """
    name = DEFAULT_ANSWER_FIELD if field is None else field
    value = value_or_none(row, name)
    try:
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return _answer_of_messages(parse_messages(value, name), name, train_on)
        return (answer_message(checked_text(answer_texts(value)[0], name)),)
    except (RowProblem, ValueError) as problem:
        if field is None:
            return None
        if isinstance(problem, RowProblem):
            raise
        raise RowProblem(
            f"{field} is {_describe_answer(value)}; allowed an answer as text, number, a list of "
            "these, or a list with one message of the assistant; with trainOn: AllAnswers also "
            "with several that begin and end with one of the assistant"
        ) from problem


def _answer_of_messages(messages: Sequence[Message], field: str, train_on: TrainOn) -> Response:
    """Check the messages of a reference answer.

    Raises:
        RowProblem: an answer among them is unusable.
        ValueError: others begin or end them, or there are several and the last answer alone is
            trained on.
    """
    roles = [message["role"] for message in messages]
    if roles[0] != ASSISTANT or roles[-1] != ASSISTANT:
        raise ValueError("messages of others at the begin or end")
    if train_on is TrainOn.ALL_ANSWERS and len(messages) > 1:
        return _checked_response(messages, field)
    if len(messages) > 1:
        raise ValueError("not one message of the assistant")
    answer_of(messages[0], field)
    return (messages[0],)


def _describe_answer(value: Any) -> str:
    """Describe a value that is no answer; of a list the entry that makes it none."""
    if not isinstance(value, list):
        return describe(value)
    if not value:
        return "an empty list"
    for number, item in enumerate(value):
        try:
            is_answer = not isinstance(item, list) and bool(answer_texts(item))
        except ValueError:
            is_answer = False
        if not is_answer:
            return f"a list whose entry {number} is {describe(item)}"
    return describe(value)


def prompt_and_answer(row: Row, source: DataSource) -> tuple[Any, Message | None]:
    """Return a row's prompt, and the last message of its reference answer or None.

    Raises:
        RowProblem: the row has no prompt, or no usable answer in the field that the source names.
    """
    prompt, response = _prompt_and_response(row, source)
    return prompt, None if response is None else response[-1]


def _prompt_and_response(row: Row, source: DataSource) -> tuple[Any, Response | None]:
    """Return a row's prompt, and its reference answer or None.

    A conversation that ends with a message of the assistant is a prompt with its answer, unless the
    row has another answer. It must be one if answerField and promptField are the same.

    Raises:
        RowProblem: the row has no prompt, or no usable answer in the field that the source names.
    """
    field = source.prompt_field
    prompt, is_conversation = prompt_value(row, field), source.answer_field == field
    answer = None
    if not is_conversation:
        answer = reference_answer(row, source.answer_field, trained_answers(source))
    if isinstance(prompt, list) and len(prompt) > 1:
        *before, last = parse_messages(prompt, field)
        if last["role"] == ASSISTANT:
            answer_of(last, field)
            return before, answer or (last,)
    if is_conversation:
        if not isinstance(prompt, list):
            checked_prompt(prompt, field)
        kind = describe(prompt) if not isinstance(prompt, list) else _roles(prompt, field)
        raise RowProblem(
            f"{field} is no conversation that ends with the assistant: it is {kind}; allowed a "
            "list of messages whose last one is the answer"
        )
    return prompt, answer


def _roles(messages: Sequence[Any], field: str) -> str:
    roles = [message["role"] for message in parse_messages(messages, field)]
    return f"a list of messages of {', '.join(roles[-3:])}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt with two different responses."""

    prompt: Any
    """A text or a list of messages, unchanged."""
    chosen: Response
    rejected: Response


def parse_pair(
    row: Row,
    prompt_field: str,
    fields: PreferenceFields,
    train_on: TrainOn = TrainOn.LAST_ANSWER,
) -> Pair:
    """Parse the pair of a row.

    Texts answer the prompt of `prompt_field`. Two lists of messages share the prompt and each end
    with one more message of the assistant; if all answers are trained on, with several messages
    that begin and end with one of the assistant. If the shared messages have none of the user, the
    prompt of `prompt_field` is inserted after their system messages.

    Raises:
        RowProblem: a response is missing, empty or of another form, or both are equal.
    """
    names = (fields.chosen_field, fields.rejected_field)
    chosen, rejected = (value_or_none(row, name) for name in names)
    if isinstance(chosen, list) and isinstance(rejected, list):
        pair = _from_messages(row, prompt_field, names, (chosen, rejected), train_on)
    else:
        texts = [
            (answer_message(checked_text(value, name)),)
            for value, name in zip((chosen, rejected), names, strict=True)
        ]
        pair = Pair(prompt_value(row, prompt_field), *texts)
    if _contents(pair.chosen) == _contents(pair.rejected):
        raise RowProblem(f"{names[0]} and {names[1]} are equal")
    return pair


def _contents(response: Response) -> list[tuple[str, str, Any]]:
    return [(message["role"], message["content"], message.get(CALLS)) for message in response]


def _from_messages(
    row: Row,
    prompt_field: str,
    names: tuple[str, str],
    lists: tuple[list[Any], list[Any]],
    train_on: TrainOn,
) -> Pair:
    chosen, rejected = (
        parse_messages(messages, name) for messages, name in zip(lists, names, strict=True)
    )
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    responses = [
        _paired_response(messages[len(shared) :], name, train_on)
        for messages, name in zip((chosen, rejected), names, strict=True)
    ]
    if any(message["role"] == "user" for message in shared):
        return Pair(shared, *responses)
    prompt = prompt_value(row, prompt_field)
    if not isinstance(prompt, list):
        prompt = [{"role": "user", "content": checked_text(prompt, prompt_field)}]
    # System messages stay first: templates refuse them elsewhere.
    systems = list(takewhile(lambda message: message["role"] == "system", shared))
    return Pair([*systems, *prompt, *shared[len(systems) :]], *responses)


def _paired_response(rest: list[Message], field: str, train_on: TrainOn) -> Response:
    """Return the messages of one of a pair's lists after those that both share.

    Raises:
        RowProblem: they are not what is to be trained on.
    """
    if train_on is TrainOn.LAST_ANSWER:
        answer = last_answer(rest, field)
        _require_weight(answer, field)
        return (answer,)
    if not rest or rest[0]["role"] != ASSISTANT or rest[-1]["role"] != ASSISTANT:
        roles = ", ".join(message["role"] for message in rest)
        raise RowProblem(
            f"{field} goes on with messages of {roles} after the shared ones; allowed messages "
            "that begin and end with one of the assistant"
        )
    return _checked_response(rest, field)
