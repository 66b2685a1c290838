"""Stop texts are found as in the decoded response, however its text is cut into tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rlhf_runtime.data.stop_texts import StopTexts

from .small_tokenizers import TOKENIZERS


def byte_fallback() -> Tokenizer:
    """Llama 2's kind: characters, bytes of others, and a space that the decoder removes."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁ab12<>\n", "▁a", "ab"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [("▁", "a"), ("a", "b")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            *(decoders.Replace("▁", " "), decoders.ByteFallback()),
            *(decoders.Fuse(), decoders.Strip(" ", 1, 0)),
        ]
    )
    return tokenizer


KINDS = {name: make for name, (make, _) in TOKENIZERS.items()} | {"byte fallback": byte_fallback}
MADE = {name: make() for name, make in KINDS.items()}
STOPS = ["ab", "\n\n", "1", " a", "><", "é", "<end>", "a\n1"]
TEXTS = st.text(alphabet="ab12\n<>é ", max_size=20)


def expected_end(
    tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str]
) -> tuple[int, bool] | None:
    """The token with which the complete decoded text first contains a stop text; true if the text
    goes on behind it."""
    for number in range(len(tokens)):
        text = tokenizer.decode(list(tokens[: number + 1]), skip_special_tokens=False)
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        if ends:
            return number, min(ends) < len(text)
    return None


def found_end(
    tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str], num_given: int = 0
) -> tuple[int, bool] | None:
    search = StopTexts(tokenizer, stops).search(tokens[:num_given])
    for number in range(num_given, len(tokens)):
        if search.add(tokens[number]):
            return number, search.goes_beyond
    return None


@pytest.mark.parametrize("name", list(MADE))
@given(data=st.data())
def test_a_response_ends_where_its_text_first_has_a_stop_text(
    name: str, data: st.DataObject
) -> None:
    tokenizer = MADE[name]
    stops = data.draw(st.lists(st.sampled_from(STOPS), min_size=1, max_size=8))
    # Texts that models write, and tokens that no text has: single bytes of characters.
    ids = st.integers(0, tokenizer.get_vocab_size() - 1)
    sampled = data.draw(st.lists(ids, max_size=12))
    written = tokenizer.encode(data.draw(TEXTS), add_special_tokens=False).ids
    tokens = data.draw(st.permutations([*sampled, *written])) if sampled else written
    end = expected_end(tokenizer, tokens, stops)
    assert found_end(tokenizer, tokens, stops) == end
    # Wherever another engine goes on with the response.
    num_given = data.draw(st.integers(0, len(tokens) if end is None else end[0]))
    assert found_end(tokenizer, tokens, stops, num_given) == end


def test_a_token_may_go_beyond_the_stop_text() -> None:
    tokenizer = MADE["bytes"]
    a, ab, line, lines = map(tokenizer.token_to_id, ("a", "ab", "Ċ", "ĊĊ"))
    assert found_end(tokenizer, [a, line, lines], ["\n"]) == (1, False)
    assert found_end(tokenizer, [a, lines], ["\n"]) == (1, True)
    assert found_end(tokenizer, [ab, lines], ["b\n"]) == (1, True)
    assert found_end(tokenizer, [a, a, ab], ["aab", "b"]) == (2, False)
