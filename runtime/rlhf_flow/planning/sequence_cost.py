"""What a sequence costs, with its prompt shared by several responses or without.

Per layer a token costs about 24 h^2 operations of its own, h the hidden size, and 4 h for every
token it is compared with: under a mask all of the sequence, in plain causal order the earlier half.
Each of these takes c times as long under a mask.
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
