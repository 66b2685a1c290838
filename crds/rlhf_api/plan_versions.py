"""Upgrades of stored plans, as JSON objects. Runs that have ended keep the version they were made
with."""

from __future__ import annotations

from typing import Any

from rlhf_api.spec.resources import Device

# Tokens of a block of the key-value cache by device, which version 2 does not say.
KV_BLOCK_TOKENS_2 = {Device.CPU.value: 32, Device.GPU.value: 16}


def upgrade_from_version_2(plan: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a plan of version 2 to version 3.

    Version 2 lacks `passesAhead`, which was 0 for a step that repeats calls and otherwise 1, and
    each generation's `kvBlockTokens`, which followed from the device.
    """
    try:
        device = plan["pools"][0]["device"]
        repeats = plan["inputs"].get("Step", {}).get("promptBatches", 1) > 1
        block = {"kvBlockTokens": KV_BLOCK_TOKENS_2[device]}
        generations = [block | generation for generation in plan["generations"]]
    except (KeyError, IndexError, TypeError, AttributeError):
        # Other faults stay: the models refuse them with a message.
        return plan
    return plan | {"version": 3, "passesAhead": 0 if repeats else 1, "generations": generations}
