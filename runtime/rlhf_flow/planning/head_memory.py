"""How much of a language model's logits exists at once in training and inference.

Numerics cut by these numbers, and plans count with them.
"""

from __future__ import annotations

from rlhf_api.spec.resources import Device

BLOCK_ELEMENTS = {Device.CPU: 1 << 18, Device.GPU: 1 << 25}
"""Logits of one block. CPU: measured. GPU: 128 MiB of float32."""
MIN_BLOCK_WIDTH = 1024
"""Tokens of the vocabulary in a block at least: narrower products of matrices waste the device."""
BYTES_PER_LOGIT = 12
"""Of a block: logits, scaled logits and probabilities in float32; with bfloat16 the latter two in
float32, and logits that are kept, or else their gradient, in bfloat16."""


def block_width(device: Device, num_tokens: int) -> int:
    """Tokens of the vocabulary in a block, where so many tokens are predicted."""
    return max(MIN_BLOCK_WIDTH, BLOCK_ELEMENTS[device] // max(1, num_tokens))


def block_bytes(device: Device, num_tokens: int, vocab_size: int) -> int:
    """At most, of what exists of the logits at once, where up to so many tokens are predicted."""
    block = max(BLOCK_ELEMENTS[device], num_tokens * MIN_BLOCK_WIDTH)
    return min(num_tokens * vocab_size, block) * BYTES_PER_LOGIT
