"""What interleaved training pipelines would save: against the time model, and by hand."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.plan_estimate import PipelineFusion
from rlhf_planner.cost.hardware import HARDWARE
from rlhf_planner.cost.plan import models_of_plan
from rlhf_planner.evaluate import evaluate, with_estimate
from rlhf_planner.memory.megatron import activation_bytes, micro_batch_bytes
from rlhf_planner.pipelines.plan_fusions import MAX_MICRO_BATCHES, pipeline_fusions

from ..planned_jobs import Planned, gpus, large, planned

H100 = {"a": HARDWARE["H100"]}


def cut(tensor: int, pipeline: int, engine: str = "Megatron", **more: Any) -> dict[str, Any]:
    parallelism = {"tensor": tensor, "pipeline": pipeline} if engine == "Megatron" else {}
    training = {"engine": engine, "parallelism": parallelism, **more}
    return {"source": {"huggingFace": "Qwen/Qwen2.5-7B"}, "training": training}


def ppo(job: Any, actor: dict[str, Any], critic: dict[str, Any], **sections: Any) -> Planned:
    return planned(
        job(
            **large(
                algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.05}},
                models={"actor": actor, "critic": critic},
                placement={"type": "Colocated"},
                **sections,
            )
        ),
        gpus(),
    )


def fusions(found: Planned) -> tuple[PipelineFusion, ...]:
    return pipeline_fusions(found.problem, found.plan, H100)


def test_two_pipelines_on_the_same_stages_fill_each_others_bubbles(job: Any) -> None:
    found = ppo(job, cut(2, 4), cut(2, 4))
    (each,) = fusions(found)
    assert each.calls == ("critic.train", "actor.train")
    assert each.bound_seconds <= each.fused_seconds < each.serial_seconds
    assert 0 <= each.bubble_share < each.serial_bubble_share < 1
    calls = evaluate(*found, H100).calls
    pipelines = sum(
        call.total - call.optimizer - call.transfer - call.data_communication
        for call in (calls["critic.train"], calls["actor.train"])
    )
    # The time model takes the slowest stage for all; ends have more to do than what lies between.
    assert each.serial_seconds == pytest.approx(pipelines, rel=0.1)
    assert each.serial_seconds <= pipelines
    bubbles = sum(call.bubble for call in (calls["critic.train"], calls["actor.train"]))
    assert each.saved_seconds <= bubbles


def test_more_updates_save_as_often(job: Any) -> None:
    schedule = {"steps": 10, "promptsPerStep": 128, "miniBatchPrompts": 32}
    (once,) = fusions(ppo(job, cut(2, 4), cut(2, 4), schedule=schedule | {"miniBatchPrompts": 128}))
    (often,) = fusions(ppo(job, cut(2, 4), cut(2, 4), schedule=schedule))
    assert often.saved_seconds > 2 * once.saved_seconds


def test_stages_of_different_numbers_are_fused_in_blocks(job: Any) -> None:
    (each,) = fusions(ppo(job, cut(1, 4), cut(1, 2)))
    assert each.bound_seconds <= each.fused_seconds <= each.serial_seconds


@pytest.mark.parametrize(
    ("actor", "critic"),
    [
        (cut(2, 4), cut(4, 2)),
        (cut(2, 4), cut(2, 1)),
        (cut(2, 4), cut(2, 4, "FSDP")),
    ],
)
def test_other_pairs_cannot_be_interleaved(
    job: Any, actor: dict[str, Any], critic: dict[str, Any]
) -> None:
    """Tensor ranks of other sizes, one stage, no stages."""
    assert fusions(ppo(job, actor, critic)) == ()


def test_the_plan_tells_it_and_does_not_contain_it(job: Any) -> None:
    found = ppo(job, cut(2, 4), cut(2, 4))
    plan = with_estimate(found.problem, found.plan)
    assert plan.estimate is not None and plan.calls == found.plan.calls
    assert plan.estimate.pipeline_fusions == fusions(found)
    simple = ppo(job, cut(2, 4), cut(2, 4, "FSDP"))
    assert simple.plan.estimate is not None and simple.plan.estimate.pipeline_fusions == ()


def test_a_micro_batch_keeps_its_share_of_what_stages_hold(job: Any) -> None:
    """The last stage has one under way, the first as many as there are stages."""
    for recompute in (False, True):
        actor = cut(2, 4, activationRecompute=recompute)
        found = ppo(job, actor, cut(2, 4))
        model = models_of_plan(*found)["actor"]
        held = activation_bytes(model, 0) - activation_bytes(model, 3)
        assert held == 3 * micro_batch_bytes(model)
    assert MAX_MICRO_BATCHES >= 4
