"""The sorting task as the baselines see it: token ids, prompts, rewards. Plain Python.

The baselines must not need our runtime's data path, yet see the very same prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.data.character_tokenizer import EOS_TOKEN, TOKENS

END = TOKENS.index(EOS_TOKEN)
IGNORED = -100
"""A label that does not count in cross entropy."""

_IDS = {token: number for number, token in enumerate(TOKENS)}


def encode(text: str) -> list[int]:
    """Token ids of a text, one per character."""
    return [_IDS[character] for character in text]


def decode(tokens: Sequence[int]) -> str:
    """The text of token ids; the end token and what follows are left out."""
    kept = tokens[: tokens.index(END)] if END in tokens else tokens
    return "".join(TOKENS[token] for token in kept)


def exact_match(response: str, answer: str) -> float:
    """1 for the right answer, else 0."""
    return float(response.strip() == answer)


def digit_share(response: str, answer: str) -> float:
    """The share of digits among a response's characters: a signal for responses of any length."""
    return sum(character.isdigit() for character in response) / max(1, len(response))
