"""The tasks of the baselines: sorting by token ids, prompts and rewards; sums. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.data.character_tokenizer import EOS_TOKEN, TOKENS

# Baselines get the same prompts and tokens as ours, without our data path.
END = TOKENS.index(EOS_TOKEN)
SUMS_INSTRUCTION = "Answer with a number only."
"""System prompt of the sums of `make demo-real`."""
IGNORED = -100
"""Label that cross entropy ignores: torch's default."""

_IDS = {token: number for number, token in enumerate(TOKENS)}


def encode(text: str) -> list[int]:
    """Token ids of a text, one per character."""
    return [_IDS[character] for character in text]


def decode(tokens: Sequence[int]) -> str:
    """Text of token ids before the end token."""
    response = tokens[: tokens.index(END)] if END in tokens else tokens
    return "".join(TOKENS[token] for token in response)


def exact_match(response: str, answer: str) -> float:
    """Return 1 for the right answer, else 0."""
    return float(response.strip() == answer)


def digit_share(response: str, answer: str) -> float:
    """Share of digits among a response's characters."""
    # A reward signal at any length: nearly all long responses would fail an exact match.
    return sum(character.isdigit() for character in response) / max(1, len(response))
