"""Imported once, in the process that ranks of these tests are forked from: all their libraries."""

from __future__ import annotations

import gc
import os

from rlhf_api.spec.resources import Device
from rlhf_runtime.workers.libraries import import_libraries

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
import_libraries(Device.CPU)
gc.collect()
gc.freeze()  # the collector's marks would copy the pages that ranks share
