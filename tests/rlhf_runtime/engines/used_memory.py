"""Memory in use on a device, for tests of what gives memory back."""

from __future__ import annotations

import torch

from rlhf_runtime.workers.process import resident_bytes


def used_bytes(device: torch.device) -> int:
    """Bytes in use on a GPU, by all processes; on a CPU those of this process."""
    if device.type == "cpu":
        return resident_bytes()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what torch's allocator keeps is not in use
    free, total = torch.cuda.mem_get_info(device)
    return total - free
