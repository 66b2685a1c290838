"""Jobs that fit beside others on the one real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
START_SECONDS = 900
"""From an apply, or the loss of a pod, to the next step: on busy cores Ray alone takes minutes, and
a head that exceeds Ray's own limits of time is started again."""
LITTLE = {"cpu": "200m", "memory": "3Gi"}
"""Of what the node gives out, which is used all the same: the README's job runs meanwhile."""


def small_pool(name: str, memory: str) -> dict[str, Any]:
    """A node pool of one rank, as examples/one-machine has it, but for the CPUs."""
    return {
        "name": name,
        "device": "CPU",
        "devicesPerNode": 1,
        "memoryPerDevice": memory,
        "resources": {"cpu": "200m", "memory": memory},
    }


def small_example(file: str, *pools: dict[str, Any]) -> dict[str, Any]:
    """An example on small node pools, with a small head."""
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / file).read_text())
    job["spec"]["resources"] = {"head": LITTLE, "nodePools": list(pools)}
    return job
