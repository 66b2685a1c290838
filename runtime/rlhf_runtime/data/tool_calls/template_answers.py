"""Answers of tools as a chat template writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.chat import ChatTemplate, Message, TemplateRefusal
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.formats import FORMATS, THINKING
from rlhf_runtime.data.tool_calls.json_values import CallProblem, decode_json
from rlhf_runtime.data.tool_calls.messages import (
    MESSAGE_FORMS,
    UNKNOWN_NAME,
    Call,
    MessageForm,
    call_id,
    turn_messages,
)
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall
from rlhf_runtime.environments.tool_call import ToolCall

_USER: Message = {"role": "user", "content": "1"}
# These stand for texts whose position in a rendering matters: letters only, since templates may
# escape others and trim blanks.
_CALL_MARK, _OTHER_CALL = "xqcallqx", "xqotherqx"
_ANSWERS = ("xqfirstqx", "xqsecondqx")
_THOUGHT, _WORDS = "xqthoughtqx", "xqwordsqx"
_THINKING_WITHIN = {"content": f"<think>\n{_THOUGHT}\n</think>\n\n{_WORDS}"}
_THINKING_FIELDS = {"content": _WORDS, "reasoning_content": _THOUGHT, "reasoning": _THOUGHT}
_THINKING_FORMS: tuple[Message, ...] = ({}, _THINKING_WITHIN, _THINKING_FIELDS)
_ARGUMENT = "text"
_OTHER_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "xqtoolqx",
        "description": "Does nothing.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
# Templates of hybrid models write an empty block where the model begins, and nowhere else.
_EMPTY_THINKING = re.compile(
    "(?:{})$".format("|".join(rf"{re.escape(a)}\s*{re.escape(b)}\s*" for a, b in THINKING))
)
_DO = (
    "use the tokenizer of a model that calls tools, or put a chat_template.jinja that does into "
    "the model's folder"
)


class Behind(NamedTuple):
    """The text behind a turn with calls."""

    end: str
    """The end token that the template writes behind the turn."""
    text: str
    """The end token, and all up to where the next turn begins."""


class TemplateAnswers:
    """The texts between turns, by a chat template.

    A text between two turns is cut from the rendering of a short conversation: a message of the
    user, the assistant's with the calls, those of the tools. It does not depend on what came
    before, which the constructor checks.

    format: in which the template writes calls.
    ends_turns: True: a turn that a stop text has ended gets its end token.
    opened_thinking: the tag that begins a turn's thinking, if the template writes it in front of
        the turn; else empty.
    """

    ends_turns = True

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: TextTokenizer,
        tools: Tools,
        arguments: Mapping[str, Any],
        format: ToolFormat | None,
    ) -> None:
        """Check that the template can be used.

        Args:
            template: of the policy's tokenizer.
            tokenizer: of the policy.
            tools: that the model may call.
            arguments: further variables of the template.
            format: of calls; None: recognised.

        Raises:
            ChatTemplateUnusable: it cannot; the text says why and what to do.
        """
        self._template, self._tools, self._arguments = template, tools, arguments
        self._ends = [end for end in tokenizer.end_texts() if end]
        self._plain_end = template.text_behind_answer().lstrip()
        self._name = tools.names[0]
        prompt = self._checked_prompt()
        opened = [tags[0] for tags in THINKING if prompt.rstrip().endswith(tags[0])]
        self.opened_thinking = opened[0] if opened else ""
        self._form = self._accepted_form()
        self.format = self._checked_format(self._checked_turn(prompt), format)

    def text_behind(self, calls: Sequence[Call], answers: Sequence[str]) -> Behind:
        """Return the text from the end token of a turn with calls to where the next turn begins.

        Args:
            calls: of the turn, at least one.
            answers: one for every call.

        Raises:
            ChatTemplateUnusable: the template refuses the answers.
        """
        try:
            return self._behind(self._render([_USER, *self._turn(calls, answers)]))
        except TemplateRefusal as refusal:
            raise _unusable(f"refuses the answers of {len(calls)} calls: {refusal}") from refusal

    def turn_with(self, call: ToolCall) -> str:
        """Return the text of a turn with a call as the template writes it, with its end token.

        Raises:
            ChatTemplateUnusable: the template cannot write the arguments.
        """
        prompt, behind = self._render([_USER]), self.text_behind([call], _ANSWERS[:1])
        message, answer = turn_messages([call], _ANSWERS[:1], self._form)
        for fields in _THINKING_FORMS:
            try:
                text = self._render([_USER, {**message, **fields}, answer])
            except TemplateRefusal:
                continue
            begin = _continues(prompt, text)
            if begin is not None and text.endswith(behind.text):
                return text[begin : len(text) - len(behind.text)] + behind.end
        raise _unusable(f"cannot write a call of {call.name} with {dict(call.arguments)}")

    def replaces(self, end: str) -> bool:
        """True if a turn that ended with another end token needs no further one.

        So is it where the template ends all answers with `end`. An end token of its own for turns
        with calls, as that of gpt-oss and Gemma 4, is written behind any other one.
        """
        return self._plain_end.startswith(end)

    def _probe(self, num_calls: int) -> list[Message]:
        calls = [ToolCall(self._name, {}) for _ in range(num_calls)]
        return [_USER, *self._turn(calls, _ANSWERS[:num_calls])]

    def _turn(
        self, calls: Sequence[Call], answers: Sequence[str], form: MessageForm | None = None
    ) -> list[Message]:
        """Return the messages of a turn; marks stand for the arguments of its calls."""
        form = form or self._form
        last = 0 if form.single_call else len(calls) - 1
        # The turn itself stays as the model wrote it: only what is behind the mark is used.
        shown = [
            ToolCall(
                call.name or UNKNOWN_NAME,
                {_ARGUMENT: _CALL_MARK if number == last else _OTHER_CALL},
                call_id(call, number),
            )
            for number, call in enumerate(calls)
        ]
        return turn_messages(shown, answers, form)

    def _render(self, messages: Sequence[Message]) -> str:
        schemas = self._tools.schemas
        return self._template.render(messages, arguments=self._arguments, tools=schemas)

    def _behind(self, text: str) -> Behind:
        """Return the text behind the last call of a rendering.

        Raises:
            TemplateRefusal: there is no call, or no end token behind it.
        """
        # The first one: answers, which come later, may have any text.
        call = text.find(_CALL_MARK)
        if call < 0:
            raise TemplateRefusal("it leaves out calls of tools")
        ends = [(at, -len(end), end) for end in self._ends if (at := text.find(end, call)) >= 0]
        if not ends:
            raise TemplateRefusal(self._no_end(text[call:]))
        at, _, end = min(ends)
        return Behind(end, text[at:])

    def _no_end(self, behind: str) -> str:
        return (
            f"no end token follows a call: got {behind[:120]!r}, allowed {', '.join(self._ends)}; "
            "write the token that ends a turn with calls into rollout.endTokens"
        )

    def _checked_prompt(self) -> str:
        """Return the rendering of the user's message; for errors see `__init__`."""
        try:
            other = self._template.render([_USER], arguments=self._arguments, tools=[_OTHER_TOOL])
            prompt = self._render([_USER])
        except TemplateRefusal as refusal:
            raise _unusable(f"refuses the schemas of the tools: {refusal}") from refusal
        missing = [name for name in self._tools.names if name not in prompt]
        # The name of a tool may stand in a prompt by chance, that of the other one not.
        if missing or _OTHER_TOOL["function"]["name"] not in other:
            raise _unusable(f"ignores tools: got a prompt without {', '.join(self._tools.names)}")
        return prompt

    def _accepted_form(self) -> MessageForm:
        """Return the form of messages that the template accepts; for errors see `__init__`."""
        reason = ""
        for form in MESSAGE_FORMS:
            if refusal := self._refusal_of(form, 1):
                reason = reason or refusal
                continue
            single = replace(form, single_call=True)
            for variant in (form, single):
                if not (refusal := self._refusal_of(variant, 2)):
                    return variant
            reason = f"two calls in a turn: {refusal}"
        raise _unusable(f"cannot write calls and answers of tools: {reason}")

    def _refusal_of(self, form: MessageForm, num_calls: int) -> str:
        """Return why the template cannot render calls and answers; empty: it can."""
        calls = [ToolCall(self._name, {}) for _ in range(num_calls)]
        answers = _ANSWERS[:num_calls]
        try:
            text = self._render([_USER, *self._turn(calls, answers, form)])
            behind = self._behind(text)
        except TemplateRefusal as refusal:
            return str(refusal)
        if num_calls > 1 and not form.single_call and text.count(_OTHER_CALL) != num_calls - 1:
            return "it leaves out calls of tools"
        positions = [behind.text.find(answer) for answer in answers]
        if all(answer in text for answer in answers) and min(positions) < 0:
            return self._no_end(text[text.find(_CALL_MARK) :])
        if min(positions) < 0 or positions != sorted(positions):
            return "it leaves out messages of role tool"
        return ""

    def _checked_turn(self, prompt: str) -> str:
        """Check that later prompts begin with earlier ones, and that the text between turns does
        not depend on what came before.

        Args:
            prompt: rendering of the user's message.

        Returns:
            A turn with one call, as the template writes it.

        Raises:
            ChatTemplateUnusable: they do not.
        """
        problems = []
        message, answer = self._probe(1)[1:]
        # Some templates open a block of thinking for every turn, and write one without thoughts in
        # another way.
        for fields in _THINKING_FORMS:
            turn = [{**message, **fields}, answer]
            try:
                one, two = self._render([_USER, *turn]), self._render([_USER, *turn, *turn])
                behind = self._behind(one).text
            except TemplateRefusal as refusal:
                problems.append(_unusable(f"refuses a second turn with calls: {refusal}"))
                continue
            begin = _continues(prompt, one)
            if begin is None:
                problems.append(_rewrites(prompt, one))
            elif _continues(one, two) is None:
                problems.append(_rewrites(one, two))
            elif not two.endswith(behind):
                problems.append(_rewrites(behind, two))
            else:
                self._check_thinking()
                return one[begin : len(one) - len(behind)]
        raise problems[0]

    def _check_thinking(self) -> None:
        """Check that thinking in front of calls stays.

        Raises:
            ChatTemplateUnusable: it is removed.
        """
        message, answer = self._probe(1)[1:]
        texts = []
        for fields in (_THINKING_WITHIN, _THINKING_FIELDS):
            try:
                turns = [{**message, **fields}, answer, message, answer]
                texts.append(self._render([_USER, *turns]))
            except TemplateRefusal:
                continue
        # A template that writes calls alone leaves out words, too, and says nothing of thinking.
        if any(_WORDS in text for text in texts) and not any(_THOUGHT in text for text in texts):
            raise _removes_thinking("<think>...</think> in front of a call is left out")

    def _checked_format(self, turn: str, format: ToolFormat | None) -> ToolFormat:
        """Return the format in which the template writes calls.

        Args:
            turn: with one call, as the template writes it.
            format: expected; None: any.

        Raises:
            ChatTemplateUnusable: no format reads the call back, or not the expected one.
        """
        names = [name for name in FORMATS if self._reads(name, turn)]
        if not names:
            raise _unusable(
                f"writes calls in a format that is not known: got {turn[:200]!r}, allowed the "
                f"formats {', '.join(FORMATS)}"
            )
        if format is not None and format not in names:
            raise ChatTemplateUnusable(
                f"the chat template writes calls in another format: got {format}, allowed "
                f"{', '.join(names)}; leave the format out, then it is recognised"
            )
        return format or names[0]

    def _reads(self, name: ToolFormat, turn: str) -> bool:
        match FORMATS[name].written(self.opened_thinking + turn, self._tools):
            case [WrittenCall() as call]:
                arguments = call.arguments
                try:
                    value = decode_json(arguments)[0] if isinstance(arguments, str) else arguments
                except CallProblem:
                    return False
                return bool(call.name == self._name and value == {_ARGUMENT: _CALL_MARK})
        return False


