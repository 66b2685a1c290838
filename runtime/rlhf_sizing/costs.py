"""What a sequence costs, with its prompt shared by several responses or without.

Per layer a token costs about 24 h^2 operations of its own, h the hidden size, and 4 h for every
token it is compared with: under a mask all of the sequence, in plain causal order the earlier half.
Each of these takes c times as long under a mask.

How much of a language model's logits exists at once in training and inference.

Numerics cut by these numbers, and plans count with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlhf_api.spec.resources import Device

MASKED_COST: Mapping[Device, float] = {Device.CPU: 1.0, Device.GPU: 2.0}
"""c. CPUs have one kernel for both. On GPUs a mask rules out flash attention, and torch takes its
memory-efficient kernel, of which half the pace is assumed: it was not measured."""


class SequenceCost(NamedTuple):
    """Costs in tokens of which nothing but the token itself is computed: 24 h^2 operations."""

    hidden_size: int
    masked_cost: float = 1.0
    """c, of the device."""

    def alone(self, tokens: float) -> float:
        """Of a prompt and one response: l + l^2 / (12 h)."""
        return tokens + tokens**2 / (12 * self.hidden_size)

    def shared(self, tokens: float) -> float:
        """Of a prompt and several responses: l + c l^2 / (6 h)."""
        return tokens + self.masked_cost * tokens**2 / (6 * self.hidden_size)


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
