"""Plans of older versions, as JSON objects, upgraded: runs that have ended keep theirs."""

from __future__ import annotations

from typing import Any

from rlhf_api.spec.resources import Device

# Tokens of a block of the key-value cache by device, which version 2 does not say.
KV_BLOCK_TOKENS_2 = {Device.CPU.value: 32, Device.GPU.value: 16}


def upgraded_from_2(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan of version 2 in version 3.

    Version 2 lacks `passesAhead`, which was 0 for a step that repeats calls and else 1, and each
    generation's `kvBlockTokens`, which followed from the device. Anything else that is wrong with
    the plan stays, and is refused when its fields are read.
    """
    try:
        device = plan["pools"][0]["device"]
        repeats = plan["inputs"].get("Step", {}).get("promptBatches", 1) > 1
        block = {"kvBlockTokens": KV_BLOCK_TOKENS_2[device]}
        generations = [block | generation for generation in plan["generations"]]
    except (KeyError, IndexError, TypeError, AttributeError):
        return plan
    return plan | {"version": 3, "passesAhead": 0 if repeats else 1, "generations": generations}
