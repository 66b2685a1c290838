"""Roles that take over weights: saved and counted; refused where models or devices differ."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_api.plan_memory import MemoryUse
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import NotOffered
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB

from ..pools import pool_of

CPUS = (pool_of("local", Device.CPU, 1, 2, 8 * GIB),)
TINY = {"source": {"builtin": "TinyLlama"}}


def plan_of(job: Any, every: int | None, **sections: Any) -> Plan:
    online = {"type": "OnlineDPO", "onlineDPO": {"referenceEverySteps": every}}
    return make_plan(job(algorithm=online, **sections), CPUS)[1]


@pytest.mark.parametrize("every", [None, 3])
def test_a_role_that_takes_over_weights_is_in_checkpoints_without_moments(
    job: Any, every: int | None
) -> None:
    made = plan_of(job, every)
    reference = made.role("reference")
    assert reference is not None and not reference.is_trained
    assert reference.is_saved == (every is not None)
    (memory,) = made.memory
    copies = {i.role: i.bytes for i in memory.items if i.what is MemoryUse.CHECKPOINT}
    weights = next(i.bytes for i in memory.items if i.what is MemoryUse.WEIGHTS)
    assert copies.get("reference") == (weights if every else None)
    assert copies["actor"] == 3 * weights, "Adam's moments too"


def test_a_copy_runs_on_the_ranks_of_both(job: Any) -> None:
    planned = plan_of(job, 3).call(GraphName.STEP, "every-3/reference.copy_weights_from")
    assert planned is not None and planned.kind is CallKind.COPY
    assert planned.mesh == Mesh(pool="local", data=2)
    assert planned.expected_count == pytest.approx(1 / 3)


def test_models_of_other_shapes_are_not_copied(job: Any) -> None:
    models = {"actor": TINY, "reference": {"source": {"huggingFace": "Qwen/Qwen2.5-0.5B"}}}
    with pytest.raises(NotOffered, match=r"between models of other shapes.*sameAs: actor\}"):
        plan_of(job, 3, models=models)
    plan_of(job, None, models=models)


def test_weights_are_not_copied_between_devices(job: Any) -> None:
    groups = [{"roles": [role], "devices": 1} for role in ("actor", "reference")]
    groups[1]["firstDevice"] = 1
    placement = {"type": "Manual", "groups": groups}
    with pytest.raises(NotOffered, match="actor on device 0 .* and reference on device 1 .*same"):
        plan_of(job, 3, placement=placement)
    plan_of(job, None, placement=placement)
