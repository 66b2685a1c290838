"""Tokenizers that join characters, trained on the spot, with chat templates that end answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

LINES = (
    "{% for m in messages %}{{ '<begin>' + m.role + '\n' + m.content + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<begin>assistant\n' }}{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<begin>[a] ' + m.content + ' [b]' }}"
    "{% else %}{{ ' ' + m.content + ' <end>' }}{% endif %}{% endfor %}"
)
TEXTS = ["\n\n", "a b 12 ab\nab 1 2", "user\nassistant\n", "[a] ab [b] 12", "\n\n\n1", "<>é ab<>"]


def _bytes(splits: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _spaces(scheme: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
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


def write_trained_tokenizer(name: str, folder: Path) -> None:
    """Write a tokenizer of `TOKENIZERS` with its template."""
    make, template = TOKENIZERS[name]
    tokenizer = make()
    alphabet = (
        pre_tokenizers.ByteLevel.alphabet() if name.startswith("bytes") else list("ab12\n<>é[]▁")
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=alphabet,
        special_tokens=["<begin>", "<end>"],
        min_frequency=1,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<begin>", "<end>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    (folder / "chat_template.jinja").write_text(template)
