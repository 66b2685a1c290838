"""What refusals advise: each piece of it, followed, is a job that can be planned."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotFit, PlanError
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.advice import advice as advice_module
from rlhf_planner.advice.advice import Advice, advice
from rlhf_planner.feasibility import check_feasible
from rlhf_planner.plan import make_plan, plan_job, resolve_shapes
from rlhf_planner.problem.devices import GPU_MEMORY_BYTES

from ...depth import examples
from ..pools import pool_of

SIZES = ("0.5B", "1.5B", "7B", "14B", "32B", "72B")
LLAMA_70B = "meta-llama/Llama-3.1-70B"


def pool(count: int, gpu: str = "H100") -> Pool:
    nodes, each = (1, count) if count <= 8 else (count // 8, 8)
    return pool_of("pool", Device.GPU, nodes, each, GPU_MEMORY_BYTES[gpu])


def asked(
    job: Any,
    model: str,
    training: dict[str, Any] | None = None,
    ppo: bool = False,
    rollout: dict[str, Any] | None = None,
    **sections: Any,
) -> RLHFJob:
    lengths = {"maxPromptTokens": 1024, "maxResponseTokens": 2048} | (rollout or {})
    models: dict[str, Any] = {
        "actor": {"source": {"huggingFace": model}, "training": training or {}}
    }
    algorithm: dict[str, Any] = {"type": "GRPO"}
    if ppo:
        models["critic"] = {"source": {"sameAs": "actor"}, "training": training or {}}
        algorithm = {"type": "PPO", "ppo": {"klCoefficient": 0.05}}
    else:
        lengths = {"samplesPerPrompt": 8} | lengths
    schedule = {"steps": 10, "promptsPerStep": 128}
    made: RLHFJob = job(
        models=models, algorithm=algorithm, rollout=lengths, schedule=schedule, **sections
    )
    return made


def refused(made: RLHFJob, *devices: Pool) -> tuple[str, list[Advice]]:
    """The refusal and the advice in it, each piece of which was followed."""
    with pytest.raises(DoesNotFit) as caught:
        make_plan(made, devices)
    graphs = trace_job(made, Device.GPU)
    shapes = resolve_shapes(made, graphs)
    found = advice(made, graphs, devices, shapes)
    for each in found:
        written = each.changed.job.model_dump(mode="json", by_alias=True)
        again = RLHFJob.model_validate(written)
        assert plan_job(again, trace_job(again, Device.GPU), each.changed.devices, shapes)
        assert "; and ".join(each.parts) in str(caught.value)
    return str(caught.value), found


def texts(found: list[Advice]) -> list[str]:
    return ["; and ".join(each.parts) for each in found]


@settings(max_examples=examples(10), deadline=None)
@given(
    size=st.sampled_from(SIZES),
    devices=st.builds(
        pool, st.sampled_from([1, 2, 4, 8, 16, 64]), st.sampled_from(["A100-40G", "H100"])
    ),
    ppo=st.booleans(),
    training=st.fixed_dictionaries(
        {},
        optional={
            "activationRecompute": st.booleans(),
            "microBatchTokens": st.integers(1, 200_000),
            "offload": st.sampled_from(["Auto", "Always", "Never"]),
            "engine": st.just("Megatron"),
        },
    ),
    rollout=st.fixed_dictionaries(
        {"maxResponseTokens": st.sampled_from([512, 8192, 130_048])},
        optional={
            "maxConcurrentSequences": st.sampled_from([8, 65_536]),
            "parallelism": st.just({"tensor": 1}),
            "kvCacheMemory": st.just("30Gi"),
        },
    ),
    limit=st.sampled_from([None, 1, 8]),
)
def test_every_piece_of_advice_helps(
    job: Any,
    size: str,
    devices: Pool,
    ppo: bool,
    training: dict[str, Any],
    rollout: dict[str, Any],
    limit: int | None,
) -> None:
    placement = {} if limit is None else {"placement": {"maxDevices": limit}}
    made = asked(job, f"Qwen/Qwen2.5-{size}", training, ppo, rollout, **placement)
    try:
        make_plan(made, (devices,))
    except PlanError as error:
        if not isinstance(error, DoesNotFit):
            return
        text, found = refused(made, devices)
        assert found or "nothing that was tried would do" in text
        assert len(set(texts(found))) == len(found)


def test_values_are_the_largest_that_fit(job: Any) -> None:
    """One more is too much: of tokens, of lengths, of devices and of their memory."""
    training = {"activationRecompute": False, "microBatchTokens": 16384}
    _, found = refused(asked(job, "Qwen/Qwen2.5-7B", training), pool(8))
    (tokens,) = (int(number) for number in re.findall(r"at most (\d+)", "\n".join(texts(found))))
    more = training | {"microBatchTokens": tokens + 1}
    with pytest.raises(DoesNotFit):
        make_plan(asked(job, "Qwen/Qwen2.5-7B", more), (pool(8),))

    _, found = refused(asked(job, LLAMA_70B, rollout={"maxResponseTokens": 32768}), pool(64))
    (length,) = (int(number) for number in re.findall(r"at most (\d+)", "\n".join(texts(found))))
    with pytest.raises(DoesNotFit):
        make_plan(asked(job, LLAMA_70B, rollout={"maxResponseTokens": length + 1}), (pool(64),))

    text, _ = refused(asked(job, LLAMA_70B), pool(8))
    assert "- take 24 devices (3 nodes of 8)" in text
    with pytest.raises(DoesNotFit):
        make_plan(asked(job, LLAMA_70B), (pool(16),))
    assert make_plan(asked(job, LLAMA_70B), (pool(24),))


def test_what_would_not_help_is_not_advised(job: Any) -> None:
    """Where the longest sequence alone is too much for a rank, no number of devices is enough."""
    text, _ = refused(asked(job, LLAMA_70B, rollout={"maxResponseTokens": 130_048}), pool(64))
    assert not re.search(r"- take \d+ devices", text)
    assert "- lower rollout.maxResponseTokens to at most" in text
    assert "- set engine of models.actor.training to Megatron" in text


@pytest.mark.parametrize(
    ("training", "advised"),
    [
        ({"activationRecompute": True, "microBatchTokens": 1024}, False),
        ({"activationRecompute": False, "microBatchTokens": 16384}, True),
        ({"activationRecompute": True, "microBatchTokens": 400_000}, False),
    ],
)
def test_what_is_set_already_is_not_advised(
    job: Any, training: dict[str, Any], advised: bool
) -> None:
    devices = pool(1 if training["microBatchTokens"] == 1024 else 8)
    text, _ = refused(asked(job, "Qwen/Qwen2.5-7B", training), devices)
    assert ("models.actor.training.activationRecompute" in text) == advised
    assert ("models.actor.training.microBatchTokens" in text) == (devices.num_devices == 8)


def test_what_must_be_changed_of_several_roles_is_told_together(job: Any) -> None:
    training = {"activationRecompute": False, "microBatchTokens": 400_000, "offload": "Never"}
    text, _ = refused(asked(job, "Qwen/Qwen2.5-7B", training, ppo=True), pool(8))
    names = "models.actor.training.microBatchTokens, models.critic.training.microBatchTokens"
    assert f"- lower {names} to at most" in text
    assert (
        "- leave out models.actor.training.activationRecompute; and leave out "
        "models.critic.training.activationRecompute" in text
    )


def test_gpus_that_nobody_makes_are_not_advised(job: Any) -> None:
    """The 70B on one device needs more than a TiB; on eight, what a B200 has."""
    _, alone = refused(asked(job, LLAMA_70B), pool(1))
    assert alone and not any("devices with at least" in text for text in texts(alone))
    _, eight = refused(asked(job, LLAMA_70B), pool(8))
    assert any(
        re.fullmatch(r"take devices with at least \d+ GiB \(B200\)", t) for t in texts(eight)
    )


def test_two_changes_are_told_where_none_alone_is_enough(job: Any) -> None:
    one = asked(job, LLAMA_70B, placement={"maxDevices": 1})
    text, _ = refused(one, pool(8))
    assert "- leave out placement.maxDevices; and take 24 devices (3 nodes of 8)" in text
    cut = {"engine": "Megatron", "parallelism": {"tensor": 4}}
    text, _ = refused(asked(job, LLAMA_70B, cut), pool(8))
    assert re.search(r"- set parallelism of .* \{tensor: 8, .*; and take \d+ devices", text), text


def test_pools_that_are_all_too_small_are_to_grow_together(job: Any) -> None:
    groups = [{"roles": ["actor", "reference"], "pool": "a"}, {"roles": ["critic"], "pool": "b"}]
    made = asked(job, "Qwen/Qwen2.5-32B", ppo=True, placement={"type": "Manual", "groups": groups})
    two = [pool(2).model_copy(update={"name": name}) for name in "ab"]
    text, _ = refused(made, *two)
    assert re.search(r"- take \d+ devices in pool a .*; and take \d+ devices in pool b", text), text


def test_a_refusal_tries_few_plans(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the largest jobs a few hundred, each of about a millisecond: the operator waits for it."""
    tried = []

    def counting(*arguments: Any) -> Any:
        tried.append(arguments)
        return check_feasible(*arguments)

    monkeypatch.setattr(advice_module, "check_feasible", counting)
    made = asked(job, LLAMA_70B, ppo=True, rollout={"maxResponseTokens": 130_048})
    with pytest.raises(DoesNotFit):
        make_plan(made, (pool(64),))
    assert 0 < len(tried) < 300


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_an_engine_without_masters_is_advised_without_what_follows_from_them(
    job: Any, kl: float
) -> None:
    """With a KL term there is a reference, too, of which the manifest says nothing."""
    training = {"engine": "Megatron", "offload": "Derived"}
    source = {"huggingFace": "meta-llama/Llama-3.1-8B"}
    made = job(
        models={"actor": {"source": source, "training": training}},
        algorithm={"type": "GRPO", "grpo": {"klCoefficient": kl}},
        rollout={"maxPromptTokens": 1024, "maxResponseTokens": 1024, "samplesPerPrompt": 8},
        schedule={"steps": 10, "promptsPerStep": 128},
    )
    text, _ = refused(made, pool(4))
    assert "to FSDP, without parallelism and offload: Derived" in text
