"""Cuts of tool answers that are too long."""

from __future__ import annotations

from rlhf_api.spec.conversation import ConversationLimits, CutSide
from rlhf_runtime.data.tokenizer import TextTokenizer


class AnswerCutter:
    """Shortens answers to a number of tokens."""

    def __init__(self, tokenizer: TextTokenizer, limits: ConversationLimits) -> None:
        self._tokenizer = tokenizer
        self._limit, self._side = limits.answer_tokens, limits.answer_cut

    def cut(self, answer: str) -> str:
        """Return an answer of at most the limit's tokens.

        Args:
            answer: of a tool.
        """
        # A token has one byte at least in all tokenizers.
        if len(answer) <= self._limit and answer.isascii():
            return answer
        spans = self._tokenizer.character_spans(answer)
        if len(spans) <= self._limit:
            return answer
        num_first, num_last = {
            CutSide.END: (self._limit, 0),
            CutSide.START: (0, self._limit),
            CutSide.MIDDLE: (self._limit - self._limit // 2, self._limit // 2),
        }[self._side]
        # Tokens of a part of the text may differ at the cut, by one or two.
        first = answer[: spans[num_first - 1].stop] if num_first else ""
        last = answer[spans[-num_last].start :] if num_last else ""
        return first + last
