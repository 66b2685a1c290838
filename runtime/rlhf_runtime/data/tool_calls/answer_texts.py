"""Texts of tools' answers, as a model may read them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf_runtime.data.tokenizer import TextTokenizer


class AnswerTexts:
    """Makes answers of tools harmless for a tokenizer: a tool must not end its own message."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._special = _any_of(tokenizer.special_texts())

    def harmless(self, answer: str) -> str:
        """Return an answer whose texts of special tokens are broken by a blank, `< /s>`.

        Half of a surrogate pair becomes a question mark.
        """
        text = answer.encode(errors="replace").decode()
        return self._special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of texts of two characters or more; longer ones first."""
    longest_first = sorted((text for text in texts if len(text) > 1), key=len, reverse=True)
    # Without such texts nothing matches.
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
