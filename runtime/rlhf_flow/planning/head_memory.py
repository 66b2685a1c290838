"""How much of a language model's logits exists at once in training and inference.

Numerics cut by these numbers, and plans count with them.
"""

from __future__ import annotations

BLOCK_ELEMENTS: dict[str, int] = {"cpu": 1 << 18, "cuda": 1 << 25}
"""Logits of one block, by torch's device type. CPU: measured. GPU: 128 MiB of float32."""
MIN_BLOCK_WIDTH = 1024
"""Tokens of the vocabulary in a block at least: narrower products of matrices waste the device."""


def block_elements(device_type: str) -> int:
    """Logits of one block on a kind of device."""
    return BLOCK_ELEMENTS[device_type]


def widest_block(device_type: str, num_tokens: int, vocab_size: int) -> int:
    """Logits that exist at once, of so many tokens that are predicted."""
    width = max(MIN_BLOCK_WIDTH, block_elements(device_type) // max(1, num_tokens))
    return num_tokens * min(vocab_size, width)
