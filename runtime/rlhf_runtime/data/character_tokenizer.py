"""The character tokenizer of the builtin models: 64 tokens, one per character.

Every id has its own text, so that two responses with the same text have the same tokens.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"
UNK_TOKEN = "<unk>"
_PUNCTUATION = " =+-*/<>()[].,:;!?'\"#%$_\n"
# All tokens, in the order of their ids. Sorting digits needs digits, the equals sign and the end
# token; the others serve tasks of your own.
TOKENS = (PAD_TOKEN, EOS_TOKEN, UNK_TOKEN, *string.digits, *string.ascii_lowercase, *_PUNCTUATION)


def build_tokenizer() -> Tokenizer:
    """Build a tokenizer that splits a text into characters; those outside TOKENS become <unk>."""
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    # Joins tokens without the spaces that a word tokenizer would insert.
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD_TOKEN, EOS_TOKEN, UNK_TOKEN])
    return tokenizer


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer to a folder in Hugging Face format, from which AutoTokenizer loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "pad_token": PAD_TOKEN,
        "eos_token": EOS_TOKEN,
        "unk_token": UNK_TOKEN,
        "padding_side": "left",
    }
    text = json.dumps(settings, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
