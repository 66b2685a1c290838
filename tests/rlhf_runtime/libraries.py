"""Imported once, in the process that ranks of these tests are forked from: all their libraries."""

from __future__ import annotations

import gc
import os
from importlib import import_module

from rlhf_api.spec.resources import Device
from rlhf_planner.problem.devices import gpu_memory_bytes
from rlhf_runtime.workers.libraries import import_libraries

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
# vLLM has one build for CPUs and one for GPUs: a machine with GPUs has the second.
import_libraries(Device.GPU if gpu_memory_bytes() else Device.CPU)
for module in (
    # Ranks import these only where a job needs them. Here dozens of ranks would, for seconds each.
    "rlhf_planner.plan",
    "rlhf_runtime.engines.fsdp.engine",
    "rlhf_runtime.engines.megatron.engine",
    f"{__package__}.engines.megatron_models",
    f"{__package__}.engines.tiny_models",
):
    import_module(module)
gc.collect()
gc.freeze()  # the collector's marks would copy the pages that ranks share
