"""Reads vocabularies, and compares those of roles that exchange token ids.

Responses travel between roles as token ids. A role with another vocabulary would read other words,
or ids without an embedding, and no error would follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlhf_api.spec.rewards import ModelReward, RewardTokenizer
from rlhf_runtime.models.errors import ModelIncomplete, VocabularyMismatch
from rlhf_runtime.models.folder import CONFIG_FILE, read_object

TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a model folder.

    size: rows of the embedding, from config.json.
    num_tokens: one more than the highest token id of the tokenizer; None without tokenizer.json.
    digest: SHA-256 over all tokens and their ids; None without tokenizer.json.
    """

    size: int
    num_tokens: int | None
    digest: str | None


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read config.json and, if it exists, tokenizer.json.

    Raises:
        ModelIncomplete: no config.json, or one without vocab_size; a tokenizer.json without
            vocabulary.
    """
    size = num_embedding_rows(folder)
    tokens = _tokens(folder)
    if tokens is None:
        return Vocabulary(size, None, None)
    # By content, not by file: the same vocabulary may be serialized in several ways.
    text = "\n".join(f"{index} {token!r}" for token, index in sorted(tokens.items()))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return Vocabulary(size, max(tokens.values(), default=-1) + 1, digest)


def tokens_without_text(folder: Path) -> tuple[range, ...]:
    """Token ids of a model that its tokenizer does not have, ascending; none without
    tokenizer.json.

    Embeddings often have more rows than the tokenizer has tokens, and some tokenizers leave ids
    out.

    Raises:
        ModelIncomplete: no config.json, or one without vocab_size; a tokenizer.json without
            vocabulary.
    """
    size, tokens = num_embedding_rows(folder), _tokens(folder)
    if tokens is None:
        return ()
    ids = [-1, *sorted(index for index in tokens.values() if index < size), size]
    return tuple(range(one + 1, other) for one, other in pairwise(ids) if other - one > 1)


def check_vocabularies(
    folders: Mapping[str, Path], rewards: Mapping[str, ModelReward] = MappingProxyType({})
) -> None:
    """Check that roles with shared token ids have equal vocabularies.

    folders: each role's model folder. A folder without tokenizer.json is compared by size only.
    rewards: the models of rewards, by role; one with its own tokenizer is not compared.

    Raises:
        VocabularyMismatch: names two roles that differ, with both sizes, or a role whose tokenizer
            has ids without an embedding in its model.
        ModelIncomplete: a folder without usable config.json.
    """
    # Several roles often have one folder: each is read once.
    by_folder = {path: read_vocabulary(path) for path in dict.fromkeys(folders.values())}
    roles = {role: by_folder[path] for role, path in folders.items()}
    for role, vocabulary in roles.items():
        # Fewer tokens than rows are usual: embeddings are often padded.
        if vocabulary.num_tokens is not None and vocabulary.num_tokens > vocabulary.size:
            raise VocabularyMismatch(
                f"the tokenizer of {role} has more tokens than its model: got "
                f"{vocabulary.num_tokens} tokens for vocab_size {vocabulary.size} in "
                f"{folders[role]}; use the tokenizer that belongs to the model"
            )
    # A reward model with its own tokenizer reads text, not token ids.
    own = {role for role, model in rewards.items() if model.tokenizer is RewardTokenizer.OWN}
    for first, other in combinations(sorted(set(roles) - own, key=list(roles).index), 2):
        do = "choose models of one family"
        if not rewards.keys().isdisjoint((first, other)):
            do += ", or write tokenizer: Own for the reward model"
        _require_same(first, roles[first], other, roles[other], do)


def _require_same(first: str, left: Vocabulary, other: str, right: Vocabulary, do: str) -> None:
    if left.size != right.size:
        raise VocabularyMismatch(
            f"{first} and {other} read the same token ids but have vocabularies of different size: "
            f"got vocab_size {left.size} for {first} and {right.size} for {other}, allowed equal "
            f"sizes; {do}"
        )
    if None not in (left.digest, right.digest) and left.digest != right.digest:
        raise VocabularyMismatch(
            f"{first} and {other} read the same token ids but mean different words by them: got "
            f"{left.num_tokens} and {right.num_tokens} tokens (vocab_size {left.size} and "
            f"{right.size}) that are not the same, allowed equal tokenizers; {do}"
        )


def num_embedding_rows(folder: Path) -> int:
    """Return the rows of a model's embedding.

    Raises:
        ModelIncomplete: no config.json, or one without vocab_size.
    """
    config = read_object(folder / CONFIG_FILE)
    text_config = config.get("text_config") or config  # multimodal models nest it
    size = text_config.get("vocab_size")
    if not isinstance(size, int):
        raise ModelIncomplete(f"{CONFIG_FILE} has no vocab_size: got {folder}; copy it again")
    return size


def _tokens(folder: Path) -> dict[str, int] | None:
    """Every token and its id, added ones included; None without tokenizer.json."""
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        return None
    try:
        tokens = _listed_tokens(read_object(file))
    except (AttributeError, KeyError, TypeError, ValueError):
        tokens = {}
    # Without any token, all ids would have probability 0.
    if not tokens or not all(isinstance(index, int) for index in tokens.values()):
        raise ModelIncomplete(f"{TOKENIZER_FILE} has no vocabulary: got {file}; copy it again")
    return tokens


def _listed_tokens(content: Mapping[str, Any]) -> dict[str, int]:
    """Tokens of a tokenizer.json; another form of file raises any of Python's errors of values."""
    listed = content["model"]["vocab"]
    if isinstance(listed, list):
        # Unigram models list tokens with their log-probabilities, in the order of their ids.
        tokens = {token: index for index, (token, _) in enumerate(listed)}
    else:
        tokens = dict(listed)
    tokens.update({added["content"]: added["id"] for added in content.get("added_tokens") or ()})
    return tokens
