"""Plans of version 2 are still read; other versions are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rlhf_api.plan import Plan
from rlhf_api.spec.resources import Device
from rlhf_planner.plan import make_plan

from .conftest import MakeJob
from .pools import pool_of

GIB = 2**30


def planned(job: MakeJob, device: Device, **sections: Any) -> Plan:
    _, plan = make_plan(job(**sections), (pool_of("pool", device, 1, 2, 40 * GIB),))
    return plan


def as_version_2(plan: Plan) -> dict[str, Any]:
    document = json.loads(plan.model_dump_json(by_alias=True))
    del document["passesAhead"]
    for generation in document["generations"]:
        del generation["kvBlockTokens"]
    return document | {"version": 2}


@pytest.mark.parametrize("device", Device)
@pytest.mark.parametrize("algorithm", ["GRPO", "DAPO"])
def test_a_plan_of_version_2_is_read(job: MakeJob, device: Device, algorithm: str) -> None:
    plan = planned(job, device, algorithm={"type": algorithm})
    assert plan.passes_ahead == (0 if algorithm == "DAPO" else 1)
    assert Plan.model_validate_json(json.dumps(as_version_2(plan))) == plan


@pytest.mark.parametrize(
    "damage", [{"version": 1}, {"version": 4}, {"pools": []}, {"inputs": None}, {"generations": 3}]
)
def test_other_versions_and_damaged_plans_are_refused(job: MakeJob, damage: Any) -> None:
    document = as_version_2(planned(job, Device.CPU)) | damage
    with pytest.raises(ValidationError):
        Plan.model_validate(document)


def test_a_plan_without_later_fields_is_read(job: MakeJob) -> None:
    plan = planned(job, Device.CPU)
    document = json.loads(plan.model_dump_json(by_alias=True))
    del document["estimate"]["conversations"]
    assert Plan.model_validate_json(json.dumps(document)) == plan
