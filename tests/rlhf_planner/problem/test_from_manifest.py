"""What is planned of a manifest: its numbers, and that nothing else of it is looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rlhf_planner
from rlhf_api.plan import ModelHead
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Offload, Precision, TrainingEngineType
from rlhf_api.spec.resources import Device
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_planner.plan import plan_job, plan_problem, resolve_shapes
from rlhf_planner.problem.devices import GIB
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.problem import ConversationWorkload, FixedStrategy, PlanningProblem

from ..pools import pool_of

TINY = {"source": {"builtin": "TinyLlama"}}
CPUS = pool_of("local", Device.CPU, 1, 4, 4 * GIB)
GPUS = pool_of("pool", Device.GPU, 2, 8, 80 * GIB)

READERS_OF_MANIFESTS = {
    *("plan.py", "problem/from_manifest.py", "problem/model_shapes.py"),
    *("advice/advice.py", "advice/changes.py"),
}
"""What makes plans of jobs, advises to change them, or fills in what plans need."""


def asked(made: RLHFJob, pool: Any = CPUS) -> PlanningProblem:
    graphs = trace_job(made, pool.device)
    return problem_of(made, graphs, (pool,), resolve_shapes(made, graphs))


def test_a_manifest_is_read_in_few_places() -> None:
    folder = Path(rlhf_planner.__file__).parent
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    readers = {name for name, file in files.items() if "RLHFJob" in file.read_text()}
    assert readers == READERS_OF_MANIFESTS


def test_models_are_those_of_roles_with_what_the_manifest_decides(job: Any) -> None:
    critic = {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 2}}
    critic |= {"distributedOptimizer": False, "offload": "Never", "microBatchTokens": 500}
    found = asked(
        job(
            algorithm={"type": "PPO", "ppo": {"klCoefficient": 0.1}},
            models={
                "actor": TINY | {"training": {"activationRecompute": False}},
                "critic": {"source": {"sameAs": "actor"}, "training": critic},
            },
        ),
        GPUS,
    )
    assert list(found.models) == ["actor", "reference", "critic"] and found.policy == "actor"
    actor, reference, critics = found.models.values()
    kept, cut = FixedStrategy(recompute=False), FixedStrategy(2, 2, 500, offload=Offload.NEVER)
    assert (actor.fixed, reference.fixed, critics.fixed) == (kept, kept, cut)
    assert cut.num_ranks == 4
    assert [each.trained_as for each in found.models.values()] == ["actor", "actor", "critic"]
    assert {each.origin for each in found.models.values()} == {"actor"}
    assert (reference.head, critics.head) == (ModelHead.LM, ModelHead.SCALAR)
    assert (reference.num_parameters, critics.num_parameters) == (541_312, 533_248)
    assert (actor.engine, critics.engine) == (TrainingEngineType.FSDP, TrainingEngineType.MEGATRON)
    assert (actor.distributed_optimizer, critics.distributed_optimizer) == (True, False)
    uses = [(each.is_trained, each.generates, each.is_saved) for each in found.models.values()]
    assert uses == [(True, True, True), (False, False, False), (True, False, True)]
    assert all(each.precision is Precision.BFLOAT16 for each in found.models.values())


def test_a_warm_started_policys_weights_are_saved_wherever_they_are(job: Any) -> None:
    made = job(
        algorithm={"type": "GRPO", "grpo": {"klCoefficient": 0.1}},
        data={"train": {"builtin": "SortDigits"}},
        schedule={"steps": 10, "promptsPerStep": 16, "warmStart": {"maxSteps": 2}},
    )
    found = asked(made)
    assert found.models["reference"].is_saved and found.fixed.saves_while_training


@pytest.mark.parametrize(
    ("warm_start", "pretraining", "rows"),
    [(None, None, 0), (None, 40, 40), (100, 40, 100), (100, 400, 400), (100, None, 100)],
)
def test_other_rows_are_those_of_the_largest_batch_beside_the_steps(
    job: Any, warm_start: int | None, pretraining: int | None, rows: int
) -> None:
    data: dict[str, Any] = {"train": {"builtin": "SortDigits"}}
    schedule: dict[str, Any] = {"steps": 10, "promptsPerStep": 16, "miniBatchPrompts": 5}
    algorithm: dict[str, Any] = {"type": "SafeRLHF"}
    if warm_start is not None:
        schedule["warmStart"] = {"maxSteps": 2, "promptsPerStep": warm_start}
    if pretraining is not None:
        data["pretraining"] = {"builtin": "SortDigits", "rowsPerStep": pretraining}
        algorithm["safeRLHF"] = {"pretrainingWeight": 0.1}
    rewards = [
        {"name": role, "role": role, "function": {"entrypoint": "verifiers:exact"}}
        for role in ("reward", "cost")
    ]
    made = job(algorithm=algorithm, data=data, schedule=schedule, rewards=rewards)
    workload = asked(made).workload
    assert (workload.prompts_per_step, workload.other_rows) == (16, rows)
    assert (workload.max_sequence_tokens, workload.updates_per_epoch) == (32 + 32, 4)


def test_rows_that_a_loss_compares_are_together(job: Any) -> None:
    pairs = {"train": {"builtin": "SortDigits", "preferences": {}}}
    made = job(algorithm={"type": "DPO"}, data=pairs, rewards=[])
    compared, alone = asked(made).models["actor"], asked(job()).models["actor"]
    assert (alone.rows_per_prompt, alone.rows_together) == (4, 1)
    assert (compared.rows_per_prompt, compared.rows_together) == (2, 2)


def test_roles_that_compute_sampled_log_probs_read_the_kept_tokens(job: Any) -> None:
    sections: dict[str, Any] = {"algorithm": {"type": "PPO", "ppo": {"klCoefficient": 0.1}}}
    made = [job(**sections), job(**sections)]
    rollout = made[1].spec.rollout.model_copy(update={"top_p": 0.9})
    spec = made[1].spec.model_copy(update={"rollout": rollout})
    plain, truncated = (
        {role: facts.reads_kept_tokens for role, facts in asked(one).models.items()}
        for one in (made[0], made[1].model_copy(update={"spec": spec}))
    )
    assert not any(plain.values())
    assert truncated == {"actor": True, "reference": True, "critic": False}


def test_only_devices_that_may_be_taken_are_planned_for(job: Any) -> None:
    found = asked(job(placement={"maxDevices": 4}), GPUS)
    assert [(pool.nodes, pool.devices_per_node) for pool in found.pools] == [(1, 4)]


def test_a_problem_can_be_changed_as_a_manifest_can(job: Any) -> None:
    """The same plan follows from a decision in either; each is one that the plan would not make."""
    rollout = {"samplesPerPrompt": 4, "maxPromptTokens": 32, "maxResponseTokens": 32}
    rollout |= {"kvCacheMemory": "64Mi", "parallelism": {"tensor": 2}}
    model = TINY | {"training": {"microBatchTokens": 100, "offload": "Always"}}
    told = job(rollout=rollout, models={"actor": model}, failurePolicy={"standby": False})
    free = asked(job())
    actor = free.models["actor"]
    strategy = replace(actor.fixed, micro_batch_tokens=100, offload=Offload.ALWAYS)
    changed = replace(
        free,
        models={"actor": replace(actor, fixed=strategy)},
        fixed=replace(
            free.fixed,
            engine_tensor=2,
            kv_cache_bytes=64 * 2**20,
            kv_cache_memory="64Mi",
            standby=False,
        ),
    )
    assert plan_problem(changed) == plan_problem(asked(told)) != plan_problem(free)


def test_advice_is_given_where_there_is_a_manifest(job: Any) -> None:
    """What does not fit says the same sum; a problem has nothing that could be advised."""
    made, small = job(), pool_of("local", Device.CPU, 1, 1, GIB // 2)
    graphs = trace_job(made, Device.CPU)
    shapes = resolve_shapes(made, graphs)
    with pytest.raises(DoesNotFit) as of_problem:
        plan_problem(problem_of(made, graphs, (small,), shapes))
    with pytest.raises(DoesNotFit) as of_job:
        plan_job(made, graphs, (small,), shapes)
    text, advised = str(of_problem.value), str(of_job.value)
    assert advised.startswith(f"{text}\n") and "this would do:" in advised
    assert "would do" not in text


@pytest.mark.parametrize(
    ("field", "may_fuse"),
    [
        ({"samplesPerPrompt": 2}, True),
        ({"samplesPerPrompt": 2, "environment": {"tools": ["a:b"]}}, False),
        (
            {"samplesPerPrompt": 2, "minValidSamples": 2, "onStop": {"TokenLimit": "LeaveOut"}},
            False,
        ),
    ],
)
def test_responses_that_stay_on_their_engine_fuse_no_stages(
    job: Any, field: dict[str, Any], may_fuse: bool
) -> None:
    fusion = asked(job(rollout=field)).fixed.stage_fusion
    assert (fusion is not StageFusionType.NEVER) is may_fuse


def test_conversations_have_half_of_their_limits_unless_the_manifest_expects_others(
    job: Any,
) -> None:
    environment: dict[str, Any] = {"tools": ["a:b"], "limits": {"turns": 4, "answerTokens": 100}}
    rollout: dict[str, Any] = {"samplesPerPrompt": 2, "maxResponseTokens": 1000}

    def conversations(**fields: Any) -> ConversationWorkload | None:
        made = job(rollout=rollout | {"environment": environment | fields})
        return asked(made).workload.conversations

    # Answers of 50 tokens after 1.5 of 2.5 turns, in a response of 500.
    usual = ConversationWorkload(
        turns=2.5,
        max_turns=4,
        sampled_share=0.85,
        tool_seconds=0.0,
        delay_steps=16,
        concurrency=256,
    )
    assert conversations() == usual
    assert conversations(order="Fastest") == replace(usual, delay_steps=None)
    longer = {"limits": {"turns": 4, "answerTokens": 1000}}
    assert conversations(**longer) == replace(usual, sampled_share=0.5)
    expected = {"expectedTurns": 2, "expectedToolSeconds": 1.5, "expectedSampled": 0.7}
    assert conversations(**expected, concurrency=8, delaySteps=4) == ConversationWorkload(
        turns=2.0, max_turns=4, sampled_share=0.7, tool_seconds=1.5, delay_steps=4, concurrency=8
    )
    assert asked(job(rollout=rollout)).workload.conversations is None
