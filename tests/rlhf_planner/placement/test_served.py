"""Models that the generation engine has no kernel for are refused by the plan."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB

from ..pools import pool_of

DPO = {"type": "DPO", "dpo": {}}


def models(head: int) -> dict[str, Any]:
    shape = {"numLayers": 2, "hiddenSize": 64, "intermediateSize": 64, "numAttentionHeads": 4}
    shape |= {"numKeyValueHeads": 2, "headDim": head, "vocabSize": 64}
    return {"actor": {"source": {"path": "/nowhere"}, "shape": shape}}


def plan(job: Any, device: Device = Device.CPU) -> None:
    make_plan(job, [pool_of("local", device, 1, 1, 8 * GIB)])


@pytest.mark.parametrize("head", [8, 16, 100, 384])
def test_heads_of_another_size_are_refused_on_cpus(job: Any, head: int) -> None:
    with pytest.raises(NotOffered, match=f"got heads of {head}, allowed 32, 48, 64, .*, 512; "):
        plan(job(models=models(head)))
    plan(job(models=models(head)), Device.GPU)


@pytest.mark.parametrize("head", [32, 48, 512])
def test_heads_with_a_kernel_are_taken(job: Any, head: int) -> None:
    plan(job(models=models(head)))


def test_a_model_that_only_trains_may_have_any_heads(job: Any) -> None:
    pairs = {"train": {"builtin": "SortDigits", "preferences": {}}}
    plan(job(algorithm=DPO, models=models(16), data=pairs, rewards=[]))
