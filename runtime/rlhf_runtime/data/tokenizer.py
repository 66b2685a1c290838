"""Converts texts to token ids and back, with the tokenizer of a Hugging Face model folder.

Reads tokenizer.json with the `tokenizers` library.
"""

# Not transformers.AutoTokenizer: it would import torch, which costs seconds and hundreds of
# megabytes in processes that only handle text.

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from rlhf_runtime.data.chat import ChatTemplate
from rlhf_runtime.data.errors import ChatTemplateUnusable, TokenizerUnusable
from rlhf_runtime.data.stop_texts import StopTexts
from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.unreadable_files import unreadable_as

NUM_IDS = 1 << 32
"""Ids that the library accepts: it refuses larger ones."""
# Maps of further special tokens by names, as transformers 5 and earlier versions write them.
_TOKEN_MAPS = ("extra_special_tokens", "model_specific_special_tokens")


class TextTokenizer:
    """The tokenizer of a model folder.

    end_token_ids: tokens that end a response: the tokenizer's end token first, then those that
        generation_config.json and config.json name (chat models often have one more), then
        `template_end` and further ones.
    template_end: the special token that the chat template writes behind an answer, if none of these
        files names it (base models often have a chat template); else None.
    missing_end_tokens: end tokens that generation_config.json and config.json name and the
        tokenizer does not have.
    begin_token_id: the tokenizer's begin-of-text token; None without one.
    pad_token_id: the tokenizer's padding token, or its end token if it has none.
    """

    def __init__(self, folder: Path, further_ends: Sequence[str] = ()) -> None:
        """Load tokenizer.json and its companion files.

        Args:
            folder: of the model.
            further_ends: texts of further tokens that end a response.

        Raises:
            TokenizerUnusable: tokenizer.json is missing or invalid, there is no end token, or a
                further one is not one token.
            ChatTemplateUnusable: the chat template does not compile.
        """
        self.folder = folder
        self._tokenizer = _load(folder)
        # tokenizer.json may enable both.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        settings = _read_object(folder / "tokenizer_config.json")
        # Older tokenizers have their special tokens in a file of their own.
        special_tokens = _special_tokens(_read_object(folder / "special_tokens_map.json"))
        special_tokens |= _special_tokens(settings)
        ids = {name: self._tokenizer.token_to_id(text) for name, text in special_tokens.items()}
        self._own_end: int | None = ids.get("eos_token")
        self.begin_token_id: int | None = ids.get("bos_token")
        template, for_tools = _template_texts(folder, settings)
        self.chat_template = None if template is None else ChatTemplate(template, special_tokens)
        self._tool_template = None if for_tools is None else ChatTemplate(for_tools, special_tokens)
        listed = self._listed_ends()
        self.missing_end_tokens = [token for token in listed if not self._has(token)]
        self.end_token_ids = self._end_tokens([token for token in listed if self._has(token)])
        closing = self._closing_token()
        self.template_end = None if closing in self.end_token_ids else closing
        if self.template_end is not None:
            self.end_token_ids = (*self.end_token_ids, self.template_end)
        # Without those of the manifest, which may be ordinary words.
        self._model_ends = self.end_token_ids
        further = map(self._single_token, further_ends)
        self.end_token_ids = tuple(dict.fromkeys((*self.end_token_ids, *further)))
        pad_token_id = ids.get("pad_token")
        self.pad_token_id: int = self.end_token_ids[0] if pad_token_id is None else pad_token_id

    @property
    def tool_template(self) -> ChatTemplate | None:
        """The chat template for models with tools: one of its own, or that of all prompts."""
        return self._tool_template or self.chat_template

    @property
    def num_tokens(self) -> int:
        """Number of tokens, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token_id(self) -> int:
        """The end token of reference answers."""
        return self.end_token_ids[0]

    @property
    def ordinary_end_tokens(self) -> list[int]:
        """End tokens that only the model's files name, and that are words like others here."""
        special = {*self._tokenizer.get_added_tokens_decoder(), self._own_end}
        return [token for token in self._model_ends if token not in special]

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Column:
        """Tokenize texts into a packed int32 column.

        add_special_tokens: whether the tokenizer adds its own, such as a beginning-of-text token;
            False for texts of a chat template, which contain them. An end token is never added.
        """
        encodings = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return pack([self._without_added_end(encoding) for encoding in encodings], np.int32)

    def character_spans(self, text: str) -> list[range]:
        """Return the characters of a text that each of its tokens stands for."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [range(*span) for span in encoding.offsets]

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def end_texts(self) -> list[str]:
        """The texts of the end tokens, in the order of `end_token_ids`."""
        return [self.text_of([end]) for end in self.end_token_ids]

    def special_texts(self) -> list[str]:
        """The texts of all special tokens, the end tokens of the model's files included."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        texts = [token.content for token in added if token.special]
        return list(dict.fromkeys(texts + [self.text_of([end]) for end in self._model_ends]))

    def _without_added_end(self, encoding: Encoding) -> list[int]:
        ids: list[int] = encoding.ids
        # Some tokenizers close every text. A prompt must stay open, and answers are closed later.
        added = encoding.special_tokens_mask
        while ids and added[len(ids) - 1] and ids[-1] in self.end_token_ids:
            ids = ids[:-1]
        return ids

    def decode(self, responses: Column) -> list[str]:
        """Return the text of each response, without its last end token.

        responses: a packed column of token ids.
        """
        # Other special tokens stay visible: without them a wrong response could look correct.
        rows = [run.tolist() for run in responses.runs()]
        # A truncated response has no end token to drop.
        rows = [row[:-1] if row and row[-1] in self.end_token_ids else row for row in rows]
        return self._tokenizer.decode_batch(rows, skip_special_tokens=False)

    def stop_texts(self, texts: Sequence[str]) -> StopTexts | None:
        """Return the search for texts that end a response. None: there are no texts."""
        return StopTexts(self._tokenizer, texts) if texts else None

    def _single_token(self, text: str) -> int:
        """Return the token of an end token's text.

        Raises:
            TokenizerUnusable: the text is not one token.
        """
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(tokens) == 1 and self.text_of(tokens) == text:
            return int(tokens[0])
        raise TokenizerUnusable(
            f"rollout.endTokens has a text that is not one token: got {text!r}, which is "
            f"{len(tokens)} tokens for {self.folder}, allowed the text of one token; write it into "
            "rollout.stop, or correct it"
        ).at("spec", "rollout", "endTokens")

    def _has(self, token: int) -> bool:
        # Not by the number of tokens: ids may have gaps.
        return 0 <= token < NUM_IDS and self._tokenizer.id_to_token(token) is not None

    def _listed_ends(self) -> list[int]:
        """Return the end tokens that files of the model name."""
        listed: list[int] = []
        for name in ("generation_config.json", "config.json"):
            ends = _read_object(self.folder / name).get("eos_token_id")
            listed += [
                end for end in (ends if isinstance(ends, list) else [ends]) if type(end) is int
            ]
        return list(dict.fromkeys(listed))

    def _closing_token(self) -> int | None:
        """Return the special token that the chat template writes behind an answer."""
        tail = "" if self.chat_template is None else self.chat_template.text_behind_answer()
        matches = [
            (len(added.content), token)
            for token, added in self._tokenizer.get_added_tokens_decoder().items()
            if added.special and added.content and tail.lstrip().startswith(added.content)
        ]
        return max(matches)[1] if matches else None

    def _end_tokens(self, listed: Sequence[int]) -> tuple[int, ...]:
        # The tokenizer's own end token first: it closes reference answers.
        ids = [token for token in (self._own_end, *listed) if token is not None]
        if not ids:
            raise TokenizerUnusable(
                f"no end token, so responses would never end: got {self.folder} without eos_token "
                "in tokenizer_config.json and eos_token_id in generation_config.json; add one"
            )
        return tuple(dict.fromkeys(ids))


