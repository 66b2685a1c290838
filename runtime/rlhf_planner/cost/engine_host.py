"""Time of the host for a step of a generation engine, by version of vLLM.

While the host schedules a step, prepares its inputs and processes its tokens, the device waits. A
step with a sequences takes

    s + a r     seconds, beside the work of the device

s is alike for all versions: it rests on steps of a few sequences, whose work on the device is known
best (Qwen3-8B and Qwen3-0.6B on H100, Llama-3.1-8B on A100; benchmarks/readings.toml). r is the
slope of Python's work for each sequence:

    0.5    the device idles 5 to 13 ms (vllm-project/vllm, issue 6854): the upper end for 256
    0.6    5 to 6 ms at 256 sequences (issue 10634, on Llama-2-7B)
    V1     4 ms at 256: between what generation by this runtime takes on an H200 (3.5 ms, version
           0.26) and what steps of NeMo RL 0.4 take (more); issue 10634 expected 2 to 3 ms of it

From 0.11 on vLLM can schedule a step while the last one computes (pull request 19970). That needs
an engine in a process of its own; here it is in the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class HostSeconds(NamedTuple):
    """Seconds of the host for a step."""

    step: float
    """s: whatever the number of sequences."""
    sequence: float
    """r: for each sequence."""


STEP_SECONDS = 1.5e-3
V1 = HostSeconds(STEP_SECONDS, 1e-5)
"""vLLM from 0.8 on."""
BY_VERSION: Mapping[str, HostSeconds] = {
    "0.5": HostSeconds(STEP_SECONDS, 4.5e-5),
    "0.6": HostSeconds(STEP_SECONDS, 1.6e-5),
}
"""Older versions, to compare with what others published."""


def host_seconds_of(version: str) -> HostSeconds:
    """Seconds of a version, such as 0.6."""
    return BY_VERSION.get(version, V1)
