"""What engines are made with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rlhf_api.plan import Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_planner.plan import make_plan
from rlhf_runtime.engines.megatron import engine as megatron
from rlhf_runtime.roles import engines
from rlhf_runtime.roles.context import RoleContext

from .small_batch import make_job

POOL = Pool(
    name="local",
    device=Device.CPU,
    nodes=1,
    devices_per_node=1,
    memory_bytes_per_device=64 << 30,
)


def context_of(job: RLHFJob, plan: Plan) -> RoleContext:
    anything = cast(Any, object())
    return RoleContext(
        job=job,
        plan=plan,
        role="actor",
        folder=Path("model"),
        world=anything,
        mesh=anything,
        sync_group=None,
        incarnation="one",
        faults=anything,
    )


@pytest.mark.parametrize("engine", ["FSDP", "Megatron"])
@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("recomputes", [True, False])
def test_the_plan_says_what_is_recomputed(
    monkeypatch: pytest.MonkeyPatch, engine: str, asked: bool | None, recomputes: bool
) -> None:
    """Not the manifest, which leaves it to the plan or has been changed since."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(engines, "FsdpEngine", lambda *_, **given: made.append(given))
    monkeypatch.setattr(megatron, "MegatronEngine", lambda *_, **given: made.append(given))
    training = {"engine": engine} | ({} if asked is None else {"activationRecompute": asked})
    models = {"actor": {"source": {"builtin": "TinyLlama"}, "training": training}}
    job = make_job(Path("model"), models=models)
    _, plan = make_plan(job, (POOL,))
    roles = tuple(
        role.model_copy(update={"recomputes": recomputes}) if role.role == "actor" else role
        for role in plan.roles
    )
    context = context_of(job, plan.model_copy(update={"roles": roles}))
    engines.make_engine(replace(context, excluded_tokens=(range(3, 9),)))
    assert [given["recompute"] for given in made] == [recomputes]
    assert [given["excluded_tokens"] for given in made] == [(range(3, 9),)]
