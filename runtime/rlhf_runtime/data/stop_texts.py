"""Finds the texts that end a response, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

# The replacement character: bytes that are no character, or not yet one.
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class StopTexts:
    """The texts that end a response, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
        """Search for one text or more."""
        self.tokenizer, self.texts = tokenizer, tuple(texts)
        self.num_tail_characters = max(map(len, texts)) - 1

    def search(self, tokens: Sequence[int] = ()) -> StopSearch:
        """Start a search in a response.

        Args:
            tokens: of the response so far; they contain no stop text.
        """
        search = StopSearch(self)
        for token in tokens:
            search.add(token)
        return search


class StopSearch:
    """The search in one response.

    The response ends with the first token after which its decoded text contains a stop text.
    """

    def __init__(self, stop: StopTexts) -> None:
        """Start before the first token."""
        self._stop = stop
        # The last tokens. Those before `_num_decoded` are complete text: the tokenizer needs them
        # to decode the next ones as in the complete response.
        self._tokens: list[int] = []
        self._num_decoded = 0
        # The end of the text of all complete tokens.
        self._tail = ""
        self.goes_beyond = False
        """True if the last added token goes beyond the stop text."""

    def add(self, token: int) -> bool:
        """Add the next token; return true if the text contains a stop text now."""
        self._tokens.append(token)
        new = self._new_text()
        text = self._tail + new
        starts = {stop: text.find(stop) for stop in self._stop.texts}
        ends = [start + len(stop) for stop, start in starts.items() if start >= 0]
        if ends:
            self.goes_beyond = min(ends) < len(text)
            return True
        # Later tokens may complete the character.
        if not new.endswith(INCOMPLETE):
            self._tail = text[max(0, len(text) - self._stop.num_tail_characters) :]
            self._tokens = self._tokens[self._num_decoded :]
            self._num_decoded = len(self._tokens)
        return False

    def _new_text(self) -> str:
        """Return the text of the tokens that are not decoded yet."""
        decode = self._stop.tokenizer.decode
        # A token may decode to other text at the start of a sequence: others come before it.
        before = decode(self._tokens[: self._num_decoded], skip_special_tokens=False)
        return decode(self._tokens, skip_special_tokens=False)[len(before) :]