def ends_with_template(folder: Path) -> list[int]:
    """Return the end tokens of a model folder if its chat template adds one; else an empty list,
    also without a usable tokenizer."""
    try:
        tokenizer = TextTokenizer(folder)
    except (TokenizerUnusable, ChatTemplateUnusable):
        return []
    return [] if tokenizer.template_end is None else list(tokenizer.end_token_ids)


def _load(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        present = ", ".join(sorted(path.name for path in folder.glob("*"))[:12]) or "nothing"
        raise TokenizerUnusable(
            f"no tokenizer.json in the model's folder: got {folder} with {present}; convert the "
            "tokenizer once: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise TokenizerUnusable(
            f"tokenizer.json cannot be read: got {file}: {error}; save the tokenizer again"
        ) from error


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return special tokens by name; their values are texts or objects with `content`."""
    named = {name: value for name, value in settings.items() if name.endswith("_token")}
    for name in _TOKEN_MAPS:
        # Some files have a list instead, of tokens without names.
        if isinstance(entries := settings.get(name), dict):
            named |= entries
    tokens = {}
    for name, value in named.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _template_texts(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the default chat template and one for prompts with tools: files of their own, or
    entries of tokenizer_config.json."""
    entry = settings.get("chat_template")
    named: dict[Any, Any] = {"default": entry}
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
    files = {
        "default": folder / "chat_template.jinja",
        "tool_use": folder / "additional_chat_templates" / "tool_use.jinja",
    }
    # The user's own default template is one for all prompts.
    if files["default"].is_file():
        named = {}
    named |= {name: _read_text(file) for name, file in files.items() if file.is_file()}
    default, for_tools = (named.get(name) for name in files)
    return (
        default if isinstance(default, str) else None,
        for_tools if isinstance(for_tools, str) else None,
    )


def _read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object; empty without the file."""
    if not file.is_file():
        return {}
    text = _read_text(file)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise TokenizerUnusable(f"not valid JSON: got {file}: {error}; correct the file") from error
    if not isinstance(value, dict):
        raise TokenizerUnusable(
            f"not a JSON object: got {type(value).__name__} in {file}; correct the file"
        )
    return value


def _read_text(file: Path) -> str:
    """Read a file of the tokenizer's folder.

    Raises:
        TokenizerUnusable: the file cannot be read, or is not UTF-8.
    """
    with unreadable_as(TokenizerUnusable, "a file of the tokenizer", file):
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerUnusable(
                f"not UTF-8 text: got {file}: {error}; save the tokenizer again"
            ) from error
