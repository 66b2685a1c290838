"""Writes conversations that are trained on as text: a prompt with its response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any, NamedTuple

from rlhf_runtime.data.chat import ANSWER_MARK, Message
from rlhf_runtime.data.row_calls import CALLS, TOOL, with_last_arguments
from rlhf_runtime.data.row_checks import RowProblem
from rlhf_runtime.data.row_messages import ASSISTANT, Response, answer_message, is_trained_on
from rlhf_runtime.data.row_text import NO_ARGUMENTS, Arguments, PromptWriter

_MARKED_ARGUMENTS: Mapping[str, Any] = {"text": ANSWER_MARK}


class Answer(NamedTuple):
    """Position of an answer in the text of a conversation."""

    begin: int
    """End of the text as it is where the model begins to answer."""
    end_token: int
    """Begin of the end token."""
    end: int
    """End of the end token."""
    is_trained: bool
    """False if it has weight 0."""


class WrittenConversation(NamedTuple):
    """A prompt with its response, as the chat template renders them."""

    text: str
    """Up to the last answer's end token."""
    answers: tuple[Answer, ...]
    """All answers of the response; what is between them is context."""


def write_conversation(
    writer: PromptWriter,
    prompt: Any,
    response: Response,
    ends: Sequence[str],
    arguments: Arguments = NO_ARGUMENTS,
) -> WrittenConversation:
    """Render a prompt with the response by the template, up to the first end token behind the last
    answer; with the first of `ends` if the template writes none.

    Args:
        writer: of the source's prompts, with a chat template.
        prompt: a text or a list of messages.
        response: to the prompt.
        ends: texts of the end tokens.
        arguments: of the template.

    Raises:
        RowProblem: the prompt is unusable, or the template renders messages in another way if
            others follow, or leaves out parts of an answer.
    """
    # What precedes later answers is a list of messages.
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    text, answers, beginnings = "", list[Answer](), list[str]()
    for number, message in enumerate(response):
        if message["role"] != ASSISTANT:
            continue
        before = [*messages, *response[:number]] if number else prompt
        text, answer = _write_answer(writer, before, message, ends, arguments)
        beginnings.append(text)
        answers.append(answer)
    # An answer is trained on as if the conversation ended with it, so that all of them are what the
    # model would have to write there.
    for number, beginning in enumerate(beginnings[:-1]):
        if not text.startswith(beginning) or answers[number + 1].begin < len(beginning):
            same = len(commonprefix([text, beginning]))
            raise RowProblem(
                f"the chat template renders answer {number + 1} of {len(answers)} in another "
                f"way if messages follow: got {text[same : same + 40]!r} instead of "
                f"{beginning[same : same + 40]!r}; set trainOn: LastAnswer, or give the model "
                "another chat_template.jinja"
            )
    return WrittenConversation(text, tuple(answers))


def _write_answer(
    writer: PromptWriter,
    prompt: Any,
    message: Message,
    ends: Sequence[str],
    arguments: Arguments,
) -> tuple[str, Answer]:
    """Render a prompt with one answer; for arguments and errors see `write_conversation`."""
    begin = writer.write(prompt, arguments)
    text = writer.write_answered(prompt, _written_parts(message), arguments)
    if not text.startswith(begin):
        same = len(commonprefix([begin, text]))
        raise RowProblem(
            f"the chat template renders {writer.field} in another way if an answer follows: got "
            f"{text[same : same + 40]!r} instead of {begin[same : same + 40]!r}; give the "
            "model another chat_template.jinja, or set chatTemplate: Never"
        )
    tail = _text_behind(writer, prompt, message, arguments)
    matches = [(at, -len(end), end) for end in ends if end and (at := tail.find(end)) >= 0]
    # Nothing is known of what closes calls but that the end token follows.
    if message.get(CALLS):
        if not matches:
            raise RowProblem(
                f"the chat template writes no end token behind calls of tools: got {tail[:40]!r}, "
                f"allowed {', '.join(ends)}; write the token that ends a turn with calls into "
                "rollout.endTokens"
            )
        tail = tail[min(matches)[0] :]
        matches = [(0, 0, min(matches)[2])]
    content = text.removesuffix(tail)
    # A template may strip the answer, or write something before it.
    if not text.endswith(tail) or not _has_all(content, len(begin), message):
        raise RowProblem(
            "the chat template leaves out a part of the answer: got "
            f"{content[len(begin) :][:60]!r}, allowed templates that render all of it; give "
            "the model another chat_template.jinja, or remove that part from the data"
        )
    at, _, end = min(matches) if matches else (0, 0, ends[0])
    closed = content + tail[:at] + end
    is_trained = is_trained_on(message, writer.field)
    return closed, Answer(len(begin), len(closed) - len(end), len(closed), is_trained)


def _written_parts(message: Message) -> Message:
    """Return an answer with what the model writes of it."""
    calls = {CALLS: message[CALLS]} if message.get(CALLS) else {}
    return {**answer_message(message["content"]), **calls}


def _text_behind(writer: PromptWriter, prompt: Any, message: Message, arguments: Arguments) -> str:
    """Return what the template writes behind an answer's text, or behind its last call's arguments;
    for arguments and errors see `write_conversation`."""
    # The mark is in no template and no prompt.
    if not message.get(CALLS):
        return writer.write_answered(prompt, ANSWER_MARK, arguments).rpartition(ANSWER_MARK)[2]
    marked = with_last_arguments(_written_parts(message), _MARKED_ARGUMENTS)
    _, mark, tail = writer.write_answered(prompt, marked, arguments).rpartition(ANSWER_MARK)
    if not mark:
        raise RowProblem(
            "the chat template leaves out calls of tools; use the tokenizer of a model that calls "
            "tools, or put a chat_template.jinja that does into the model's folder"
        )
    return tail


def _has_all(text: str, begin: int, message: Message) -> bool:
    """True if a rendered answer has the message's text and the names of all its calls.

    Args:
        text: that ends with the answer.
        begin: of the answer. Its first characters may stand before it, where the template opens a
            block of thinking.
        message: the answer.
    """
    content = message["content"].strip()
    names = [call["function"]["name"] for call in message.get(CALLS, ())]
    is_written = not content or content in text[max(0, begin - len(content) + 1) :]
    return is_written and all(name in text[begin:] for name in names)


def check_plain_response(response: Response, field: str) -> None:
    """Check that a response can be written without a chat template, which has no other roles.

    Args:
        response: of a row.
        field: column of the row, for the message.

    Raises:
        RowProblem: it cannot.
    """
    do = "use a tokenizer with a chat template"
    for number, message in enumerate(response):
        is_answer = message["role"] == ASSISTANT
        if message["role"] not in (ASSISTANT, TOOL):
            raise RowProblem(
                f"the answer to {field} has a message of {message['role']} and no chat template "
                f"that writes it, allowed messages of {ASSISTANT} and {TOOL}; {do}"
            )
        if is_answer and message.get(CALLS):
            raise RowProblem(
                f"the answer to {field} has {CALLS} and no chat template that writes them, allowed "
                f"calls as text in the content, such as add(1, 2); {do}"
            )
        if is_answer and number and response[number - 1]["role"] == ASSISTANT:
            raise RowProblem(
                f"the answer to {field} has two messages of {ASSISTANT} one after the other and no "
                f"chat template, allowed with one of {TOOL} between them; {do}"
            )
        if is_answer:
            is_trained_on(message, field)