def _continues(earlier: str, later: str) -> int | None:
    """Return the length of a prompt within a later one; None: the later one begins otherwise.

    An empty block of thinking at the end of a prompt need not stay: the model did not write it.
    """
    for begin in (earlier, _EMPTY_THINKING.sub("", earlier)):
        if later.startswith(begin):
            return len(begin)
    return None


def _rewrites(earlier: str, later: str) -> ChatTemplateUnusable:
    """Return the error of a prompt that does not begin with an earlier one."""
    opened = next((tags[0] for tags in THINKING if earlier.rstrip().endswith(tags[0])), None)
    if opened is not None:
        return _removes_thinking(
            f"a turn begins behind {opened}, and later prompts have no {opened}"
        )
    return _unusable(
        "renders earlier turns in another way when answers of tools follow, so that a later prompt "
        f"does not begin with the tokens of an earlier one: got {later[-200:]!r} behind "
        f"{earlier[-100:]!r}"
    )


def _removes_thinking(what: str) -> ChatTemplateUnusable:
    return ChatTemplateUnusable(
        "the chat template removes the model's thinking from earlier turns, so that a later prompt "
        f"does not begin with the tokens that were sampled: {what}; put a chat_template.jinja that "
        "keeps thinking in turns with calls into the model's folder, or switch thinking off by "
        "chatTemplateArguments if the model has such an argument"
    )


def _unusable(what: str) -> ChatTemplateUnusable:
    return ChatTemplateUnusable(f"the chat template {what}; {_DO}")
