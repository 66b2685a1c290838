"""Tokenizers that join characters, with chat templates that end answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from rlhf_runtime.data.character_tokenizer import build_tokenizer, write_tokenizer

LINES = (
    "{% for m in messages %}{{ '<begin>' + m.role + '\n' + m.content + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<begin>assistant\n' }}{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<begin>[a] ' + m.content + ' [b]' }}"
    "{% else %}{{ ' ' + m.content + ' <end>' }}{% endif %}{% endfor %}"
)
SPECIAL = ("<begin>", "<end>")


def _joining(alphabet: Sequence[str], *pairs: str) -> Tokenizer:
    """A tokenizer of characters that joins pairs of tokens, each written with a blank between."""
    merges = [(pair.split(" ")[0], pair.split(" ")[1]) for pair in pairs]
    tokens = dict.fromkeys([*SPECIAL, *sorted(alphabet), *("".join(pair) for pair in merges)])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer


def _bytes(splits: bool) -> Tokenizer:
    # A line break is Ċ in this alphabet, a blank Ġ.
    pairs = ("Ċ Ċ", "a b", "1 2", "Ċ ab", "Ġ ab", "Ġ 1", "> <")
    tokenizer = _joining(pre_tokenizers.ByteLevel.alphabet(), *pairs)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _spaces(scheme: str) -> Tokenizer:
    pairs = ("▁ a", "▁ [", "1 2", "▁ 12", "a b", "> <")
    tokenizer = _joining("▁ab12\n<>é[]", *pairs)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


TOKENIZERS: dict[str, tuple[Callable[[], Tokenizer], str]] = {
    "bytes": (lambda: _bytes(splits=True), LINES),
    "bytes in brackets": (lambda: _bytes(splits=True), BRACKETS),
    "bytes across words": (lambda: _bytes(splits=False), LINES),
    "a space before every part": (lambda: _spaces("always"), BRACKETS),
    "a space before the first part": (lambda: _spaces("first"), BRACKETS),
}
"""How a tokenizer is made, and its template."""
SEPARATING = sorted(TOKENIZERS.keys() - {"bytes across words"})
"""Those that join no character of an answer with what its template writes before it."""


def write_joining_tokenizer(name: str, folder: Path) -> None:
    """Write a tokenizer of `TOKENIZERS` with its template."""
    make, template = TOKENIZERS[name]
    make().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "chat_template.jinja").write_text(template)


TURNS = (
    "{% for m in messages %}{{ '<begin>' + m.role[0] + '_' + m.content + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<begin>a_' }}{% endif %}"
)
"""Ends turns as base models of Qwen do: with a token that no file lists as an end."""
END = 65
"""The id of `<end>`."""


def write_base_tokenizer(folder: Path, template: str = TURNS) -> None:
    """Write the character tokenizer with the special tokens `<begin>` and `<end>`, and the ordinary
    one `<word>`."""
    write_tokenizer(folder)
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens(["<word>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
