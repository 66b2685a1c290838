"""Cost of a sequence, with or without a shared prompt, and blocks of the logits.

Per layer a token costs 2 n operations of its own, n the weights of the layer's matrices, and 4 q
for every token in its attention, q the width of all queries: under a mask all of the sequence, in
plain causal order the earlier half. Each of these takes c times as long under a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rlhf_api.spec.resources import Device

# c. CPUs have one kernel for both. On GPUs a mask rules out flash attention, and torch uses its
# memory-efficient kernel, of which half the speed is assumed: it was not measured.
MASKED_COST: Mapping[Device, float] = {Device.CPU: 1.0, Device.GPU: 2.0}


class SequenceCost(NamedTuple):
    """Costs in units of a token without attention: 2 n operations."""

    width: float
    """w of the model, of `attention_width`."""
    masked_cost: float = 1.0
    """c of the device."""

    def alone(self, tokens: float) -> float:
        """Cost of a prompt and one response: l + l^2 / (12 w)."""
        return tokens + tokens**2 / (12 * self.width)

    def shared(self, tokens: float) -> float:
        """Cost of a prompt and several responses: l + c l^2 / (6 w)."""
        return tokens + self.masked_cost * tokens**2 / (6 * self.width)


def attention_width(
    hidden_size: int, intermediate_size: int, query_size: int, key_value_size: int
) -> float:
    """The width w = n / (12 q) of a model: the hidden size h, if a layer has 12 h^2 weights.

    Args:
        hidden_size: of the model.
        intermediate_size: of its gated feed-forward layers.
        query_size: width of all queries.
        key_value_size: width of all keys, or of all values.
    """
    attention = 2 * hidden_size * (query_size + key_value_size)
    return (attention + 3 * hidden_size * intermediate_size) / (12 * query_size)


# Logits of one block. CPU: measured. GPU: 128 MiB of float32.
BLOCK_ELEMENTS = {Device.CPU: 1 << 18, Device.GPU: 1 << 25}
# Smallest number of vocabulary tokens in a block: narrower products of matrices waste the device.
MIN_BLOCK_WIDTH = 1024
# Bytes per logit of a block: logits, scaled logits and probabilities in float32; with bfloat16 the
# latter two in float32, and kept logits, or else their gradient, in bfloat16.
BYTES_PER_LOGIT = 12


def block_width(device: Device, num_tokens: int) -> int:
    """Vocabulary tokens in a block, by the number of predicted tokens."""
    return max(MIN_BLOCK_WIDTH, BLOCK_ELEMENTS[device] // max(1, num_tokens))


def block_bytes(device: Device, num_tokens: int, vocab_size: int) -> int:
    """Upper bound of the bytes of logits at once, for up to a number of predicted tokens."""
    # At the minimum width many tokens exceed the usual size of a block.
    block = max(BLOCK_ELEMENTS[device], num_tokens * MIN_BLOCK_WIDTH)
    return min(num_tokens * vocab_size, block) * BYTES_PER_LOGIT
